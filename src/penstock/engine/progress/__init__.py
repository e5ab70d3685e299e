"""What a batch reports of the graph's nodes: rows, late rows, time, state. Lanes need `meter` alone."""

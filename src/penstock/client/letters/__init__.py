"""Dead letters as work to be done."""

"""What sinks write to: a module for each kind, and the contract that they all keep (`contract`)."""

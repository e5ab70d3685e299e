"""Tables of other systems that follow topics."""

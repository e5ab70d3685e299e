"""What a batch reads of an aggregate's state to say how the view changes."""

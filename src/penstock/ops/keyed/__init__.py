"""Operators that keep rows, or a state, for each key."""

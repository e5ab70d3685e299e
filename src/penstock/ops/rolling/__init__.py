"""Aggregates over ranges of a group's rows in the order of time: sliding windows, windows of so many rows."""

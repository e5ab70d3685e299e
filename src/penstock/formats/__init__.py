"""Formats of records: rows to columns and back."""

"""Joins: of streams within an interval, of tables, of a stream with a table."""

"""Sketches as values of columns: theta sketches, their hash, and functions over them in DuckDB."""

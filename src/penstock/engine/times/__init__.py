"""Event times that are computed of rows, and those that are probably read in the wrong unit."""

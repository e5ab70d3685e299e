"""Joins, sessions and late rows, end to end on topics: cases, and the program that runs one on Penstock."""

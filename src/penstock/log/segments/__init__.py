"""Segments: files of record batches, their indexes, and whether they are what they were."""

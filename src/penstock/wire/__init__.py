"""Kafka's bytes, without I/O: record batches to columns and back, compression, messages."""

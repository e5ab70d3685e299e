"""What a driver does beside its batches."""

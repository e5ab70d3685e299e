"""What a driver does next to its batches."""

"""Files: the seam to the file system, and small files that are written whole or not at all."""

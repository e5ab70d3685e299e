"""Tables of files: Iceberg, Delta, and Parquet in directories."""

"""Topics as Iceberg tables, and the log beyond them."""

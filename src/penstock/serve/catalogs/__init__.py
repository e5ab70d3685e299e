"""What PostgreSQL says of tables, said of views: `catalog` its catalogs, `types` its types."""

"""What PostgreSQL says about tables, for views: `catalog` its catalogs, `types` its types."""

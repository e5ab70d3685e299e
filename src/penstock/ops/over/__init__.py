"""Window functions of SQL, computed where something changed."""

"""What people write: names of types and constraints in SQL, and where in a text a mistake is."""

"""Groups of the binary log: statements in them, and records until it is known that they count."""

"""TPC-H: its data, its refresh functions, and its queries as views."""

"""Rules of rewriting: each takes a query to one that says the same in fewer forms, and what it stands for."""

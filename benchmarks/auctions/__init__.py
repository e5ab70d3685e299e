"""Nexmark: its events, its queries in Python and SQL, and the topics that they read."""

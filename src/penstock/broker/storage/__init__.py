"""The data directory: its topics, their settings, and what keeps it in order."""

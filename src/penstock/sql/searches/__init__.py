"""Stored searches in SQL: `matches(…)` as a condition of a join."""

"""Transactions: what producers have begun, and how it ends."""

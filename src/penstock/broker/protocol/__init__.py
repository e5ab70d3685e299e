"""Connections and requests: bytes from clients to those who serve them, and back."""

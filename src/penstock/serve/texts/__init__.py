"""Texts of queries: their words, the names and the parameters in them."""

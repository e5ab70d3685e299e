"""Texts to words, and patterns of words."""

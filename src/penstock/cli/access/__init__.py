"""Commands that say who may do what with a broker."""

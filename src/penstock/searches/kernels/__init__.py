"""Kernels over stored programs: they are evaluated, and moved."""

"""A broker for the tests that need no more."""

from tests.databases import log

__all__ = ["log"]

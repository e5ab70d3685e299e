"""A broker that these tests share."""

from tests.databases import log

__all__ = ["log"]  # a fixture

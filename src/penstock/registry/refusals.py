"""Confluent's error codes, each with what it says."""

from __future__ import annotations

from penstock.errors import PenstockError

__all__ = ["Refusal"]


class Refusal(PenstockError):  # noqa: N818 - what a registry does
    """A request that the registry doesn't carry out.

    Attributes:
        code: Confluent's; its first three digits are HTTP's.
        status: HTTP's.
    """

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.status = code if code < 1000 else code // 100


def no_subject(subject: str) -> Refusal:
    """There is no such subject."""
    return Refusal(40401, f"Subject '{subject}' not found.")


def no_version(version: object) -> Refusal:
    """There is no such version."""
    return Refusal(40402, f"Version {version} not found.")


def no_schema(id_: object = None) -> Refusal:
    """There is no such schema."""
    return Refusal(40403, "Schema not found" if id_ is None else f"Schema {id_} not found")

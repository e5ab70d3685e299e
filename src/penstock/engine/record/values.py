"""Reads values of a version that aren't its own: maps by partition or shard, whose keys are text in JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeVar

__all__ = ["Json", "Offsets", "Traces", "by_name", "by_number", "known"]

T = TypeVar("T")

Json: TypeAlias = dict[str, Any]
"""An object of JSON: of an operator, which alone reads it, or of a file that isn't read yet."""
Offsets: TypeAlias = Mapping[str, Mapping[int, int]]
"""By topic and partition."""
Traces: TypeAlias = Mapping[str, Mapping[int, Json]]
"""By operator and shard, what operators say about their states; each can read its own."""


def by_number(content: Mapping[str, T]) -> dict[int, T]:
    """A map by partition, or by shard."""
    return {int(number): one for number, one in content.items()}


def by_name(content: Mapping[str, Mapping[str, T]]) -> dict[str, dict[int, T]]:
    """The same of several topics, or operators."""
    return {name: by_number(of) for name, of in content.items()}


def known(content: Json | None, read: Callable[[Json], T]) -> T | None:
    """What may be absent, or null."""
    return None if content is None else read(content)

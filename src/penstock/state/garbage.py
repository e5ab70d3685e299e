"""Which files of old versions may go.

A file is kept if a kept version refers to it, or if its own version is newer than the newest kept one: then a
batch is being made and its files are not referred to yet. Everything else is of a version that is
no longer wanted, of an attempt that lost, or left from a process that died.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from penstock.state.files import StateFiles

# Runs are Arrow's, and imported where they are looked at: a version's JSON is read without them.
if TYPE_CHECKING:
    from penstock.state.runs import Piece

_NAME = re.compile(r"/(\d{12,})-[^/]*\.arrow[^/]*$")


def live(descriptions: Iterable[Mapping[Any, Any]]) -> set[str]:
    """The files that descriptions of traces refer to, however deep these lie in them."""
    return {path for description in descriptions for path in _paths(description)}


def _paths(description: Mapping[Any, Any]) -> Iterator[str]:
    if "runs" in description and "merges" in description:
        from penstock.state.runs import referenced

        yield from referenced(description)
        return
    for value in description.values():
        if isinstance(value, Mapping):
            yield from _paths(value)


def pieces(description: Mapping[Any, Any]) -> Iterator[Piece]:
    """The files that a description refers to, and what they must be, however deep these lie in it."""
    if "runs" in description and "merges" in description:
        from penstock.state.runs import Piece

        for some in (*description["runs"], *(merge["output"] for merge in description["merges"])):
            yield from map(Piece.parse, some)
        return
    for value in description.values():
        if isinstance(value, Mapping):
            yield from pieces(value)


def vacuum(
    files: StateFiles, prefix: str, kept: Iterable[Mapping[Any, Any]], newest_version: int
) -> list[str]:
    """Deletes what no kept version needs.

    Args:
        files: where.
        prefix: the directory to look in; it holds the state of these descriptions and no other.
        kept: descriptions of traces or operators' states, of every version that may still be read.
        newest_version: the newest committed version; files of newer ones are left alone.

    Returns:
        The files that were deleted.
    """
    found = garbage(files, prefix, kept, newest_version)
    for path in found:
        files.delete(path)
    return found


def garbage(
    files: StateFiles, prefix: str, kept: Iterable[Mapping[Any, Any]], newest_version: int
) -> list[str]:
    """What `vacuum` would delete."""
    needed = live(kept)
    found = []
    for path in files.list(prefix, temporary=True):
        name = _NAME.search("/" + path)
        if name is not None and path not in needed and int(name[1]) <= newest_version:
            found.append(path)
    return found

"""How large a state is, and how old: read off its description, without its files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from penstock.state.trace import ALWAYS

__all__ = ["state_size"]


def state_size(
    description: Mapping[Any, Any], seen: set[str] | None = None
) -> tuple[int, int, int | None]:
    """Rows and bytes of a state's files, and from which event time on it has rows.

    Merges in progress are left out.

    Args:
        description: of an operator's state, shard by shard.
        seen: files that are counted elsewhere, as several operators may have them; those of this state are
            added. None counts all.
    """
    seen = set() if seen is None else seen
    rows = size = 0
    oldest: list[int] = []
    for trace in _traces(description):
        first = None
        for run in trace["runs"]:
            for path, count, length, _, window, _, last, _ in run:
                if path not in seen:
                    rows += count
                    size += length
                    seen.add(path)
                if (window or last) and (first is None or window < first):
                    first = window
        if first is not None:
            oldest.append(max(first, trace["low_us"]))
    return rows, size, min((us for us in oldest if us > ALWAYS), default=None)


def _traces(description: Mapping[Any, Any]) -> Iterator[Mapping[Any, Any]]:
    if "runs" in description and "merges" in description:
        yield description
        return
    for value in description.values():
        if isinstance(value, Mapping):
            yield from _traces(value)

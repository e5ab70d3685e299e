"""Cuts an operator's state into another number of shards: each row goes to the shard of its key.

    union over shards of contents(recut(states)[shard]) = union over shards of contents(states[shard])

Rows of a key lie on one shard before and after, so shards share no identity and nothing is combined. What
each shard has whole (`Operator.everywhere`) they share. The rows of a shard that was are a run of the shard
that is to be: sorted as they were, and written once. What isn't rows (frontiers, the watermark) is the same
on all shards, or older where a shard had nothing to do: the newest counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import pyarrow as pa

from penstock.core.keys import cut, hash_columns
from penstock.errors import CorruptError
from penstock.ops.operator import Operator
from penstock.state.files import StateFiles
from penstock.state.layout import hashes
from penstock.state.runs import Piece, Run, Writer
from penstock.state.trace import Trace

__all__ = ["recut"]

CHUNK_ROWS: Final = 1 << 18  # rows: read, cut and written at once; bounds memory
Json: TypeAlias = dict[str, Any]


def recut(
    operator: Operator,
    files: StateFiles,
    descriptions: Sequence[Json],
    shards: int,
    writer: Callable[[int, str], Writer],
    columns: Sequence[str] | None = None,
) -> list[Json]:
    """The state, cut otherwise.

    Args:
        operator: whose state it is.
        files: where it is.
        descriptions: of the shards that there are, at least one.
        shards: how many there are to be.
        writer: of a shard's trace of a name.
        columns: of the state's rows, whose hash decides the shard; None: those of the operator's key.

    Returns:
        A description for each shard.

    Raises:
        CorruptError: a file of the state is not what was written.
    """
    states = [operator.open(files, one).traces for one in descriptions]
    made = {
        name: [first] * shards
        if name in operator.everywhere
        else _cut([state[name] for state in states], shards, name, writer, columns)
        for name, first in states[0].items()
    }
    return [
        _joined(descriptions, {name: traces[shard].describe() for name, traces in made.items()})
        for shard in range(shards)
    ]


def _cut(
    traces: Sequence[Trace],
    shards: int,
    name: str,
    writer: Callable[[int, str], Writer],
    columns: Sequence[str] | None,
) -> list[Trace]:
    """A trace of each shard that is to be, of those that there are."""
    first = traces[0]
    writers = [writer(shard, name) for shard in range(shards)]
    runs: list[list[Run]] = [[] for _ in range(shards)]
    for trace in traces:
        pieces: list[list[Piece]] = [[] for _ in range(shards)]
        for rows in trace.scan(chunk_rows=CHUNK_ROWS):
            for shard, part in enumerate(_parts(rows, shards, columns)):
                if len(part):
                    pieces[shard].append(writers[shard].write(part))
        for shard, some in enumerate(pieces):
            if some:
                runs[shard].append(Run(tuple(some)))
    low_us = min(trace.low_us for trace in traces)
    return [Trace(first.layout, first.files, tuple(some), (), low_us) for some in runs]


def _parts(
    rows: pa.RecordBatch, shards: int, columns: Sequence[str] | None
) -> list[pa.RecordBatch]:
    """The rows of each shard, in their order."""
    if shards == 1:  # an input on one shard is placed by columns that the rows need not have
        return [rows]
    found = hashes(rows)
    if columns is not None:
        found = hash_columns([rows.column(name) for name in columns], len(rows))
    return cut(rows, found, shards)


def _joined(descriptions: Sequence[Any], traces: Mapping[str, Json]) -> Json:
    """One description of several, with these traces."""
    found: Json = {}
    for name, value in descriptions[0].items():
        others = [one[name] for one in descriptions]
        if name in traces:
            found[name] = traces[name]
        elif isinstance(value, dict):
            found[name] = _joined(others, traces)
        else:
            found[name] = _newest(name, others)
    return found


def _newest(name: str, values: Sequence[Any]) -> Any:
    """What all shards agree in, or the newest instant that one has."""
    if all(value == values[0] for value in values):
        return values[0]
    if all(isinstance(value, int) for value in values):
        return max(values)
    if all(isinstance(value, list) and len(value) == len(values[0]) for value in values):
        return [_newest(name, some) for some in zip(*values, strict=True)]
    raise CorruptError(
        f"expected {name!r} of an operator's state to be the same on all shards; found {values!r}. Run the "
        "pipeline with --rebuild"
    )

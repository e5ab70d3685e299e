"""Cuts an operator's state into another number of shards: each row goes to the shard of its key.

    union over shards of contents(recut(states)[shard]) = union over shards of contents(states[shard])

Rows of a key lie on one shard before and after, so shards share no identity and nothing is combined. What
each shard has whole (`Traits.everywhere`) they share. The rows of a shard that was are a run of the shard
that is to be: sorted as they were, and written once. What isn't rows, the frontiers, is the same
on all shards, or older where a shard had nothing to do: the newest counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest
from typing import Any, Final, TypeAlias

import pyarrow as pa

from penstock.core.keys import cut, hash_columns
from penstock.ops.operator import Operator
from penstock.ops.state import State
from penstock.ops.windows import NO_TIME
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
    opened = [operator.open(files, one) for one in descriptions]
    states = [one.traces for one in opened]
    made = {
        name: [first] * shards
        if name in operator.traits.everywhere
        else _cut([state[name] for state in states], shards, name, writer, columns)
        for name, first in states[0].items()
    }
    frontiers_us = _newest(one.frontiers_us for one in opened)
    return [
        State({name: traces[shard] for name, traces in made.items()}, frontiers_us).describe()
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


def _newest(frontiers_us: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    """Of each port, the newest frontier that one of the shards has."""
    return tuple(max(some) for some in zip_longest(*frontiers_us, fillvalue=NO_TIME))

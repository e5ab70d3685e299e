"""All stateful operators, by kind: a pipeline's record names them, so that it is read without its program."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson

from penstock.core.names import known_names
from penstock.errors import CorruptError
from penstock.ops.aggregate import WindowedAggregate
from penstock.ops.joins.interval_join import IntervalJoin
from penstock.ops.joins.stream_table import StreamTableJoin
from penstock.ops.joins.table_join import TableJoin
from penstock.ops.joins.temporal import TemporalJoin
from penstock.ops.keyed.deduplicate import Deduplicate
from penstock.ops.keyed.paced import Paced
from penstock.ops.keyed.process import Process
from penstock.ops.keyed.query import GroupQuery
from penstock.ops.keyed.temporal_filter import TemporalFilter
from penstock.ops.keyed.top import Top
from penstock.ops.keyed.upserts import Upserts
from penstock.ops.operator import Operator
from penstock.ops.rolling.counts import CountWindows
from penstock.ops.rolling.sessions import RevisedSessions
from penstock.ops.rolling.sliding import Sliding
from penstock.ops.sessions import SessionAggregate

__all__ = ["OPERATORS", "operator_from_spec"]

OPERATORS: Final[Mapping[str, Callable[[Mapping[str, Any]], Operator]]] = {
    CountWindows.kind: CountWindows.from_spec,
    Deduplicate.kind: Deduplicate.from_spec,
    GroupQuery.kind: GroupQuery.from_spec,
    IntervalJoin.kind: IntervalJoin.from_spec,
    Paced.kind: Paced.from_spec,
    Process.kind: Process.from_spec,
    RevisedSessions.kind: RevisedSessions.from_spec,
    SessionAggregate.kind: SessionAggregate.from_spec,
    TableJoin.kind: TableJoin.from_spec,
    Sliding.kind: Sliding.from_spec,
    Top.kind: Top.from_spec,
    WindowedAggregate.kind: WindowedAggregate.from_spec,
    StreamTableJoin.kind: StreamTableJoin.from_spec,
    TemporalFilter.kind: TemporalFilter.from_spec,
    TemporalJoin.kind: TemporalJoin.from_spec,
    Upserts.kind: Upserts.from_spec,
}


SPECS_MAX: Final = 256
"""Operators that are kept for whoever reads their views again: more than a page shows."""


def operator_from_spec(spec: Mapping[str, Any]) -> Operator:
    """The operator that `Operator.to_spec` described.

    Raises:
        CorruptError: there is no such operator.
    """
    return _made(orjson.dumps(spec))


@functools.lru_cache(maxsize=SPECS_MAX)
def _made(text: bytes) -> Operator:
    """The operator of a spec in JSON; made once, as operators are values."""
    spec = orjson.loads(text)
    kind = str(spec.get("kind"))
    if kind not in OPERATORS:
        raise CorruptError(
            f"expected one of the operators {known_names(OPERATORS)}; found {kind!r}. Use the release of "
            "Penstock that wrote it, or rebuild the state from the log with --rebuild"
        )
    return OPERATORS[kind](spec)

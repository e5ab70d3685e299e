"""All stateful operators, by kind: a pipeline's record names them, so that it is read without its program."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

import orjson

from penstock.core.names import known_names
from penstock.errors import CorruptError
from penstock.ops.aggregates import load_functions
from penstock.ops.operator import Operator

__all__ = ["OPERATORS", "load_operators", "operator_from_spec"]

OPERATORS: Final[Mapping[str, tuple[str, str]]] = {
    "aggregate": ("aggregate", "WindowedAggregate"),
    "count windows": ("rolling.counts", "CountWindows"),
    "deduplicate": ("keyed.deduplicate", "Deduplicate"),
    "interval join": ("joins.interval_join", "IntervalJoin"),
    "paced": ("keyed.paced", "Paced"),
    "process": ("keyed.process", "Process"),
    "query": ("keyed.query", "GroupQuery"),
    "revised sessions": ("rolling.sessions", "RevisedSessions"),
    "sessions": ("sessions", "SessionAggregate"),
    "sliding": ("rolling.sliding", "Sliding"),
    "stream table join": ("joins.stream_table", "StreamTableJoin"),
    "table join": ("joins.table_join", "TableJoin"),
    "temporal filter": ("keyed.temporal_filter", "TemporalFilter"),
    "temporal join": ("joins.temporal", "TemporalJoin"),
    "top": ("keyed.top", "Top"),
    "upserts": ("keyed.upserts", "Upserts"),
    "window functions": ("over.operator", "WindowFunctions"),
}
"""Of each kind, the module of `penstock.ops` and the class in it. It is imported when it is needed: a
reader of one view needs one or two of them."""


SPECS_MAX: Final = 256
"""Operators that are kept for readers that come again: more than a page shows."""


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
    operator: Operator = _class(kind).from_spec(spec)
    return operator


def _class(kind: str) -> Any:
    module, name = OPERATORS[kind]
    return getattr(import_module(f"penstock.ops.{module}"), name)


def load_operators() -> None:
    """Imports all operators, in a process that is forked into others which may need any of them."""
    load_functions()
    for kind in OPERATORS:
        _class(kind)

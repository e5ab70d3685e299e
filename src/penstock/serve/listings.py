"""What `SHOW TABLES`, `SHOW SINKS` and `DESCRIBE` answer."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, TypedDict, cast

import orjson
import pyarrow as pa

from penstock.core.schema import type_text
from penstock.errors import QueryError
from penstock.follow.report import phase_of
from penstock.serve.texts.names import IN_SCHEMA
from penstock.state import LocalStateFiles, StateFiles

if TYPE_CHECKING:  # they load the engine, and clients
    from penstock.engine.explain.figures import NodeFigures
    from penstock.sinks.figures import SinkFigures

__all__ = ["listed", "running_facts"]

FACTS: Final = "heartbeat.json"
"""Where a pipeline's process writes what it knows of itself: `penstock.app.facts.FILE`."""
SINKS: Final[dict[str, pa.DataType]] = {
    "sink": pa.string(),
    "topic": pa.string(),
    "target": pa.string(),
    "state": pa.string(),
    "breaker": pa.string(),
    "lag": pa.int64(),
    "behind_s": pa.float64(),
    "upserts": pa.int64(),
    "deletes": pa.int64(),
    "dead_letters": pa.int64(),
    "retries": pa.int64(),
    "last_error": pa.string(),
}
"""The columns of SHOW SINKS."""


_SCHEMA: Final = re.compile(IN_SCHEMA, re.IGNORECASE)


class RunningFacts(TypedDict, total=False):
    """Of the facts of a pipeline's process (`penstock.app.Facts`), those that queries show.

    Attributes:
        nodes: by identity, what the graph's nodes have done.
        sinks: by name, what the program's sinks do.
    """

    nodes: Mapping[str, NodeFigures]
    sinks: Mapping[str, SinkFigures]


class Listable(Protocol):
    """The views of a version: `penstock.serve.Snapshot`."""

    @property
    def files(self) -> StateFiles:
        """Where the state is."""
        ...

    def names(self) -> list[str]:
        """The views' names."""
        ...

    def schema(self, name: str) -> pa.Schema:
        """A view's columns."""
        ...

    def no_view(self, name: str) -> QueryError:
        """The error of a view that there is none of."""
        ...


def listed(snapshot: Listable, query: str) -> pa.Table | None:
    """The answer; None where it is another query.

    Raises:
        QueryError: there is no such view.
    """
    words = query.replace(";", " ").replace('"', " ").split()
    match [word.upper() for word in words]:
        case ["SHOW", "TABLES" | "VIEWS"]:
            names = snapshot.names()
            columns = [", ".join(snapshot.schema(name).names) for name in names]
            texts = (pa.array(one, pa.string()) for one in (names, columns))
            return pa.Table.from_arrays(list(texts), ["view", "columns"])
        case ["SHOW", "SINKS"]:
            files = snapshot.files
            facts = running_facts(files.directory) if isinstance(files, LocalStateFiles) else {}
            rows = [_sink(name, one) for name, one in sorted(facts.get("sinks", {}).items())]
            return pa.Table.from_pylist(rows, pa.schema(SINKS))
        case ["DESCRIBE" | "DESC", _] | ["DESCRIBE" | "DESC", "TABLE" | "VIEW", _]:
            by_lower = {name.lower(): name for name in snapshot.names()}
            found = by_lower.get(_SCHEMA.sub("", words[-1]).lower())
            if found is None:
                raise snapshot.no_view(words[-1])
            types = {one.name: type_text(one.type) for one in snapshot.schema(found)}
            return pa.table({"column": list(types), "type": list(types.values())})
    return None


def running_facts(where: Path) -> RunningFacts:
    """What the process of a pipeline says about itself; empty where it says nothing.

    Args:
        where: the directory of the state.
    """
    try:
        found = orjson.loads((where.parent / FACTS).read_bytes())
    except (OSError, ValueError):
        return {}
    return cast("RunningFacts", found) if isinstance(found, dict) else {}


def _sink(name: str, figures: SinkFigures) -> dict[str, object]:
    """A row of SHOW SINKS, by column; other figures are left out."""
    behind_ms = figures["behind_ms"]
    return {
        **figures,
        "sink": name,
        "state": phase_of(figures, time.time_ns() // 1_000_000),
        "behind_s": None if behind_ms is None else behind_ms / 1_000,
        "dead_letters": figures["dead"],
    }

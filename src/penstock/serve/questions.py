"""A question to the views, as it goes to the process that answers it, and its answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import orjson

from penstock.serve.answers import Answer, Failure
from penstock.serve.catalogs import catalog
from penstock.serve.catalogs.types import type_of
from penstock.serve.changes import changes
from penstock.serve.moments import parted
from penstock.serve.plans import explained, running_figures
from penstock.serve.texts.parameters import parameter_types
from penstock.serve.texts.words import substituted
from penstock.serve.views import Snapshot, Views
from penstock.state import LocalStateFiles

if TYPE_CHECKING:
    from penstock.engine.explain.figures import NodeFigures

__all__ = ["ROWS_ALL", "Head", "Question", "Refusal", "answer", "read_head"]

ROWS_ALL: Final = 2**62


@dataclass(frozen=True)
class Question:
    """What is asked.

    Attributes:
        query: one SELECT; of `changes` a view's name.
        rows: most rows of the answer.
        version: that is read; None: the last one, or what the query says itself.
        dialect: `postgres`: the query may name PostgreSQL's catalogs.
        kind: `rows`, `columns` of the answer without rows, or the `changes` of a view up to the version.
        types: by parameter ($1, …), as DuckDB calls it; None where the query is to say.
        since: of `changes`, the version that they begin after; None: with nothing.
        bytes_max: of the answer.
        explain: the answer is the query's plan; `analyze` runs it, and adds what the pipeline did.
    """

    query: str
    rows: int
    version: int | None = None
    dialect: Literal["duckdb", "postgres"] = "duckdb"
    kind: Literal["rows", "columns", "changes"] = "rows"
    types: tuple[str | None, ...] = ()
    since: int | None = None
    bytes_max: int = 32 << 20
    explain: Literal["", "plan", "analyze"] = ""


@dataclass(frozen=True)
class Head:
    """What a process says before an answer's rows; see `penstock.serve.answers.Answer`.

    Attributes:
        size: of the rows, in bytes.
        rows_total: see `Answer`, as all that isn't said here.
        parameters: see there.
        types: see there.
        version: see there.
        since: see there.
        failures: see there.
        worn: whether the process has not given back the memory of its query.
    """

    size: int
    rows_total: int | None
    parameters: Sequence[str]
    types: Sequence[str]
    version: int
    since: int | None
    failures: Mapping[str, Sequence[Failure]]
    worn: bool = False


@dataclass(frozen=True)
class Refusal:
    """What a process says instead of an answer.

    Attributes:
        error: the name of its class, one of `penstock.errors`.
        text: its message.
        worn: as of `Head`.
    """

    error: str
    text: str
    worn: bool = False


def read_head(line: bytes) -> Head | Refusal:
    """Reads what a process says, a line of JSON."""
    content = orjson.loads(line)
    if "error" in content:
        return Refusal(**content)
    failures = {
        view: tuple(Failure(**one) for one in some) for view, some in content["failures"].items()
    }
    return Head(**(content | {"failures": failures}))


def answer(views: Views, question: Question, memory_bytes_max: int) -> Answer:
    """Answers a question.

    Raises:
        QueryError: it can't be answered.
        LimitError: it needs more memory.
    """
    if question.kind == "changes":
        return changes(views, question.query, question.since, question.version)
    query, as_of = parted(question.query)

    def ask(snapshot: Snapshot) -> Answer:
        is_catalog = question.dialect == "postgres" and catalog.is_about(query)
        prepared = catalog.Catalog(snapshot) if is_catalog else None
        named = catalog.plain(query) if is_catalog else query
        text, types = named, [str(one) for one in question.types]
        if question.kind == "columns":
            tables = {**_tables(snapshot, query), **({} if prepared is None else prepared.tables())}
            dialect = "duckdb" if prepared is None else "postgres"
            types = parameter_types(named, question.types, tables, dialect)
            text = substituted(named, [f"CAST(NULL AS {one})" for one in types])
        if prepared is not None and catalog.is_type_tree(text):
            types = ["OID[]"]
        if prepared is not None:
            text = prepared.rewritten(text)
        if question.explain:
            return explained(
                snapshot,
                text,
                figures=_figures(views) if question.explain == "analyze" else None,
                memory_bytes_max=memory_bytes_max,
                prepare=None if prepared is None else prepared.make,
            )
        found = snapshot.answer(
            text,
            rows_max=0 if question.kind == "columns" else question.rows,
            memory_bytes_max=memory_bytes_max,
            prepare=None if prepared is None else prepared.make,
        )
        return found._replace(parameters=tuple(types), version=snapshot.version)

    return views.read(question.version if as_of is None else as_of, ask)


def _figures(views: Views) -> Mapping[str, NodeFigures]:
    """What the nodes of the pipeline that runs here have done; of one that runs elsewhere nobody knows."""
    files = views.store.files
    return running_figures(files.directory) if isinstance(files, LocalStateFiles) else {}


def _tables(snapshot: Snapshot, query: str) -> Mapping[str, Mapping[str, str]]:
    """The views that a query names: their columns, and what DuckDB calls their types."""
    found: dict[str, dict[str, str]] = {}
    lower = query.lower()
    for name in snapshot.names():
        if name.lower() in lower:
            columns = found.setdefault(name.lower(), {})
            for field in snapshot.schema(name):
                kind, is_array = type_of(field.type)
                columns[field.name.lower()] = kind.duck + ("[]" if is_array else "")
    return found

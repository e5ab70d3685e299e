"""`JOIN queries q ON matches(q.query, d.title, d.body)`: documents with the stored searches that they match.

    matches(search, text, … [, analyzer := 'english'] [, operator := 'AND'])

It joins the table of the search to that of the texts, before what else joins either. Searches may name all
columns of the documents' table, whether the query reads them or not.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeGuard

import pyarrow as pa
from sqlglot import exp

from penstock.core.schema import Schema
from penstock.errors import SchemaError
from penstock.expr.walks import find_all
from penstock.flow.algebra.joins import percolate
from penstock.flow.enrichment import fields_of
from penstock.sql.places import within
from penstock.sql.scope import Scope
from penstock.sql.trees import Name, own_columns

__all__ = ["check_none", "documents_in", "searched", "without_searches"]

NAME: Final = "matches"
OPTIONS: Final = ("analyzer", "operator")
_EXAMPLE: Final = "JOIN queries q ON matches(q.query, d.title, d.body)"


@dataclass(frozen=True)
class _Call:
    """A call of matches(…).

    Attributes:
        tree: the call.
        search: what is a search.
        texts: what it looks for terms in.
        options: constants, by name.
    """

    tree: exp.Expr
    search: exp.Expr
    texts: tuple[exp.Expr, ...]
    options: dict[str, str]


def documents_in(trees: Sequence[exp.Expr | None]) -> frozenset[str]:
    """The aliases of tables all of whose columns are fields that searches may name.

    Raises:
        SchemaError: a search and its documents are no two tables.
    """
    found: set[str] = set()
    for tree in trees:
        for one in () if tree is None else find_all(tree, exp.Anonymous):
            if _is_call(one):
                call = _call(one)
                search = {column.table for column in own_columns(call.search)}
                texts = {column.table for text in call.texts for column in own_columns(text)}
                if not search or not texts or search & texts:
                    raise _misplaced(one)
                found |= texts
    return frozenset(found)


def without_searches(tree: exp.Expr) -> exp.Expr:
    """The query with another condition over the same columns, for DuckDB, which doesn't know matches(…).

    Raises:
        SchemaError: a call is no condition of an inner join.
    """
    calls = [one for one in find_all(tree, exp.Anonymous) if _is_call(one)]
    for one in calls:
        _check_placed(one)

    def other(node: exp.Expr) -> exp.Expr:
        if not _is_call(node):
            return node
        call = _call(node)
        texts = [exp.cast(one.copy(), "VARCHAR") for one in (call.search, *call.texts)]
        return exp.Paren(
            this=exp.Not(this=exp.Is(this=exp.func("concat", *texts), expression=exp.null()))
        )

    return tree.transform(other) if calls else tree


def _check_placed(call: exp.Expr) -> None:
    node = call
    while isinstance(node.parent, exp.And | exp.Paren):
        node = node.parent
    place = node.parent
    is_inner = isinstance(place, exp.Where) or (
        isinstance(place, exp.Join)
        and not (place.side or place.kind in ("SEMI", "ANTI") or place.method)
    )
    if not is_inner:
        raise _misplaced(call)


def _misplaced(call: exp.Expr) -> SchemaError:
    failure = SchemaError(
        "expected matches(…) as a condition of its own in an inner join of a table of searches with one of "
        f"documents, as in {_EXAMPLE}; found {call.sql(dialect='duckdb', normalize_functions=False)}"
    )
    with contextlib.suppress(SchemaError), within(call):
        raise failure
    return failure


def check_none(conditions: Sequence[exp.Expr]) -> None:
    """Raises `SchemaError` where a condition calls matches(…), and isn't such a join."""
    for condition in conditions:
        for one in find_all(condition, exp.Anonymous):
            if _is_call(one):
                raise _misplaced(one)


def searched(
    scopes: Sequence[Scope], conditions: Sequence[exp.Expr], needed: Container[Name]
) -> tuple[list[Scope], list[exp.Expr]]:
    """Joins documents with the searches that they match.

    Args:
        scopes: tables that are to be joined.
        conditions: all of them.
        needed: columns that are read by the query; others are fields of documents alone.

    Returns:
        The tables, of which those are one that a condition has joined, and the other conditions.

    Raises:
        SchemaError: the arguments of a condition can't be searched.
    """
    found, left = list(scopes), list(conditions)
    for condition in conditions:
        if not _is_call(condition):
            continue
        call = _call(condition)
        search = next((i for i, one in enumerate(found) if one.has(call.search)), None)
        text = next((i for i, one in enumerate(found) if all(map(one.has, call.texts))), None)
        if search is None or text is None or search == text:
            continue  # more tables come, or it can't be
        with within(condition):
            if any(found[i].window is not None for i in (search, text)):
                raise SchemaError("expected documents and searches; found windows of a stream")
            found[min(search, text)] = _joined(found[text], found[search], call)
        del found[max(search, text)]
        left = [one for one in left if one is not condition]
    if len(left) < len(conditions) and not documents_in(left):
        found = [_without_fields(scope, needed) for scope in found]
    return found, left


def _without_fields(scope: Scope, needed: Container[Name]) -> Scope:
    """A table without the columns that nothing but searches has read."""
    names = {
        (table, name): made
        for (table, name), made in scope.names.items()
        if (table, name) in needed or made != f"{table}.{name}"
    }
    gone = set(scope.names.values()) - set(names.values())
    kept = [name for name in scope.rows.names if name not in gone]
    return Scope(scope.rows.only(kept), names) if gone and kept else scope


def _is_call(tree: exp.Expr) -> TypeGuard[exp.Anonymous]:
    return isinstance(tree, exp.Anonymous) and tree.name.lower() == NAME


def _call(tree: exp.Anonymous) -> _Call:
    with within(tree):
        return _parsed(tree)


def _parsed(tree: exp.Anonymous) -> _Call:
    plain: list[exp.Expr] = []
    options: dict[str, str] = {}
    for one in tree.expressions:
        if not isinstance(one, exp.PropertyEQ | exp.Kwarg):
            plain.append(one)
            continue
        name, value = one.this.name.lower(), one.expression
        if name not in OPTIONS or not isinstance(value, exp.Literal) or not value.is_string:
            raise SchemaError(
                f"expected {' or '.join(OPTIONS)} with a text in matches(…), as in analyzer := 'english'; "
                f"found {one.sql(dialect='duckdb')!r}"
            )
        options[name] = value.name
    if len(plain) < 2:
        raise SchemaError(
            f"expected a search, and texts that it is looked for in, as in {_EXAMPLE}; found "
            f"{tree.sql(dialect='duckdb')!r}"
        )
    return _Call(tree, plain[0], tuple(plain[1:]), options)


def _joined(documents: Scope, searches: Scope, call: _Call) -> Scope:
    """Documents with the rows of their searches."""
    columns = _fields(documents)
    documents, texts = documents.computed(call.texts, "text")
    searches, [search] = searches.computed([call.search], "search")
    for scope, made in ((documents, texts), (searches, [search])):
        for name in made:
            if scope.rows.schema[name].type != pa.string():
                raise SchemaError(
                    f"expected texts in matches(…), and a text as the search; found {name!r}, "
                    f"{scope.rows.schema[name].type}. Cast it to VARCHAR"
                )
    columns |= {name: name for name in texts if name not in columns}
    fields = fields_of(
        Schema(tuple(replace(documents.rows.schema[n], name=to) for n, to in columns.items())),
        [columns[name] for name in texts],
        call.options.get("analyzer"),
        {},
        call.options.get("operator", "OR").upper(),
    )
    node = percolate(
        documents.rows.node, searches.rows.node, search, tuple(columns), fields, kept=True
    )
    names = {**documents.names, **searches.names}
    return Scope(documents.rows.over(node), names)


def _fields(documents: Scope) -> dict[str, str]:
    """The columns of documents, and what searches call them: with the table, if several have one's name."""
    often = Counter(name for _, name in documents.names)
    return {
        made: name if often[name] == 1 else f"{table}.{name}"
        for (table, name), made in documents.names.items()
    }

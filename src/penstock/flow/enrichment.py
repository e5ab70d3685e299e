"""Rows with those of a table next to them: `Stream.enrich`, and `percolate` of streams and tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Literal, Self, TypeAlias, get_args

import pyarrow as pa

from penstock.core.schema import Schema
from penstock.errors import FlowError
from penstock.flow.algebra import joins as algebra
from penstock.flow.algebra.joins import as_of as joined_as_of
from penstock.flow.algebra.joins import latest
from penstock.flow.checks import check_columns, check_text
from penstock.flow.graph import Closed, Node, RowStep, Stateful, handed_on, origins, retracts
from penstock.flow.joins import (
    Named,
    On,
    check_how,
    check_names_differ,
    check_on,
    check_same_flow,
)
from penstock.ops import Upserts
from penstock.ops.joins.enriched import HowEnriched
from penstock.ops.rows import Select

if TYPE_CHECKING:
    from penstock.searches.analysis import Analyzer
    from penstock.searches.fields import Fields

__all__ = ["AsOf", "Percolates", "check_as_of", "enrich", "fields_of", "key_of", "percolate"]

AsOf: TypeAlias = Literal["event time"]


class Percolates:
    """What streams and tables have of stored searches."""

    flow: Named
    node: Node

    def _then(self, node: Node) -> Self:
        raise NotImplementedError

    def percolate(
        self,
        queries: Percolates,
        *,
        query: str,
        text: str | tuple[str, ...],
        analyzer: str | Analyzer | None = None,
        fields: Mapping[str, str | Analyzer] | None = None,
        operator: Literal["OR", "AND"] = "OR",
        score: str | None = None,
        terms: str | None = None,
        highlights: str | None = None,
    ) -> Self:
        """Documents with the stored searches that they match: a row for each pair.

        Each document of a stream meets the searches that the table has when it is processed, once. Of a
        table, the matches follow changes of documents and of searches. A search that can't be read is a dead
        letter.

        Args:
            queries: a table of searches, with names that no column of the documents has.
            query: the column that is a search, in Lucene's syntax.
            text: the columns in which it looks for terms that it names no field for.
            analyzer: how texts become terms: a language, such as `"english"`, or `ps.Analyzer(…)`.
            fields: likewise for some of the columns.
            operator: what stands between terms that have nothing between them.
            score: the name of a column that says how well a document matches.
            terms: the name of a column with the words that matched.
            highlights: the name of a column with their places: field, value (of an array), start, end.
        """
        if not isinstance(queries, Percolates) or not retracts(queries.node):
            found = type(queries).__name__
            raise FlowError(f"expected a table of searches, such as app.table(…); found {found}")
        check_same_flow(self.flow, queries.flow)
        node = percolate(
            self.node,
            queries.node,
            query,
            text,
            analyzer=analyzer,
            fields=fields,
            operator=operator,
            said={"score": score, "terms": terms, "highlights": highlights},
        )
        return self._then(node)


def enrich(stream: Node, table: Node, on: On, how: HowEnriched, as_of: AsOf | None) -> Stateful:
    """The node of a join of a stream with a table; see `Stream.enrich`.

    Raises:
        FlowError: what can't be joined, and why.
        SchemaError: there is no such column.
    """
    check_how(how, get_args(HowEnriched))
    check_as_of(as_of)
    if retracts(stream):
        raise FlowError(
            "expected a stream whose rows stay; found one that late rows correct. Enrich the stream "
            'before its windows, or use late="drop"'
        )
    pairs = check_on(on, stream.schema, table.schema)
    check_names_differ(stream.schema, table.schema, pairs, "table")
    if as_of is None:
        return latest(stream, table, pairs, how)
    key = key_of(table, "join", "Filter what enrich(…) gives")
    if {name for _, name in pairs} != set(key):
        raise FlowError(
            f"expected the table's key ({', '.join(key)}) in on=… of a join as of the event time; found "
            f"{', '.join(name for _, name in pairs)}. The key identifies versions"
        )
    return joined_as_of(stream, table, pairs, how)


def check_as_of(as_of: AsOf | None) -> None:
    """Raises `FlowError` where it is something else."""
    if as_of is not None and as_of not in get_args(AsOf):
        raise FlowError(f"expected as_of='event time', or None; found as_of={as_of!r}")


def key_of(table: Node, use: str, instead: str) -> tuple[str, ...]:
    """The key of a table that comes straight from a topic.

    Args:
        table: a node.
        use: what it is for, as messages name it.
        instead: of filtering it, what to do.

    Raises:
        FlowError: it doesn't.
    """
    match table:
        case Stateful(operator=Upserts(keys=keys)):
            return keys
        case RowStep(operator=Select(columns=columns)):
            keys = key_of(table.parent, use, instead)
            kept = {name for name, e in columns if handed_on(e) == name}
            if not kept.issuperset(keys):
                raise FlowError(
                    f"expected the table's key ({', '.join(keys)}) to stay as it is in select(…) before a "
                    f"{use} as of the event time; found {', '.join(name for name, _ in columns)}"
                )
            return keys
        case RowStep():
            raise FlowError(
                f"expected a table straight from a topic, or a select(…) of it, for a {use} as of the event "
                f"time, which reads every version; found one that is filtered. {instead}"
            )
        case _:
            raise FlowError(
                f"expected a table straight from a topic (app.table), or a select(…) of it, for a {use} as "
                "of the event time, which reads every version; found one that is computed. Write it to "
                'a topic with emit="changes" and read that with format="debezium", or use as_of=None'
            )


def percolate(
    documents: Node,
    queries: Node,
    query: str,
    text: str | Iterable[str],
    *,
    analyzer: str | Analyzer | None = None,
    fields: Mapping[str, str | Analyzer] | None = None,
    operator: str = "OR",
    said: Mapping[str, str | None],
) -> Stateful:
    """The node of documents with the searches that they match; see `Collection.percolate`.

    Raises:
        FlowError: what can't be searched, and why.
        SchemaError: there is no such column, or no such language.
    """
    if retracts(documents) and any(isinstance(one, Closed) for one in origins(documents)):
        raise FlowError(
            "expected documents that stay, or a table of them; found a stream that late rows correct. "
            'Percolate the stream before its windows, or use late="drop"'
        )
    texts = (text,) if isinstance(text, str) else tuple(text)
    if not texts:
        raise FlowError('expected the columns that searches read, such as text="body"; found none')
    check_columns(texts, documents.schema, "text")
    check_columns((query,), queries.schema, "query")
    check_names_differ(documents.schema, queries.schema, (), "query")
    _check_strings(documents.schema, texts)
    _check_strings(queries.schema, (query,))
    asked = {what: name for what, name in said.items() if name is not None}
    taken = {*documents.schema.names, *queries.schema.names}
    for what, name in asked.items():
        if check_text(name, what, f"{what}='{what}'") in taken:
            raise FlowError(f"expected {what}= as a name that no column has; found {name!r}")
        taken.add(name)
    made = fields_of(documents.schema, texts, analyzer, fields or {}, operator)
    return algebra.percolate(
        documents,
        queries,
        queries.schema[query].name,
        made.schema.names,
        made,
        kept=retracts(documents),
        said=asked,
    )


def fields_of(
    schema: Schema,
    text: Iterable[str],
    analyzer: str | Analyzer | None,
    others: Mapping[str, str | Analyzer],
    operator: str,
) -> Fields:
    """The fields of documents: all their columns.

    Args:
        schema: of documents.
        text: the columns in which a search looks for terms that it names no field for.
        analyzer: how texts become terms: a language, or all of it.
        others: likewise, of some of the columns.
        operator: what stands between terms that have nothing between them.
    """
    from penstock.searches.fields import Fields

    check_columns(tuple(others), schema, "fields")
    return Fields(
        schema.arrow,
        tuple(schema[name].name for name in text),
        _analyzer(analyzer, "analyzer"),
        tuple((schema[name].name, _analyzer(one, "fields")) for name, one in others.items()),
        operator,
    )


def _analyzer(given: object, what: str) -> Analyzer:
    from penstock.searches.analysis import Analyzer

    if given is None or isinstance(given, str):
        return Analyzer(given)
    if not isinstance(given, Analyzer):
        raise FlowError(
            f"expected {what}= as a language, such as 'english', or ps.Analyzer(…); found {given!r}"
        )
    return given


def _check_strings(schema: Schema, names: Iterable[str]) -> None:
    for name in names:
        if schema[name].type != pa.string():
            raise FlowError(
                f"expected texts to search, and texts that are searches; found {name!r}, "
                f"{schema[name].type}. Cast it before: select({name}='{name}::VARCHAR')"
            )

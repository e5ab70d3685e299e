"""`Stream.enrich`: a stream's rows with those of a table next to them."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

from penstock.errors import FlowError
from penstock.flow.algebra.joins import as_of as joined_as_of
from penstock.flow.algebra.joins import latest
from penstock.flow.graph import Node, RowStep, Stateful, handed_on, retracts
from penstock.flow.joins import On, check_how, check_names_differ, check_on
from penstock.ops import Upserts
from penstock.ops.joins.enriched import HowEnriched
from penstock.ops.rows import Select

__all__ = ["AsOf", "check_as_of", "enrich", "key_of"]

AsOf: TypeAlias = Literal["event time"]


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

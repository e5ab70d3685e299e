"""What stands for tables in a query: TUMBLE, HOP and SESSION, and a table's rows as values."""

from __future__ import annotations

from typing import Final

from sqlglot import exp

from penstock.errors import SchemaError
from penstock.flow import hopping, session, tumbling
from penstock.flow.graph import timed
from penstock.ops import Window
from penstock.sql.scope import Environment, Named

__all__ = ["with_rows", "with_windows"]

FUNCTIONS: Final = ("TUMBLE", "HOP", "SESSION")
EXAMPLE: Final = "FROM TUMBLE(clicks, at, INTERVAL 1 MINUTE) GROUP BY window_start, window_end"


def with_rows(tree: exp.Expr, env: Environment) -> exp.Expr:
    """The query with a STRUCT for each `table.*` inside an expression, as in `array_agg(posts.*)`."""
    tree = tree.copy()
    for star in list(tree.find_all(exp.Column)):
        if not isinstance(star.this, exp.Star) or isinstance(star.parent, exp.Select):
            continue
        select = star.find_ancestor(exp.Select)
        tables = [] if select is None else select.find_all(exp.Table)
        found = next((one for one in tables if one.alias_or_name == star.table), None)
        if found is None:
            raise SchemaError(f"expected a table of FROM before '.*'; found {star.table!r}")
        members = [
            exp.PropertyEQ(
                this=exp.to_identifier(name, quoted=True),
                expression=exp.column(exp.to_identifier(name, quoted=True), table=star.table),
            )
            for name in env.table(found.name).columns.values()
        ]
        star.replace(exp.Struct(expressions=members))
    return tree


def with_windows(tree: exp.Expr, env: Environment) -> tuple[exp.Expr, Environment]:
    """The query with a table's name for each window function in a FROM, and these tables."""
    tree = tree.copy()
    for table in list(tree.find_all(exp.Table)):
        call = table.this
        if isinstance(call, exp.Anonymous) and call.name.upper() in FUNCTIONS:
            name = f"{call.name.lower()} {len(env.tables)}"
            env = env.with_(name, _windowed(call, env))
            made = exp.Table(this=exp.to_identifier(name, quoted=True))
            made.set(
                "alias",
                table.args.get("alias")
                or exp.TableAlias(this=exp.to_identifier(call.expressions[0].name)),
            )
            table.replace(made)
    return tree, env


def _windowed(call: exp.Anonymous, env: Environment) -> Named:
    function = call.name.upper()
    arguments = call.expressions
    if len(arguments) != (4 if function == "HOP" else 3):
        raise SchemaError(
            f"expected a stream, its time{', a step' if function == 'HOP' else ''} and a size, as in "
            f"{EXAMPLE}; found {call.sql(dialect='duckdb')!r}"
        )
    stream, time, *sizes = arguments
    named = env.table(stream.name)
    durations = [_duration(size) for size in sizes]
    if not timed(named.rows.node):
        raise SchemaError(
            f"expected a stream with an event time in {function}(…); found {stream.name!r}, which has none"
        )
    if time.name.lower() not in named.columns:
        raise SchemaError(
            f"expected the event time of {stream.name!r}; found {time.name!r}, no column of it"
        )
    columns = {**named.columns, "window_start": "window_start", "window_end": "window_end"}
    return Named(named.rows, columns, _window(function, durations))


def _window(function: str, durations: list[str]) -> Window:
    match function:
        case "TUMBLE":
            return tumbling(durations[0])
        case "HOP":
            return hopping(durations[1], every=durations[0])
        case _:
            return session(durations[0])


def _duration(size: exp.Expr) -> str:
    """`INTERVAL 1 MINUTE` as Penstock's durations."""
    if isinstance(size, exp.Interval) and isinstance(size.this, exp.Literal):
        unit = size.args.get("unit")
        return f"{size.this.this} {'' if unit is None else unit.name.lower()}".strip()
    raise SchemaError(f"expected an interval, such as INTERVAL 1 MINUTE; found {size.sql()!r}")

"""What stands for tables in a query: TUMBLE and its like, other names of columns, and rows as values."""

from __future__ import annotations

from typing import Any, Final, TypeGuard

from sqlglot import exp

from penstock.errors import SchemaError
from penstock.expr.walks import find_all
from penstock.flow import hopping, session, sliding, tumbling
from penstock.flow.algebra.clocks import event_time_column, event_times, is_decided, is_read
from penstock.flow.graph import timed
from penstock.flow.rolling import RowWindow
from penstock.ops import Window
from penstock.sql.places import within
from penstock.sql.scope import Environment, Named, Windows

__all__ = ["is_windowed", "with_named_columns", "with_rows", "with_windows"]

FUNCTIONS: Final = ("TUMBLE", "HOP", "SESSION", "SLIDE")
OPTIONS: Final = ("keep", "late")
EXAMPLE: Final = "FROM TUMBLE(clicks, at, INTERVAL 1 MINUTE) GROUP BY window_start, window_end"


def with_named_columns(tree: exp.Expr, env: Environment) -> exp.Expr:
    """The query with a subquery for each `table AS t(a, b)`: only those have columns of other names."""
    for table in [one for one in find_all(tree, exp.Table) if _is_renamed(one)]:
        known = env.tables.get(table.name.lower())
        names = list(table.alias_column_names)
        for name in [] if known is None else list(known.columns)[len(names) :]:
            taken = {one.lower() for one in names}
            names.append(f"{name}_1" if name.lower() in taken else name)  # as DuckDB does
        inner = table.copy()
        inner.set("alias", None)
        inner.set("joins", None)
        alias = exp.TableAlias(
            this=table.args["alias"].this, columns=[*map(exp.to_identifier, names)]
        )
        made = exp.Subquery(
            this=exp.select("*").from_(inner), alias=alias, joins=table.args.get("joins")
        )
        table.replace(made)
    return tree


def with_rows(tree: exp.Expr, env: Environment) -> exp.Expr:
    """The query with a STRUCT for each `posts.*` or `posts` inside an expression, as in `array_agg(posts)`.

    Raises:
        SchemaError: what is before `.*` is no table of the FROM.
    """
    names = {one.alias_or_name.lower() for one in find_all(tree, exp.Table)}
    if not any(_is_row(one) or one.name.lower() in names for one in find_all(tree, exp.Column)):
        return tree
    # What else has such a name comes first: a column that the query names, an element of UNNEST.
    names -= {one.alias.lower() for one in find_all(tree, exp.Alias, exp.CTE)}
    names -= {one.name.lower() for alias in find_all(tree, exp.TableAlias) for one in alias.columns}

    def table_of(column: exp.Column) -> exp.Table | None:
        if _is_row(column):
            return _around(column)
        return _as_row(column, env) if not column.table and column.name.lower() in names else None

    tree = tree.copy()
    for column in find_all(tree, exp.Column):
        if (table := table_of(column)) is None:
            continue
        members = [
            exp.PropertyEQ(
                this=exp.to_identifier(name, quoted=True),
                expression=exp.column(
                    exp.to_identifier(name, quoted=True), table=table.alias_or_name
                ),
            )
            for name in env.table(table.name).columns.values()
        ]
        row: exp.Expr = exp.Struct(expressions=members)
        is_item = isinstance(column.parent, exp.Select) and not _is_row(column)
        column.replace(exp.alias_(row, column.name) if is_item else row)
    return tree


def _around(star: exp.Column) -> exp.Table:
    """The table of a `table.*`."""
    select = star.find_ancestor(exp.Select)
    for table in () if select is None else find_all(select, exp.Table):
        if table.alias_or_name == star.table:
            return table
    raise SchemaError(f"expected a table of FROM before '.*'; found {star.table!r}")


def _as_row(column: exp.Column, env: Environment) -> exp.Table | None:
    """The table of the FROM that has the name of a column which no table there has."""
    select = column.find_ancestor(exp.Select)
    clauses = (
        () if select is None else (select.args.get("from_"), *(select.args.get("joins") or ()))
    )
    name, found = column.name.lower(), None
    for one in clauses:
        table = None if one is None else one.this
        known = env.tables.get(table.name.lower()) if isinstance(table, exp.Table) else None
        if known is None or name in map(str.lower, known.columns):
            return None
        if one.this.alias_or_name.lower() == name:
            found = one.this
    return found


def with_windows(tree: exp.Expr, env: Environment) -> tuple[exp.Expr, Environment]:
    """The query with a table's name for each window function in a FROM, and these tables."""
    if not any(is_windowed(table.this) for table in find_all(tree, exp.Table)):
        return tree, env
    tree = tree.copy()
    for table in find_all(tree, exp.Table):
        call = table.this
        if is_windowed(call):
            name = f"{call.name.lower()} {len(env.tables)}"
            with within(call):
                env = env.with_(name, _windowed(call, env))
            made = exp.Table(this=exp.to_identifier(name, quoted=True))
            made.set(
                "alias",
                table.args.get("alias")
                or exp.TableAlias(this=exp.to_identifier(call.expressions[0].name)),
            )
            table.replace(made)
    return tree, env


def _is_renamed(table: exp.Table) -> bool:
    return isinstance(table.this, exp.Identifier) and bool(table.alias_column_names)


def _is_row(column: exp.Column) -> bool:
    """Whether it is `table.*` inside an expression."""
    return isinstance(column.this, exp.Star) and not isinstance(
        column.parent, exp.Select | exp.Columns
    )


def is_windowed(call: exp.Expr) -> TypeGuard[exp.Anonymous]:
    """Whether what stands in FROM is TUMBLE or its like."""
    return isinstance(call, exp.Anonymous) and call.name.upper() in FUNCTIONS


def _windowed(call: exp.Anonymous, env: Environment) -> Named:
    function = call.name.upper()
    options: list[exp.Expr] = [
        one for one in call.expressions if isinstance(one, exp.Kwarg | exp.PropertyEQ)
    ]
    arguments = [one for one in call.expressions if one not in options]
    counted = 2 if function == "HOP" else 1
    if len(arguments) not in (counted + 1, counted + 2):
        raise SchemaError(
            f"expected a stream, its time{', a step' if function == 'HOP' else ''} and a size, as in "
            f"{EXAMPLE}; found {call.sql(dialect='duckdb')!r}"
        )
    stream, *times = arguments[:-counted]
    named = env.table(stream.name)
    durations = [_duration(size) for size in arguments[-counted:]]
    if not timed(named.rows.node):
        raise SchemaError(
            f"expected a stream with an event time in {function}(…); found {stream.name!r}, which has none"
        )
    columns = {**named.columns, "window_start": "window_start", "window_end": "window_end"}
    column = _time(times, named, stream.name, function)
    if function == "SLIDE" and event_time_column(named.rows.node) is None:
        raise SchemaError(
            f"expected a stream and its event time in SLIDE(…); found {call.sql(dialect='duckdb')!r}"
        )
    windows = Windows(_window(function, durations), column, **_options(options, function))
    return Named(named.rows, columns, windows)


def _time(times: list[exp.Expr], named: Named, stream: str, function: str) -> str | None:
    """The relation's column that a window function names as the time of its rows; None: it is no column."""
    node = named.rows.node
    if is_decided(node):
        if times:
            raise SchemaError(
                f"expected no column in {function}({stream}, …), whose rows are matches of a pattern, and "
                f"happen when they are certain; found {times[0].name!r}. Omit it"
            )
        return None
    known, below = event_time_column(node), event_times(node)
    columns = sorted({repr(one.source) for one in below if one.source is not None})
    as_read = f"the column with {' or '.join(columns)} as it was read" if columns else ""
    processed = any(one.processing for one in below)
    if columns and processed:
        raise SchemaError(
            f"expected rows of one kind of time in {function}({stream}, …); found the event time "
            f"{columns[0]} and rows that happen when they are processed. Cut them into windows separately"
        )
    if columns and is_read(node) and any(one.source is None for one in below):
        raise SchemaError(
            f"expected rows of one kind of time in {function}({stream}, …); found the event time "
            f"{columns[0]} and rows at the times of their records. Declare WATERMARK FOR in each stream, or "
            "cut them into windows separately"
        )
    if not times:
        if not columns or (known is None and all(one.computed for one in below)):
            return None
        expected = as_read if known is None else repr(known)
        raise SchemaError(
            f"expected the event time of {stream!r} in {function}(…), {expected}, after the stream; "
            "omit it only if the stream's time isn't a column"
        )
    time = times[0]
    if time.name.lower() not in named.columns:
        raise SchemaError(
            f"expected the event time of {stream!r}; found {time.sql(dialect='duckdb')!r}, which isn't a "
            "column of it"
        )
    column = named.columns[time.name.lower()]
    if processed:
        raise SchemaError(
            f"expected no column in {function}({stream}, …), whose rows happen when they are processed; "
            f"found {time.name!r}. Omit it"
        )
    if known != column and (known is not None or is_read(node)):
        expected = repr(known)
        if known is None and len({one.source for one in below}) > 1:
            expected = "a column with that of each of its streams"
        elif known is None:
            expected = (
                as_read or "which WATERMARK FOR declares, or none for the records' timestamps"
            )
        raise SchemaError(
            f"expected the event time of {stream!r} in {function}(…), {expected}; found {time.name!r}"
        )
    return column


def _options(given: list[exp.Expr], function: str) -> dict[str, Any]:
    """`late => 'correct', keep => INTERVAL 1 HOUR`."""
    found: dict[str, Any] = {}
    for one in given:
        name = one.this.name.lower()
        if name not in OPTIONS or function == "SLIDE":
            known = "no options in SLIDE(…)" if function == "SLIDE" else "the options keep and late"
            raise SchemaError(f"expected {known}; found {one.this.name!r}")
        value = one.expression
        found[name] = value.name if isinstance(value, exp.Literal) else _duration(value)
    return found


def _window(function: str, durations: list[str]) -> Window | RowWindow:
    match function:
        case "TUMBLE":
            return tumbling(durations[0])
        case "HOP":
            return hopping(durations[1], every=durations[0])
        case "SLIDE":
            return sliding(durations[0])
        case _:
            return session(durations[0])


def _duration(size: exp.Expr) -> str:
    """`INTERVAL 1 MINUTE` as Penstock's durations."""
    if isinstance(size, exp.Interval) and isinstance(size.this, exp.Literal):
        unit = size.args.get("unit")
        return f"{size.this.this} {'' if unit is None else unit.name.lower()}".strip()
    raise SchemaError(f"expected an interval, such as INTERVAL 1 MINUTE; found {size.sql()!r}")

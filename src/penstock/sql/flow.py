"""`SqlFlow`: a flow that is also described in SQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from penstock.core.names import hint, known_names
from penstock.core.schema import Schema
from penstock.core.text.carets import line_and_column
from penstock.errors import FlowError, SchemaError
from penstock.expr.expression import sql_type
from penstock.flow import EventTime, Flow, Stream, Table, event_time, header, processing_time
from penstock.flow.checks import check_registry, check_text
from penstock.flow.functions import csv, pattern
from penstock.flow.graph import Graph, Node, Source, ancestors, over_others
from penstock.formats.lines.kinds import FORMATS, named_format
from penstock.formats.registered import KINDS, encoded_as

# What parses SQL is imported where it is used: programs without SQL start sooner.
if TYPE_CHECKING:
    from penstock.sql.relation import Relation
    from penstock.sql.scope import Sizes
    from penstock.sql.statements import Statement, Watermark
    from penstock.sql.text.columns import Columns

__all__ = ["CAPTURE_OPTIONS", "SqlFlow", "statement_options"]

STREAM_OPTIONS: Final = (
    "topic", "format", "registry", "key", "partitions", "retention", "delimiter", "null", "pattern",
    "time_format", "unit", "lateness", "idle", "ahead", "sent", "received", "producer", "producer_header",
    "expected", "punctuated", "time",
)  # fmt: skip
TIME_OPTIONS: Final = STREAM_OPTIONS[STREAM_OPTIONS.index("unit") :]
CAPTURE_OPTIONS: Final = ("table", "topic", "format", "capture", "partitions")
TABLE_OPTIONS: Final = ("topic", "format", "registry", "partitions", "idle", "ahead")
SINK_OPTIONS: Final = ("partitions", "retention", "format", "registry")
EXAMPLE: Final = "'SELECT k, count(*) AS n FROM clicks GROUP BY k'"


@dataclass(frozen=True)
class _Query:
    """A query whose joins sizes order.

    Attributes:
        text: of it.
        dialect: of the text.
        tables: that it may name.
        kept: whether its rows are a view's.
        node: what it was compiled to, without sizes.
    """

    text: str
    dialect: str
    tables: Mapping[str, Relation]
    kept: bool
    node: Node


class SqlFlow(Flow):
    """A flow whose views may be queries, and which takes programs in SQL."""

    def __init__(
        self, name: str, *, transactions: bool = False, on_error: str = "dead-letter"
    ) -> None:
        super().__init__(name, transactions=transactions, on_error=on_error)
        self._inlined: dict[str, Relation] = {}  # CREATE VIEW
        self._sized: list[_Query] = []  # whose joins sizes order

    def view(
        self,
        name: str,
        table: Table | None = None,
        *,
        sql: str | None = None,
        tables: Mapping[str, Stream | Table] | None = None,
        dialect: str = "duckdb",
    ) -> Table:
        """Publishes a table under a name, for `penstock query` and the page, and keeps it up to date.

        Args:
            name: of letters, digits and `_`.
            table: the table; or
            sql: a SELECT over this app's streams, tables (by their topics' names) and views.
            tables: other tables that the query may name, by these names.
            dialect: of the query, as sqlglot calls it: `"duckdb"`, `"postgres"`, `"spark"`.

        Returns:
            The table, to build on.

        Raises:
            SchemaError: the query can't be parsed, or isn't supported.
        """
        if sql is None:
            if tables is not None:
                raise FlowError("expected tables=… with sql=…; found no query")
            return super().view(name, table)  # type: ignore[arg-type] # it says what it expects
        if table is not None:
            raise FlowError("expected a table or sql=…; found both")
        text = check_text(sql, "sql", EXAMPLE)
        try:
            made = self._query(text, tables, dialect)
        except SchemaError as error:
            raise error.reworded(f"the view {name!r}: {error}") from None
        return super().view(name, made)

    def sql(self, program: str, *, dialect: str = "duckdb") -> None:
        """Adds a program in SQL: statements, each terminated by `;`.

        Args:
            program: CREATE STREAM, TABLE, VIEW, MATERIALIZED VIEW and SINK.
            dialect: of the queries in it.

        Raises:
            FlowError: a statement can't be read; or SchemaError: its query isn't supported. The message
                names line and column.
        """
        from penstock.sql.statements import statements

        self.take(statements(check_text(program, "a program", "'CREATE VIEW …'")), dialect=dialect)

    def take(self, program: Sequence[Statement], *, dialect: str = "duckdb") -> None:
        """Takes up statements that are read already; see `sql`."""
        from penstock.sql.places import PlacedQueryError
        from penstock.sql.statements import PlacedError
        from penstock.sql.text.wording import marked

        self._is_in_sql = True
        for statement in program:
            try:
                self._run(statement, dialect)
            except (FlowError, SchemaError) as error:
                what = f"{statement.kind} {statement.name}"
                place, message = statement.place, error.in_sql or str(error)
                if isinstance(error, PlacedError):
                    place = error.place or place
                elif isinstance(error, PlacedQueryError):
                    place, message = statement.in_program(error.place), error.message
                kind = FlowError if isinstance(error, FlowError) else SchemaError
                shown = marked(statement.program, place) if place != statement.place else ""
                raise kind(
                    f"line {place[0]}, column {place[1]}, {what}: {message}{shown}"
                ) from error

    def _run(self, statement: Statement, dialect: str) -> None:
        match statement.kind:
            case "SET":
                pass  # what runs the file has seen it
            case "STREAM":
                self._create_stream(statement, dialect)
            case "TABLE" if statement.query is not None:
                self._create_constant(statement, dialect)
            case "TABLE" if statement.source is not None:
                self._create_captured(statement)
            case "TABLE":
                self._create_table(statement, dialect)
            case "VIEW":
                assert statement.query is not None
                if statement.name in self._inlined:
                    raise FlowError(f"expected each view once; found {statement.name!r} twice")
                rows = self._rows(statement.query, dialect)
                self._inlined[statement.name] = rows
            case "MATERIALIZED VIEW":
                assert statement.query is not None
                super().view(statement.name, self._query(statement.query, None, dialect))
            case _:
                self._create_sink(statement, dialect)

    def _create_stream(self, statement: Statement, dialect: str) -> None:
        of_format = _options_of_plugin(statement)
        options = statement_options(statement, (*STREAM_OPTIONS, *(of_format or ())))
        columns = statement.columns
        assert columns is not None
        if columns.key:
            raise FlowError("expected PRIMARY KEY in CREATE TABLE; found it in CREATE STREAM")
        computed = _computed(statement, dialect)
        time = _time(columns.watermark, options, computed)
        topic = options.pop("topic", statement.name)
        if of_format is None:
            options |= _format(options)
        else:
            name = options.pop("format")
            texts = {
                one: statement.options[one]
                for one in of_format
                if options.pop(one, None) is not None
            }
            options["format"] = named_format(name, texts)
        schema = _schema(statement)
        made = self.stream(topic, schema, time=time, **options)
        if computed:
            made = made.select(**_in_order(statement, schema, computed))
        self.named[statement.name] = made

    def _create_table(self, statement: Statement, dialect: str) -> None:
        options = statement_options(statement, TABLE_OPTIONS)
        columns = statement.columns
        assert columns is not None
        if not columns.key:
            raise FlowError(
                "expected PRIMARY KEY (…), which identifies a table's rows; found none. Without a key, "
                "CREATE STREAM"
            )
        computed = _computed(statement, dialect)
        options["time"] = _time(columns.watermark, options, computed)
        topic = options.pop("topic", statement.name)
        schema = _schema(statement)
        made = self.table(topic, schema, key=columns.key, **options)
        if computed:
            made = made.select(**_in_order(statement, schema, computed))
        self.named[statement.name] = made

    def _create_captured(self, statement: Statement) -> None:  # noqa: ARG002
        """CREATE TABLE … FROM POSTGRES …, which needs what captures."""
        raise FlowError("expected a program that runs, such as ps.App(…), for CREATE TABLE … FROM")

    def _create_constant(self, statement: Statement, dialect: str) -> None:
        """CREATE TABLE … AS VALUES …."""
        from penstock.sql.relation import quoted

        assert statement.query is not None
        statement_options(statement, ())
        rows = self._rows(statement.query, dialect)
        read = [one.topic for one in ancestors(rows.node) if isinstance(one, Source)]
        if read:
            raise FlowError(
                f"expected VALUES or a query without FROM after CREATE TABLE … AS; found one over "
                f"{read[0]!r}. CREATE MATERIALIZED VIEW keeps a query's rows up to date, CREATE VIEW names it"
            )
        if statement.columns is not None and statement.columns.text:
            schema = _schema(statement)
            if len(schema.names) != len(rows.names) or statement.columns.key:
                raise FlowError(
                    f"expected a type for each of {len(rows.names)} columns, without PRIMARY KEY; found "
                    f"{statement.columns.text!r}"
                )
            rows = rows.project(
                {
                    field.name: f"CAST({quoted(name)} AS {sql_type(field.type)})"
                    for field, name in zip(schema, rows.names, strict=True)
                }
            )
        if statement.name in self._inlined:
            raise FlowError(f"expected each table once; found {statement.name!r} twice")
        self._inlined[statement.name] = rows

    def _create_sink(self, statement: Statement, dialect: str) -> None:
        """CREATE SINK … INTO a topic; `penstock.app` overrides it for other systems."""
        topic = statement.into
        assert topic is not None
        if statement.is_quoted and "/" in topic:
            raise FlowError(
                "expected a program that runs, such as ps.App(…), for CREATE SINK … INTO 'address'"
            )
        options = statement_options(statement, SINK_OPTIONS)
        assert statement.query is not None
        rows = self._rows(statement.query, dialect)
        found = rows.collection
        if isinstance(found, Stream):
            if statement.emit is not None or statement.every is not None:
                raise FlowError(
                    "expected EMIT for a query that changes; found one that only gets rows"
                )
            found.to(topic, **options)
        else:
            emit: Any = statement.emit
            found.to(topic, emit=emit, every=statement.every, **options)

    def _query(self, text: str, tables: Mapping[str, Stream | Table] | None, dialect: str) -> Table:
        return Table(self, self._compiled(text, self._tables(tables), dialect, kept=True).node)

    def _rows(self, text: str, dialect: str) -> Relation:
        return self._compiled(text, self._tables(None), dialect, kept=False)

    def _compiled(
        self, text: str, tables: Mapping[str, Relation], dialect: str, *, kept: bool
    ) -> Relation:
        from penstock.sql.scope import Sizes

        sizes = Sizes()
        rows = _made(self, text, tables, dialect, kept, sizes)
        if sizes.asked:
            self._sized.append(_Query(text, dialect, tables, kept, rows.node))
        return rows

    @property
    def depends_on_sizes(self) -> bool:
        """Whether `ordered` may give another graph than `graph`."""
        return bool(self._sized)

    def ordered(self, records: Mapping[str, int]) -> tuple[Graph, Sizes]:
        """The finished graph, with joins of several tables in an order that their sizes decide.

        Args:
            records: how many each topic has. A join over a topic without, or with none, stays as it is.

        Returns:
            The graph, which has the same views and outputs, and what was decided.
        """
        from penstock.sql.scope import Sizes

        sizes = Sizes(records)
        made: dict[int, Node] = {}
        for query in self._sized:
            tables = {
                n: replace(r, node=self._renewed(r.node, made)) for n, r in query.tables.items()
            }
            rows = _made(self, query.text, tables, query.dialect, query.kept, sizes)
            if rows.schema == query.node.schema:
                made[id(query.node)] = rows.node
        graph = self.graph()
        views = [replace(one, node=self._renewed(one.node, made)) for one in graph.views]
        outputs = [replace(one, node=self._renewed(one.node, made)) for one in graph.outputs]
        return replace(graph, views=tuple(views), outputs=tuple(outputs)), sizes

    def _renewed(self, end: Node, made: dict[int, Node]) -> Node:
        """A node over other nodes instead of some.

        Args:
            end: the node.
            made: by the identity of a node's object, what is in its place; those above `end` are added.
        """
        for node in ancestors(end):
            if id(node) in made:
                continue
            new = over_others(node, [made[id(one)] for one in node.inputs])
            made[id(node)] = node if new is node else self.node(new)
        return made[id(end)]

    def _tables(self, more: Mapping[str, Stream | Table] | None) -> dict[str, Relation]:
        """What a query may name."""
        from penstock.sql.relation import Relation

        for name, one in (more or {}).items():
            if not isinstance(one, Stream | Table) or one.flow is not self:
                raise FlowError(
                    f"expected streams and tables of the app {self.name!r} in tables=…; found {name}={one!r}"
                )
        named = {**self.named, **(more or {})}
        return {**{n: Relation(self, one.node) for n, one in named.items()}, **self._inlined}


def _made(
    flow: Flow,
    text: str,
    tables: Mapping[str, Relation],
    dialect: str,
    kept: bool,  # noqa: FBT001
    sizes: Sizes,
) -> Relation:
    """What a query gives; see `_Query`."""
    from penstock.sql.views import query_rows

    rows = query_rows(flow, text, tables, dialect, sizes)
    return rows.kept() if kept else rows


def _schema(statement: Statement) -> Schema:
    """The columns of the records.

    Raises:
        PlacedError: they can't be read.
    """
    from penstock.sql.statements import PlacedError

    columns = statement.columns
    assert columns is not None
    try:
        return Schema.of_columns(columns.text)
    except SchemaError as error:
        if error.at is None:
            raise
        raise PlacedError(
            str(error), line_and_column(statement.program, columns.start + error.at)
        ) from None


def _computed(statement: Statement, dialect: str) -> dict[str, str]:
    """The columns that are computed of the records', `at AS to_timestamp(ts)`, and how.

    Raises:
        PlacedError: one can't be read.
    """
    import sqlglot

    from penstock.sql.statements import PlacedError

    found: dict[str, str] = {}
    for one in statement.columns.computed if statement.columns is not None else ():
        try:
            tree = sqlglot.parse_one(one.text, dialect=dialect)
        except sqlglot.errors.SqlglotError:
            place = line_and_column(statement.program, one.start)
            raise PlacedError(f"expected name AS expression; found {one.text!r}", place) from None
        found[one.name] = one.text if dialect == "duckdb" else tree.sql(dialect="duckdb")
    return found


def computed_refused(statement: Statement, where: str) -> FlowError:
    """What is said of columns that are computed where a list of columns can't have any."""
    from penstock.sql.statements import PlacedError

    assert statement.columns is not None
    one = statement.columns.computed[0]
    return PlacedError(
        f"expected columns of the database's table in {where}; found {one.name} AS {one.text}, which is "
        f"computed. Compute it in a view: CREATE VIEW … AS SELECT *, {one.text} AS {one.name} FROM "
        f"{statement.name}",
        line_and_column(statement.program, one.start),
    )


def watermark_of(columns: Columns) -> EventTime | None:
    """The event time that WATERMARK FOR says, of a table without options of time."""
    return _time(columns.watermark, {}, {})


def _in_order(statement: Statement, schema: Schema, computed: Mapping[str, str]) -> dict[str, str]:
    """What gives each column, in the order in which the statement has them."""
    from penstock.sql.relation import quoted

    assert statement.columns is not None
    items = [(name, quoted(name)) for name in schema.names]
    for at, one in enumerate(statement.columns.computed):
        items.insert(one.before + at, (one.name, computed[one.name]))
    if len(dict(items)) < len(items):
        raise FlowError(f"expected columns of different names; found {[name for name, _ in items]}")
    return dict(items)


def _time(
    mark: Watermark | None, options: dict[str, Any], computed: Mapping[str, str]
) -> EventTime | None:
    """The event time that WATERMARK FOR and the options of time say, which are taken out; None: neither.

    Raises:
        FlowError: they contradict each other.
    """
    given: dict[str, Any] = {n: options.pop(n) for n in TIME_OPTIONS if n in options}
    kind = given.pop("time", None)
    if kind is not None:
        if kind != "processing":
            raise FlowError(f"expected time = 'processing', or WATERMARK FOR …; found {kind!r}")
        if mark is not None or given:
            others = ["WATERMARK FOR"] * (mark is not None) + list(given)
            raise FlowError(
                f"expected time = 'processing' alone; found it with {', '.join(others)}. Rows then happen "
                "when they are processed"
            )
        return processing_time()
    if mark is None and not given:
        return None
    if mark is not None and "lateness" in given:
        raise FlowError(
            "expected the lateness in WATERMARK FOR at AS at - INTERVAL 30 SECONDS; found the option "
            "lateness as well. It is for the timestamps of records"
        )
    if "producer_header" in given:
        if "producer" in given:
            raise FlowError("expected producer, a column, or producer_header; found both")
        given["producer"] = header(given.pop("producer_header"))
    if "expected" in given:
        given["expected"] = [one.strip() for one in given["expected"].split(",")]
    if "unit" in given and mark is None:
        raise FlowError(
            "expected WATERMARK FOR a column of numbers with the option unit; found none"
        )
    column = None if mark is None else computed.get(mark.column, mark.column)
    if mark is not None:
        given["lateness"] = mark.lateness
    return event_time(column, **given)


def _options_of_plugin(statement: Statement) -> tuple[str, ...] | None:
    """The options of the format of another distribution; None: it is one of ours."""
    name = statement.options.get("format", "")
    if name not in FORMATS.names():
        return None
    kind = FORMATS.named(name)
    return None if kind is None else tuple(one.name for one in kind.options)


def _format(options: dict[str, Any]) -> dict[str, Any]:
    """The option `format` with those that belong to it, which are taken out.

    Raises:
        FlowError: one belongs to another format.
    """
    from penstock.sql.text.foreign import FORMATS

    kind = options.pop("format", "json").lower()
    if kind in FORMATS:
        raise FlowError(f"expected format = {FORMATS[kind]!r}; found {kind!r}")
    belongs = {
        "csv": ("delimiter", "null"),
        "pattern": ("pattern", "time_format", "null"),
        **dict.fromkeys(KINDS, ("registry",)),
    }
    given = {
        name: options.pop(name)
        for name in ("registry", "delimiter", "null", "pattern", "time_format")
        if name in options
    }
    for name in given:
        if name not in belongs.get(kind, ()):
            formats = [one for one, names in belongs.items() if name in names]
            raise FlowError(
                f"expected format = {' or '.join(map(repr, formats))} with {name}; found {kind!r}"
            )
    match kind:
        case str() if kind in KINDS:
            return {"format": encoded_as(kind, check_registry(given.get("registry", "")))}
        case "csv" if given:
            return {"format": csv(**given)}
        case "pattern":
            if "pattern" not in given:
                raise FlowError("expected pattern = '…' with format = 'pattern'; found none")
            return {"format": pattern(given.pop("pattern"), **given)}
    return {"format": kind}


def statement_options(statement: Statement, known: tuple[str, ...]) -> dict[str, Any]:
    """WITH's options, numbers as such.

    Raises:
        FlowError: there is no such option.
    """
    from penstock.sql.statements import PlacedError
    from penstock.sql.text.foreign import OPTIONS

    found: dict[str, Any] = {}
    for name, value in statement.options.items():
        if name not in known:
            if name in OPTIONS:
                raise PlacedError(
                    f"expected {OPTIONS[name]}; found the option {name!r}, which other systems have",
                    statement.places.get(name),
                )
            raise PlacedError(
                f"expected the options {known_names(known)}; found {name!r}{hint(name, known)}",
                statement.places.get(name),
            )
        found[name] = int(value) if name == "partitions" and value.isdecimal() else value
    return found

"""What a query's names mean: columns of a relation, and the tables that a query may read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import pyarrow as pa
from sqlglot import exp

from penstock.core.names import hint, known_names
from penstock.errors import SchemaError
from penstock.expr.dialect import Own
from penstock.expr.duck import EvaluationError, types_of
from penstock.expr.expression import known_type, sql_type
from penstock.expr.tried import row_parts
from penstock.flow import Flow
from penstock.flow.graph import Node
from penstock.flow.rolling import RowWindow
from penstock.flow.windows import Late
from penstock.ops import Window
from penstock.ops.joins.table_join import How
from penstock.sql.places import within
from penstock.sql.relation import Relation, null_safe, quoted
from penstock.sql.trees import Name, name_of, own, own_columns, replaced, subqueries

__all__ = [
    "Answer",
    "Carry",
    "Environment",
    "Named",
    "NamedTables",
    "Scope",
    "Sizes",
    "Windows",
    "carried",
    "joined_back",
    "with_parts",
]


@dataclass(frozen=True)
class Windows:
    """How rows are cut into windows of event time.

    Attributes:
        window: what TUMBLE, HOP, SESSION and SLIDE make.
        time: the relation's column of event time; None: it is no column.
        keep: how long closed windows are kept; None: without limit.
        late: what becomes of late rows.
    """

    window: Window | RowWindow
    time: str | None
    keep: str | None = None
    late: Late = "drop"


@dataclass(frozen=True)
class Named:
    """A table that queries name.

    Attributes:
        rows: of it; of windows' rows those that are to be cut.
        columns: its columns' names in queries, in lower case, to the relation's.
        window: where rows are cut into windows of event time, which.
    """

    rows: Relation
    columns: Mapping[str, str]
    window: Windows | None = None

    @staticmethod
    def of(rows: Relation) -> Named:
        """A relation under its own names.

        Raises:
            SchemaError: two names differ in case only.
        """
        columns: dict[str, str] = {}
        for name in rows.names:
            if name.lower() in columns:
                raise SchemaError(
                    f"expected columns whose names differ by more than case; found {columns[name.lower()]!r} "
                    f"and {name!r}. Rename one before, with select(…)"
                )
            columns[name.lower()] = name
        return Named(rows, columns)


class NamedTables(Mapping[str, Named]):
    """The tables of a program, by their names in lower case, each looked at when it is asked for.

    So a table that a query can't read, and a hundred that it doesn't, are no matter of this query's.
    """

    def __init__(self, made: Mapping[str, Relation | Named]) -> None:
        self._made = made

    @staticmethod
    def of(tables: Mapping[str, Relation]) -> NamedTables:
        """Tables by name."""
        return NamedTables({name.lower(): rows for name, rows in tables.items()})

    def with_(self, name: str, table: Named) -> NamedTables:
        """The same, and another."""
        return NamedTables({**self._made, name: table})

    def __getitem__(self, name: str) -> Named:
        found = self._made[name]
        return found if isinstance(found, Named) else Named.of(found)

    def __iter__(self) -> Iterator[str]:
        return iter(self._made)

    def __len__(self) -> int:
        return len(self._made)


@dataclass
class Sizes:
    """How many records the topics of a program have, and what came of it.

    Attributes:
        records: by topic; 0, or none, where it isn't known.
        asked: how many joins they would order.
        orders: of each join that they did, the tables, with the rows that are expected of each.
    """

    records: Mapping[str, int] = field(default_factory=dict)
    asked: int = 0
    orders: list[tuple[tuple[str, float], ...]] = field(default_factory=list)


@dataclass(frozen=True)
class Environment:
    """What a query may read.

    Attributes:
        flow: that all belong to.
        tables: by their names in lower case.
        clocks: the streams whose watermarks are now().
        sizes: of the topics, by which joins are ordered.
    """

    flow: Flow
    tables: NamedTables = field(default_factory=lambda: NamedTables({}))
    clocks: tuple[Node, ...] = ()
    sizes: Sizes = field(default_factory=Sizes)

    def table(self, name: str) -> Named:
        """One of them.

        Raises:
            SchemaError: there is none of this name.
        """
        found = self.tables.get(name.lower())
        if found is None:
            names = list(self.tables)
            raise SchemaError(
                f"expected one of the streams, tables and views {known_names(names)}; found {name!r}"
                f"{hint(name, names)}"
            )
        return found

    def with_(self, name: str, table: Named) -> Environment:
        """The same, and another."""
        return replace(self, tables=self.tables.with_(name.lower(), table))


@dataclass(frozen=True)
class Carry:
    """What a subquery sees of the query around it: each combination of these columns' values, once.

    Attributes:
        rows: the combinations.
        names: what the outer columns are called in them.
        of: the rows around it that the combinations are of; None where they aren't of a stream's.
    """

    rows: Relation
    names: Mapping[Name, str]
    of: Relation | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """The rows' columns."""
        return self.rows.names


@dataclass(frozen=True)
class Answer:
    """A compiled query.

    Attributes:
        rows: its rows, with the carried columns, if there are some.
        columns: its columns, in order: of the rows.
        labels: what these are called outside.
    """

    rows: Relation
    columns: tuple[str, ...]
    labels: tuple[str, ...]

    def named(self) -> Named:
        """The answer as a table."""
        return Named(self.rows, dict(zip(self.labels, self.columns, strict=True)))


@dataclass(frozen=True)
class Scope:
    """Rows, and what a query calls their columns.

    Attributes:
        rows: the relation.
        names: alias and column, to the relation's column.
        window: where they are rows to be cut into windows, the alias of these, and which.
    """

    rows: Relation
    names: Mapping[Name, str]
    window: tuple[str, Windows] | None = None

    def has(self, tree: exp.Expr) -> bool:
        """Whether all columns of an expression are here, and it has some, and no subqueries."""
        columns = own_columns(tree)
        return bool(columns) and self.covers(columns) and not subqueries(tree)

    def covers(self, columns: Iterable[exp.Column]) -> bool:
        """Whether columns are here, or the relation's own already."""
        return all(isinstance(c, Own) or name_of(c) in self.names for c in columns)

    def resolved(self, tree: exp.Expr) -> exp.Expr:
        """The expression over the relation's columns."""

        def found(node: exp.Expr) -> exp.Expr | None:
            if not isinstance(node, exp.Column):
                return None
            name = self.names.get(name_of(node))
            return None if name is None else own(name)

        return replaced(tree, found)

    def column(self, tree: exp.Expr) -> str:
        """The relation's column that an expression is; nothing where it is something else."""
        made = self.resolved(tree)
        return made.name if isinstance(made, Own) else ""

    def sql(self, tree: exp.Expr) -> str:
        """The expression as SQL over the relation's columns.

        Raises:
            SchemaError: it has another column.
        """
        if isinstance(tree, exp.Column):  # most are
            name = self.names.get(name_of(tree), tree.name if isinstance(tree, Own) else None)
            if name is not None:
                return quoted(name)
        return self._written(self.resolved(tree), copy=isinstance(tree, exp.Query))

    def _written(self, made: exp.Expr, *, copy: bool = False) -> str:
        """An expression over the relation's columns as SQL, which may change the tree."""
        for column in own_columns(made):
            if not isinstance(column, Own):
                with within(column):
                    raise SchemaError(
                        f"expected a column of this query; found {column.sql(dialect='duckdb')!r}"
                    )
        return made.sql(dialect="duckdb", copy=copy)

    def computed(self, trees: Sequence[exp.Expr], prefix: str) -> tuple[Scope, list[str]]:
        """The scope with columns that some expressions are; plain columns are taken as they are."""
        names: list[str] = []
        added: dict[str, str] = {}
        for tree in trees:
            made = self.resolved(tree)
            if isinstance(made, Own):
                names.append(made.name)
                continue
            name = self.fresh(f"{prefix}{len(added)}", added)
            added[name] = self._written(made)
            names.append(name)
        return (replace(self, rows=self.rows.added(added)) if added else self), names

    def fresh(self, name: str, besides: Iterable[str] = ()) -> str:
        """A name that no column has."""
        taken = {*self.rows.names, *besides}
        while name in taken:
            name += "_"
        return name

    def some_column(self) -> str:
        """A column, where rows need one and it doesn't matter which."""
        plain = [f.name for f in self.rows.schema if not pa.types.is_nested(f.type)]
        return plain[0] if plain else self.rows.names[0]


def carried(scope: Scope, columns: Sequence[exp.Column]) -> Carry:
    """What a subquery sees of these rows: the combinations of some columns.

    Raises:
        SchemaError: a column isn't there.
    """
    wanted = dict.fromkeys(map(name_of, columns))
    names: dict[Name, str] = {}
    computed: dict[str, str] = {}
    for alias, name in wanted:
        of = name if alias is None else scope.names.get((alias, name))
        if of is None:
            raise SchemaError(f"expected a column of this query; found '{alias}.{name}'")
        outer = f"outer {of}"
        names[alias, name] = outer
        computed[outer] = quoted(of)
    if not computed:
        return Carry(scope.rows.project({"outer": "1"}).distinct(), names)
    return Carry(scope.rows.project(computed).distinct(), names, scope.rows)


def joined_back(scope: Scope, right: Relation, carry: Carry, how: str) -> Scope:
    """Rows next to what a subquery gave for their combination of carried columns."""
    sources = {name: key for key, name in carry.names.items()}
    mine: dict[str, str] = {}
    for name in carry.columns:
        if name in sources:
            alias, column = sources[name]
            mine[name] = quoted(column if alias is None else scope.names[alias, column])
        else:
            mine[name] = "1"
    left_on, right_on = {}, {}
    for i, name in enumerate(carry.columns):
        field_ = carry.rows.schema[name]
        here, there = null_safe(mine[name], field_), null_safe(quoted(name), field_)
        left_on[f"carried {i}"], right_on[f"carried {i} "] = here, there
    kept = [name for name in right.names if name not in carry.columns]
    right = right.project({**{name: quoted(name) for name in kept}, **right_on})
    on = list(zip(left_on, right_on, strict=True))
    join: How = how  # type: ignore[assignment] # callers give one of them
    rows = scope.rows.added(left_on).join(right, on, join)
    whole = [*scope.rows.names, *([] if how in ("semi", "anti") else kept)]
    return replace(scope, rows=rows.only(whole))


def with_parts(scope: Scope, trees: Sequence[exp.Expr]) -> tuple[Scope, dict[exp.Expr, exp.Expr]]:
    """The scope with columns for what is computed of single rows below aggregates and window functions.

    Args:
        scope: the rows.
        trees: over the relation's columns.

    Returns:
        And what stands for each part: the column, of the type that DuckDB has. A part of a type that a column
        doesn't keep has none.
    """
    parts: dict[exp.Expr, tuple[str, str]] = {}
    for tree in trees:
        filtered = tree.find(exp.Filter) is not None  # what it leaves out may fail
        for part in [] if filtered else row_parts(tree):
            if part not in parts and (type_ := _kept_type(scope.rows, text := scope.sql(part))):
                parts[part] = text, type_
    if not parts:
        return scope, {}
    names: list[str] = []
    for i in range(len(parts)):
        names.append(scope.fresh(f"part{i}", names))
    texts = [text for text, _ in parts.values()]
    rows = scope.rows.added(dict(zip(names, texts, strict=True)))
    made: dict[exp.Expr, exp.Expr] = {}
    for (part, (_, type_)), name in zip(parts.items(), names, strict=True):
        column: exp.Expr = own(name)
        if type_ in _NARROWER:
            column = exp.Cast(this=column, to=exp.DataType.build(type_, dialect="duckdb"))
        made[part] = column
    return replace(scope, rows=rows), made


_NARROWER: Final = ("TINYINT", "SMALLINT", "UTINYINT", "USMALLINT", "UINTEGER", "TIMESTAMP")
"""Types of DuckDB's whose values a column of a wider type keeps."""


def _kept_type(rows: Relation, text: str) -> str | None:
    """DuckDB's name of an expression's type, if a column keeps all its values."""
    try:
        [(_, found, name)] = types_of(
            {"rows": rows.schema.arrow}, f"SELECT ({text}) AS x FROM rows"
        )
        return name if name in _NARROWER or sql_type(known_type(found, name)) == name else None
    except (EvaluationError, SchemaError):
        return None

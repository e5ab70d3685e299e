"""FROM and JOIN: the rows that a SELECT is over.

Inner joins are taken in the order of their tables' sizes, if these are known (`rules.join_order`).
Otherwise in the order in which equalities connect them, tables found by their key before others, so that
rows are looked up before they are multiplied, and filtered ones of these first. Conditions are applied as
soon as all their columns are there. Equalities are the joins' keys; what else an inner join asks for
filters its rows, and what else an outer one asks for makes it a query over rows of equal keys.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

import pyarrow as pa
from sqlglot import exp

from penstock.core.schema import Field
from penstock.errors import SchemaError
from penstock.expr.query import common_type
from penstock.expr.walks import find_all
from penstock.flow.algebra.joins import join_key
from penstock.ops.joins.table_join import How
from penstock.sql.places import within
from penstock.sql.relation import null_safe, quoted
from penstock.sql.rules.constants import constant
from penstock.sql.rules.intervals import Apart, apart
from penstock.sql.rules.join_order import Same, are_alike, by_key, by_size, equalities
from penstock.sql.rules.products import check_product
from penstock.sql.rules.temporal import filtered, is_temporal
from penstock.sql.rules.unnesting import beside
from penstock.sql.scope import Answer, Carry, Environment, Named, Scope, carried, joined_back
from penstock.sql.searches.conditions import check_none, documents_in, searched
from penstock.sql.trees import (
    AsValue,
    Name,
    conjuncts,
    free,
    joined_in,
    own_columns,
    parts_of,
    replaced,
    subqueries,
)

__all__ = ["Ask", "CompileQuery", "From", "as_key"]


IN_ON: Final = "subquery in ON"
"""What columns belong to that subqueries of an outer join's conditions are."""


class CompileQuery(Protocol):
    """What compiles the queries inside of a query."""

    def __call__(self, query: exp.Expr, env: Environment, carry: Carry | None) -> Answer:
        """The compiled query."""
        ...


class Ask(Protocol):
    """What joins the subqueries of an expression to rows: see `Subqueries`."""

    def restricted(self, scope: Scope, condition: exp.Expr) -> Scope:
        """The rows for which a condition with subqueries is true."""
        ...

    def attached(self, scope: Scope, tree: exp.Expr) -> tuple[Scope, exp.Expr]:
        """The rows with a column for each subquery of an expression, and the expression over these."""
        ...


@dataclass
class From:
    """The FROM of one SELECT, as it is put together."""

    select: exp.Select
    env: Environment
    carry: Carry | None
    compile: CompileQuery
    subqueries: Ask
    current: Scope | None = None
    waiting: list[Scope] = field(default_factory=list)
    pool: list[exp.Expr] = field(default_factory=list)  # conditions that aren't applied yet
    asking: list[exp.Expr] = field(default_factory=list)  # likewise, with subqueries
    searched: frozenset[str] = frozenset()  # tables all of whose columns are fields of documents

    def build(self, where: Sequence[exp.Expr]) -> Scope:
        """The rows.

        Args:
            where: conditions without subqueries; all are applied.
        """
        first = self.select.args.get("from_")
        if first is None:
            return self._of_nothing(where)
        joins = self.select.args.get("joins") or []
        sources = [first.this, *(join.this for join in joins)]
        self.names = self._named([part for source in sources for part in parts_of(source)])
        self.searched = documents_in([*where, *(join.args.get("on") for join in joins)])
        sides = {(join.side or "").upper() for join in joins}
        held = list(where) if sides & {"RIGHT", "FULL"} else []
        self.pool += [] if held else where
        if self.carry is not None:
            self.current = Scope(self.carry.rows, dict(self.carry.names))
        return self.joined(first.this, joins, held)

    def joined(
        self, first: exp.Expr, joins: Sequence[exp.Join], held: Sequence[exp.Expr] = ()
    ) -> Scope:
        """The rows of joined sources.

        Args:
            first: the source before the joins.
            joins: with the others.
            held: conditions of the rows that are joined; they aren't applied before.
        """
        with within(first):
            self._add(first)
        for join in joins:
            with within(join):
                self._join(join)
        self._flush()
        assert self.current is not None
        self.pool += held
        self._apply()
        # Those without columns, or with columns that aren't here.
        for one in self.asking:
            self.current = self.subqueries.restricted(self.current, one)
        check_none(self.pool)
        return filtered(self.current, self.pool, self.env.clocks)

    def _of_nothing(self, where: Sequence[exp.Expr]) -> Scope:
        """One row; of a subquery one for each combination of the outer columns."""
        if self.carry is not None:
            scope = Scope(self.carry.rows, dict(self.carry.names))
        else:
            scope = Scope(constant(self.env.flow, 'SELECT 1 AS "one"'), {})
        return filtered(scope, where, self.env.clocks)

    # -- sources ------------------------------------------------------------------------------------

    def _named(self, sources: Sequence[exp.Expr]) -> dict[Name, str]:
        """What the columns that the SELECT needs are called in the relation."""
        aliases = [source.alias_or_name for source in sources]
        for alias, n in Counter(aliases).items():
            if n > 1:
                raise SchemaError(f"expected each table's name once; found {alias!r} twice. Use AS")
        needed = dict.fromkeys(
            (c.table, c.name) for c in find_all(self.select, exp.Column) if c.table in aliases
        )
        often = Counter(name for _, name in needed)
        taken = set() if self.carry is None else set(self.carry.columns)
        return {
            (alias, name): name if often[name] == 1 and name not in taken else f"{alias}.{name}"
            for alias, name in needed
        }

    def _add(self, source: exp.Expr) -> None:
        """A source that is joined inside."""
        if isinstance(source, exp.Unnest) or (joined_in(source) is None and free(source)):
            self._flush()
            self._beside(source, "inner")
        else:
            self.waiting.append(self._loaded(source))

    def _loaded(self, source: exp.Expr) -> Scope:
        alias = source.alias_or_name
        match source:
            case exp.Table() if isinstance(source.this, exp.Identifier):
                named = self.env.table(source.name)
            case exp.Subquery() if (first := joined_in(source)) is not None:
                return self._joined(source, first)
            case exp.Subquery():
                named = self._renamed(self.compile(source.this, self.env, None).named(), source)
            case exp.Lateral():
                return self._loaded(_unwrapped(source))
            case _:
                raise SchemaError(
                    "expected a table, a subquery, UNNEST, generate_series, range or json_each; found "
                    f"{source.sql(dialect='duckdb')!r}"
                )
        return self._scope(named, alias)

    def _joined(self, source: exp.Subquery, first: exp.Table) -> Scope:
        """Joins in parentheses, which are joined before."""
        if source.alias:
            raise SchemaError(
                f"expected no name of joins in parentheses; found {source.alias!r}. Name a subquery: "
                "(SELECT … FROM a JOIN b …) AS x"
            )
        inner = replace(self, carry=None, current=None, waiting=[], pool=[], asking=[])
        inner.names = self.names
        alone = first.copy()
        alone.set("joins", None)
        return inner.joined(alone, first.args.get("joins") or ())

    def _renamed(self, named: Named, source: exp.Expr) -> Named:
        """Columns that the alias names: `AS t(a, b)`. The others keep their names."""
        columns = source.alias_column_names
        if not columns:
            return named
        names = [*columns, *list(named.columns)[len(columns) :]]
        return replace(named, columns=dict(zip(names, named.columns.values(), strict=False)))

    def _scope(self, named: Named, alias: str) -> Scope:
        """A table's columns that are needed, under their names in this FROM."""
        if named.window is not None:
            return self._windowed(named, alias)
        made_of = {name.lower(): made for (of, name), made in self.names.items() if of == alias}
        # In the table's order: queries that need the same columns have one node, and share its state.
        wanted = {made_of[n]: column for n, column in named.columns.items() if n in made_of}
        names: dict[Name, str] = {
            (of, n): made for (of, n), made in self.names.items() if of == alias
        }
        for name, column in named.columns.items() if alias in self.searched else ():
            if name not in made_of:
                names[alias, name] = f"{alias}.{name}"
                wanted[f"{alias}.{name}"] = column
        if not wanted:
            whole = Scope(named.rows, {})
            wanted = {f"{alias}.{whole.some_column()}": whole.some_column()}
        rows = named.rows.project({made: quoted(name) for made, name in wanted.items()})
        return Scope(rows, names)

    def _windowed(self, named: Named, alias: str) -> Scope:
        """Rows that are yet to be cut into windows keep their names, as they must be alone."""
        if len({of for of, _ in self.names}) > 1 or self.carry is not None or self.waiting:
            raise SchemaError(
                "expected windows of one stream, grouped by window_start and window_end; found them joined "
                "to another table. Aggregate them in a subquery first"
            )
        assert named.window is not None
        names: dict[Name, str] = {(alias, name): made for name, made in named.columns.items()}
        return Scope(named.rows, names, (alias, named.window))

    # -- joins --------------------------------------------------------------------------------------

    def _join(self, join: exp.Join) -> None:
        if join.args.get("using"):
            raise SchemaError(
                f"expected ON in joins in parentheses; found {join.sql(dialect='duckdb')!r}"
            )
        kind, side = (join.kind or "").upper(), (join.side or "").upper()
        asof = (join.method or "").upper() == "ASOF"
        on = conjuncts(join.args.get("on"))
        if kind in ("", "INNER", "CROSS") and not side and not asof:
            self.pool += [one for one in on if not subqueries(one)]
            self.asking += [one for one in on if subqueries(one)]
            self._add(join.this)
            return
        how = {"LEFT": "left", "RIGHT": "right", "FULL": "full"}.get(side, "inner")
        how = {"SEMI": "semi", "ANTI": "anti"}.get(kind, how)
        self._flush()
        is_beside = joined_in(join.this) is None and free(join.this)
        if isinstance(join.this, exp.Lateral | exp.Unnest) or is_beside:
            if how not in ("inner", "left") or on:
                raise SchemaError(
                    "expected LATERAL with JOIN or LEFT JOIN … ON TRUE; found "
                    f"{join.sql(dialect='duckdb')!r}"
                )
            self._beside(join.this, how)
            return
        assert self.current is not None
        right = self._loaded(join.this)
        on, right = self._answered(on, right)
        on, right = self._before(on, right, how, asof=asof)
        self.current = _outer(self.current, right, on, how, self.carry, asof=asof)
        names = {key: made for key, made in self.current.names.items() if key[0] != IN_ON}
        self.current = replace(self.current, names=names)
        self._apply()

    def _answered(self, on: list[exp.Expr], right: Scope) -> tuple[list[exp.Expr], Scope]:
        """An outer join's conditions with a column for each subquery, on the side that it is about."""
        made: dict[exp.Expr, exp.Expr] = {}
        assert self.current is not None
        for node in dict.fromkeys(node for one in on for node in subqueries(one)):
            about = own_columns(node)
            is_left = self.current.covers(about)
            if not is_left and not right.covers(about):
                raise SchemaError(
                    "expected a subquery in the ON of an outer, semi or anti join that depends on columns "
                    f"of one side; found {node.sql(dialect='duckdb')!r}, which depends on both. Write a "
                    "LEFT JOIN as LEFT JOIN LATERAL (SELECT … WHERE …) ON TRUE, and a SEMI or ANTI JOIN as "
                    "[NOT] EXISTS (…) in WHERE"
                )
            before = self.current if is_left else right
            scope, plain = self.subqueries.attached(before, node)
            taken = right if is_left else self.current  # where no column may have its name either
            column = scope.fresh(f"on {len(made)}", taken.rows.names)
            rows = scope.rows.added({column: scope.sql(plain)}).only([*before.rows.names, column])
            made[node] = exp.column(str(len(made)), IN_ON)
            names = {**scope.names, (IN_ON, str(len(made) - 1)): column}
            scope = replace(scope, rows=rows, names=names)
            self.current, right = (scope, right) if is_left else (self.current, scope)
        return [replaced(one, made.get) for one in on] if made else on, right

    def _before(
        self, on: list[exp.Expr], right: Scope, how: str, *, asof: bool
    ) -> tuple[list[exp.Expr], Scope]:
        """An outer join's conditions without those of its right side alone, and this restricted."""
        mine = [one for one in on if right.has(one)]
        if how in ("left", "semi", "anti", "inner") and not asof and mine:
            on = [one for one in on if not any(one is two for two in mine)]
            right = filtered(right, mine, self.env.clocks)
        if odd := next(filter(is_temporal, on), None):
            raise SchemaError(
                "expected now() in the ON of an outer join next to columns of the side that may have no "
                f"partner; found {odd.sql(dialect='duckdb')!r}. Filter in a subquery"
            )
        return on, right

    def _flush(self) -> None:
        """Joins what waits."""
        self.waiting = [self._restricted(scope) for scope in self.waiting]
        first = [] if self.current is None else [_alone(self.current)]
        found_, self.pool = searched([*first, *self.waiting], self.pool, self.names)
        self.current, self.waiting = (found_[0] if first else None), found_[len(first) :]
        found = by_size(self.current, self.waiting, self.pool, self.env.sizes)
        same = None if found is None else Same()
        if found is not None:
            order, self.pool = found
            self.waiting = [self.waiting[i] for i in order]
        while self.waiting:
            if self.current is None:
                self.current = self.waiting.pop(0)
                continue
            self._apply()
            part = self.waiting.pop(
                by_key(self.current, self.waiting, self.pool) if same is None else 0
            )
            keys = equalities(self.pool, self.current, part)
            # What follows from other equalities of columns isn't asked again.
            pairs = [
                (mine, other)
                for _, mine, other in keys
                if same is None
                or not are_alike(mine, other, self.current, part)
                or same.add(mine, other)
            ]
            near = apart(self.pool, self.current, part)
            used = [condition for condition, _, _ in keys]
            if near is None:
                self.current = _inner(self.current, part, pairs, self.carry)
            else:
                used += near.used
                self.current = _near(self.current, part, pairs, near, "inner")
            self.pool = [one for one in self.pool if not any(one is two for two in used)]
        self._apply()

    def _restricted(self, scope: Scope) -> Scope:
        """A source with the conditions that are about it alone."""
        mine = [one for one in self.pool if scope.has(one)]
        self.pool = [one for one in self.pool if not any(one is two for two in mine)]
        return filtered(scope, mine, self.env.clocks)

    def _apply(self) -> None:
        if self.current is None:
            return
        self.current = self._restricted(self.current)
        for one in list(self.asking):
            if self.current.covers(own_columns(one)):
                self.asking = [other for other in self.asking if other is not one]
                self.current = self.subqueries.restricted(self.current, one)

    def _beside(self, source: exp.Expr, how: str) -> None:
        """A source that depends on the rows so far: UNNEST, LATERAL."""
        if self.current is None and isinstance(source, exp.Unnest) and not free(source):
            self.current = self._of_nothing(())
        if self.current is None:
            raise SchemaError(
                f"expected a table before {source.sql(dialect='duckdb')!r}; found none"
            )
        alias = source.alias_or_name
        if isinstance(source, exp.Unnest):
            self.current = beside(self.current, source, how, self.names)
            self._apply()
            return
        inner = _unwrapped(source) if isinstance(source, exp.Lateral) else source
        carry = carried(self.current, free(inner))
        answer = self.compile(inner.this, self.env, carry)
        named = self._renamed(answer.named(), inner)
        wanted = {
            made: named.columns[name] for (of, name), made in self.names.items() if of == alias
        }
        right = answer.rows.project(
            {
                **{name: quoted(name) for name in carry.columns},
                **{made: quoted(name) for made, name in wanted.items()},
            }
        )
        self.current = joined_back(self.current, right, carry, how)
        names = {key: made for key, made in self.names.items() if key[0] == alias}
        self.current = replace(self.current, names={**self.current.names, **names})
        self._apply()


def _unwrapped(source: exp.Lateral) -> exp.Expr:
    """The subquery of a LATERAL, under its alias."""
    inner = source.this.copy()
    if not isinstance(inner, exp.Subquery):
        raise SchemaError(
            f"expected a subquery after LATERAL; found {inner.sql(dialect='duckdb')!r}"
        )
    inner.set("alias", source.args["alias"].copy())
    return inner


def as_key(name: str, one: pa.DataType, other: pa.DataType) -> str:
    """A column as a join's key, in the type in which two types are compared."""
    type_ = common_type(one, other)
    return quoted(name) if type_ is None else f"CAST({quoted(name)} AS {type_})"


def _keys(
    left: Scope, right: Scope, pairs: Sequence[tuple[exp.Expr, exp.Expr]]
) -> tuple[Scope, Scope, list[tuple[str, str]]]:
    """Columns of one type that are the sides of equalities: both scopes with them, and the pairs."""
    as_values = [isinstance(one, AsValue) for one, _ in pairs]
    left, mine = left.computed([_plain(one) for one, _ in pairs], "left")
    right, others = right.computed([_plain(two) for _, two in pairs], "right")
    found: list[tuple[str, str]] = []
    for one, two, as_value in zip(mine, others, as_values, strict=True):
        fields = left.rows.schema[one], right.rows.schema[two]
        types = fields[0].type, fields[1].type
        sides: list[tuple[Scope, str]] = []
        for scope, name in ((left, one), (right, two)):
            to = as_key(name, *types)
            if as_value:
                to = null_safe(to, _either(*fields))
            if to == quoted(name) and not any(name in pair for pair in found):
                sides.append((scope, name))
                continue
            fresh = scope.fresh(f"{name} key")
            sides.append((replace(scope, rows=scope.rows.added({fresh: to})), fresh))
        (left, one_), (right, two_) = sides
        found.append((one_, two_))
    return left, right, found


def _plain(side: exp.Expr) -> exp.Expr:
    return side.this if isinstance(side, AsValue) else side


def _either(one: Field, other: Field) -> Field:
    """Of two columns that are compared, what either is: not required, or of a type with -0.0."""
    floating = next((f for f in (one, other) if pa.types.is_floating(f.type)), one)
    return replace(floating, required=one.required and other.required)


def _inner(
    left: Scope,
    right: Scope,
    pairs: Sequence[tuple[exp.Expr, exp.Expr]],
    carry: Carry | None,
) -> Scope:
    """The join on equal expressions; without any, of all rows with all.

    Args:
        left: the rows so far.
        right: others.
        pairs: what is equal.
        carry: what a subquery's rows have of the query around it.
    """
    left, right = _alone(left), _alone(right)
    names = {**left.names, **right.names}
    if not pairs:
        check_product(left, right, carry)
        one, two = left.fresh("all"), right.fresh("all ")
        rows = left.rows.added({one: "1"}).join(right.rows.added({two: "1"}), [(one, two)], "inner")
        return Scope(rows.only([n for n in rows.names if n != one]), names)
    left, right, on = _keys(left, right, pairs)
    rows = left.rows.join(right.rows, on, "inner")
    same = {two: one for one, two in on}  # the right one's are left out
    names = {
        key: same.get(name, name) if key in right.names else name for key, name in names.items()
    }
    kept = [name for name in rows.names if name in set(names.values())]
    return Scope(rows.only(kept or rows.names[:1]), names)


def _outer(
    left: Scope,
    right: Scope,
    on: Sequence[exp.Expr],
    how: str,
    carry: Carry | None,
    *,
    asof: bool,
) -> Scope:
    """An outer join, a semi or an anti join, or one as of a time."""
    left, right = _alone(left), _alone(right)
    keys = equalities(on, left, right)
    used = [condition for condition, _, _ in keys]
    rest = [one for one in on if not any(one is two for two in used)]
    both = Scope(left.rows, {**left.names, **right.names})
    left_names, right_names = list(left.names.values()), list(right.names.values())
    whole = how not in ("semi", "anti")
    names = both.names if whole else left.names
    near = None if asof else apart(on, left, right)
    if near is not None and all(any(one is two for two in near.used) for one in rest):
        return _near(left, right, [(one, two) for _, one, two in keys], near, how)
    if not keys and not asof:
        check_product(left, right, carry)
    if not keys and not rest and how in ("semi", "anti", "left"):
        rest = [exp.true()]
    if keys and not rest and not asof and how not in ("right", "full"):
        left_, right_, on_ = _keys(left, right, [(one, two) for _, one, two in keys])
        # The right keys are copied: a join leaves out those that it is on, and they may be NULL.
        copied = right_.rows.added({f"{two} on": quoted(two) for _, two in on_})
        join: How = how  # type: ignore[assignment] # callers give one of them
        rows = left_.rows.join(copied, [(one, f"{two} on") for one, two in on_], join)
        wanted = [*left_names, *(right_names if whole else [])]
        return Scope(rows.only(list(dict.fromkeys(wanted)) or rows.names[:1]), names)
    return _outer_query(left, right, keys, rest, how, asof=asof, names=names)


def _near(
    left: Scope, right: Scope, pairs: Sequence[tuple[exp.Expr, exp.Expr]], near: Apart, how: str
) -> Scope:
    """The join of two streams whose rows are so far apart in time."""
    names = left.names if how in ("semi", "anti") else {**left.names, **right.names}
    left, right, on = _keys(left, right, pairs)
    # The keys are copied, as a row without a partner may be NULL in the columns that they are of.
    copies = [(f"{one} on left", f"{two} on right") for one, two in on] or [("left", "right")]
    mine = {to: quoted(name) for (to, _), (name, _) in zip(copies, on, strict=False)}
    others = {to: quoted(name) for (_, to), (_, name) in zip(copies, on, strict=False)}
    one = left.rows.added(mine or {"left": "1"})
    two = right.rows.added(others or {"right": "1"})
    made: How = how  # type: ignore[assignment] # callers give one of them
    rows = one.near(two, copies, near.before_us, near.after_us, made)
    wanted = [name for name in rows.names if name in set(names.values())]
    return Scope(rows.only(wanted or rows.names[:1]), names)


def _outer_query(
    left: Scope,
    right: Scope,
    keys: Sequence[tuple[exp.Expr, exp.Expr, exp.Expr]],
    rest: Sequence[exp.Expr],
    how: str,
    *,
    asof: bool,
    names: Mapping[Name, str],
) -> Scope:
    """The same by a query over the rows whose keys are equal."""
    both = Scope(left.rows, {**left.names, **right.names})
    conditions = [f"({both.sql(condition)})" for condition in rest]
    left_names, right_names = list(left.rows.names), list(right.rows.names)
    as_values = [
        (left.column(_plain(a)), right.column(_plain(b)))
        for _, a, b in keys
        if isinstance(a, AsValue)
    ]
    left, right, on = _keys(left, right, [(one, two) for _, one, two in keys])
    conditions += [f"rows0.{quoted(one)} = rows1.{quoted(two)}" for one, two in on]
    wanted = [f"rows0.{quoted(name)}" for name in left_names]
    if how not in ("semi", "anti"):
        wanted += [f"rows1.{quoted(name)}" for name in right_names]
    word = f"ASOF {'LEFT ' if how == 'left' else ''}" if asof else f"{how.upper()} "
    query = (
        f"SELECT {', '.join(wanted)} FROM rows0 {word}JOIN rows1 "
        f"ON {' AND '.join(conditions) or 'TRUE'}"
    )
    key, single = join_key(
        left.rows.node,
        right.rows.node,
        on,
        how,
        named={},
        nearest=asof and how in ("inner", "left"),
        alike=() if rest else as_values,
    )
    held = [*left_names, *([] if how in ("semi", "anti") else right_names)]
    row_key = key if set(key) <= set(held) else ()
    keys_ = [one for one, _ in on], [two for _, two in on]
    rows = left.rows.query((right.rows,), keys_, query, row_key=row_key, single=single)
    return Scope(rows, names)


def _alone(scope: Scope) -> Scope:
    if scope.window is not None:
        raise SchemaError(
            "expected windows of one stream, grouped by window_start and window_end; found them joined to "
            "another table. Aggregate them in a subquery first"
        )
    return scope

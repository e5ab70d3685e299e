"""From a query's tree to relations of the flow: SELECT, set operations, subqueries, recursion.

    compile(query, environment, carry) -> rows and columns

A subquery that refers to the query around it is compiled for all combinations of the outer columns at
once (the *carry*): they are one more table of its FROM, and whatever groups rows there (GROUP BY,
DISTINCT, windows, LIMIT) groups by them, too. What it gives is then joined back. So any correlated
subquery is kept up, at any depth, without a rule for each form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from itertools import compress

import pyarrow as pa
from sqlglot import exp

from penstock.errors import SchemaError
from penstock.expr.dialect import Own
from penstock.expr.expression import sql_type
from penstock.expr.walks import find_all
from penstock.sql.aggregation import Called, aggregated, call_of, counts, of_nothing, with_defaults
from penstock.sql.ordering import first_rows, limited
from penstock.sql.places import within
from penstock.sql.recursion import recursive
from penstock.sql.relation import Relation, quoted
from penstock.sql.rules.first_rows import at_most
from penstock.sql.rules.unnesting import MAKE_ROWS, array_of, elements
from penstock.sql.scope import (
    Answer,
    Carry,
    Environment,
    Named,
    Scope,
    Windows,
    joined_back,
    with_parts,
)
from penstock.sql.sources import From
from penstock.sql.subqueries import Subqueries
from penstock.sql.trees import (
    aggregates,
    conjuncts,
    cuts,
    lowered,
    name_of,
    own,
    replaced,
    shallow,
    subqueries,
    window_functions,
)
from penstock.sql.windows import Over, windowed

__all__ = ["compile_tree"]

NO_KEY = exp.Tuple()
"""GROUP BY ()."""
ROWS = exp.Count(this=exp.Star())
"""What is counted of a group that has no other column."""


def compile_tree(query: exp.Expr, env: Environment, carry: Carry | None = None) -> Answer:
    """Compiles a query whose names are qualified.

    Raises:
        SchemaError: it can't be kept up, or can't be read.
    """
    env = _with_ctes(query, env)
    with within(query):
        return _compiled(query, env, carry)


def _compiled(query: exp.Expr, env: Environment, carry: Carry | None) -> Answer:
    """See `compile_tree`; its WITH is in the environment."""
    match query:
        case exp.Subquery():
            answer = compile_tree(query.this, env, carry)
            return _cut(answer, query, carry) if cuts(query) else answer
        case exp.SetOperation():
            answer = _set_operation(query, env, carry)
            return _cut(answer, query, carry) if cuts(query) else answer
        case exp.Select():
            return _Select(query, env, carry).compile()
        case _:
            raise SchemaError(f"expected a SELECT; found {query.sql(dialect='duckdb')!r}")


def _with_ctes(query: exp.Expr, env: Environment) -> Environment:
    with_ = query.args.get("with_")
    if with_ is None:
        return env
    for cte in with_.expressions:
        name = cte.alias
        tables = {table.name.lower() for table in find_all(cte.this, exp.Table)}
        if with_.args.get("recursive") and name.lower() in tables:
            named = Named.of(recursive(cte, env))
        else:
            named = compile_tree(cte.this, env).named()
        columns = cte.alias_column_names
        if columns:
            named = replace(named, columns=dict(zip(columns, named.columns.values(), strict=False)))
        env = env.with_(name, named)
    return env


def _cut(answer: Answer, query: exp.Expr, carry: Carry | None) -> Answer:
    """ORDER BY and LIMIT of a whole set operation."""
    scope = Scope(
        answer.rows,
        {("", label): c for label, c in zip(answer.labels, answer.columns, strict=True)},
    )
    rows = limited(scope, query, () if carry is None else carry.columns)
    carried_ = () if carry is None else carry.columns
    return replace(answer, rows=rows.only([*carried_, *dict.fromkeys(answer.columns)]))


def _set_operation(query: exp.SetOperation, env: Environment, carry: Carry | None) -> Answer:
    left = compile_tree(query.this, env, carry)
    right = compile_tree(query.expression, env, carry)
    if len(left.columns) != len(right.columns):
        raise SchemaError(
            f"expected as many columns on both sides of a set operation; found {len(left.columns)} and "
            f"{len(right.columns)}"
        )
    labels = _different(left.labels, () if carry is None else carry.columns)
    one, two = (
        answer.rows.project(
            {
                **{name: quoted(name) for name in ([] if carry is None else carry.columns)},
                **{name: quoted(c) for name, c in zip(labels, answer.columns, strict=True)},
            }
        )
        for answer in (left, right)
    )
    one, two = one.unified(two)
    whole = not query.args.get("distinct")
    if isinstance(query, exp.Union):
        rows = one.union(two)
        rows = rows if whole else rows.distinct()
    else:
        word = "INTERSECT" if isinstance(query, exp.Intersect) else "EXCEPT"
        keys = one.names
        sql = f"SELECT * FROM rows0 {word}{' ALL' if whole else ''} SELECT * FROM rows1"
        row_key = () if whole else keys
        rows = one.query((two,), (keys, keys), sql, placed=keys, row_key=row_key, like=one.schema)
    return Answer(rows, labels, left.labels)


def _different(labels: Sequence[str], taken: Sequence[str]) -> tuple[str, ...]:
    """Names of columns that differ, as the labels are where they do."""
    found: list[str] = []
    for label in labels:
        name, n = label or "column", 1
        while name in found or name in taken or name.startswith("$"):
            n += 1
            name = f"{(label or 'column').lstrip('$')}_{n}"
        found.append(name)
    return tuple(found)


class _Select:
    """One SELECT, clause by clause."""

    def __init__(self, select: exp.Select, env: Environment, carry: Carry | None) -> None:
        self.select, self.env, self.carry = select, env, carry
        self.carried = () if carry is None else carry.columns
        self.subqueries = Subqueries(env, compile_tree)
        self.items = list(select.expressions)
        self.made: dict[exp.Expr, exp.Expr] = {}  # what stands for expressions from before

    def compile(self) -> Answer:
        select = self.select
        where = conjuncts(None if select.args.get("where") is None else select.args["where"].this)
        plain = [one for one in where if not subqueries(one)]
        scope = From(select, self.env, self.carry, compile_tree, self.subqueries).build(plain)
        for condition in where:
            if subqueries(condition):
                scope = self.subqueries.restricted(scope, condition)
        trees = [*self.items, *(select.args.get(w) for w in ("having", "qualify", "order"))]
        grouped = any(select.args.get(what) is not None for what in ("group", "having"))
        if grouped or any(t and aggregates(t) for t in trees):
            scope = self._grouped(scope)
        if scope.window is not None:
            raise SchemaError(
                "expected windows grouped by window_start and window_end; found no GROUP BY with them"
            )
        if (having := self.select.args.get("having")) is not None:
            for condition in conjuncts(having.this):
                scope = self.subqueries.restricted(scope, condition)
        scope = self._windowed(scope)
        if (qualify := self.select.args.get("qualify")) is not None:
            for condition in conjuncts(qualify.this):
                scope = self.subqueries.restricted(scope, condition)
        return self._projected(scope)

    # -- groups -------------------------------------------------------------------------------------

    def _grouped(self, scope: Scope) -> Scope:
        group = self.select.args.get("group")
        keys = [] if group is None else list(group.expressions)
        if group is not None and group.args.get("all"):
            keys = [_unaliased(item) for item in self.items if not aggregates(item)]
        keys = [self._at(key) for key in keys if key != NO_KEY]
        scope = self._unnested(scope, keys)
        keys = [self._current(key) for key in keys]
        sets = _grouping_sets(keys, group)
        if sets is not None:
            return self._grouping_sets(scope, sets)
        return self._group(scope, keys)

    def _at(self, key: exp.Expr) -> exp.Expr:
        """What a number in GROUP BY stands for, where it is an UNNEST: others are replaced by sqlglot."""
        if not isinstance(key, exp.Literal) or key.is_string or not key.name.isdecimal():
            return key
        item = _unaliased(self.items[int(key.name) - 1])
        return item if any(isinstance(node, MAKE_ROWS) for node in shallow(item)) else key

    def _group(self, scope: Scope, keys: Sequence[exp.Expr]) -> Scope:
        """Groups; the clauses after it are then over keys and aggregates."""
        window = None
        if scope.window is not None:
            alias, cut = scope.window
            bounds = {(alias, "window_start"), (alias, "window_end")}
            cutting = [k for k in keys if isinstance(k, exp.Column) and (k.table, k.name) in bounds]
            if cutting:
                window, keys = cut, [key for key in keys if key not in cutting]
            scope = replace(scope, window=None)
        scope = self._answered(scope, keys)
        keys = [self._current(key) for key in keys]
        scope = self._answered(scope, self._aggregates())
        found = self._aggregates()
        if not (found or keys or window):
            found = [ROWS]
        scope, names = scope.computed(keys, "key")
        calls = _calls(scope, found, windowed=window is not None)
        rows = self._of_groups(scope, names, calls, window)
        made: dict[exp.Expr, exp.Expr] = {
            key: own(name) for key, name in zip(keys, names, strict=True)
        }
        made |= {t: own(call.name) for t, call in zip(found, calls, strict=True)}
        self._rewrite(made)
        after = {} if self.carry is None else dict(self.carry.names)
        for key, name in zip(keys, names, strict=True):
            if isinstance(key, exp.Column) and not isinstance(key, Own):
                after[key.table, key.name] = name
        if window is not None:
            after |= {bound: bound[1] for bound in bounds}
        return Scope(rows, after)

    def _of_groups(
        self, scope: Scope, keys: Sequence[str], calls: Sequence[Called], window: Windows | None
    ) -> Relation:
        """A row for each group; without keys one of all rows, also where there are none."""
        groups = list(dict.fromkeys([*self.carried, *keys]))
        rows = aggregated(scope.rows, groups, calls, window)
        if not keys and self.carry is not None:
            return self._for_all(rows, calls)
        return of_nothing(rows, calls) if not keys and window is None else rows

    def _for_all(self, rows: Relation, calls: Sequence[Called]) -> Relation:
        """A row for each combination of the carried columns, also where no row is in the group."""
        assert self.carry is not None
        carry = Carry(self.carry.rows, {(None, name): name for name in self.carry.columns})
        found = joined_back(Scope(carry.rows, {}), rows, carry, "left")
        return with_defaults(found.rows, calls)

    def _aggregates(self) -> list[exp.Expr]:
        """All aggregates of the clauses that come after grouping, each once."""
        trees = [*self.items, *self._clauses()]
        return list(dict.fromkeys(one for tree in trees for one in aggregates(tree)))

    def _clauses(self) -> list[exp.Expr]:
        found = [self.select.args.get(what) for what in ("having", "qualify", "order", "distinct")]
        found += self.select.args.get("windows") or []
        return [one for one in found if one is not None]

    def _rewrite(self, made: dict[exp.Expr, exp.Expr]) -> None:
        """Replaces expressions in the SELECT list and in the clauses that come after grouping."""
        self.items = [replaced(item, made.get) for item in self.items]
        select = _shared(self.select)
        for what in ("having", "qualify", "order", "distinct"):
            if (tree := select.args.get(what)) is not None:
                select.set(what, replaced(tree, made.get))
        if select.args.get("windows"):
            select.set("windows", [replaced(one, made.get) for one in select.args["windows"]])
        self.select = select
        self.made |= made

    def _current(self, tree: exp.Expr) -> exp.Expr:
        return replaced(tree, self.made.get)

    def _grouping_sets(self, scope: Scope, sets: Sequence[Sequence[exp.Expr]]) -> Scope:
        """Several groupings of the same rows, one below the other; a key that isn't in one is NULL."""
        every = list(dict.fromkeys(key for one in sets for key in one))
        scope, names = scope.computed(every, "key")  # the two keys of a join are one column
        set_ = [scope.fresh(f"key{i} set") for i in range(len(every))]
        left_out = [scope.fresh(f"key{i} left out") for i in range(len(every))]
        found = self._aggregates()
        plain = [tree for tree in found if not isinstance(tree, exp.Grouping)]
        if not plain and not all(sets):
            plain = [ROWS]
        calls = _calls(scope, plain)
        parts = []
        for one in sets:
            kept = [key in one for key in every]
            rows = self._of_groups(scope, [*compress(names, kept)], calls, None)
            columns = {name: quoted(name) for name in self.carried}
            for i, name in enumerate(names):
                null = _null_of(scope.rows.schema[name].type)
                columns[set_[i]] = quoted(name) if kept[i] else null
                columns[left_out[i]] = "0" if kept[i] else "1"
            columns |= {call.name: quoted(call.name) for call in calls}
            parts.append(rows.project(columns))
        rows = reduce(lambda a, b: a.union(b), parts)
        made: dict[exp.Expr, exp.Expr] = {
            key: own(name) for key, name in zip(every, set_, strict=True)
        }
        made |= {t: own(call.name) for t, call in zip(plain, calls, strict=True)}
        for tree in found:
            if isinstance(tree, exp.Grouping):
                made[tree] = _grouping([left_out[every.index(key)] for key in tree.expressions])
        self._rewrite(made)
        return Scope(rows, dict(self.carry.names) if self.carry is not None else {})

    # -- window functions ---------------------------------------------------------------------------

    def _windowed(self, scope: Scope) -> Scope:
        """The rows with a column for each window function."""
        asking = [*self._window_functions(), *(self.select.args.get("windows") or [])]
        scope = self._answered(scope, asking)
        named = {one.this.name: one for one in self.select.args.get("windows") or []}
        found = list(dict.fromkeys(self._window_functions()))
        whole = {window: _with_definition(window, named) for window in found}
        scope, whole = _with_arguments(scope, whole)
        number, n = self._bounded_by(whole)
        scope = self._over(scope, {w: full for w, full in whole.items() if w is not number})
        if number is None:
            return scope
        full = whole[number]
        scope, keys = self._partition(scope, full.args.get("partition_by") or ())
        order = [scope.resolved(one) for one in full.args["order"].expressions]
        first = first_rows(scope, [o for o in order if isinstance(o, exp.Ordered)], n, keys)
        if first is not None:
            scope = first  # the first rows of these are numbered as they are among all
            self._qualify([c for c in self._qualified() if at_most(c) != n or c.this != number])
        still = any(one == number for one in self._window_functions())
        return self._over(scope, {number: full}) if still else scope

    def _answered(self, scope: Scope, trees: Sequence[exp.Expr]) -> Scope:
        """The rows with a column for each subquery of some expressions, which are rewritten."""
        for tree in trees:
            scope, plain = self.subqueries.attached(scope, tree)
            if plain is not tree:
                self._rewrite({tree: plain})
        return scope

    def _over(self, scope: Scope, whole: Mapping[exp.Window, exp.Window]) -> Scope:
        """The rows with a column for each of some window functions; of each, its whole definition."""
        by: dict[tuple[exp.Expr, ...], list[exp.Window]] = {}
        for window, full in whole.items():
            by.setdefault(tuple(full.args.get("partition_by") or ()), []).append(window)
        made: dict[exp.Expr, exp.Expr] = {}
        for partition, windows in by.items():
            scope, keys = self._partition(scope, partition)
            over = []
            for window in windows:
                name = scope.fresh(f"window{len(made)}")
                resolved = scope.resolved(whole[window])
                assert isinstance(resolved, exp.Window)
                scope.sql(resolved)  # says what isn't there
                over.append(Over(name, resolved))
                made[window] = own(name)
            scope = windowed(scope, keys, over)
        if made:
            self._rewrite(made)
        return scope

    def _partition(self, scope: Scope, partition: Sequence[exp.Expr]) -> tuple[Scope, list[str]]:
        """The rows with columns that make up a partition, and their names."""
        scope, keys = scope.computed(partition, "partition")
        return scope, list(dict.fromkeys([*self.carried, *keys]))

    def _window_functions(self) -> list[exp.Window]:
        trees = [*self.items, *self._clauses()]
        return [w for tree in trees for w in window_functions(tree) if not _defines(w)]

    def _qualified(self) -> list[exp.Expr]:
        qualify = self.select.args.get("qualify")
        return conjuncts(None if qualify is None else qualify.this)

    def _qualify(self, conditions: Sequence[exp.Expr]) -> None:
        self.select = _shared(self.select)
        left = [one.copy() for one in conditions]
        self.select.set("qualify", exp.Qualify(this=exp.and_(*left)) if left else None)

    def _bounded_by(self, whole: Mapping[exp.Window, exp.Window]) -> tuple[exp.Window | None, int]:
        """Of a condition that leaves the first rows of each partition: `row_number() OVER (…) <= n`."""
        for condition in self._qualified():
            n = at_most(condition)
            if n is None:
                continue
            number = next((one for one in whole if one == condition.this), None)
            if number is not None and whole[number].args.get("order") is not None:
                return number, n
        return None, 0

    # -- the result ---------------------------------------------------------------------------------

    def _unnested(self, scope: Scope, trees: Sequence[exp.Expr]) -> Scope:
        """The rows with one for each element of what UNNEST in some expressions is of."""
        nodes = (node for tree in trees for node in shallow(tree))
        found = list(dict.fromkeys(node for node in nodes if isinstance(node, MAKE_ROWS)))
        if not found:
            return scope
        with within(found[-1]):
            if len(found) > 1:
                raise SchemaError(
                    "expected one UNNEST in SELECT, as several go through their arrays side by side; found "
                    f"{' and '.join(one.sql(dialect='duckdb') for one in found)!r}. Write UNNEST(list_zip(a, "
                    "b)), or in FROM one for each"
                )
            scope, array = self.subqueries.attached(scope, array_of(found[0]))
            scope, name = elements(scope, array, "element")
        self._rewrite({found[0]: own(name)})
        return scope

    def _projected(self, scope: Scope) -> Answer:
        scope = self._unnested(scope, [*self.items, *self._clauses()])
        if (order := self.select.args.get("order")) is not None and cuts(self.select):
            scope = self._answered(scope, order.expressions)
        labels = tuple(item.alias_or_name for item in self.items)
        trees = []
        for item in self.items:
            scope, plain = self.subqueries.attached(scope, _unaliased(item))
            trees.append(plain)
        names = _different(labels, self.carried)
        outputs = {name: scope.sql(tree) for name, tree in zip(names, trees, strict=True)}
        distinct = self.select.args.get("distinct")
        # ORDER BY may name what is computed here, and what isn't in the result.
        made = {f"{name} result": text for name, text in outputs.items()}
        ordered = cuts(self.select) or (distinct is not None and distinct.args.get("on"))
        if not ordered:
            rows = scope.rows.project({**{name: quoted(name) for name in self.carried}, **outputs})
            return Answer(rows.distinct() if distinct is not None else rows, names, labels)
        wide = Scope(
            scope.rows.added(made),
            {
                **scope.names,
                **{("", label): f"{n} result" for label, n in zip(labels, names, strict=True)},
            },
        )
        final = {name: quoted(f"{name} result") for name in names}
        final = {**{name: quoted(name) for name in self.carried}, **final}
        if distinct is not None and not distinct.args.get("on"):
            rows = wide.rows.only([*self.carried, *made]).distinct()
            named = {key: c for key, c in wide.names.items() if c in rows.names}
            for tree, name in zip(trees, names, strict=True):  # it has another name there
                if isinstance(tree, exp.Column):
                    named.setdefault(name_of(tree), f"{name} result")
            wide = Scope(rows, named)
        rows = limited(wide, self.select, self.carried)
        return Answer(rows.project(final), names, labels)


def _calls(scope: Scope, trees: Sequence[exp.Expr], *, windowed: bool = False) -> list[Called]:
    """Aggregates as they are computed.

    Raises:
        SchemaError: a column isn't there.
    """
    calls = []
    for i, tree in enumerate(trees):
        resolved = scope.resolved(tree)
        scope.sql(tree)  # says what isn't there
        name = scope.fresh(f"aggregate{i}")
        calls.append(
            Called(
                name,
                lowered(resolved),
                call_of(resolved, windowed=windowed),
                counts(tree),
                resolved,
            )
        )
    return calls


def _shared(select: exp.Select) -> exp.Select:
    """The same SELECT, whose clauses may be replaced; what isn't replaced are the same objects."""
    made = exp.Select()
    made.args.update(select.args)
    return made


def _unaliased(item: exp.Expr) -> exp.Expr:
    return item.this if isinstance(item, exp.Alias) else item


def _defines(window: exp.Window) -> bool:
    """Whether it is a named window's definition."""
    return isinstance(window.this, exp.Identifier)


def _with_definition(window: exp.Window, named: dict[str, exp.Window]) -> exp.Window:
    """A window function with what its window's name stands for."""
    name = window.alias
    if not name:
        return window
    definition = named.get(name)
    if definition is None:
        raise SchemaError(f"expected a window in WINDOW; found the name {name!r} and no window")
    made = window.copy()
    made.set("alias", None)
    for what in ("partition_by", "order", "spec"):
        if not made.args.get(what) and definition.args.get(what):
            made.set(what, definition.copy().args[what])
    return made


def _with_arguments(
    scope: Scope, whole: Mapping[exp.Window, exp.Window]
) -> tuple[Scope, dict[exp.Window, exp.Window]]:
    """The rows with columns for what window functions are over: a row for which one fails is in none."""
    resolved = {window: scope.resolved(full) for window, full in whole.items()}
    scope, parts = with_parts(scope, list(resolved.values()))
    made: dict[exp.Window, exp.Window] = {}
    for window, full in resolved.items():
        found = replaced(full, parts.get)
        assert isinstance(found, exp.Window)
        made[window] = found
    return scope, made


def _grouping_sets(
    keys: Sequence[exp.Expr], group: exp.Group | None
) -> list[list[exp.Expr]] | None:
    """The groupings of ROLLUP, CUBE and GROUPING SETS; None where there is one."""
    if not any(isinstance(key, exp.Rollup | exp.Cube | exp.GroupingSets) for key in keys):
        if group is None or not any(group.args.get(w) for w in ("rollup", "cube", "grouping_sets")):
            return None
        keys = [
            *keys,
            *(one for w in ("rollup", "cube", "grouping_sets") for one in group.args.get(w) or []),
        ]
    found: list[list[exp.Expr]] = [[]]
    for key in keys:
        found = [[*one, *two] for one in found for two in _sets_of(key)]
    return found


def _sets_of(key: exp.Expr) -> list[list[exp.Expr]]:
    match key:
        case exp.Rollup():
            parts = [_members(one) for one in key.expressions]
            return [[e for p in parts[:n] for e in p] for n in range(len(parts), -1, -1)]
        case exp.Cube():
            parts = [_members(one) for one in key.expressions]
            masks = range(2 ** len(parts))
            return [
                [e for i, p in enumerate(parts) if not mask >> i & 1 for e in p] for mask in masks
            ]
        case exp.GroupingSets():
            return [one for part in key.expressions for one in _sets_or_members(part)]
        case _:
            return [[key]]


def _sets_or_members(part: exp.Expr) -> list[list[exp.Expr]]:
    if isinstance(part, exp.Rollup | exp.Cube | exp.GroupingSets):
        return _sets_of(part)
    return [_members(part)]


def _members(part: exp.Expr) -> list[exp.Expr]:
    match part:
        case exp.Paren():
            return [part.this]
        case exp.Tuple():
            return list(part.expressions)
        case _:
            return [part]


def _grouping(left_out: Sequence[str]) -> exp.Expr:
    """GROUPING(a, b): a bit for each key, of the columns that say whether it was left out."""
    found: exp.Expr = exp.Literal.number(0)
    for name in left_out:
        found = exp.Add(
            this=exp.Mul(this=exp.Paren(this=found), expression=exp.Literal.number(2)),
            expression=own(name),
        )
    return exp.Cast(this=exp.Paren(this=found), to=exp.DataType.build("BIGINT"))


def _null_of(type_: pa.DataType) -> str:
    return f"CAST(NULL AS {sql_type(type_)})"

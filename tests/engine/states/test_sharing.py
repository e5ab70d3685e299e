"""Traces that several operators keep alike are made once, and each operator's state is complete by itself."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import duckdb
import orjson
import pytest
from tests.effort import rounds

import penstock as ps
from penstock.engine.explain import explain
from penstock.engine.physical import Physical
from penstock.sql import SqlFlow
from penstock.testing import Run

TABLES = {
    "people": "id BIGINT, name STRING, city BIGINT",
    "orders": "id BIGINT, person BIGINT, total BIGINT",
    "visits": "id BIGINT, person BIGINT, page STRING",
}
QUERIES = {
    "bought": """SELECT people.name, orders.total FROM orders
                 JOIN people ON people.id = orders.person""",
    "spent": """SELECT name, sum(total) AS total FROM people
                LEFT JOIN orders ON orders.person = people.id GROUP BY name""",
    "seen": "SELECT people.name, page FROM visits JOIN people ON people.id = visits.person",
    "quiet": "SELECT name, id FROM people WHERE id NOT IN (SELECT person FROM orders)",
    "listed": """SELECT person, string_agg(total::VARCHAR, ',' ORDER BY id) AS totals
                 FROM orders GROUP BY person""",
    "backward": """SELECT person, string_agg(total::VARCHAR, ',' ORDER BY id DESC) AS totals
                   FROM orders GROUP BY person""",
    "largest": """SELECT * FROM orders
                  QUALIFY row_number() OVER (PARTITION BY person ORDER BY total, id) <= 2""",
    "smallest": """SELECT id, person, total FROM orders
                   QUALIFY row_number() OVER (PARTITION BY person ORDER BY total, id) <= 1""",
}
SEEDS = rounds("PENSTOCK_SHARING_SEEDS", quick=1, full=6)


def program(*views: str) -> SqlFlow:
    """A program with some of the views."""
    app = SqlFlow("p")
    for name, columns in TABLES.items():
        app.table(name, columns, key="id", partitions=2)
    for name in views:
        app.view(name, sql=QUERIES[name])
    return app


class World:
    """What the tables contain, and random changes of it."""

    def __init__(self, run: Run, seed: int) -> None:
        self.run, self.chance = run, random.Random(seed)
        self.rows: dict[str, dict[int, dict[str, Any]]] = {name: {} for name in TABLES}

    def change(self, count: int) -> None:
        """Some rows come, change and go; keys may be NULL."""
        chance = self.chance
        for _ in range(count):
            table, key = chance.choice(list(TABLES)), chance.randrange(12)
            if chance.random() < 0.3:
                self.rows[table].pop(key, None)
                self.send(table, key, None)
                continue
            one = {"people": ("name", "city"), "orders": ("person", "total")}
            names = one.get(table, ("person", "page"))
            values = [chance.choice([None, *range(12)]), chance.randrange(5)]
            row = dict(zip(names, values, strict=True))
            row = {
                n: f"t{v}" if n in ("name", "page") and v is not None else v for n, v in row.items()
            }
            self.rows[table][key] = {"id": key, **row}
            self.send(table, key, {"id": key, **row})

    def send(self, table: str, key: int, row: dict[str, Any] | None) -> None:
        """A record of the changelog."""
        value = None if row is None else orjson.dumps(row)
        self.run.send_raw(table, value, key=orjson.dumps({"id": key}), partition=key % 2)

    def answer(self, query: str) -> Counter[Any]:
        """DuckDB's, over the tables as they are."""
        con = duckdb.connect(":memory:")
        for name, columns in TABLES.items():
            con.execute(f"CREATE TABLE {name}({columns})")
            if self.rows[name]:
                rows = list(self.rows[name].values())
                con.executemany(
                    f"INSERT INTO {name} VALUES (?, ?, ?)", [list(row.values()) for row in rows]
                )
        return Counter(con.sql(query).fetchall())


def contents(run: Run, view: str) -> Counter[Any]:
    """A view's rows, with how often each is there."""
    return Counter(tuple(row.values()) for row in run.view(view).rows())


def physical(run: Run) -> Physical:
    """The program as it runs."""
    return run._driver.physical


def traces(run: Run) -> dict[tuple[str, str, int], Any]:
    """By operator, trace and shard, what the newest version says of it."""
    version = run.store.version(run.store.newest_version())
    return {
        (operator, name, shard): trace
        for operator, entry in version.operators.items()
        for shard, state in entry.traces.items()
        for name, trace in state.get("traces", state).items()
    }


def groups(run: Run) -> set[tuple[tuple[str, str], ...]]:
    """The traces that several operators keep, as (operator, name) of each."""
    placed = physical(run)
    return {group for one in placed.placed for group in placed.alike(one).values()}


def check_shared(run: Run) -> None:
    """All that are alike are one: the same files."""
    found = traces(run)
    for group in groups(run):
        for (operator, name, shard), trace in found.items():
            if (operator, name) == group[0]:
                assert all(found[*other, shard] == trace for other in group), group


@pytest.mark.parametrize("seed", range(SEEDS))
def test_views_that_share_equal_duckdb(seed: int) -> None:
    """After each batch, with restarts: contents, and that what is alike is one."""
    run = ps.testing.run(program(*QUERIES), seed=seed)
    world = World(run, seed)
    assert len(groups(run)) >= 3
    for batch in range(8):
        world.change(world.chance.choice([1, 5, 40]))
        run.settle()
        for view, query in QUERIES.items():
            assert contents(run, view) == world.answer(query), (view, batch)
        check_shared(run)
        if world.chance.random() < 0.3:
            run.restart()


@pytest.mark.slow
def test_large_traces_are_merged_once() -> None:
    """Merges that take many batches go on alike, also while one of the operators has nothing to do."""
    run = ps.testing.run(program("bought", "seen"), seed=1)
    for batch in range(12):
        for i in range(700):
            key = batch * 700 + i
            row = {"id": key, "name": f"n{key}", "city": 1}
            run.send_raw("people", orjson.dumps(row), key=orjson.dumps({"id": key}), partition=0)
        run.settle()
        for table, of in (("orders", "total"), ("visits", "page")):
            if batch % 3 == (of == "page"):  # the other join rests
                row = {"id": batch, "person": batch * 700, of: 7 if of == "total" else "x"}
                run.send_raw(table, orjson.dumps(row), key=orjson.dumps({"id": batch}), partition=0)
        run.settle()
        check_shared(run)
    assert len(run.view("bought").rows()) == 4
    assert len(run.view("seen").rows()) == 4
    assert any(trace["merges"] or len(trace["runs"]) > 1 for trace in traces(run).values())


def test_state_that_is_shared_counts_once() -> None:
    """Sizes of nodes add up to that of the files."""
    run = ps.testing.run(program(*QUERIES), seed=1, shaken=False)
    world = World(run, 1)
    world.change(200)
    sizes = 0
    while (progress := run.step()) is not None:
        sizes = sum(node.state_bytes or 0 for node in progress.nodes.values())
    pieces = {
        piece[0]: piece[2]
        for trace in traces(run).values()
        for one in trace["runs"]
        for piece in one
    }
    assert sizes == sum(pieces.values())
    assert len(traces(run)) > len({str(trace["runs"]) for trace in traces(run).values()})


def test_a_view_that_keeps_what_another_does_begins_with_its_state() -> None:
    """It isn't made of the log, and is right at once and later."""
    run = ps.testing.run(program("listed", "bought"), seed=3)
    world = World(run, 3)
    world.change(60)
    run.settle()
    upgrade = run.begin(program("listed", "bought", "backward"))
    assert upgrade is not None
    assert upgrade.backfill is None
    while not upgrade.done:
        upgrade.step(run.execute_backfill)
    run.restart()
    check_shared(run)
    for _ in range(3):
        for view in ("listed", "bought", "backward"):
            assert contents(run, view) == world.answer(QUERIES[view]), view
        world.change(20)
        run.settle()
        check_shared(run)


@pytest.mark.slow
def test_a_view_made_of_the_log_shares_from_the_switch_on() -> None:
    """A join whose one side is there is backfilled; then both have that side's files."""
    run = ps.testing.run(program("bought"), seed=4)
    world = World(run, 4)
    world.change(60)
    run.settle()
    upgrade = run.begin(program("bought", "seen"))
    assert upgrade is not None
    assert upgrade.backfill is not None
    while not upgrade.done:
        upgrade.step(run.execute_backfill)
    run.restart()
    assert groups(run)
    check_shared(run)
    world.change(30)
    run.settle()
    check_shared(run)
    for view in ("bought", "seen"):
        assert contents(run, view) == world.answer(QUERIES[view]), view


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("left", ["listed", "backward"])
def test_either_view_can_be_removed(left: str) -> None:
    """Who wrote the files makes no difference: they stay as long as some state has them."""
    run = ps.testing.run(program("listed", "backward"), seed=5)
    world = World(run, 5)
    for views in (("listed", "backward"), (left,)):
        assert run.change(program(*views))
        for _ in range(70):  # versions of before are gone
            world.change(1)
            run.settle()
        assert contents(run, left) == world.answer(QUERIES[left])


@pytest.mark.slow
def test_traces_with_other_files_stay_apart() -> None:
    """Equal rows in other files, as after an upgrade of old: each operator goes on with its own."""
    run = ps.testing.run(program("listed", "backward"), seed=6)
    world = World(run, 6)
    world.change(40)
    run.settle()
    [group] = groups(run)
    content = run._driver.version
    operator, name = group[1]
    for state in content.operators[operator].traces.values():
        for runs in state["traces"][name]["runs"]:
            for piece in runs:
                data = run.store.files.read(piece[0])
                piece[0] += ".copy.arrow"
                run.store.files.write(piece[0], [data])
    for _ in range(3):
        world.change(20)
        run.settle()
        for view in ("listed", "backward"):
            assert contents(run, view) == world.answer(QUERIES[view]), view
    with pytest.raises(AssertionError):
        check_shared(run)
    assert run.change(program("listed", "backward", "largest"))
    check_shared(run)  # they have the same rows
    assert contents(run, "backward") == world.answer(QUERIES["backward"])


def test_explain_says_who_shares_what() -> None:
    """Both operators name the other's trace; views of other columns share nothing."""
    run = ps.testing.run(program("listed", "backward"))
    assert explain(physical(run)).count("rows0 shared with [") == 2
    alone = ps.testing.run(program("listed", "spent"))
    assert "shared" not in explain(physical(alone))

"""Joins of several tables in the order of their sizes, which are noted when a program first starts."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import pytest
from click.testing import CliRunner
from tests.effort import rounds

import penstock as ps
from penstock.cli import main
from penstock.engine import runtime
from penstock.engine.hosts.local import LocalHost
from penstock.engine.plan import Settings
from penstock.engine.runtime import Watcher, run_pipeline
from penstock.engine.store import Store
from penstock.engine.tasks import Job
from penstock.errors import FlowError
from penstock.flow.graph import Graph, Stateful
from penstock.ops.joins.table_join import TableJoin
from penstock.serve import Views
from penstock.sql import SqlFlow
from penstock.sql.rules.join_order import rows_of
from penstock.testing import MemoryLog

TABLES = {
    "line": "id BIGINT, sale BIGINT, part BIGINT",
    "sale": "id BIGINT, buyer BIGINT, day BIGINT",
    "buyer": "id BIGINT, town BIGINT",
    "part": "id BIGINT, seller BIGINT",
    "seller": "id BIGINT, town BIGINT",
    "town": "id BIGINT, size BIGINT",
}
BELONGS = "line.sale = sale.id AND sale.buyer = buyer.id"
EVERY = f"""{BELONGS} AND line.part = part.id AND part.seller = seller.id
             AND buyer.town = town.id AND town.id = seller.town"""
LARGE = {
    "line": 6_000_000,
    "sale": 1_500_000,
    "buyer": 150_000,
    "part": 200_000,
    "seller": 10_000,
    "town": 25,
}


def declare(app: SqlFlow) -> None:
    """The tables."""
    for name, columns in TABLES.items():
        app.table(name, columns, key="id")


def order(tables: str, conditions: str, records: Mapping[str, int]) -> list[str]:
    """The tables of a query in the order in which they are joined; as written where sizes don't decide."""
    app = SqlFlow("p")
    declare(app)
    first = tables.split(",", maxsplit=1)[0]
    app.view("v", sql=f"SELECT {first}.id FROM {tables} WHERE {conditions}")
    _, sizes = app.ordered(records)
    return [] if not sizes.orders else [name for name, _ in sizes.orders[0]]


def test_what_is_small_is_joined_first() -> None:
    """Each join gives as few rows as it can: what multiplies rows comes last."""
    assert order("line, sale, buyer", BELONGS, LARGE) == ["sale", "buyer", "line"]
    few = {**LARGE, "line": 10}
    assert order("line, sale, buyer", BELONGS, few) == ["line", "sale", "buyer"]
    assert order("sale, buyer, line", BELONGS, few) == ["sale", "line", "buyer"]


def test_a_condition_makes_a_table_small() -> None:
    """A line is found for a part of one seller before its sale."""
    tables = "sale, line, part"
    plain = "line.sale = sale.id AND line.part = part.id"
    assert order(tables, plain, LARGE) == ["sale", "line", "part"]
    assert order(tables, f"{plain} AND part.seller = 7", LARGE) == ["line", "part", "sale"]


def test_rows_are_not_multiplied_by_columns_that_are_no_key() -> None:
    """Buyers and sellers of one town are many times many: they are joined where both are found."""
    for tables in itertools.islice(itertools.permutations(TABLES), 0, None, 29):
        found = order(", ".join(tables), EVERY, LARGE)
        assert {"buyer", "seller"} != set(found[:2]), found
        at = found.index("line")
        assert {"sale", "part"} & set(found[: at + 2]), found


def test_tables_are_joined_on_what_follows_from_equalities() -> None:
    """The small ones first, though a large one stands between them in the query; each equality once."""
    chain = "line.part = part.id AND part.id = seller.id"
    records = {"line": 10, "part": 1_000_000, "seller": 20}
    assert order("line, part, seller", chain, records) == ["line", "seller", "part"]
    app = SqlFlow("p")
    declare(app)
    app.view("v", sql=f"SELECT line.id FROM line, part, seller WHERE {chain}")
    graph, _ = app.ordered(records)
    on = [
        node.operator.on
        for node in graph.nodes
        if isinstance(node, Stateful) and isinstance(node.operator, TableJoin)
    ]
    assert [len(pairs) for pairs in on] == [1, 1]


def test_columns_of_other_types_say_nothing_of_each_other() -> None:
    """A number equals a text that equals another text as no number does: nothing follows from that."""
    app = SqlFlow("p")
    app.table("a", "id BIGINT", key="id")
    app.table("b", "id VARCHAR", key="id")
    app.table("c", "id BIGINT", key="id")
    app.view("v", sql="SELECT a.id FROM a, b, c WHERE a.id = b.id AND b.id = c.id")
    _, sizes = app.ordered({"a": 10, "b": 10_000, "c": 10})
    [found] = sizes.orders
    assert [name for name, _ in found] == ["a", "b", "c"]


def test_a_topic_of_unknown_size_leaves_the_order_as_it_is_written() -> None:
    """So does one that was empty, and a join of two."""
    assert order("line, sale, buyer", BELONGS, {"line": 6, "sale": 1}) == []
    assert order("line, sale, buyer", BELONGS, {**LARGE, "buyer": 0}) == []
    assert order("line, sale", "line.sale = sale.id", LARGE) == []


def test_rows_are_guessed_through_operators() -> None:
    """Of conditions, groups, unions and joins."""
    app = SqlFlow("p")
    declare(app)
    texts = {
        "SELECT * FROM sale": 1_500_000,
        "SELECT * FROM sale WHERE day = 3": 150_000,
        "SELECT * FROM sale WHERE day > 3": 500_000,
        "SELECT * FROM sale WHERE NOT (day > 3 OR buyer = 1)": 1_500_000 * (1 - 1 / 3 - 0.1),
        "SELECT * FROM sale WHERE day <> 3 AND buyer IN (1, 2)": 270_000,
        "SELECT * FROM sale WHERE TRUE": 1_500_000,
        "SELECT day FROM sale UNION ALL SELECT id FROM line": 7_500_000,
        "SELECT day, count(*) AS n FROM sale GROUP BY day": 375_000,
        "SELECT count(*) AS n FROM sale": 1,
        "SELECT id FROM sale WHERE buyer IN (SELECT id FROM buyer)": 750_000,
        "SELECT sale.id FROM sale JOIN buyer ON sale.buyer = buyer.id": 1_500_000,
        "SELECT unnest([id, day]) AS one FROM sale": None,
    }
    for number, (text, rows) in enumerate(texts.items()):
        if rows is None:
            continue
        view = app.view(f"v{number}", sql=text)
        assert rows_of(view.node, LARGE) == pytest.approx(rows), text
    assert rows_of(view.node, {}) is None


class Ordered(SqlFlow):
    """A program whose graph is the one of some sizes, once it is given."""

    chosen: Graph | None = None

    def graph(self) -> Graph:
        return self.chosen or super().graph()


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("seed", range(rounds("PENSTOCK_SIZES", quick=3, full=20)))
def test_every_order_gives_duckdbs_rows(seed: int) -> None:
    """A query with random sizes, below a filter in Python, and as a view that others read."""
    chance = random.Random(seed)
    app = Ordered("p")
    declare(app)
    tables = list(TABLES)
    chance.shuffle(tables)
    columns = "line.id AS line, sale.day, buyer.town, seller.id AS seller"
    query = f"SELECT {columns} FROM {', '.join(tables)} WHERE {EVERY} AND part.id <> 4"
    found = app.view("all_of_it", sql=query)
    app.view("some", sql="SELECT town, count(*) AS n FROM all_of_it GROUP BY town")
    app.view("early", found.where("day < 2"))
    app.sql(f"CREATE VIEW inside AS {query}")
    read, joined = "inside, buyer AS b, sale", "b.id = sale.buyer AND sale.id = line"
    again = f"SELECT inside.line, b.town FROM {read} WHERE {joined}"
    app.view("again", sql=again)
    records = {name: 10 ** chance.randint(1, 7) for name in TABLES}
    app.chosen, sizes = app.ordered(records)
    assert len(sizes.orders) == 3
    run = ps.testing.run(app, seed=seed)
    rows: dict[str, dict[int, dict[str, int]]] = {name: {} for name in TABLES}
    for _ in range(3):
        for _ in range(40):
            table, key = chance.choice(list(TABLES)), chance.randrange(5)
            names = [part.split()[0] for part in TABLES[table].split(", ")]
            rows[table].pop(key, None)
            value = None
            if chance.random() < 0.9:
                rows[table][key] = {n: chance.randrange(3) for n in names} | {"id": key}
                value = json.dumps(rows[table][key]).encode()
            run.send_raw(table, value, key=json.dumps({"id": key}))
        run.settle()
        con = duckdb.connect(":memory:")
        for name, schema in TABLES.items():
            con.execute(f"CREATE TABLE {name}({schema})")
            for row in rows[name].values():
                con.execute(
                    f"INSERT INTO {name} VALUES ({', '.join('?' for _ in row)})", [*row.values()]
                )
        con.execute(f"CREATE VIEW all_of_it AS {query}; CREATE VIEW inside AS {query}")
        for view, text in {
            "all_of_it": query,
            "some": "SELECT town, count(*) AS n FROM all_of_it GROUP BY town",
            "early": "SELECT * FROM all_of_it WHERE day < 2",
            "again": again,
        }.items():
            wanted = Counter(con.sql(text).fetchall())
            made = Counter(tuple(row.values()) for row in run.view(view).rows())
            assert made == wanted, (seed, view, records)


# -- what is noted ----------------------------------------------------------------------------------


class Host:
    """Runs batches in this thread instead of on Spark."""

    def __init__(self, _: object, job: Job, *, lanes: int, **__: object) -> None:
        self.local = LocalHost(job, lanes=lanes)

    def run(
        self, steps: Any, on_progress: Any, until: Callable[[], bool], idle: Any = None
    ) -> None:
        while not until():
            progress = steps.step(self.local.execute)
            if progress is not None:
                on_progress(progress)
            elif idle is not None:
                idle()


class UntilIdle(Watcher):
    """Ends a run when everything has been read."""

    def __init__(self) -> None:
        self.idle, self.backfilled_batches = False, 0

    def is_over(self) -> bool:
        return self.idle

    def idled(self) -> None:
        self.idle = True

    def backfilled(self, done: Any) -> None:
        self.backfilled_batches += 1


class Pipeline:
    """A pipeline over a log in memory; each run is a start of its program."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.log = folder, MemoryLog()
        monkeypatch.setattr(runtime, "SparkHost", Host)
        monkeypatch.setattr(runtime, "KafkaLog", lambda _: self.log)
        monkeypatch.setattr(runtime, "open_log", lambda _: self.log)
        self.store: Store = runtime.open_store(str(folder / "state"))
        for name in TABLES:
            self.log.ensure_topic(name, 1)
        self.ids = dict.fromkeys(TABLES, 0)

    def grow(self, **counts: int) -> None:
        """Adds rows to tables."""
        for name, count in counts.items():
            columns = [part.split()[0] for part in TABLES[name].split(", ")]
            for _ in range(count):
                number = self.ids[name] = self.ids[name] + 1
                row = dict.fromkeys(columns, number % 3 + 1) | {"id": number}
                self.log.append(
                    name, 0, json.dumps({"id": number}), json.dumps(row).encode(), 1_767_225_600_000
                )

    def start(self, views: Mapping[str, str], *, sized: bool = True, rebuild: bool = False) -> int:
        """Runs a program until it has read everything; how many batches of backfill that took."""
        app = ps.App("p")
        declare(app)
        for name, text in views.items():
            app.view(name, sql=text)
        watcher, no_spark = UntilIdle(), SimpleNamespace(is_here=False)
        ordered = (lambda records: app.ordered(records)[0]) if sized else None
        run_pipeline(
            app.graph(),
            Settings(self.folder, cores=1),
            "nowhere",
            no_spark,  # type: ignore[arg-type]
            watcher,
            rebuild=rebuild,
            ordered=ordered,
        )
        return watcher.backfilled_batches

    def states(self) -> set[str]:
        """The operators that have state."""
        return set(self.store.version(self.store.newest_version()).operators)

    def rows(self, view: str) -> int:
        """How many rows a view has."""
        return Views(self.folder).table(view).num_rows


VIEW = f"SELECT line.id, buyer.town FROM line, sale, buyer WHERE {BELONGS}"
OTHER = "SELECT line.id, part.seller FROM line, part WHERE line.part = part.id"


@pytest.fixture
def pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pipeline:
    return Pipeline(tmp_path, monkeypatch)


def test_a_restart_keeps_the_order_and_its_state(pipeline: Pipeline) -> None:
    """Whatever the topics have grown to; a rebuild measures them again."""
    pipeline.grow(line=20, sale=5, buyer=3)
    assert pipeline.start({"v": VIEW}) == 0
    assert pipeline.store.sizes() == {"line": 20, "sale": 5, "buyer": 3}
    states, rows = pipeline.states(), pipeline.rows("v")
    assert rows == 20
    pipeline.grow(sale=200, buyer=20)
    assert pipeline.start({"v": VIEW}) == 0
    assert pipeline.states() == states
    assert pipeline.store.sizes() == {"line": 20, "sale": 5, "buyer": 3}
    assert pipeline.start({"v": VIEW}, rebuild=True) > 0
    assert pipeline.store.sizes() == {"line": 20, "sale": 205, "buyer": 23}
    assert pipeline.states() != states
    assert pipeline.rows("v") == rows


def test_a_changed_program_keeps_the_sizes_of_its_topics(pipeline: Pipeline) -> None:
    """What didn't change keeps its state; topics that are new to the program are measured."""
    pipeline.grow(line=20, sale=5, buyer=3, part=4)
    pipeline.start({"v": VIEW})
    states = pipeline.states()
    pipeline.grow(sale=200, part=3)
    both = "line.part = part.id AND line.sale = sale.id"
    more = f"SELECT line.id FROM line, sale, part WHERE {both}"
    assert pipeline.start({"v": VIEW, "more": more}) > 0
    assert pipeline.store.sizes() == {"line": 20, "sale": 5, "buyer": 3, "part": 7}
    assert states < pipeline.states()


def test_a_pipeline_of_a_release_that_noted_nothing_keeps_its_state(pipeline: Pipeline) -> None:
    """Its order is the one that is written, until it is rebuilt."""
    pipeline.grow(line=20, sale=5, buyer=3)
    pipeline.start({"v": VIEW}, sized=False)
    states = pipeline.states()
    assert pipeline.store.sizes() is None
    assert pipeline.start({"v": VIEW}) == 0
    assert pipeline.states() == states
    assert pipeline.start({"v": VIEW}, rebuild=True) > 0
    assert pipeline.states() != states


def test_nothing_is_noted_in_another_pipelines_state(pipeline: Pipeline) -> None:
    """A wrong directory is refused first."""
    pipeline.grow(line=20, sale=5, buyer=3)
    pipeline.start({"o": OTHER}, sized=False)
    app = ps.App("other")
    declare(app)
    app.view("v", sql=VIEW)
    with pytest.raises(FlowError, match="expected the state of the pipeline"):
        run_pipeline(
            app.graph(),
            Settings(pipeline.folder, cores=1),
            "nowhere",
            SimpleNamespace(is_here=False),  # type: ignore[arg-type]
            UntilIdle(),
            ordered=lambda records: app.ordered(records)[0],
        )
    assert pipeline.store.sizes() is None


def test_explain_says_the_order(pipeline: Pipeline) -> None:
    """With the rows that were estimated, once there are sizes."""
    program = pipeline.folder / "p.sql"
    heads = "".join(
        f"CREATE TABLE {name} ({columns.replace('id BIGINT', 'id BIGINT PRIMARY KEY')});\n"
        for name, columns in TABLES.items()
    )
    program.write_text(
        f"SET name = 'p';\nSET directory = '{pipeline.folder}';\n{heads}"
        f"CREATE MATERIALIZED VIEW v AS {VIEW};\n"
    )
    before = CliRunner().invoke(main, ["explain", str(program)])
    assert before.exit_code == 0, before.output
    assert "estimated" not in before.output
    pipeline.grow(line=20, sale=5, buyer=3)
    pipeline.start({"v": VIEW})
    after = CliRunner().invoke(main, ["explain", str(program)])
    assert "joined in the order of estimated rows: sale (5), buyer (3), line (20)" in after.output
    joins = [line for line in after.output.splitlines() if "exchanged by" in line]
    assert joins
    assert all(
        " rows, " in line for line in joins
    )  # found in the version: it is this order's state

"""Iceberg tables follow a topic."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import random
import subprocess
import sys
import threading
import time

import numpy as np
import pyarrow as pa
import pytest
from tests.effort import rounds
from tests.killing import kill

from penstock.core.schema import Schema
from penstock.errors import FencedError, UserError
from penstock.sinks import Sink, from_address, iceberg
from penstock.sinks.targets.contract import Batch, Rows
from penstock.sinks.targets.lake.iceberg import matching

pytest.importorskip("pyiceberg", reason="pyiceberg is not installed")
from pyiceberg.expressions.visitors import bind
from pyiceberg.io.pyarrow import expression_to_pyarrow
from pyiceberg.schema import Schema as IcebergSchema
from pyiceberg.types import DateType, LongType, NestedField, StringType

catalogs = pytest.importorskip("pyiceberg.catalog", reason="pyiceberg is not installed")
SCHEMA = (
    "id BIGINT NOT NULL, name STRING, amount DECIMAL(10, 2), at TIMESTAMP, tags ARRAY<STRING>, "
    "u UUID, span INTERVAL, day DATE, clock TIME, s STRUCT<a BIGINT>"
)
KILLS = rounds("PENSTOCK_SINK_KILLS", quick=1, full=2)
SINK = """
import sys
from penstock.sinks import Sink, body, iceberg
body.STEP_OFFSETS = 15
path, topic, log = sys.argv[1:]
target = iceberg(path, table="shop.rows", pace_s=0.0)
Sink(target, topic, "a BIGINT NOT NULL, b STRING NOT NULL, n BIGINT", key=("a", "b"), log=log).run()
"""


def follow(path, topic, schema=SCHEMA, key="id", table="shop.users"):
    """Follows until everything was written."""
    sink = Sink(iceberg(path, table=table), topic.name, schema, key=key, log=topic.log)
    return sink.run(until=lambda done: done.lag == 0)


def read(path, table="shop.users"):
    """The table's rows."""
    properties = {
        "type": "sql",
        "uri": f"sqlite:///{path / 'catalog.db'}",
        "warehouse": path.as_uri(),
    }
    catalog = catalogs.load_catalog("penstock", **properties)
    try:
        return catalog.load_table(table).scan().to_arrow()
    finally:
        catalog.close()


def test_a_table_has_the_newest_row_of_each_key(tmp_path, topic) -> None:
    """Rows are inserted, changed and deleted; types are Iceberg's own; a run goes on."""
    path = tmp_path / "lake.iceberg"
    topic.send({"id": 1, "name": "ann"}, {"id": 2, "name": "bob"})
    sink = Sink(from_address(str(path), "shop.users"), topic.name, SCHEMA, key="id", log=topic.log)
    sink.run(until=lambda done: done.lag == 0)
    row = {"amount": "12.50", "at": "2024-02-29T13:45:30.5Z", "tags": ["a", None], "s": {"a": 7}}
    more = {"u": "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "span": "PT1H", "clock": "13:45:30.5"}
    topic.send({"id": 1, "name": "anna", **row, **more}, b"2", {"id": 3})
    assert follow(path, topic).upserts == 2
    users = read(path)
    rows = sorted(users.to_pylist(), key=lambda one: one["id"])
    assert [(one["id"], one["name"]) for one in rows] == [(1, "anna"), (3, None)]
    assert str(rows[0]["amount"]) == "12.50"
    assert (rows[0]["tags"], rows[0]["u"], rows[0]["s"]) == (["a", None], more["u"], {"a": 7})
    assert rows[0]["span"] == 3_600_000_000


def test_a_second_sink_fences_the_first(tmp_path, topic) -> None:
    """Who has opened it before commits nothing more."""
    path = tmp_path / "lake"
    topic.send({"id": 2, "name": "ann"})
    one = Sink(iceberg(path, table="shop.users"), topic.name, SCHEMA, key="id", log=topic.log)
    one._target.open(one.name, one._rows)
    held = []
    follow(path, topic)
    write, one._target.open = one._target.write, lambda *_: {}
    one._target.write = lambda batch, offsets: held.append(batch)
    one._target.close, close = lambda: None, one._target.close
    one.run(until=lambda done: done.lag == 0)
    topic.send(b"2")
    follow(path, topic)
    with pytest.raises(FencedError):
        write(held[0], {0: 1})
    close()
    assert len(read(path)) == 0


def test_a_table_without_a_namespace_or_columns_is_an_error(tmp_path, topic) -> None:
    """The message says what is missing."""
    with pytest.raises(UserError, match="with its namespace"):
        iceberg(tmp_path, table="users")
    topic.send({"id": 1})
    follow(tmp_path, topic, "id BIGINT NOT NULL")
    with pytest.raises(UserError, match="to have the columns name"):
        follow(tmp_path, topic)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_table_equals_the_topic_after_kills(tmp_path, topic) -> None:
    """The sink is killed while rows change; at the end the table has what the topic says."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    random_, table = random.Random(seed), {}
    for _ in range(KILLS):
        command = [sys.executable, "-c", SINK, str(tmp_path), topic.name, topic.log]
        process = subprocess.Popen(command, env={**os.environ, "PYTHONWARNINGS": "ignore"})
        for _ in range(60):
            a, b = random_.randrange(5), random_.choice("xyz")
            table[a, b] = random_.randrange(10**6)
            topic.send({"id": f"{a}{b}", "a": a, "b": b, "n": table[a, b]})
        time.sleep(random_.uniform(1.5, 3.5))  # when it is killed is the input, not a wait
        kill(process)
    schema = "a BIGINT NOT NULL, b STRING NOT NULL, n BIGINT"
    follow(tmp_path, topic, schema, ("a", "b"), "shop.rows")
    rows = read(tmp_path, "shop.rows").to_pylist()
    assert {(r["a"], r["b"]): r["n"] for r in rows} == table
    assert len(rows) == len(table)


@pytest.mark.parametrize("names", [["a"], ["a", "b"], ["a", "b", "c"]])
def test_a_condition_is_met_by_the_rows_of_these_keys(names) -> None:
    """And by no others, with few terms where all but one column have few values."""
    everything = pa.table(
        {
            "a": [i % 3 for i in range(3000)],
            "b": [f"{i % 500}" for i in range(3000)],
            "c": [dt.date(2024, 1, 1 + i % 2) for i in range(3000)],
        }
    )
    random_ = random.Random(7)
    keys = everything.select(names).take([random_.randrange(3000) for _ in range(300)])
    columns = [
        NestedField(1, "a", LongType()),
        NestedField(2, "b", StringType()),
        NestedField(3, "c", DateType()),
    ]
    condition = expression_to_pyarrow(bind(IcebergSchema(*columns), matching(keys), True))
    found = everything.filter(condition).to_pylist()
    wanted = {tuple(key.values()) for key in keys.to_pylist()}
    rows = everything.to_pylist()
    assert found == [row for row in rows if tuple(row[n] for n in names) in wanted]
    assert str(condition).count("is_in") <= 7


def test_a_catalog_whose_database_is_locked_or_away_is_waited_for(tmp_path) -> None:
    """Its errors are SQLAlchemy's; the name of the target has no password."""
    errors = pytest.importorskip("sqlalchemy.exc", reason="sqlalchemy is not installed")
    locked = errors.OperationalError("INSERT", {}, Exception("database is locked"))
    target = iceberg({"type": "sql", "uri": "postgresql://ann:secret@db/lake"}, table="shop.users")
    assert isinstance(locked, target.passing)
    assert target.name == "iceberg postgresql://ann@db/lake shop.users"


def test_two_sinks_may_create_a_namespace_at_once(tmp_path, monkeypatch) -> None:
    """The one that comes later gets an error that passes, and opens its table the next time."""
    from pyiceberg.catalog.sql import SqlCatalog

    rows = Rows("users", Schema.parse("id BIGINT NOT NULL"), ("id",))
    target, exists, create = iceberg(tmp_path, table="shop.users"), SqlCatalog.namespace_exists, []

    def late(catalog, name):
        if not create:  # another one creates it right after it was looked for
            create.append(name)
            catalog.create_namespace(name)
            return False
        return exists(catalog, name)

    monkeypatch.setattr(SqlCatalog, "namespace_exists", late)
    with pytest.raises(target.passing):
        target.open("one", rows)
    assert target.open("one", rows) == {}
    target.close()


def test_sinks_create_a_directory_s_catalog_one_after_another(tmp_path, monkeypatch) -> None:
    """While one looks for a namespace and creates it, others wait, and no error is logged."""
    from pyiceberg.catalog.sql import SqlCatalog

    rows = Rows("users", Schema.parse("id BIGINT NOT NULL"), ("id",))
    exists, both, refused = SqlCatalog.namespace_exists, threading.Barrier(2), []

    def slow(catalog, name):
        found = exists(catalog, name)
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(0.2)  # they would meet here, and both create it
        return found

    def open_(table):
        try:
            target = iceberg(tmp_path, table=table)
            target.open("one", rows)
            target.close()
        except Exception as error:
            refused.append(error)

    monkeypatch.setattr(SqlCatalog, "namespace_exists", slow)
    threads = [threading.Thread(target=open_, args=(f"shop.{i}",)) for i in "ab"]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert not refused


@pytest.mark.slow
def test_a_sink_writes_on_while_its_rebuild_commits(tmp_path) -> None:
    """To its branch of the same table; that it stands on an older commit is no error."""
    rows = Rows("users", Schema.parse("id BIGINT NOT NULL"), ("id",))
    none = rows.nothing()
    live = iceberg(tmp_path, table="shop.users")
    new = live.beside("one", rows)
    live.open("one", rows)
    new.open("one.rebuild", rows)
    for at in range(3):
        ids = pa.RecordBatch.from_pylist([{"id": at}], none.schema)
        batch = Batch(ids, none, np.array([at]), np.zeros(0, np.int64), 0)
        new.write(batch, {0: at + 1})
        live.write(batch, {0: at + 1})
    for one in (live, new):
        one.close()
    assert sorted(read(tmp_path)["id"].to_pylist()) == [0, 1, 2]


def test_a_branch_of_another_sink_is_not_switched_to(tmp_path) -> None:
    """The message names the sink that has built it."""
    rows = Rows("users", Schema.parse("id BIGINT NOT NULL"), ("id",))
    target = iceberg(tmp_path / "lake.iceberg", table="shop.users")
    for one, name in ((target, "one"), (target.beside("one", rows), "one.rebuild")):
        one.open(name, rows)
        one.close()
    with pytest.raises(UserError, match="from the sink 'two'; found one of one"):
        target.switch("two", rows)
    target.switch("one", rows)
    with pytest.raises(UserError, match="from the sink 'two'; found one of one"):
        target.go_back("two", rows)

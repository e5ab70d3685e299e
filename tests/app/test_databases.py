"""A program between two databases."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.databases import Postgres, postgres

import penstock as ps
from penstock.errors import FlowError


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    """A server with a database to read."""
    with postgres() as one:
        one.execute("CREATE DATABASE shop")
        one.execute(
            "CREATE TABLE users (id int PRIMARY KEY, city text NOT NULL, since date);"
            "CREATE TABLE orders (id bigserial PRIMARY KEY, user_id int NOT NULL, "
            "amount numeric(10, 2) NOT NULL, mood text);",
            "shop",
        )
        yield one


def program(server: Postgres, directory: Path) -> ps.App:
    """Revenue per city, from one database into another one."""
    app = ps.App("shop", directory=directory)
    users = app.table("users", source=ps.capture.postgres(server.url("shop"), table="users"))
    orders = app.table("orders", source=ps.capture.postgres(server.url("shop"), table="orders"))
    cities = users.select(who="id", city="city")
    paid = orders.select(order="id", user_id="user_id", amount="amount").join(
        cities, on={"user_id": "who"}
    )
    revenue = paid.group_by("city").agg(revenue=ps.sum("amount"), orders=ps.count())
    app.view("revenue", revenue)
    for name in ("first", "second"):
        target = ps.sinks.postgres(server.url("reports"), table=name)
        app.sink(revenue, target, topic="revenue", name=name)
    return app


def test_several_targets_follow_one_topic(server, tmp_path) -> None:
    """A table is written to a topic once, for all targets that name it; another table is refused."""
    app = program(server, tmp_path)
    assert [(one.name, one._rows.topic) for one in app.databases("127.0.0.1:1").sinks] == [
        ("first", "revenue"),
        ("second", "revenue"),
    ]
    target = ps.sinks.postgres(server.url("reports"), table="third")
    with pytest.raises(FlowError, match="expected one writer for each topic"):
        app.sink(app.named["users"], target, topic="revenue", name="third")


def test_several_targets_follow_one_topic_of_windows(tmp_path) -> None:
    """Whatever of a table is written; a target that wants something else needs another topic."""
    app = ps.App("clicks", directory=tmp_path)
    clicks = app.stream("clicks", "who STRING, at TIMESTAMP", time=ps.event_time("at"))
    counts = clicks.window(ps.tumbling("1 minute")).group_by("who").agg(n=ps.count())
    files = iter(range(9))

    def follow(topic: str, **options) -> None:
        number = next(files)
        target = ps.sinks.sqlite(tmp_path / f"{number}.db", table="t")
        app.sink(counts, target, topic=topic, name=f"{number}", **options)

    for options in ({}, {"emit": "upserts"}, {"emit": "upserts", "every": "1 second"}):
        topic = "-".join(["counts", *options])
        follow(topic, **options)
        follow(topic, **options)
        with pytest.raises(FlowError, match="expected one writer for each topic"):
            follow(topic, emit="upserts", every="2 seconds")
    assert len(app.databases("127.0.0.1:1").sinks) == 6


def test_a_target_that_does_not_tell_rows_apart_is_refused_with_the_program(tmp_path) -> None:
    """Its keys have fewer columns than the table's: that is known before anything runs."""
    app = ps.App("shop", directory=tmp_path)
    orders = app.stream("orders", "id BIGINT NOT NULL, status STRING NOT NULL")
    found = orders.group_by("id", "status").agg(n=ps.count())
    target = ps.sinks.redis("redis://localhost", table="orders:{id}")
    with pytest.raises(FlowError, match=r"each column of the key \(id, status\) once"):
        app.sink(found, target)


def test_columns_and_key_are_the_database_s(server, tmp_path) -> None:
    """A table with a source needs neither a schema nor a key."""
    app = program(server, tmp_path)
    assert app.named["users"].schema.text == "id INT NOT NULL, city STRING NOT NULL, since DATE"
    text = "id BIGINT NOT NULL, user_id INT NOT NULL, amount DECIMAL(10, 2) NOT NULL, mood STRING"
    assert app.named["orders"].schema.text == text
    with pytest.raises(FlowError, match="expected schema and key"):
        app.table("others")


def test_a_program_runs_in_tests_without_its_databases(server, tmp_path) -> None:
    """Tests send the rows that the capture would."""
    run = ps.testing.run(program(server, tmp_path))
    run.send("users", id=1, city="Ulm", since=None)
    run.send("orders", id=1, user_id=1, amount="2.50")
    [row] = run.view("revenue").rows()
    assert (row["city"], float(row["revenue"]), row["orders"]) == ("Ulm", 2.5, 1)

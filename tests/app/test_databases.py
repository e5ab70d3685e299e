"""A program between two databases."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.databases import Postgres, postgres
from tests.patience import wait_until

import penstock as ps
from penstock.cli.support.programs import load
from penstock.demo.programs import example
from penstock.errors import FlowError


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    """A server with a database to read and one to write."""
    with postgres() as one:
        one.execute("CREATE DATABASE shop")
        one.execute("CREATE DATABASE reports")
        one.execute(
            "CREATE TABLE users (id int PRIMARY KEY, city text NOT NULL, since date);"
            "CREATE TABLE orders (id bigserial PRIMARY KEY, user_id int NOT NULL, "
            "amount numeric(10, 2) NOT NULL, mood text);"
            "INSERT INTO users VALUES (1, 'Ulm', '2024-02-29'), (2, 'Bonn', NULL);"
            "INSERT INTO orders(user_id, amount) VALUES (1, 10.50), (2, 1), (1, 2);",
            "shop",
        )
        yield one


def program(server: Postgres, directory: Path) -> ps.App:
    """Revenue per city, from one database into another one."""
    made: ps.App = load(example("shop")).pipeline(
        server.url("shop"), server.url("reports"), str(directory)
    )
    return made


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


@pytest.mark.spark
@pytest.mark.slow
def test_a_second_database_follows_a_view_of_the_first(server, tmp_path) -> None:
    """Rows that were there and changes go through a join and a sum into a table of another database."""
    app = program(server, tmp_path / "shop.penstock")
    errors: list[BaseException] = []

    def run() -> None:
        try:
            app.run()
        except BaseException as error:
            errors.append(error)

    def found() -> dict[str, tuple[float, int]]:
        assert not errors, errors
        if not server.rows("SELECT to_regclass('revenue')", "reports")[0][0]:
            return {}
        rows = server.rows("SELECT city, revenue, orders FROM revenue", "reports")
        return {city: (float(revenue), count) for city, revenue, count in rows}

    thread = threading.Thread(target=run)
    thread.start()
    try:
        wait_until(lambda: found() == {"Ulm": (12.5, 2), "Bonn": (1.0, 1)}, found)
        server.execute(
            "INSERT INTO orders(user_id, amount) VALUES (2, 5);"
            "DELETE FROM orders WHERE amount = 2;"
            "UPDATE users SET city = 'Köln' WHERE id = 2;",
            "shop",
        )
        wait_until(lambda: found() == {"Ulm": (10.5, 1), "Köln": (6.0, 2)}, found)
    finally:
        app.stop()
        thread.join()
    assert not errors

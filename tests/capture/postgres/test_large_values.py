"""Large values that an update didn't touch are read from the table: topics end with the rows."""

from __future__ import annotations

import random
import threading
from typing import Any

import psycopg
import pytest
from tests.capture.sources import PostgresSource
from tests.databases import postgres
from tests.effort import rounds

from penstock.capture import Capture

TRANSACTIONS = rounds("PENSTOCK_LARGE_TRANSACTIONS", quick=150, full=600)
MOVE = (
    "UPDATE t SET id = {other} WHERE id = {id} AND NOT EXISTS (SELECT 1 FROM t WHERE id = {other})"
)
PLACEHOLDER = "__debezium_unavailable_value"
LARGE = {
    "body": ("text", "repeat('Grüße \"x\" \\ ', 400)"),
    "code": ("char(3000)", "'ab'"),
    "doc": ("jsonb", "jsonb_build_object('a', repeat('y', 4000), 'b', null)"),
    "raw": ("bytea", "decode(repeat('00ff5c', 1500), 'hex')"),
    "items": ("int[]", "array(SELECT generate_series(1, 1500))"),
    "words": ("text[]", "array_fill('a,\"b{'::text, array[900])"),
    "amount": ("numeric", "repeat('7', 9000)::numeric"),
}


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("values", ["precise", "readable"])
@pytest.mark.parametrize("form", ["debezium", "flat"])
def test_values_are_those_that_were_inserted(source, values, form) -> None:
    """Of all types that are stored apart, as an insert has them; keys are found whatever they contain."""
    columns = ", ".join(f"{name} {type_}" for name, (type_, _) in LARGE.items())
    stored = ", ".join(f"ALTER {name} SET STORAGE EXTERNAL" for name in LARGE)
    source.execute(
        f'CREATE TABLE "a%b" ("k%" text, day date, v int, {columns}, PRIMARY KEY ("k%", day))'
    )
    source.execute(f'ALTER TABLE "a%b" {stored}')
    keys = ["'it''s'", "'50%s'", "''"]
    made = ", ".join(sql for _, sql in LARGE.values())
    source.run(values=values, format=form)
    for key in keys:
        source.execute(f"INSERT INTO \"a%b\" SELECT {key}, '2026-11-24', 0, {made}")
    source.execute('UPDATE "a%b" SET v = 1')
    done = source.run(values=values, format=form)
    assert done.unchanged == 0
    found = [
        value["after"] if form == "debezium" else value
        for _, value in source.records(f"{source.name}.public.a%b".replace("%", "_"))
    ]
    inserted, updated = found[: len(keys)], found[len(keys) :]
    assert [one["v"] for one in updated] == [1] * len(keys)
    assert [{**one, "v": 0} for one in updated] == inserted


def test_a_row_that_is_gone_has_placeholders_until_its_deletion(source) -> None:
    """Also one whose key was changed: it is read by its new key."""
    source.execute("CREATE TABLE t (id int PRIMARY KEY, v int, body text)")
    source.execute("ALTER TABLE t ALTER body SET STORAGE EXTERNAL")
    source.execute("INSERT INTO t SELECT i, 0, repeat('x', 5000) FROM generate_series(1, 2) i")
    source.run()
    source.execute("UPDATE t SET v = 1")
    source.execute("DELETE FROM t WHERE id = 1")
    source.execute("UPDATE t SET id = 3 WHERE id = 2")
    assert source.run().unchanged == 2
    newest = {key["id"]: value for key, value in source.records(source.topic("t"))}
    assert newest[1] is newest[2] is None
    assert newest[3]["after"] == {"id": 3, "v": 1, "body": "x" * 5000}


@pytest.mark.slow
def test_a_column_that_is_gone_leaves_placeholders_and_a_warning(source, caplog) -> None:
    """The capture goes on."""
    source.execute("CREATE TABLE t (id int PRIMARY KEY, v int, body text)")
    source.execute("ALTER TABLE t ALTER body SET STORAGE EXTERNAL")
    source.execute("INSERT INTO t VALUES (1, 0, repeat('x', 5000))")
    source.run()
    source.execute("UPDATE t SET v = 1")
    source.execute("ALTER TABLE t DROP body")
    source.execute("UPDATE t SET v = 2")
    assert source.run().unchanged == 1
    assert 'column "body" does not exist' in caplog.text
    found = [value["after"] for _, value in source.records(source.topic("t"))]
    assert [one["v"] for one in found] == [0, 1, 2]
    assert [one.get("body") for one in found[1:]] == [PLACEHOLDER, None]


@pytest.mark.slow
def test_a_transaction_is_waited_for_until_others_see_it(log) -> None:
    """One that waits for a synchronous standby is sent before: its row isn't there yet."""
    with postgres(16) as server:
        source = PostgresSource(log, "unseen", server, "postgres")
        source.execute("CREATE TABLE t (id int PRIMARY KEY, v int, body text)")
        source.execute("ALTER TABLE t ALTER body SET STORAGE EXTERNAL")
        source.execute("INSERT INTO t VALUES (1, 0, repeat('x', 5000))")
        source.run()
        source.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
        source.rows("SELECT pg_reload_conf()")

        def write() -> None:
            with psycopg.connect(source.url) as sql:
                sql.execute("UPDATE t SET body = repeat('y', 5000)")
                sql.execute("UPDATE t SET v = 1")
                sql.execute("INSERT INTO t VALUES (2, 0, repeat('z', 5000))")
                sql.execute("UPDATE t SET v = 1 WHERE id = 2")

        writer = threading.Thread(target=write)
        with source.running() as capture:
            source.follows(capture, lambda: capture.done.is_caught_up)
            writer.start()
            waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
            source.follows(capture, lambda: source.rows(waiting))
            assert [value["op"] for _, value in source.records(source.topic("t"))] == ["r"]
            source.execute("ALTER SYSTEM RESET synchronous_standby_names")
            source.rows("SELECT pg_reload_conf()")
            writer.join()
            source.follows(capture, lambda: len(source.records(source.topic("t"))) == 5)
        found = [value["after"] for _, value in source.records(source.topic("t"))]
        assert [(one["id"], one["v"], one["body"][0]) for one in found[1:]] == [
            *((1, 0, "y"), (1, 1, "y")),
            *((2, 0, "z"), (2, 1, "z")),
        ]
        assert capture.done.unchanged == 0


def write(source: Any, seed: int, end: threading.Event) -> None:
    """Random transactions over a few rows; large values change now and then."""
    chance = random.Random(seed)
    with psycopg.connect(source.url, autocommit=True) as sql:
        for _ in range(TRANSACTIONS):
            with sql.transaction():
                for _ in range(chance.randint(1, 4)):
                    id_, other = chance.randint(1, 8), chance.randint(1, 8)
                    large = f"repeat('{chance.choice('abcdef')}', {chance.randint(2500, 9000)})"
                    sql.execute(
                        chance.choice(
                            [
                                *4 * [f"UPDATE t SET v = v + 1 WHERE id = {id_}"],
                                f"UPDATE t SET body = {large} WHERE id = {id_}",
                                f"DELETE FROM t WHERE id = {id_}",
                                f"INSERT INTO t VALUES ({id_}, 0, {large}) ON CONFLICT DO NOTHING",
                                MOVE.format(id=id_, other=other),
                            ]
                        )
                    )
    end.set()


@pytest.mark.slow
def test_while_rows_change_topics_end_with_the_rows(source) -> None:
    """A capture that is behind reads values of later changes; none is kept that a change replaced."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    source.execute("CREATE TABLE t (id int PRIMARY KEY, v int, body text)")
    source.execute("ALTER TABLE t ALTER body SET STORAGE EXTERNAL")
    source.execute("INSERT INTO t SELECT i, 0, repeat('x', 5000) FROM generate_series(1, 4) i")
    end = threading.Event()
    writer = threading.Thread(target=write, args=(source, seed, end))
    with source.running() as capture:
        source.follows(capture, lambda: capture.done.phase == "streaming")
        writer.start()
        source.follows(capture, end.is_set)
    writer.join()
    source.run()
    rows = source.table(source.topic("t"), "id").values()
    stored = source.rows("SELECT id, v, body FROM t ORDER BY id")
    assert sorted((one["id"], one["v"], one["body"]) for one in rows) == stored


def test_other_databases_have_no_such_option(log) -> None:
    """MySQL's binary log has whole rows."""
    from penstock.errors import UserError

    with pytest.raises(UserError, match="large_values, which it hasn't"):
        Capture("mysql://root@localhost/shop", ["t"], to="shop", log=log, large_values="read")

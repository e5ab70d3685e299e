"""Tables of SQLite are read in chunks while their changes flow."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from tests.patience import PATIENCE_S

from penstock.capture import snapshot, status, token
from penstock.capture.databases.sqlite import chunks
from penstock.errors import UserError

SEEDS = 4


@pytest.fixture(autouse=True)
def _small(monkeypatch) -> None:
    monkeypatch.setattr(chunks, "CHUNK_ROWS", 7)


def materialized(records: list[tuple[Any, Any]]) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    """What a topic's records make of a table; those of rows with NULL in their key have none."""
    rows: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    for key, value in records:
        if key is None:
            continue
        at = tuple(key.values())
        if value is None or value["after"] is None:
            rows.pop(at, None)
        else:
            rows[at] = tuple(value["after"].values())
    return rows


def read(records: list[tuple[Any, Any]]) -> Counter[tuple[Any, ...]]:
    """How often each key's row was read by a chunk."""
    marked = [k for k, v in records if v and v["source"]["snapshot"] == "incremental"]
    return Counter(tuple(key.values()) for key in marked if key is not None)


def is_read(source) -> bool:
    """Whether a snapshot goes on."""
    return bool(status(source.name, source.log).snapshot)


def captured(source) -> None:
    """Waits until all that was written is captured."""
    token(source.name, str(source.end()), log=source.log, timeout=PATIENCE_S)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_rows_change_and_the_capture_stops_while_a_table_is_read(sqlite_source, seed) -> None:
    """At the end the topic is the table; each row that stayed was read once, in the order of keys."""
    source, random_ = sqlite_source, random.Random(seed)
    source.execute(
        "CREATE TABLE t (a text COLLATE NOCASE, b, v int, PRIMARY KEY (a, b)); "
        + "; ".join(f"INSERT INTO t VALUES ('It''s {i % 9}', {i}, 0)" for i in range(100))
        + "; INSERT INTO t VALUES (NULL, 1, 0), ('x', NULL, 0), ('y', x'00ff', 0), ('z', 1.5, 0)"
    )
    topic = source.topic("t")
    source.run("t")
    before = len(source.records(topic))
    snapshot(source.name, ["t"], log=source.log)
    touched: set[int] = set()
    for run in range(100):
        with source.running("t") as capture:
            source.follows(
                capture,
                lambda run=run: capture.done.snapshot_rows or (run and not is_read(source)),
            )
            for _ in range(random_.randint(0, 5)):
                one = random_.randrange(120)
                touched.add(one)
                source.execute(
                    random_.choice(
                        [
                            f"UPDATE t SET v = v + 1 WHERE b = {one}",
                            f"DELETE FROM t WHERE b = {one}",
                            f"INSERT OR REPLACE INTO t VALUES ('new', {one}, 9)",
                        ]
                    )
                )
        if not is_read(source):
            break
    else:
        pytest.fail(f"the snapshot has no end: {status(source.name, source.log).snapshot}")
    with source.running("t"):
        captured(source)
    records = source.records(topic)
    found = {**materialized(records)}
    now = {
        (a, b if not isinstance(b, bytes) else "AP8="): v
        for a, b, v in source.rows("SELECT * FROM t WHERE a IS NOT NULL AND b IS NOT NULL")
    }
    assert {key: row[-1] for key, row in found.items()} == now
    counts = read(records[before:])
    stayed = {key for key in now if key[1] not in touched}
    assert all(counts[key] == 1 for key in stayed), (counts, stayed)


def test_requests_are_paused_stopped_and_refused(sqlite_source, caplog) -> None:
    """Some rows; a table without a key, or a wrong condition, is left out with a reason."""
    source = sqlite_source
    source.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v); CREATE TABLE keyless (v); "
        + "; ".join(f"INSERT INTO t VALUES ({i}, {i % 2})" for i in range(20))
    )
    source.run("t", "keyless")
    name, log, topic = source.name, source.log, source.topic("t")
    with pytest.raises(UserError, match="expected tables that"):
        snapshot(name, ["other"], log=log)
    for request in ({"tables": ["keyless"]}, {"tables": ["t"], "where": "absent = 1"}):
        snapshot(name, **request, log=log)
        with source.running("t", "keyless") as capture:
            source.follows(capture, lambda: capture.done.is_caught_up)
            source.follows(capture, lambda: not status(name, log).snapshot)
    assert "expected a primary key" in caplog.text
    assert "no such column: absent" in caplog.text
    snapshot(name, ["t"], log=log, where="v = 1")
    snapshot(name, what="pause", log=log)
    with source.running("t", "keyless") as capture:
        source.follows(capture, lambda: "paused" in status(name, log).snapshot)
        assert not read(source.records(topic))
        snapshot(name, what="resume", log=log)
        source.follows(capture, lambda: not status(name, log).snapshot)
    assert {*read(source.records(topic))} == {(i,) for i in range(1, 20, 2)}

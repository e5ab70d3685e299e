"""Large values that an update didn't change stay in the target: Debezium's placeholder is never a value."""

from __future__ import annotations

import base64
from typing import Any

import orjson
import pyarrow.parquet as pq
import pytest
from tests.sinks.test_forwarding import hook

from penstock.client import Client, Reader
from penstock.client.letters.dead_letters import DeadLetters, Where
from penstock.core.delta import PLACEHOLDER as P
from penstock.sinks import Sink, http, kafka, parquet, redis

SCHEMA = "id BIGINT NOT NULL, n BIGINT NOT NULL, body STRING, note STRING NOT NULL"
ROWS = "SELECT id, n, body, note FROM users ORDER BY id"


def follow(target, topic, schema=SCHEMA, **settings):
    """Follows until everything was written."""
    sink = Sink(target, topic.name, schema, **{"key": "id", "log": topic.log, **settings})
    return sink.run(until=lambda done: done.lag == 0)


def row(id_: int, n: int, body: Any = P, note: Any = P) -> dict[str, Any]:
    return {"id": id_, "n": n, "body": body, "note": note}


def test_an_update_leaves_alone_what_it_did_not_change(place, topic) -> None:
    """In one transaction with whole rows, deletions, and rows that lack other columns."""
    topic.send(row(0, 1, "a", "x"), row(2, 1, "b", "y"), row(4, 1, None, "z"), row(6, 1, "d", "w"))
    follow(place.make(table="users"), topic)
    topic.send(row(0, 2), row(2, 2, None), row(4, 2, "c"), b"6", row(8, 2, "e", "v"))
    assert follow(place.make(table="users"), topic).dead == 0
    assert place.rows(ROWS) == [
        (0, 2, "a", "x"),
        (2, 2, None, "y"),
        (4, 2, "c", "z"),
        (8, 2, "e", "v"),
    ]


def test_a_value_is_that_of_the_nearest_change_before(place, topic) -> None:
    """Of the same batch, if one has it there; else of the target."""
    topic.send(row(0, 1, "a", "x"))
    follow(place.make(table="users"), topic)
    topic.send(row(0, 2, "b"), row(0, 3), row(2, 3, "c", "y"), row(2, 4, P, "z"), row(2, 5))
    topic.send(b"0", row(0, 6, "d", "w"), row(0, 7))
    assert follow(place.make(table="users"), topic).dead == 0
    assert place.rows(ROWS) == [(0, 7, "d", "w"), (2, 5, "c", "z")]


def test_a_row_that_is_not_there_is_a_dead_letter(place, topic) -> None:
    """Nobody knows its values; rows of the same batch are written, a deletion before it too."""
    topic.send(row(0, 1, "a", "x"), row(2, 1, "b", "y"))
    follow(place.make(table="users"), topic)
    topic.send(row(0, 2), b"2", row(2, 3, P, "z"), row(4, 4, P, "v"), row(6, 5, "e", "u"))
    done = follow(place.make(table="users"), topic, name="s")
    assert done.dead == 2
    with DeadLetters(topic.log, "s.dead-letters") as dead:
        reasons = [one.reason for one in dead.letters(Where())]
    assert all("the change leaves out body as unchanged; found none" in one for one in reasons)
    assert place.rows(ROWS) == [(0, 2, "a", "x"), (6, 5, "e", "u")]


TYPES = (
    "id BIGINT NOT NULL, n BIGINT, s STRING, y BINARY, l ARRAY<INT>, w ARRAY<STRING>, "
    "m MAP<STRING, STRING>, j JSON, h JSON, t STRING"
)


@pytest.mark.parametrize("text", [P, "absent"])
def test_all_forms_of_the_placeholder_are_known(place, topic, text) -> None:
    """As text, bytes, an array or a map of them, JSON, and an hstore as JSON; also of another text."""
    whole = {
        "s": "a",
        "y": "AP8=",
        "l": [1, 2],
        "w": ["a"],
        "m": {"a": "b"},
        "j": {"x": 1},
        "h": {},
        "t": "c",
    }
    forms = {
        "s": text,
        "y": base64.b64encode(text.encode()).decode(),
        "l": [*text.encode()],
        "w": [text],
        "m": {text: text},
        "j": text,
        "h": {text: text},
        "t": orjson.dumps({text: text}).decode(),
    }
    topic.send({"id": 0, "n": 1, **whole}, {"id": 2, "n": 1, **whole})
    follow(place.make(table="users"), topic, TYPES, placeholder=text)
    topic.send({"id": 0, "n": 1, **forms})
    assert follow(place.make(table="users"), topic, TYPES, placeholder=text).dead == 0
    one, other = place.rows("SELECT n, s, y, l, w, m, j, h, t FROM users ORDER BY id")
    assert one == other


def test_hashes_json_and_single_columns_of_redis_keep_values(empty, topic) -> None:
    """Fields that are NULL are removed, others stay as they were spelled."""
    forms = {"hash": "h:{id}", "json": "j:{id}", "body": "b:{id}", "note": "n:{id}"}

    def write(dead: int) -> None:
        for value, table in forms.items():
            target = redis(empty.url, table=table, value=value)
            done = follow(target, topic, "id BIGINT NOT NULL, n BIGINT, body JSON, note STRING")
            assert done.dead == (dead if value != "note" else 0)

    topic.send({"id": 0, "n": 1, "body": {"x": 1.50}, "note": "a"})
    write(0)
    topic.send({"id": 0, "body": P, "note": "b"}, {"id": 2, "body": P, "note": "c"})
    write(1)
    assert empty.client.hgetall("h:0") == {"id": "0", "body": '{"x":1.5}', "note": "b"}
    assert empty.client.get("j:0") == '{"id":0,"n":null,"body":{"x":1.5},"note":"b"}'
    assert (empty.client.get("b:0"), empty.client.get("n:0")) == ('{"x":1.5}', "b")
    assert empty.client.keys("?:2") == ["n:2"]


def test_changes_over_http_name_the_columns_that_they_leave_out(topic) -> None:
    """The receiver keeps them."""
    topic.send(row(0, 1, "a", "x"))
    with hook() as one:
        follow(http(one.url), topic)
        topic.send(row(0, 2, P, "y"))
        follow(http(one.url), topic)
    found = [change for _, changes in one.requests for change in changes]
    assert [each["row"] for each in found] == [row(0, 1, "a", "x"), {"id": 0, "n": 2, "note": "y"}]
    assert [each.get("unchanged") for each in found] == [None, ["body"]]


def test_a_log_of_changes_has_the_placeholder_and_says_so(topic, tmp_path, caplog) -> None:
    """Its readers know the changes before; the log of the sink has one warning."""
    topic.send(row(0, 1, "a", "x"))
    target = parquet(tmp_path / "users.parquet")
    follow(target, topic)
    topic.send(row(0, 2, P, "y"), row(0, 3))
    assert follow(target, topic).dead == 0
    found = pq.read_table(tmp_path / "users.parquet").sort_by("_offset").to_pylist()
    assert [(one["n"], one["body"], one["note"]) for one in found] == [(1, "a", "x"), (3, P, "y")]
    assert [one.message for one in caplog.records if "left out as unchanged" in one.message]


@pytest.mark.parametrize("compact", [True, False])
def test_a_compacted_topic_has_no_placeholder(topic, compact) -> None:
    """Compaction would remove the value: the record is a dead letter. A topic of all records has it."""
    topic.send(row(0, 1, "a", "x"))
    target = kafka(topic.log, table=f"{topic.name}.copy", compact=compact)
    follow(target, topic)
    topic.send(row(0, 2, P, "y"))
    assert follow(target, topic).dead == (1 if compact else 0)
    with Client(topic.log) as client, Reader(topic.log) as reader:
        end = client.offsets(target.table)[0]
        values = [one for some in reader.read(target.table, 0, 0, end) for one in some.values()]
    assert [orjson.loads(one.as_py())["n"] for one in values] == ([1] if compact else [1, 2])

"""Keys of Redis follow a topic."""

from __future__ import annotations

import numpy as np
import orjson
import pyarrow as pa
import pytest

from penstock.core.schema import Schema
from penstock.errors import FencedError, UserError
from penstock.sinks import Sink, from_address, redis, redis_stream
from penstock.sinks.targets.contract import Batch, Rows

SCHEMA = "id BIGINT NOT NULL, name STRING, amount DECIMAL(10, 2), at TIMESTAMP, tags ARRAY<STRING>"


def follow(server, topic, schema=SCHEMA, key="id", **settings):
    """Follows until everything was written."""
    target = redis(server.url, **{"table": "users", **settings})
    sink = Sink(target, topic.name, schema, key=key, log=topic.log)
    return sink.run(until=lambda done: done.lag == 0)


def test_hashes_have_the_newest_row_of_each_key(empty, topic) -> None:
    """Columns are fields, without those that are NULL; deleted keys are gone; a run goes on."""
    topic.send({"id": 1, "name": "ann", "amount": "2.50"}, {"id": 2, "name": "bob"})
    follow(empty, topic)
    row = {"id": 1, "name": "", "tags": ["a", 'q"'], "at": "2024-02-29T13:45:30.5Z"}
    topic.send(row, b"2", {"id": 3, "name": '"'})
    assert follow(empty, topic).upserts == 2
    assert sorted(empty.client.keys("users:*")) == ["users:1", "users:3"]
    found = empty.client.hgetall("users:1")
    assert orjson.loads(found.pop("tags")) == ["a", 'q"']
    assert found.pop("at").startswith("2024-02-29T13:45:30.5")
    assert found == {"id": "1", "name": ""}
    assert empty.client.hgetall("users:3") == {"id": "3", "name": '"'}


def test_rows_are_json_or_a_column(empty, topic) -> None:
    """With expiry, keys end some time after their last change."""
    topic.send({"id": 1, "name": "ann"}, {"id": 2, "name": None})
    follow(empty, topic, value="json", table="json:{id}", expire_s=1000)
    assert orjson.loads(empty.client.get("json:1"))["name"] == "ann"
    assert 0 < empty.client.ttl("json:1") <= 1000
    sink = Sink(
        from_address(f"{empty.url}?value=name", "name"),
        topic.name,
        SCHEMA,
        key="id",
        log=topic.log,
        name="another" + topic.name,
    )
    sink.run(until=lambda done: done.lag == 0)
    assert empty.client.keys("name:*") == ["name:1"]
    assert empty.client.get("name:1") == "ann"


def test_keys_of_several_columns_never_meet(empty, topic) -> None:
    """What stands between columns is escaped in their values."""
    topic.send({"id": "a:b", "x": "use"}, {"id": "a", "x": "b:use"})
    follow(empty, topic, "id STRING NOT NULL, x STRING NOT NULL", ("id", "x"))
    assert sorted(empty.client.keys("users:*")) == ["users:a%3Ab:use", "users:a:b%3Ause"]


def test_keys_are_written_as_values_are(empty, topic) -> None:
    """As in JSON rows; bytes with the characters of an address."""
    row = {"at": "2024-02-29T13:45:30.5Z", "n": "2.50", "raw": "AP8="}
    topic.send(row, key="n")
    schema = "at TIMESTAMP NOT NULL, n DECIMAL(10, 2) NOT NULL, raw BINARY NOT NULL"
    follow(empty, topic, schema, ("at", "n", "raw"), table="{at} {n} {raw}")
    [key] = empty.client.keys("2024*")
    assert key == "2024-02-29T13:45:30.500Z 2.50 %2500%25FF"
    assert empty.client.hget(key, "at") == "2024-02-29T13:45:30.500Z"


@pytest.mark.parametrize("form", ["u:{name}", "u:{id}:{id}", "u:{", "u:{0}"])
def test_a_form_of_keys_that_does_not_tell_rows_apart_is_an_error(empty, topic, form) -> None:
    """The message names the key."""
    with pytest.raises(UserError, match=r"each column of the key \(id\)"):
        follow(empty, topic, table=form)


@pytest.mark.parametrize("form", ["users{id}", "user_{id}", "{id}:user"])
def test_keys_that_a_rebuild_s_begin_like_cannot_be_built_anew(form) -> None:
    """`users__new1` is of the form `users{id}`: they would change places with each other."""
    target = redis("redis://localhost", table=form)
    with pytest.raises(UserError, match="expected keys with a beginning that a rebuild can change"):
        target.beside("users", Rows("users", Schema.parse(SCHEMA), ("id",)))


def test_of_two_that_switch_keys_at_once_one_does(empty, monkeypatch) -> None:
    """The other one finds nothing that was built, and leaves the live ones."""
    rows = Rows("users", Schema.parse(SCHEMA), ("id",))
    one, other = (redis(empty.url, table="users") for _ in range(2))
    new = one.beside("users", rows)
    new.open("users.rebuild", rows)
    new.close()
    empty.client.set("users__new:1", "ann")
    rename = one._rename

    def late(*arguments) -> None:
        other.switch("users", rows)
        rename(*arguments)

    monkeypatch.setattr(one, "_rename", late)
    with pytest.raises(UserError, match="Rebuild it first"):
        one.switch("users", rows)
    assert empty.client.keys("users*") == ["users:1"]
    assert empty.client.keys("*:switching") == []


def test_a_second_sink_fences_the_first(empty, topic) -> None:
    """Who has opened it under a name before writes nothing more, not even half of it."""
    topic.send({"id": 1, "name": "ann"})
    one = Sink(redis(empty.url, table="users"), topic.name, SCHEMA, key="id", log=topic.log)
    one._target.open(one.name, one._rows)
    follow(empty, topic)
    with pytest.raises(FencedError):
        one._target.write(one._body._nothing, {0: 5})
    one._target.close()


def test_a_server_that_lost_writes_gets_them_again(empty, topic) -> None:
    """Redis may lose its newest writes in a crash; the offsets are lost with them."""
    topic.send(*({"id": i, "name": "x"} for i in range(20)))
    sink = Sink(redis(empty.url, table="users"), topic.name, SCHEMA, key="id", log=topic.log)
    lost = []

    def until(done) -> bool:
        if done.lag == 0 and not lost:
            empty.client.flushall()
            lost.append(topic.send({"id": 99, "name": "y"}))
        return len(empty.client.keys("users:*")) == 21

    sink.run(until=until)


def entries(server, stream="changes"):
    """A stream's entries, without their ids."""
    return [entry for _, entry in server.client.xrange(stream)]


def streamed(server, topic, schema=SCHEMA, key="id", **settings):
    """Follows into a stream until everything was written."""
    sink = Sink(redis_stream(server.url, table="changes", **settings), topic.name, schema,
                key=key, log=topic.log)  # fmt: skip
    return sink.run(until=lambda done: done.lag == 0)


def test_a_stream_has_an_entry_of_each_change_once(empty, topic) -> None:
    """In the order of a partition's records; a run continues behind the one before."""
    schema = "id BIGINT NOT NULL, name STRING"
    topic.send({"id": 1, "name": "ann"}, {"id": 2, "name": None})
    streamed(empty, topic, schema)
    topic.send({"id": 3, "name": '"'}, b"2", {"id": 1, "name": "eve"})
    streamed(empty, topic, schema)
    found: dict[str, list[object]] = {}
    for one in entries(empty):
        found.setdefault(one["key"], []).append((one["op"], orjson.loads(one.get("row", "null"))))
    assert found == {
        "1": [("upsert", {"id": 1, "name": "ann"}), ("upsert", {"id": 1, "name": "eve"})],
        "2": [("upsert", {"id": 2, "name": None}), ("delete", None)],
        "3": [("upsert", {"id": 3, "name": '"'})],
    }


def test_a_stream_without_a_key_has_all_rows(empty, topic) -> None:
    """Equal ones too, and no field for a key; with `maxlen`, about the newest of them."""
    topic.send(*[{"id": 1, "name": "ann"}] * 2)
    streamed(empty, topic, "id BIGINT, name STRING", ())
    assert entries(empty) == [{"op": "upsert", "row": '{"id":1,"name":"ann"}'}] * 2
    topic.send(*[{"id": 2, "name": str(i)} for i in range(1_000)])
    streamed(empty, topic, "id BIGINT, name STRING", (), maxlen=10)
    left = [orjson.loads(one["row"])["name"] for one in entries(empty)]
    assert 10 <= len(left) < 500
    assert left == [str(i) for i in range(1_000 - len(left), 1_000)]


def test_what_no_stream_can_be_is_refused(empty) -> None:
    """Also behind `?` of its address, and without a name."""
    stream = empty.url.replace("redis://", "redis+stream://")
    for make in (lambda: redis_stream(empty.url, table=""), lambda: from_address(stream, "")):
        with pytest.raises(UserError, match="expected a stream, such as table='users'"):
            make()
    with pytest.raises(UserError, match="expected maxlen to be 1 or more; found 0"):
        from_address(stream + "?maxlen=0", "changes")
    with pytest.raises(UserError, match="maxlen=COUNT"):
        from_address(stream + "?maxlen=few", "changes")


def test_a_batch_that_is_written_again_adds_no_entry(empty) -> None:
    """As after an answer that was lost, also cut otherwise."""
    target = redis_stream(empty.url, table="changes")
    rows = Rows("topic", Schema.parse("id BIGINT, name STRING"), ())
    columns = pa.RecordBatch.from_pylist([{"id": i, "name": "x"} for i in range(4)])
    gone = rows.nothing().select([])
    none = np.zeros(0, np.int64)
    target.open("sink", rows)
    for start, stop in [(0, 2), (0, 2), (1, 4)]:
        at = np.arange(start, stop)
        target.write(Batch(columns.slice(start, stop - start), gone, at, none, 0), {0: stop})
    target.close()
    assert [orjson.loads(one["row"])["id"] for one in entries(empty)] == [0, 1, 2, 3]

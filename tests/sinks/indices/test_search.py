"""Search indices follow a topic."""

from __future__ import annotations

import datetime as dt
import re

import orjson
import pyarrow as pa
import pytest

from penstock.client import Client
from penstock.errors import FencedError, UserError
from penstock.sinks import Sink, body, elasticsearch, from_address, tantivy
from penstock.sinks.targets.contract import RefusedError
from penstock.sinks.targets.tantivy import STATE_FILE, TIMESTAMP, _check_instants

module = pytest.importorskip("tantivy", reason="tantivy is not installed")
SCHEMA = "id BIGINT NOT NULL, name STRING, amount DECIMAL(10, 2), at TIMESTAMP, tags ARRAY<STRING>"


def follow(target, topic, schema=SCHEMA, key="id", **settings):
    """Follows until everything was written."""
    sink = Sink(target, topic.name, schema, key=key, log=topic.log, **settings)
    return sink.run(until=lambda done: done.lag == 0)


def documents(path, query: str = "*") -> list[dict]:
    """What a search finds."""
    index = module.Index.open(str(path))
    searcher = index.searcher()
    parsed = index.parse_query(query, ["name"]) if query != "*" else module.Query.all_query()
    return [searcher.doc(at).to_dict() for _, at in searcher.search(parsed, 10_000).hits]


def test_an_index_has_the_newest_document_of_each_key(tmp_path, topic) -> None:
    """Documents are found by words, replaced and deleted; types are those of the columns."""
    path = tmp_path / "users.tantivy"
    topic.send({"id": 1, "name": "Ann of Green Gables"}, {"id": 2, "name": "bob"})
    follow(from_address(str(path), ""), topic)
    assert [one["id"] for one in documents(path, "gables")] == [[1]]
    row = {"id": 1, "name": "Anne", "amount": "2.50", "at": "2024-02-29T13:45:30Z"}
    topic.send({**row, "tags": ["a", "b"]}, b"2", {"id": 3})
    assert follow(tantivy(path), topic).upserts == 2
    assert documents(path, "gables") == []
    assert sorted(documents(path), key=lambda d: d["id"]) == [
        {
            "id": [1],
            "name": ["Anne"],
            "amount": ["2.50"],
            "at": [dt.datetime(2024, 2, 29, 13, 45, 30, tzinfo=dt.UTC)],
            "tags": ["a", "b"],
        },
        {"id": [3]},
    ]


@pytest.mark.parametrize(
    ("type_", "number", "found"),
    [
        (TIMESTAMP, 9_223_372_036_825_200_000, "9,223,372,036,825,200,000 us since 1970"),
        (pa.date32(), 2**31 - 1, "185,542,587,100,800,000,000 us since 1970"),
    ],
)
def test_instants_beyond_those_of_python_are_refused(type_, number, found) -> None:
    """Such as PostgreSQL's infinity."""
    numbers = pa.array([None, number], pa.int32() if type_ == pa.date32() else pa.int64())
    rows = pa.record_batch([numbers.cast(type_)], ["at"])
    with pytest.raises(RefusedError, match=f"tantivy index can hold; found {found}"):
        _check_instants(rows)


def test_an_instant_that_an_index_cannot_hold_is_a_dead_letter(tmp_path, topic, caplog) -> None:
    """An index counts nanoseconds from 1677 to 2262. The former document stays, and other rows follow."""
    path = tmp_path / "users.tantivy"
    schema = "id BIGINT NOT NULL, name STRING, at TIMESTAMP, born DATE, days ARRAY<DATE>"
    topic.send(*({"id": i, "name": f"n{i}"} for i in range(8)))
    assert follow(tantivy(path), topic, schema).upserts == 8
    topic.send(
        {"id": 0, "name": "new", "at": "2262-04-11T23:47:16.854775Z"},
        {"id": 1, "name": "new", "at": "2262-04-11T23:47:16.854776Z"},
        {"id": 2, "name": "new", "at": "1677-09-21T00:12:43.145225Z"},
        {"id": 3, "name": "new", "at": "1677-09-21T00:12:43.145224Z"},
        {"id": 4, "name": "new", "born": "9999-12-31"},
        {"id": 5, "name": "new", "born": "1969-12-31", "days": [None, "1970-01-01"]},
        {"id": 6, "name": "new", "days": ["2000-01-01", "0001-01-01"]},
    )
    done = follow(tantivy(path), topic, schema)
    assert (done.upserts, done.dead) == (3, 4)
    assert {one["id"][0] for one in documents(path, "new")} == {0, 2, 5}
    assert len(documents(path)) == 8
    reason = r"expected \w+ to be between 1677-09-21 and 2262-04-11, the times that a tantivy index can hold"
    said = [one.getMessage() for one in caplog.records if "dead letter" in one.getMessage()]
    assert said
    assert all(re.search(reason, one) for one in said)


def test_an_array_is_a_field_with_several_values(tmp_path, topic) -> None:
    """Of any type; each is found as a whole."""
    path, u = tmp_path / "users.tantivy", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"
    topic.send({"id": 1, "u": [u, None, u], "n": ["1.50", 2], "s": [{"a": 1}], "l": [[1, 2], []]})
    schema = "u ARRAY<UUID>, n ARRAY<DECIMAL(5, 2)>, s ARRAY<STRUCT<a INT>>, l ARRAY<ARRAY<INT>>"
    follow(tantivy(path), topic, f"id BIGINT NOT NULL, name STRING, {schema}")
    [found] = documents(path, f'u:"{u}" AND n:"2.00"')
    assert found == {
        "id": [1],
        "u": [u, u],
        "n": ["1.50", "2.00"],
        "s": ['{"a":1}'],
        "l": ["[1,2]", "[]"],
    }


def test_a_crash_before_the_commit_gives_the_offsets_before_it(tmp_path, topic) -> None:
    """The file with the offsets is replaced first; the index says that the commit didn't happen."""
    path = tmp_path / "users.tantivy"
    topic.send({"id": 4, "name": "ann"})
    follow(tantivy(path), topic)
    one = Sink(tantivy(path), topic.name, SCHEMA, key="id", log=topic.log)
    before = one._target.open(one.name, one._rows)
    one._target._store_state({0: 1000})
    one._target.close()
    assert one._target.open(one.name, one._rows) == before
    one._target.close()
    state = orjson.loads((path / STATE_FILE).read_bytes())
    (path / STATE_FILE).write_bytes(orjson.dumps({**state, "number": -1}))  # as after a commit
    assert one._target.open(one.name, one._rows) == {0: 1000}
    one._target.close()


def test_an_index_belongs_to_one_process_and_one_sink(tmp_path, topic) -> None:
    """A second process waits until the first ends; another sink is an error."""
    path = tmp_path / "users.tantivy"
    one = Sink(tantivy(path), topic.name, SCHEMA, key="id", log=topic.log)
    one._target.open(one.name, one._rows)
    with pytest.raises(BlockingIOError, match="another process"):
        tantivy(path).open(one.name, one._rows)
    one._target.write(one._body._nothing, {0: 0})
    one._target.close()
    with pytest.raises(UserError, match="Choose another directory"):
        follow(tantivy(path), topic, name="another")


def test_elasticsearch_has_the_newest_document_of_each_key(elastic, topic) -> None:
    """Documents and the mapping; a run goes on where the last one stopped."""
    topic.send({"id": 1, "name": "ann"}, {"id": 2, "name": "bob"})
    target = from_address(f"elasticsearch+{elastic.url}", "users")
    follow(target, topic)
    topic.send({"id": 1, "name": "anna"}, b"2", {"id": 3, "amount": "2.50", "tags": ["a"]})
    assert follow(target, topic).upserts == 2
    found = elastic.rows("users")
    assert found.keys() == {"1", "3"}
    assert found["1"]["name"] == "anna"
    assert (found["3"]["amount"], found["3"]["tags"]) == (2.5, ["a"])
    types = elastic.mappings["users-000001"]["properties"]
    assert [types[n]["type"] for n in ("id", "name", "at")] == ["long", "text", "date"]


def test_elasticsearch_ignores_what_an_older_process_writes(elastic, topic) -> None:
    """Versions are offsets: a late write changes nothing, and then it is fenced."""
    topic.send({"id": 2, "name": "old"}, {"id": 2, "name": "new"})
    old = Sink(
        elasticsearch(elastic.url, table="users"), topic.name, SCHEMA, key="id", log=topic.log
    )
    old._target.open(old.name, old._rows)
    held = []
    old._target.write = lambda batch, offsets: held.append(batch) if len(batch) else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(body, "STEP_OFFSETS", 1)
        old.run(until=lambda done: done.lag == 0)
    del old._target.write
    old._target.open(old.name, old._rows)
    follow(elasticsearch(elastic.url, table="users"), topic)
    assert [len(one) for one in held] == [1, 1]
    with pytest.raises(FencedError):
        old._target.write(held[0], {0: 1})
    old._target.close()
    assert elastic.rows("users")["2"]["name"] == "new"


def test_elasticsearch_refuses_rows_and_is_away(elastic, topic) -> None:
    """Documents that don't fit the mapping are dead letters; statuses such as 429 are waited out."""
    topic.send(*({"id": i, "name": "bad" if i == 7 else "x"} for i in range(20)))
    elastic.failures = [503, 429]
    elastic.document_failures = [403, 404]  # the index is blocked, or gone: no row's fault
    target = elasticsearch(elastic.url, table="users")
    assert follow(target, topic, name="E" + topic.name).dead == 1
    assert elastic.rows("users").keys() == {str(i) for i in range(20)} - {"7"}
    with Client(topic.log) as client:
        assert client.offsets(f"E{topic.name}.dead-letters") == {0: 1}


def test_without_a_key_documents_are_appended_once(elastic, topic) -> None:
    """The record's place is the document's id."""
    topic.send({"id": 1}, {"id": 1})
    for name in ("one", "two"):
        follow(
            elasticsearch(elastic.url, table="users"), topic, "id BIGINT NOT NULL", (), name=name
        )
    assert len(elastic.rows("users")) == 2

"""Tables of topics, from records to views and topics."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.effort import examples

import penstock as ps
from penstock.errors import FlowError
from penstock.ops.keyed.upserts import Upserts

SCHEMA = "id BIGINT, name STRING NOT NULL, n INT"


def test_a_table_follows_its_topic() -> None:
    """Upserts and tombstones; whatever is computed of it is taken back; what doesn't fit is kept."""
    app = ps.App("p")
    users = app.view("users", app.table("users", SCHEMA, key="id"))
    app.view("named", users.where("n > 0").group_by("name").agg(n=ps.sum("n")))
    run = ps.testing.run(app)
    run.send("users", id=1, name="a", n=3)
    run.send("users", id=2, name="a", n=4)
    assert run.view("named").rows() == [{"name": "a", "n": 7}]
    run.send("users", id=1, name="b", n=3)
    run.send_raw("users", None, key="2")
    run.send_raw("users", None, key="two")
    assert run.view("users").rows() == [{"id": 1, "name": "b", "n": 3}]
    assert run.view("named").rows() == [{"name": "b", "n": 3}]
    [letter] = run.dead_letters()
    assert letter.headers["penstock.reason"].endswith("in the record's key")


def test_a_record_whose_key_has_other_columns_is_a_dead_letter() -> None:
    """A tombstone of one of the topic's rows doesn't delete another; a new table of it is refused."""
    app = ps.App("p")
    app.view("users", app.table("users", SCHEMA, key="id"))
    run = ps.testing.run(app)
    run.send("users", id=1, name="a", n=3)
    for value in (b'{"id":1,"name":"b"}', None):
        run.send_raw("users", value, key='{"id":1,"name":"a"}')
    assert run.view("users").rows() == [{"id": 1, "name": "a", "n": 3}]
    assert ["found name in it" in r.headers["penstock.reason"] for r in run.dead_letters()] == [
        True,
        True,
    ]
    new = ps.App("p")
    new.view("users", new.table("users", SCHEMA + ", more INT", key="id"))
    with pytest.raises(FlowError, match=r"table 'users'.* Use the topic's key: id, name"):
        run.change(new)


def test_what_nothing_comes_to_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table without changes, and what follows it, has no step in the batch; later ones find its rows."""
    app = ps.App("p")
    users, names = (
        app.table("users", SCHEMA, key="id"),
        app.table("names", "name STRING", key="name"),
    )
    app.view("users", users.group_by("name").agg(n=ps.sum("n")))
    app.view("names", names)
    run = ps.testing.run(app)
    stepped = []

    def step(self: Any, *arguments: Any) -> Any:
        stepped.append(self.schema.names)
        return made(self, *arguments)

    made = Upserts.step
    run.send("users", id=1, name="a", n=3)
    run.send("names", name="a")
    run.settle()
    monkeypatch.setattr(Upserts, "step", step)
    run.send("names", name="b")
    run.settle()
    assert ["name"] in stepped
    assert ["id", "name", "n"] not in stepped
    run.send("users", id=1, name="b", n=3)
    assert run.view("users").rows() == [{"name": "b", "n": 3}]
    assert run.view("names").rows() == [{"name": "a"}, {"name": "b"}]


def test_a_table_reads_what_a_table_writes() -> None:
    """Upserts as JSON, changes as Debezium's envelopes; of one key column and of two."""
    sent = [("a", 1), ("b", 2), ("a", -1), ("c", 5), ("b", -2), ("a", 9)]
    written = ps.App("w")
    events = written.stream("events", "u STRING NOT NULL, n BIGINT")
    for name, by in (("one", ("u",)), ("two", ("u", "n"))):
        table = events.group_by(*by).agg(total=ps.sum("n")).where("total > 0")
        written.view(name, table)
        table.to(f"{name}.json")
        table.to(f"{name}.debezium", emit="changes")
    first = ps.testing.run(written)
    read = ps.App("r")
    for name, by in (("one", "u"), ("two", ("u", "n"))):
        columns = "u STRING, n BIGINT, total BIGINT" if name == "two" else "u STRING, total BIGINT"
        for kind in ("json", "debezium"):
            topic = f"{name}.{kind}"
            read.view(f"{name}_{kind}", read.table(topic, columns, key=by, format=kind))
    second = ps.testing.run(read)
    for u, n in sent:
        first.send("events", u=u, n=n)
        first.settle()
    for name in ("one", "two"):
        for kind in ("json", "debezium"):
            topic = f"{name}.{kind}"
            for record in first.topic(topic):
                second.send_raw(topic, record.value, key=record.key)
            assert second.view(f"{name}_{kind}").rows() == first.view(name).rows()
    assert first.view("one").rows() == [{"u": "a", "total": 9}, {"u": "c", "total": 5}]
    assert second.dead_letters() == []


change = st.tuples(st.integers(0, 5), st.sampled_from([None, "a", "b"]), st.integers(0, 3))


@settings(max_examples=examples(25))
@given(
    st.lists(st.lists(change, max_size=8), max_size=6),
    st.sampled_from(["json", "debezium", "maxwell"]),
    st.sampled_from([1, 3]),
    st.booleans(),
)
def test_what_is_computed_of_a_table_is_right_after_every_batch(
    batches: list[list[Any]], kind: Any, partitions: int, restarts: bool
) -> None:
    """Groups of a table's rows, against a Counter; of several partitions, with restarts in between."""
    app = ps.App("p")
    table = app.table("t", SCHEMA, key="id", format=kind, partitions=partitions)
    app.view("t", table)
    app.view("named", table.group_by("name").agg(c=ps.count(), n=ps.sum("n"), most=ps.max("n")))
    run = ps.testing.run(app, cores=2)
    truth: dict[int, tuple[str, int]] = {}
    for batch in batches:
        for id_, name, n in batch:
            row = {"id": id_, "name": name, "n": n}
            value: Any = None
            if name is not None:
                kinds = {
                    "json": row,
                    "debezium": {"op": "u" if id_ in truth else "c", "before": None, "after": row},
                    "maxwell": {"type": "update" if id_ in truth else "insert", "data": row},
                }
                value = json.dumps(kinds[kind]).encode()
                truth[id_] = (name, n)
            else:
                truth.pop(id_, None)
            run.send_raw("t", value, key=str(id_), partition=id_ % partitions)
        run.settle()
        if not run.store.newest_version():
            continue
        wanted = [{"id": i, "name": name, "n": n} for i, (name, n) in sorted(truth.items())]
        assert run.view("t").rows() == wanted
        counts = Counter(name for name, _ in truth.values())
        sums = {name: [n for one, n in truth.values() if one == name] for name in counts}
        assert run.view("named").rows() == [
            {"name": name, "c": counts[name], "n": sum(sums[name]), "most": max(sums[name])}
            for name in sorted(counts)
        ]
        if restarts:
            run.restart()


def test_what_a_table_is_declared_as_is_checked() -> None:
    """Each message says what was expected, and shows what was found."""
    app = ps.App("p")
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"key": "no"}, "no"),
        ({"key": ()}, "key='id'"),
        ({"key": ["id"]}, "key='id'"),
        ({"key": ("id", "id")}, "key='id'"),
        ({"key": "id", "format": "avro"}, "format='avro'"),
        ({"key": "id", "time": "at"}, "event_time"),
        ({"key": "id", "time": ps.event_time("name")}, "TIMESTAMP"),
        ({"key": "id", "partitions": 0}, "partitions"),
    ]
    for options, text in wrong:
        with pytest.raises(ps.PenstockError, match=text.replace("(", r"\(").replace(")", r"\)")):
            app.table("t", SCHEMA, **options)
    with pytest.raises(ps.PenstockError, match="single values"):
        app.table("t", "id ARRAY<INT>", key="id")
    app.table("t", SCHEMA, key="id")
    with pytest.raises(ps.PenstockError, match="two that differ"):
        app.stream("t", SCHEMA)
    run_of_envelopes = ps.App("q")
    run_of_envelopes.view("t", run_of_envelopes.table("t", SCHEMA, key="id", format="debezium"))
    with pytest.raises(ps.PenstockError, match="send_raw"):
        ps.testing.run(run_of_envelopes).send("t", id=1, name="a")

"""What captures of every kind of database do: see `penstock.capture.database`."""

from __future__ import annotations

import pytest

from penstock.capture import drop, output, schemas, status
from penstock.capture.kinds import kind_of
from penstock.errors import UserError


def records(source, table: str) -> list:
    """A topic's records: key, operation, row."""
    return [
        (key, value and value["op"], value and value["after"])
        for key, value in source.records(source.topic(table))
    ]


def test_rows_then_changes_are_each_there_once(any_source) -> None:
    """A snapshot, inserts, updates, a changed key, deletions; nothing of what was rolled back."""
    source = any_source
    source.execute("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20) NOT NULL)")
    source.execute("INSERT INTO t VALUES (1, 'ann'), (2, 'bob')")
    with source.running() as capture:
        source.follows(capture, lambda: capture.done.phase == "streaming")
        source.execute("INSERT INTO t VALUES (3, 'eve')")
        source.execute(
            "INSERT INTO t VALUES (4, 'no'); ROLLBACK; BEGIN; UPDATE t SET v = 'o' WHERE id = 1"
        )
        source.execute("DELETE FROM t WHERE id = 2; UPDATE t SET id = 5 WHERE id = 3")
        source.follows(capture, lambda: len(records(source, "t")) == 9)
    assert records(source, "t") == [
        ({"id": 1}, "r", {"id": 1, "v": "ann"}),
        ({"id": 2}, "r", {"id": 2, "v": "bob"}),
        ({"id": 3}, "c", {"id": 3, "v": "eve"}),
        ({"id": 1}, "u", {"id": 1, "v": "o"}),
        ({"id": 2}, "d", None),
        ({"id": 2}, None, None),
        ({"id": 3}, "d", None),
        ({"id": 3}, None, None),
        ({"id": 5}, "c", {"id": 5, "v": "eve"}),
    ]
    assert source.table(source.topic("t"), "id").keys() == {(1,), (5,)}


def test_a_snapshot_is_stopped_soon_and_read_again(any_source, monkeypatch) -> None:
    """Who stops a capture doesn't wait for all rows; none of them is visible, and none is there twice."""
    source = any_source
    source.execute("CREATE TABLE t (id INT PRIMARY KEY)")
    source.execute(f"INSERT INTO t VALUES {', '.join(f'({i})' for i in range(2000))}")
    capture = source.capture()
    with monkeypatch.context() as patch:
        patch.setattr(output, "STEP_BYTES", 5000)
        patch.setattr(output.Output, "send", lambda _: capture.stop())
        assert 0 < capture.run().snapshot_rows < 2000
    assert records(source, "t") == []
    source.run()
    assert [key["id"] for key, _, _ in records(source, "t")] == [*range(2000)]


def test_it_goes_on_where_it_stopped(any_source) -> None:
    """What happens while nothing captures comes with the next run; tables that are new then are read."""
    source = any_source
    source.execute("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
    source.execute("INSERT INTO t VALUES (0, 0), (1, 0), (2, 0), (3, 0), (4, 0), (5, 0)")
    source.run()
    for i in range(3):
        source.execute(f"UPDATE t SET v = v + {i + 1} WHERE id % 3 = {i}")
        source.execute(f"DELETE FROM t WHERE id = {i}")
        source.execute(f"CREATE TABLE t{i} (id INT PRIMARY KEY)")
        source.execute(f"INSERT INTO t{i} VALUES (7)")
        source.run()
        source.execute(f"INSERT INTO t{i} VALUES (8)")
        found = source.table(source.topic("t"), "id")
        assert {(one["id"], one["v"]) for one in found.values()} == {
            *source.rows("SELECT * FROM t")
        }
    source.run()
    for i in range(3):
        assert [(k["id"], op) for k, op, _ in records(source, f"t{i}")] == [(7, "r"), (8, "c")]


def test_a_column_that_is_added_is_passed_on(any_source) -> None:
    """Rows have it from their next change on, whether a capture ran when it was added or not."""
    source = any_source
    source.execute("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
    source.execute("INSERT INTO t VALUES (1, 1), (2, 1)")
    source.run()
    source.execute("ALTER TABLE t ADD COLUMN w VARCHAR(9)")
    source.execute("UPDATE t SET w = 'a' WHERE id = 1")
    with source.running() as capture:
        source.follows(capture, lambda: len(records(source, "t")) > 2)
        source.execute("ALTER TABLE t ADD COLUMN x INT")
        source.execute(
            "UPDATE t SET x = 5, w = 'b' WHERE id = 1; INSERT INTO t VALUES (3, 1, 'c', 6)"
        )
        table = lambda: source.table(source.topic("t"), "id")  # noqa: E731
        source.follows(capture, lambda: table().get((3,)) and table()[1,].get("x"))
    assert table() == {
        (1,): {"id": 1, "v": 1, "w": "b", "x": 5},
        (2,): {"id": 2, "v": 1},
        (3,): {"id": 3, "v": 1, "w": "c", "x": 6},
    }
    [version] = schemas(source.name, source.log).values()
    assert (version.number, version.shape.key) == (3, ("id",))
    shape = [(one.name, one.is_required) for one in version.shape.columns]
    assert shape[1:] == [("v", False), ("w", False), ("x", False)]


def test_a_new_snapshot_deletes_what_is_gone(any_source) -> None:
    """Rows that were deleted while nothing captured have no key in the topic; who begins anew says so."""
    source = any_source
    source.execute("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
    source.execute("INSERT INTO t VALUES (1, 1), (2, 1), (3, 1), (4, 1)")
    source.run(partitions=2)
    source.execute("DELETE FROM t WHERE id = 4")
    source.run()
    drop(source.name, source.log, url=source.url)
    source.execute("DELETE FROM t WHERE id = 2")
    source.execute("UPDATE t SET v = 2 WHERE id = 1")
    with source.running() as capture:
        source.follows(capture, lambda: capture.done.phase == "streaming")
        source.execute("INSERT INTO t VALUES (5, 1)")
        rows: dict[int, object] = {}

        def newest() -> dict[int, object]:
            rows.update((key["id"], row) for key, _, row in records(source, "t"))
            return rows

        source.follows(capture, lambda: 5 in newest())
    gone = {2: None, 4: None}
    kept = {1: {"id": 1, "v": 2}, 3: {"id": 3, "v": 1}, 5: {"id": 5, "v": 1}}
    assert newest() == gone | kept
    assert [op for key, op, _ in records(source, "t") if key == {"id": 2}] == ["r", None]
    assert [op for key, op, _ in records(source, "t") if key == {"id": 4}] == ["r", "d", None]


def test_tables_without_keys_and_flat_rows(any_source) -> None:
    """Without a key records have none; the flat form is the row, and no value for a deletion."""
    source = any_source
    source.execute("CREATE TABLE a (v INT)")
    source.execute("CREATE TABLE b (id INT, k INT, v INT, PRIMARY KEY (k, id))")
    source.execute("INSERT INTO a VALUES (1)")
    source.run(format="flat")
    source.execute("INSERT INTO a VALUES (2); INSERT INTO b VALUES (1, 2, 3)")
    source.execute("DELETE FROM b")
    source.run(format="flat")
    assert source.records(source.topic("a")) == [(None, {"v": 1}), (None, {"v": 2})]
    assert source.records(source.topic("b")) == [
        ({"k": 2, "id": 1}, {"id": 1, "k": 2, "v": 3}),
        ({"k": 2, "id": 1}, None),
    ]


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("form", ["debezium", "flat"])
def test_a_table_that_is_emptied_is_empty_downstream(any_source, form) -> None:
    """TRUNCATE deletes each key that the topic has, also of the open transaction, and no key twice."""
    source = any_source
    if not source.truncates:
        pytest.skip("it has no TRUNCATE")
    settings = {"format": form, "partitions": 2, "compact": form == "flat"}
    source.execute("CREATE TABLE t (id INT PRIMARY KEY); INSERT INTO t VALUES (1), (2)")
    source.run(**settings)
    source.execute("INSERT INTO t VALUES (3); TRUNCATE TABLE t; INSERT INTO t VALUES (1), (4)")
    source.run(**settings)
    source.execute("TRUNCATE TABLE t; INSERT INTO t VALUES (5)")
    source.run(**settings)
    found: dict[int, list[bool]] = {}
    for key, value in source.records(source.topic("t")):
        if key is not None:
            found.setdefault(key["id"], []).append(value is not None)
    again = [True, False, True, False]
    assert found == {1: again, 2: [True, False], 3: [True, False], 4: [True, False], 5: [True]}


def test_it_reports_its_state_and_is_dropped(any_source) -> None:
    """`status` has its tables; `drop` removes what the database keeps for it; the next run reads anew."""
    source = any_source
    source.execute("CREATE TABLE t (id INT PRIMARY KEY)")
    source.execute("INSERT INTO t VALUES (1)")
    source.run()
    found = status(source.name, source.log, url=source.url)
    assert (list(found.tables.values()), found.trouble) == ([source.topic("t")], "")
    drop(source.name, source.log, url=source.url)
    with pytest.raises(UserError, match=r"of the captures|found no captures"):
        status(source.name, source.log)
    source.run()
    assert [op for _, op, _ in records(source, "t")] == ["r", "r"]


def test_a_table_has_columns_of_a_program(any_source) -> None:
    """Columns and key are asked of the database."""
    source = any_source
    source.execute("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(9), n DECIMAL(8, 2) NOT NULL)")
    kind = kind_of(source.url)
    [table] = kind.patterns(source.url, ["t"])
    schema, key = kind.describe(source.url, table)
    assert key == ("id",)
    assert schema.text.replace("BIGINT", "INT") == (
        "id INT NOT NULL, v STRING, n DECIMAL(8, 2) NOT NULL"
    )
    with pytest.raises(UserError, match="expected a table"):
        kind.describe(source.url, f"{table}s")

"""Parquet files in partitions: read by others, each record once, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from penstock.core.schema import Schema
from penstock.errors import UserError
from penstock.sinks import Sink, from_address, parquet
from penstock.sinks.targets.contract import Batch, Rows
from penstock.sinks.targets.lake import parquet as module

COLUMNS = Schema.parse(
    "id BIGINT NOT NULL, city STRING, at TIMESTAMP, u UUID, span INTERVAL, clock TIME, d DECIMAL(6, 2)"
)
ROWS = Rows("visits", COLUMNS, ())
CITIES = ["Köln", "a/b=c%d", "", None, "Ulm", "x y"]


def batch(first: int, cities: list[str | None]) -> Batch:
    """A row a city, of the records from an offset on."""
    count = len(cities)
    at = np.arange(first, first + count)
    columns = {
        "id": pa.array(at),
        "city": pa.array(cities, pa.string()),
        "at": pa.array(1_767_225_599_000_000 + at * 1_000_000, COLUMNS["at"].type),
        "u": pa.array([bytes([i]) * 16 for i in range(count)], COLUMNS["u"].type),
        "span": pa.array(at, COLUMNS["span"].type),
        "clock": pa.array(at, COLUMNS["clock"].type),
        "d": pa.array([None] * count, COLUMNS["d"].type),
    }
    rows = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    none = rows.slice(0, 0).select([])
    return Batch(rows, none, at, np.zeros(0, np.int64), 0)


def opened(path: Path, by: str = "city,day(at)", rows: Rows = ROWS) -> Any:
    """The target, and its offsets; it is closed where it can't be opened, as a sink does."""
    target: Any = from_address(f"{path}?partition_by={by}", "")
    try:
        return target, target.open("sink", rows)
    except BaseException:
        target.close()
        raise


def test_duckdb_and_arrow_read_what_was_written(tmp_path: Path) -> None:
    """Any text is a partition; a record that is written again is there once."""
    path = tmp_path / "visits.parquet"
    target, offsets = opened(path)
    assert offsets == {}
    target.write(batch(0, CITIES), {0: 6})
    target.write(batch(3, [*CITIES[3:], "Ulm"]), {0: 7})
    target.close()
    assert opened(path)[1] == {0: 7}
    files = f"read_parquet('{path}/**/*.parquet', hive_partitioning = true)"
    found = duckdb.sql(
        f"SELECT id, city, at_day, u::TEXT AS u, span FROM {files} ORDER BY id"
    ).fetchall()
    assert [row[1] for row in found] == ["Köln", "a/b=c%d", None, None, "Ulm", "x y", "Ulm"]
    assert [str(row[2]) for row in found] == ["2025-12-31"] + ["2026-01-01"] * 6
    assert found[1][3:] == ("01010101-0101-0101-0101-010101010101", 1)
    table = ds.dataset(path, partitioning=ds.HivePartitioning.discover()).to_table()
    assert sorted(table["id"].to_pylist()) == list(range(7))


def test_a_commit_that_was_cut_off_is_completed(tmp_path: Path) -> None:
    """The state decides: files behind it are put in place, others are removed."""
    target, _ = opened(tmp_path / "visits.parquet")
    target._place = lambda files: None  # it is killed before
    target.write(batch(0, CITIES), {0: 6})
    (target._path / module.STAGED / "000002-0").write_bytes(b"half a file")
    assert not list(target._path.glob("**/*.parquet"))
    target.close()
    target, offsets = opened(tmp_path / "visits.parquet")
    assert offsets == {0: 6}
    assert ds.dataset(target._path, partitioning="hive").count_rows() == 6
    assert not (target._path / module.STAGED).exists()


@pytest.mark.parametrize(
    ("by", "schema", "message"),
    [
        ("town", "id BIGINT, city STRING", "found 'town'"),
        ("day(city)", "id BIGINT, city STRING", "of a column of instants; found STRING"),
        ("hour(on)", "on DATE", "found DATE in 'hour"),
        ("d", "d DECIMAL(5, 2)", "found DECIMAL"),
    ],
)
def test_columns_with_too_many_values_are_refused(
    tmp_path: Path, by: str, schema: str, message: str
) -> None:
    """The message says which fit."""
    rows = Rows("t", Schema.parse(schema), ())
    with pytest.raises(UserError, match=message):
        parquet(tmp_path / "x.parquet", partition_by=by).open("sink", rows)


@pytest.mark.parametrize("key", [(), ("id",)])
def test_rows_of_many_partitions_are_several_commits(tmp_path, topic, monkeypatch, key) -> None:
    """As many as it takes, such as of a history by day; a name that is too long is a dead letter."""
    monkeypatch.setattr(module, "PARTITIONS_MAX", 3)
    path, cities = tmp_path / "visits.parquet", [f"city{i}" for i in range(20)]
    topic.send(*({"id": i, "city": city} for i, city in enumerate([*cities, "x" * 300, *cities])))
    schema = "id BIGINT NOT NULL, city STRING"
    sink = Sink(parquet(path, partition_by="city"), topic.name, schema, key=key, log=topic.log)
    done = sink.run(until=lambda done: done.lag == 0)
    assert (done.upserts, done.dead) == (40, 1)
    table = ds.dataset(path, partitioning=ds.HivePartitioning.discover()).to_table()
    assert sorted(table["id"].to_pylist()) == [i for i in range(41) if i != 20]


def test_files_that_differ_are_refused(tmp_path: Path) -> None:
    """Other types, another key or other partitions; further columns aren't."""
    path = tmp_path / "visits.parquet"
    target, _ = opened(path)
    target.write(batch(0, CITIES[:1]), {0: 1})
    target.close()
    for by, rows, message in (
        ("city", ROWS, "with partition_by"),
        ("city,day(at)", Rows("visits", COLUMNS, ("id",)), "with key"),
        (
            "city,day(at)",
            Rows("visits", Schema.parse("city STRING, at TIMESTAMP, id INT"), ()),
            "as INT",
        ),
    ):
        with pytest.raises(UserError, match=message):
            opened(path, by, rows)
    wider = Schema.parse("id BIGINT, city STRING, at TIMESTAMP, more STRING")
    opened(path, rows=Rows("visits", wider, ()))[0].close()
    for address in ("x.parquet?by=city", "x.parquet?partition_by="):
        with pytest.raises(UserError, match="expected partition_by=COLUMNS"):
            from_address(address, "")

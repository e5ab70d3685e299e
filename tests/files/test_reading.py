"""Files in pieces: what is in them, once, from wherever reading goes on."""

from __future__ import annotations

import csv
import gzip
import io
import json
from pathlib import Path
from typing import Any

import duckdb
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.schema import Schema
from penstock.files import _reading
from penstock.files._reading import Place, Shape, UnreadableError, read

LINE = st.one_of(
    st.builds(lambda n, s: json.dumps({"n": n, "s": s}).encode(), st.integers(), st.text()),
    st.sampled_from(
        [b"", b"?", b"[1]", b'{"n": 1', b'{"n": "x"}', b'{"s": "a\\"b", "n": 7}', b"{}"]
    ),
)


def pieces(path: Path, shape: Shape, block: int, stop: int) -> list[Any]:
    """All pieces, by a reader that begins anew after every `stop` pieces."""
    found: list[Any] = []
    place = Place()
    while True:
        taken = []
        for piece in read(path, shape, place):
            taken.append(piece)
            if len(taken) == stop:
                break
        if not taken:
            return found
        found += taken
        place = taken[-1].end


@given(
    lines=st.lists(LINE, max_size=20),
    ending=st.sampled_from([b"\n", b"\r\n"]),
    whole=st.booleans(),
    packed=st.booleans(),
    block=st.integers(1, 60),
    stop=st.integers(1, 3),
)
def test_json_lines_are_read_as_by_a_naive_reader(
    tmp_path_factory: pytest.TempPathFactory,
    lines: list[bytes],
    ending: bytes,
    whole: bool,
    packed: bool,
    block: int,
    stop: int,
) -> None:
    """Lines that are objects are records as they stand, other lines are letters, empty ones nothing."""
    text = ending.join(lines) + (ending if whole and lines else b"")
    path = tmp_path_factory.getbasetemp() / "lines.jsonl"
    path.write_bytes(gzip.compress(text) if packed else text)
    values, letters, keys = [], [], []
    for number, line in enumerate(lines, 1):
        try:
            row = orjson.loads(line) if line else None
        except orjson.JSONDecodeError:
            row = ()
        if type(row) is dict:
            values.append(line)
            s = row.get("s")
            keys.append(None if s is None else s.encode())
        elif row is not None:
            letters.append((number, line))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_reading, "BLOCK_BYTES", block)
        found = pieces(path, Shape("json", None, "s"), block, stop)
    assert [value for one in found for value in one.values.to_pylist()] == values
    assert [key for one in found for key in one.keys.to_pylist()] == keys
    assert [(letter.line, letter.value) for one in found for letter in one.letters] == letters


CELL = st.one_of(st.text('ab",\n é', max_size=4), st.integers(0, 99).map(str))


@given(
    rows=st.lists(st.tuples(CELL, CELL), min_size=1, max_size=15),
    block=st.integers(1, 40),
    stop=st.integers(1, 3),
)
def test_csv_is_read_as_by_python(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Any], block: int, stop: int
) -> None:
    """Quotes, commas and line ends in values, whatever the blocks."""
    rows = [("x" + a, b) for a, b in rows]  # a record of empty values alone is an empty line
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([("a", "b"), *rows])
    path = tmp_path_factory.getbasetemp() / "rows.csv"
    path.write_text(text.getvalue(), newline="")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_reading, "BLOCK_BYTES", block)
        found = pieces(path, Shape("csv", None, "a"), block, stop)
    values = [orjson.loads(value) for one in found for value in one.values.to_pylist()]
    assert [(row["a"], row["b"]) for row in values] == rows
    assert [key.decode() for one in found for key in one.keys.to_pylist()] == [a for a, _ in rows]
    assert not any(one.letters for one in found)


def test_csv_with_a_schema_is_what_duckdb_reads(tmp_path: Path) -> None:
    """The same types and values; what doesn't fit is a letter with its line and its reason."""
    path = tmp_path / "flights.csv.gz"
    good = [f"{n},{n / 8},{n % 2 == 0},2015-01-{n % 28 + 1:02},N{n}" for n in range(500)]
    wrong = ["x,1,true,2015-01-01,bad", "1,2", "9,1.5,yes,2015-01-01,bad", ",1,true,2015-01-01,bad"]
    lines = [*good[:250], *wrong, *good[250:]]
    path.write_bytes(gzip.compress("\n".join(["id,ratio,odd,day,tail", *lines, ""]).encode()))
    schema = Schema.parse("id BIGINT NOT NULL, ratio DOUBLE, odd BOOLEAN, day DATE, tail STRING")
    found = list(read(path, Shape("csv", schema), Place()))
    values = [orjson.loads(value) for one in found for value in one.values.to_pylist()]
    plain = tmp_path / "good.csv"
    plain.write_text("\n".join(["id,ratio,odd,day,tail", *good, ""]))
    told = duckdb.sql(f"FROM read_csv('{plain}')").to_arrow_table().to_pylist()
    assert values == [{**row, "day": row["day"].isoformat()} for row in told]
    letters = sorted(
        (letter for one in found for letter in one.letters), key=lambda letter: letter.line
    )
    assert [letter.line for letter in letters] == [252, 253, 254, 255]
    reasons = ["column 'id'", "expected 5 columns; found 2", "column 'odd'", "NOT NULL"]
    for letter, reason in zip(letters, reasons, strict=True):
        assert reason in letter.reason


def test_parquet_is_read_from_any_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In pieces that follow one another."""
    monkeypatch.setattr(_reading, "PIECE_ROWS", 7)
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"n": range(50), "s": [f"s{n}" for n in range(50)]}), path)
    found = pieces(path, Shape("parquet", None, "s"), 0, 2)
    assert [orjson.loads(v)["n"] for one in found for v in one.values.to_pylist()] == list(
        range(50)
    )
    some = list(read(path, Shape("parquet", Schema.parse("n BIGINT")), Place(20)))
    assert some[0].values[0].as_py() == b'{"n":20}'


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("cut.jsonl.gz", gzip.compress(b'{"n":1}\n' * 9, mtime=0)[:-9], "its end too early"),
        ("bad.jsonl.gz", gzip.compress(b"x", mtime=0)[:4] + b"\xff" * 50, "expected gzip data"),
        ("no.parquet", b"PAR1 no", "expected a Parquet file"),
        ("other.csv", b"a,b\n1,2\n", "expected the columns n; found a, b"),
        ("empty.csv", b"", "expected CSV"),
    ],
)
def test_what_cannot_be_read_says_why(
    tmp_path: Path, name: str, content: bytes, reason: str
) -> None:
    """Damaged and other files."""
    path = tmp_path / name
    path.write_bytes(content)
    kind = name.split(".")[1].replace("jsonl", "json")
    with pytest.raises(UnreadableError, match=reason):
        list(read(path, Shape(kind, Schema.parse("n BIGINT")), Place()))

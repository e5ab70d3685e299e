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
from penstock.files import reading
from penstock.files.reading import Piece, Place, Shape, UnreadableError, read

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
        patch.setattr(reading, "BLOCK_BYTES", block)
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
        patch.setattr(reading, "BLOCK_BYTES", block)
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
    duckdbs = duckdb.sql(f"FROM read_csv('{plain}')").to_arrow_table().to_pylist()
    assert values == [{**row, "day": row["day"].isoformat()} for row in duckdbs]
    letters = sorted(
        (letter for one in found for letter in one.letters), key=lambda letter: letter.line
    )
    assert [letter.line for letter in letters] == [252, 253, 254, 255]
    reasons = ["column 'id'", "expected 5 columns; found 2", "column 'odd'", "NOT NULL"]
    for letter, reason in zip(letters, reasons, strict=True):
        assert reason in letter.reason


def test_parquet_is_read_from_any_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In pieces that follow one another."""
    monkeypatch.setattr(reading, "PIECE_ROWS", 7)
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
        ("twice.csv", b"n,n\n1,2\n", "expected each column once; found 'n' 2 times"),
        ("odd.csv", b"n,\xff\n1,2\n", "expected names of columns in UTF-8"),
        (
            "open.csv",
            b'n,s\n1,a\n2,"b\n3,c\n',
            "quotes in the record after line 2; found the file's end",
        ),
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


def rows_in(found: list[Piece]) -> list[dict[str, Any]]:
    return [orjson.loads(value) for one in found for value in one.values.to_pylist()]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("block", [1, 2, 7, 1 << 20])
def test_lines_of_csv_end_in_three_ways(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str, block: int
) -> None:
    """Those of old Macs too; ends in quotes are text, and numbers of lines are right."""
    monkeypatch.setattr(reading, "BLOCK_BYTES", block)
    path = tmp_path / "rows.csv"
    lines = ["n,s", "1,a", f'2,"x{end}y"', "no", '4,"""q"', "5,z"]
    path.write_bytes(end.join([*lines, ""]).encode())
    found = list(read(path, Shape("csv"), Place()))
    assert [row["n"] for row in rows_in(found)] == ["1", "2", "4", "5"]
    assert rows_in(found)[1]["s"] == f"x{end}y"
    assert [letter.line for one in found for letter in one.letters] == [4]


def test_a_quote_within_a_text_opens_nothing(tmp_path: Path) -> None:
    """The end of the file is no end too early then."""
    path = tmp_path / "rows.csv"
    path.write_bytes(b'n,s\n1,5" pipe\n2,b\n')
    assert [row["s"] for row in rows_in(list(read(path, Shape("csv"), Place())))] == [
        '5" pipe',
        "b",
    ]


def test_no_column_is_left_out(tmp_path: Path) -> None:
    """One with a name that no pipeline gives, either."""
    path = tmp_path / "rows.csv"
    path.write_bytes(b"n,$n\n1,2\n")
    assert rows_in(list(read(path, Shape("csv"), Place()))) == [{"n": "1", "$n": "2"}]


def test_zeros_may_follow_what_is_gzipped(tmp_path: Path) -> None:
    """As tapes and some programs pad."""
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(
        gzip.compress(b'{"n":1}\n') + bytes(9) + gzip.compress(b'{"n":2}\n') + bytes(99)
    )
    assert rows_in(list(read(path, Shape("json"), Place()))) == [{"n": 1}, {"n": 2}]


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        ("json", b'{"n":1.50}\nno\n{"n":7}\n{"n":null}\n'),
        ("csv", b"n\n1.50\nno\n007\n \n"),
    ],
)
def test_keys_are_those_that_pipelines_expect(tmp_path: Path, kind: str, content: bytes) -> None:
    """With a schema: however the value is written, and none where there is no value."""
    path = tmp_path / f"rows.{kind}"
    path.write_bytes(content.replace(b" ", b'""'))
    found = list(read(path, Shape(kind, Schema.parse("n DOUBLE"), "n"), Place()))
    keys = [key for one in found if one.keys is not None for key in one.keys.to_pylist()]
    assert keys == [b"1.5", b"7", None]


def test_parquet_of_other_programs_is_read(tmp_path: Path) -> None:
    """Types that Penstock's own schemas don't have become those that JSON can have."""
    path = tmp_path / "rows.parquet"
    con = duckdb.connect()
    con.sql(
        f"""COPY (SELECT '00112233-4455-6677-8899-aabbccddeeff'::UUID AS u, MAP {{1: 'a', 2: NULL}} AS m,
        MAP {{DATE '2026-01-02': 1}} AS d, TIMESTAMP_NS '2026-01-01 00:00:00.123456789' AS at,
        '{{"a": 1}}'::JSON AS j) TO '{path}' (FORMAT parquet)"""
    )
    expected = {
        "u": "00112233-4455-6677-8899-aabbccddeeff",
        "m": {"1": "a", "2": None},
        "d": {"2026-01-02": 1},
        "at": "2026-01-01T00:00:00.123456Z",
        "j": '{"a": 1}',
    }
    assert rows_in(list(read(path, Shape("parquet"), Place()))) == [expected]
    schema = Schema.parse("u UUID, at TIMESTAMP")
    [one] = read(path, Shape("parquet", schema, "u"), Place())
    assert rows_in([one]) == [{name: expected[name] for name in ("u", "at")}]
    assert one.keys is not None
    assert one.keys.to_pylist() == [expected["u"].encode()]
    fixed = tmp_path / "fixed.parquet"
    columns = {
        "b": pa.array([b"abc"], pa.binary(3)),
        "l": pa.array([[1, 2]], pa.list_(pa.int64(), 2)),
    }
    pq.write_table(pa.table(columns), fixed)
    assert rows_in(list(read(fixed, Shape("parquet"), Place()))) == [{"b": "YWJj", "l": [1, 2]}]


def test_texts_of_parquet_are_json_where_a_column_is(tmp_path: Path) -> None:
    """Without a schema texts stay texts, of whatever type Arrow has for them; others than JSON are told."""
    path = tmp_path / "rows.parquet"
    texts = pa.array(['{"a": 1}', "12", None], pa.large_string())
    pq.write_table(pa.table({"p": texts}), path)
    as_text = [{"p": '{"a": 1}'}, {"p": "12"}, {"p": None}]
    assert rows_in(list(read(path, Shape("parquet"), Place()))) == as_text
    declared = Shape("parquet", Schema.parse("p JSON"))
    assert rows_in(list(read(path, declared, Place()))) == [{"p": {"a": 1}}, {"p": 12}, {"p": None}]
    pq.write_table(pa.table({"p": ["[", "1"]}), path)
    with pytest.raises(UnreadableError, match="expected JSON in the column 'p'; found '\\['"):
        list(read(path, declared, Place()))

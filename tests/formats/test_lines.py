"""Lines of CSV and of patterns: the rows of naive readers and of DuckDB; what doesn't fit says why."""

from __future__ import annotations

import csv
import gzip
import io
import os
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.core.schema import Schema
from penstock.errors import FlowError, SchemaError
from penstock.formats.json import Decoded
from penstock.formats.lines import Csv, LineFormat, Pattern, decoder_for

ACCESS_LOG = Path(os.environ.get("PENSTOCK_DATA", "."), "apache_access_elastic_10k.log.gz")
COMBINED = r'^(?P<ip>\S+) \S+ \S+ \[(?P<at>[^\]]+)\] "(?P<request>[^"]*)" (?P<status>\d{3}) (?P<bytes>\d+|-)'
ACCESS = "ip STRING NOT NULL, at TIMESTAMP NOT NULL, status INT, bytes BIGINT, request STRING"
TIME_FORMAT = "%d/%b/%Y:%H:%M:%S %z"


def decode(schema: str, format_: LineFormat | None, lines: list[bytes | None]) -> Decoded:
    """Decodes lines that lie one after the other, with something between them."""
    buffer = b"".join(b"#" + (line or b"") for line in lines)
    lengths = [len(line or b"") for line in lines]
    starts = np.cumsum([1, *(1 + length for length in lengths)])[:-1]
    sizes = [-1 if line is None else len(line) for line in lines]
    data = np.frombuffer(buffer + b"#", np.uint8)
    decoder = decoder_for(Schema.parse(schema), format_)
    return decoder.decode(data, starts.astype(np.int64), np.array(sizes, np.int32))


CELL = st.one_of(
    st.text('a",;\n é', max_size=4),
    st.integers(-(2**63), 2**63 - 1).map(str),
    st.sampled_from(["", "NA", "1.5", "x", "007", "true"]),
)


def naive(line: str, delimiter: str) -> tuple[str, int] | None:
    """A line of `s STRING, n BIGINT` as Python's own reader takes it; None where it doesn't fit."""
    rows = list(csv.reader(io.StringIO(line, newline=""), delimiter=delimiter, strict=True))
    if len(rows) != 1 or len(rows[0]) != 2:
        return None
    text, number = rows[0]
    number = number.strip(" \n")
    if text == "NA":
        text = None  # type: ignore[assignment]
    if number in {"", "NA"}:
        return text, None  # type: ignore[return-value]
    if not re.fullmatch(r"-?[0-9]+", number) or not -(2**63) <= int(number) < 2**63:
        return None
    return text, int(number)


@given(
    st.lists(st.lists(CELL, min_size=1, max_size=3), max_size=8),
    st.sampled_from(",;"),
    st.sampled_from(["", "\n", "\r\n"]),
)
def test_csv_is_what_a_naive_reader_makes_of_each_line(
    rows: list[list[str]], delimiter: str, end: str
) -> None:
    """Quotes and line ends within values; too few or too many columns; numbers that are none."""
    lines = []
    for row in rows:
        out = io.StringIO()
        csv.writer(out, delimiter=delimiter, lineterminator="").writerow(row)
        lines.append(out.getvalue())
    expected = [naive(line, delimiter) for line in lines]
    format_ = Csv(delimiter, "NA")
    found = decode("s STRING, n BIGINT", format_, [(line + end).encode() for line in lines])
    good = [i for i, row in enumerate(expected) if row is not None]
    assert found.rows.tolist() == good
    assert [tuple(row.values()) for row in found.columns.to_pylist()] == [expected[i] for i in good]
    assert found.bad_rows.tolist() == [i for i in range(len(lines)) if i not in good]
    assert all(reason.startswith(("expected ", "column ")) for reason in found.reasons)


def test_csv_is_what_duckdb_reads(tmp_path: Path) -> None:
    """Every type that a column may have."""
    schema = "b BOOLEAN, i INT, l BIGINT, f FLOAT, d DOUBLE, s STRING, t TIMESTAMP, y DATE"
    lines = [
        f'{n % 2 == 0},{n},{n * 10**12},{n / 4},{n / 7!r},"a ""{n}"", b",'
        f"2026-11-22 10:{n % 60:02}:00.5,2026-11-{n % 28 + 1:02}"
        for n in range(300)
    ]
    found = decode(schema, Csv(), [line.encode() for line in lines])
    assert len(found.bad_rows) == 0
    path = tmp_path / "rows.csv"
    path.write_text("\n".join(lines))
    types = {f.name: {"STRING": "VARCHAR"}.get(t := _type(f), t) for f in Schema.parse(schema)}
    with duckdb.connect() as con:
        con.execute("SET TimeZone = 'UTC'")
        read = con.sql(f"FROM read_csv('{path}', header = false, columns = {types})")
        expected = read.to_arrow_table().to_pylist()
    for row in expected:
        row["t"] = row["t"].replace(tzinfo=UTC)
    assert found.columns.to_pylist() == expected


def _type(field: Any) -> str:
    return Schema((field,)).text.split()[1]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (None, "found no value"),
        (b"", "found an empty line"),
        (b"a", "expected 2 columns; found 1"),
        (b"a,1,2", "expected 2 columns; found 3"),
        (b'"a,1', "expected quotes in pairs"),
        (b"a,1\nb,2", "expected one line; found 2"),
        (b"\xff,1", "expected text in UTF-8"),
        (b"a,x", "column 'n': expected BIGINT"),
        (b"a,", "column 'n': expected a value (NOT NULL)"),
    ],
)
def test_a_bad_line_of_csv_touches_no_other(line: bytes | None, reason: str) -> None:
    """Each says why it doesn't fit, beside lines that do."""
    found = decode("s STRING, n BIGINT NOT NULL", Csv(), [b"x,1", line, b'"y\n,",2'])
    assert found.columns.to_pylist() == [{"s": "x", "n": 1}, {"s": "y\n,", "n": 2}]
    assert found.rows.tolist() == [0, 2]
    assert found.bad_rows.tolist() == [1]
    assert reason in found.reasons[0]


def access_lines() -> list[bytes]:
    """Those of a real log where there is one, and some that resemble them."""
    own = [
        b'1.2.3.4 - - [17/May/2015:10:05:03 +0200] "GET /a?b=1 HTTP/1.1" 200 17 "-" "x"',
        b'::1 - ann [17/May/2015:10:05:03 +0000] "?" 404 - "-" "y"',
        b'1.2.3.4 - - [17/May/2015:10:05] "GET / HTTP/1.1" 200 17',
        b"no line of it",
    ]
    if ACCESS_LOG.exists():
        own += gzip.decompress(ACCESS_LOG.read_bytes()).splitlines()
    return own


def test_a_pattern_finds_what_pythons_finds() -> None:
    """On an access log: the same columns of the same lines."""
    lines = access_lines()
    found = decode(ACCESS, Pattern(COMBINED, TIME_FORMAT, "-"), list(lines))
    expected, bad = [], []
    for row, line in enumerate(lines):
        match = re.search(COMBINED, line.decode())
        try:
            assert match is not None
            at = datetime.strptime(match["at"], "%d/%b/%Y:%H:%M:%S %z")
        except (AssertionError, ValueError):
            bad.append(row)
            continue
        size = None if match["bytes"] == "-" else int(match["bytes"])
        fields = {"ip": match["ip"], "at": at.astimezone(UTC), "status": int(match["status"])}
        expected.append(fields | {"bytes": size, "request": match["request"]})
    assert found.columns.to_pylist() == expected
    assert found.bad_rows.tolist() == bad
    assert bad[:2] == [2, 3]
    assert "expected TIMESTAMP" in found.reasons[0]
    assert "expected a line that the pattern describes; found 'no line of it'" in found.reasons[1]


def test_a_pattern_says_what_it_lacks() -> None:
    """A column without a group, a group without a name, no expression."""
    with pytest.raises(SchemaError, match=r"expected a group \(\?P<n>…\)"):
        decoder_for(Schema.parse("n INT"), Pattern("(?P<m>.)"))
    with pytest.raises(SchemaError, match="all groups have names"):
        decoder_for(Schema.parse("n INT"), Pattern("(.)"))
    with pytest.raises(SchemaError, match="regular expression"):
        decoder_for(Schema.parse("n INT"), Pattern("(?P<n>"))


def test_a_stream_of_lines() -> None:
    """Through a pipeline: rows, and dead letters with their reasons; restarts change nothing."""
    app = ps.App("site")
    requests = app.stream(
        "access",
        ACCESS,
        time=ps.event_time("at", lateness="1 minute"),
        format=ps.pattern(COMBINED, time_format=TIME_FORMAT, null="-"),
    )
    app.view("statuses", requests.group_by("status").agg(n=ps.count(), bytes=ps.sum("bytes")))
    numbers = app.stream("numbers", "name STRING, n BIGINT", format="csv")
    app.view("numbers", numbers.group_by("name").agg(n=ps.sum("n")))
    run = ps.testing.run(app)
    for line in access_lines()[:4]:
        run.send_raw("access", line)
    run.restart()
    for line in (b"a,1", b"b,2", b"a,5", b"c"):
        run.send_raw("numbers", line)
    assert run.view("statuses").rows() == [
        {"status": 200, "n": 1, "bytes": 17},
        {"status": 404, "n": 1, "bytes": None},
    ]
    assert run.view("numbers").rows() == [{"name": "a", "n": 6}, {"name": "b", "n": 2}]
    assert len(run.dead_letters()) == 3
    with pytest.raises(FlowError, match="send_raw"):
        run.send("numbers", name="a", n=1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda app: app.stream("t", "n INT", format="xml"), "found format='xml'"),
        (lambda app: app.stream("t", "n ARRAY<INT>", format="csv"), "columns of single values"),
        (lambda _: ps.csv(delimiter="::"), "expected a delimiter of one character"),
        (lambda app: app.stream("t", "n INT", format=ps.pattern("x")), r"expected a group"),
    ],
)
def test_formats_are_checked(make: Any, message: str) -> None:
    """When the program is read."""
    with pytest.raises(FlowError, match=message):
        make(ps.App("checked"))

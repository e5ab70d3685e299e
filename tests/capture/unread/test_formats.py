"""Formats of MariaDB that the binary log doesn't describe: older times, character sets, altered tables."""

from __future__ import annotations

import pytest
from tests.effort import some_slow

from penstock.capture import status

TIMES = {
    "timestamp": "'2024-02-29 13:45:30{}'",
    "datetime": "'9999-12-31 23:59:59{}'",
    "time": "'-838:59:59{}'",
}
SETS = ("sjis", "cp932", "ujis", "eucjpms", "euckr", "big5", "gbk", "gb2312")


@pytest.mark.parametrize("values", ["precise", "readable"])
def test_times_of_the_older_format_are_the_same_as_in_a_snapshot(mysql_source, values) -> None:
    """Tables of an upgraded server keep it; fractions of each number of digits come as they are."""
    columns = [(f"{kind}({n})", text, n) for kind, text in TIMES.items() for n in range(7)]
    listed = ", ".join(f"c{i} {kind} NULL" for i, (kind, _, _) in enumerate(columns))
    literals = ", ".join(text.format("." + "654321"[:n] if n else "") for _, text, n in columns)
    try:
        mysql_source.rows("SET GLOBAL mysql56_temporal_format = OFF")
        mysql_source.execute(f"CREATE TABLE t (id int PRIMARY KEY, {listed}, more int)")
    finally:
        mysql_source.rows("SET GLOBAL mysql56_temporal_format = ON")
    mysql_source.execute(f"INSERT INTO t VALUES (1, {literals}, 7)")
    mysql_source.run(values=values)
    mysql_source.execute(f"INSERT INTO t VALUES (2, {literals}, 7); INSERT INTO t (id) VALUES (3)")
    mysql_source.run(values=values)
    rows = mysql_source.table(mysql_source.topic("t"), "id")
    assert {**rows[2,], "id": 1} == rows[1,]
    assert None not in rows[1,].values()
    assert rows[1,]["more"] == 7
    assert set(rows[3,].values()) == {3, None}


@pytest.mark.parametrize("charset", some_slow(SETS, quick=("eucjpms", "euckr")))
def test_all_characters_are_those_of_the_server(mysql_source, charset) -> None:
    """Sets with several bytes for a character: Python's characters are others, as in eucjpms and euckr."""
    bytes_ = [
        bytes([a, b]) for a in range(0x81, 0xFF) for b in (*range(0x40, 0x7F), *range(0x80, 0xFF))
    ]
    bytes_ += [bytes([0x8F, a, b]) for a in range(0xA1, 0xFF) for b in range(0xA1, 0xFF)]
    text = f"CONVERT(CONVERT(x'{b'~'.join(bytes_).hex()}' USING {charset}) USING utf8mb4)"
    mysql_source.execute(
        f"CREATE TABLE t (id int PRIMARY KEY, v mediumtext CHARACTER SET {charset})"
    )
    mysql_source.execute(f"INSERT INTO t VALUES (1, {text})")
    mysql_source.run()
    mysql_source.execute(f"INSERT INTO t VALUES (2, {text})")
    mysql_source.run()
    rows = mysql_source.table(mysql_source.topic("t"), "id")
    assert rows[2,]["v"] == rows[1,]["v"]
    assert len(rows[1,]["v"]) > 10_000


def test_changes_that_cannot_be_read_are_a_dead_letter(mysql_source) -> None:
    """A table was altered since its rows changed, and the log doesn't say how long these are: they are a
    dead letter that says so, and what follows is captured.
    """
    try:
        mysql_source.rows("SET GLOBAL mysql56_temporal_format = OFF")
        mysql_source.execute("CREATE TABLE t (id int PRIMARY KEY, v datetime(6))")
        mysql_source.run()
        mysql_source.execute("INSERT INTO t VALUES (1, '2024-02-29 13:45:30.5')")
        mysql_source.execute("ALTER TABLE t MODIFY v datetime(1)")
    finally:
        mysql_source.rows("SET GLOBAL mysql56_temporal_format = ON")
    mysql_source.execute("INSERT INTO t VALUES (2, NULL)")
    mysql_source.run()
    rows = mysql_source.table(mysql_source.topic("t"), "id")
    assert set(rows) == {(2,)}
    [letter] = mysql_source.letters()
    assert "expected rows of" in letter.reason
    found = status(mysql_source.name, mysql_source.log, url=mysql_source.url)
    assert (found.unread, found.letters) == ({f"{mysql_source.database}.t": 1}, 1)

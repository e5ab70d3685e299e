"""Readable values are what a program's columns take."""

from __future__ import annotations

import pytest

from penstock.capture import postgres
from penstock.client import Client, Reader
from penstock.formats.changelog import ChangelogDecoder

COLUMNS = """
    id int PRIMARY KEY, a smallint, b bigint, c real, d double precision, n numeric(12, 2), v numeric,
    m money, t text NOT NULL DEFAULT 'x', ch char(3), u uuid, j jsonb, by bytea, bo boolean, da date, ti time,
    tz timetz, ts timestamp, tt timestamptz, iv interval, bi bit(3), b1 bit(1), ar int[], ta text[],
    na numeric(8, 2)[], ip inet, mo mood, ra int4range, po point
"""
ROW = """
    1, -5, 9007199254740993, 0.5, 1e300, -12.50, 1234567890.123456789, 12.34, 'x"\\\\', 'ab',
    'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '{"a": [1]}', '\\x00ff', true, '2024-02-29', '13:45:30.5',
    '13:45:30+02', '2024-02-29 13:45:30.123456', '2024-02-29 13:45:30+02', '1 day 02:00', B'101', B'1',
    '{1,NULL,3}', '{a,"b c"}', '{1.5,2.25}', '10.0.0.1', 'ok', '[1,5)', '(1,2)'
"""


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("format", ["flat", "debezium"])
def test_a_table_of_all_types_is_one_of_a_program(source, format) -> None:  # noqa: A002
    """Columns are derived from the database's; each row that is captured fits them, changed or not."""
    source.execute("CREATE TYPE mood AS ENUM ('sad', 'ok')")
    source.execute(f"CREATE TABLE everything ({COLUMNS})")
    source.execute(f"INSERT INTO everything VALUES ({ROW})")
    settings = {"to": None, "name": source.name, "format": format, "values": "readable"}
    settings["tables"] = {"public.everything": source.name}
    from penstock.capture import Capture

    def run() -> None:
        end = source.end()
        Capture(source.url, log=source.log, **settings).run(until=lambda done: done.position >= end)

    run()
    source.execute(
        "INSERT INTO everything(id) VALUES (2); UPDATE everything SET a = 6 WHERE id = 1"
    )
    source.execute("INSERT INTO everything(id) VALUES (3); DELETE FROM everything WHERE id = 3")
    run()
    schema, key = postgres(source.url, table="everything").describe()
    assert (key, "po" in schema) == (("id",), False)
    decoder = ChangelogDecoder(schema, key, "debezium" if format == "debezium" else "json")
    rows, reasons = [], []
    with Client(source.log) as client, Reader(source.log) as reader:
        for records in reader.read(source.name, 0, 0, client.offsets(source.name)[0]):
            changes = decoder.decode(records)
            reasons += changes.reasons
            rows += zip(changes.columns.to_pylist(), changes.deleted.tolist(), strict=True)
    assert reasons == []
    assert [(row["id"], row["a"], gone) for row, gone in rows if not gone] == [
        (1, -5, False),
        (2, None, False),
        (1, 6, False),
        (3, None, False),
    ]
    assert {row["id"] for row, gone in rows if gone} == {3}
    first = rows[0][0]
    assert (str(first["n"]), first["b"], first["t"]) == ("-12.50", 9007199254740993, 'x"\\\\')
    assert (first["by"], first["ar"], first["iv"]) == (b"\x00\xff", [1, None, 3], "P1DT2H")
    assert (str(first["da"]), str(first["tt"])[:19]) == ("2024-02-29", "2024-02-29 11:45:30")

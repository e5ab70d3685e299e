"""Columns whose names aren't words, such as Elastic's `@timestamp`, in programs and in reads."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.serve.committing import commit

import penstock as ps
from penstock.serve import Views

PROGRAM = """
CREATE STREAM logs ("@timestamp" TIMESTAMP NOT NULL, "@k" BIGINT, "a""b" STRING,
    WATERMARK FOR "@timestamp" AS "@timestamp" - INTERVAL 5 SECONDS);
CREATE TABLE hosts ("@k" BIGINT PRIMARY KEY, "@v" STRING);
CREATE MATERIALIZED VIEW v AS
"""
NOON = "2026-01-01T12:00:00Z"
ONE = {"@k": 1}
QUERIES = (
    ('SELECT "@k", extract(hour FROM "@timestamp") AS h FROM logs', {**ONE, "h": 12}),
    ('SELECT logs."@k", "@v" FROM logs JOIN hosts USING ("@k")', {**ONE, "@v": "x"}),
    ('SELECT "@k" AS "@q", count(*) AS "@n" FROM logs GROUP BY "@k"', {"@q": 1, "@n": 1}),
    (
        'SELECT "@k" FROM logs QUALIFY row_number() OVER (PARTITION BY "@k" ORDER BY "@timestamp") <= 1',
        ONE,
    ),
    (
        'SELECT "@q" AS "@k" FROM (SELECT "@k" AS "@q" FROM logs) WHERE "@q" IN (SELECT "@k" FROM hosts)',
        ONE,
    ),
    (
        'SELECT count(*) AS n FROM TUMBLE(logs, "@timestamp", INTERVAL 1 MINUTE) GROUP BY window_start, "@k"',
        {"n": 1},
    ),
    ('WITH "@c" AS (FROM logs) SELECT c."a""b" FROM "@c" AS c', {'a"b': "z"}),
)


@pytest.mark.parametrize(("query", "expected"), QUERIES)
def test_names_in_quotes_may_have_any_character(
    query: str, expected: dict[str, object], tmp_path: Path
) -> None:
    """In declarations, watermarks, keys, and every clause; a read sees the names as they are."""
    app = ps.App("shop")
    app.sql(PROGRAM + query)
    run = ps.testing.run(app, shaken=False)
    run.send("hosts", **{"@k": 1, "@v": "x"})
    run.send("logs", **{"@timestamp": NOON, "@k": 1, 'a"b': "z"})
    assert run.view("v").rows() == [expected]
    [name, *_] = expected
    text = name.replace('"', '""')
    found = Views(commit(run, tmp_path / "shop.penstock")).sql(
        f'SELECT max(v."{text}") AS m FROM v'
    )
    assert found.to_pylist() == [{"m": expected[name]}]

"""`to_char` gives what PostgreSQL gives."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.serve.committing import clicks, commit

from penstock.errors import QueryError
from penstock.serve import Views
from penstock.serve.characters.function import characters

FIXED = (
    ("TIMESTAMP", "2026-01-02 15:04:05.678901", "YYYY-MM-DD HH24:MI:SS.MS", "2026-01-02 15:04:05.678"),
    ("TIMESTAMP", "2026-01-02 15:04:05.678901", "FMDay, FMDDth FMMonth YYYY", "Friday, 2nd January 2026"),
    ("TIMESTAMP", "2026-01-02 15:04:05.678901", "Day|MON|Dy|HH12 AM|Q|WW|IW|D|ID|J|RM",
     "Friday   |JAN|Fri|03 PM|1|01|01|6|5|2461043|I   "),
    ("TIMESTAMP", "2024-12-30 00:00:00", 'IYYY-"W"IW-ID DDD Y,YYY CC US SSSS',
     "2025-W01-1 365 2,024 21 000000 0"),
    ("TIMESTAMP", "0044-03-15 (BC) 12:00:00", "YYYY BC", "0044 BC"),
    ("TIMESTAMP WITH TIME ZONE", "2026-08-15 08:09:07+00", "HH:MI TZ OF TZH:TZM", "08:09 UTC +00 +00:00"),
    ("DATE", "2026-08-15", "DD.MM.YY", "15.08.26"),
    ("TIME", "09:05:00", "HH24:MI", "09:05"),
    ("INTERVAL", "1 day 26:03:04", "DD HH24:MI:SS", "01 26:03:04"),
    ("INTERVAL", "-3 years -2 months", "YYYY MM", "-0003 -02"),
    ("BIGINT", "485", "999", " 485"),
    ("BIGINT", "-485", "9999PR", " <485>"),
    ("BIGINT", "485", "FM099999", "000485"),
    ("BIGINT", "485", "RN", "        CDLXXXV"),
    ("BIGINT", "12", "99V999", " 12000"),
    ("INTEGER", "1234567", "9,999,999", " 1,234,567"),
    ("INTEGER", "123456", "999", " ###"),
    ("INTEGER", "3", "FM9th", "3rd"),
    ("DECIMAL(9,2)", "148.50", "FM999.990", "148.500"),
    ("DECIMAL(9,2)", "-0.10", "99.99", "  -.10"),
    ("DECIMAL(9,2)", "0.10", "FM9.99", ".1"),
    ("DECIMAL(9,2)", "1485.00", "9G999D99S", "1,485.00+"),
    ("DECIMAL(9,2)", "0.00", "9.99EEEE", " 0.00e+00"),
    ("DOUBLE", "1234.5", "9.999EEEE", " 1.234e+03"),
    ("DOUBLE", "nan", "999.9", " NaN"),
    ("FLOAT", "485.55", "999.9", " 485.5"),
)  # fmt: skip
MOMENTS = (
    "2026-01-02 15:04:05.678901", "2000-02-29 00:00:00", "1999-12-31 23:59:59.999",
    "2024-12-30 12:00:00", "0001-01-01 01:01:01", "2021-01-03 11:30:00", "12345-06-07 08:00:00",
)  # fmt: skip
SPANS = (
    "1 day 26:03:04", "00:00:00", "3 years 4 months 5 days 06:07:08.9", "-1 days", "-05:06:07.25",
    "100 years", "25 months", "-3 years", "11 months",
)  # fmt: skip
NUMBERS = (
    "0", "1", "-1", "12", "123", "1234567.891", "-1234.5", "0.1", "-0.1", "0.05", "485", "4000", "-485.55",
    "1000000", "-0.001", "111", "112", "22", "1.5", "2.5",
)  # fmt: skip
OF_SPANS = "HH HH12 HH24 MI SS MS US FF1 FF3 FF6 SSSS AM pm DD DDD MM YYYY YYY YY Y Y,YYY CC Q RM"
OF_CALENDARS = "AD b.c. MONTH Month mon DAY Day dy D ID IDDD IW IYYY IYY I J WW W TZ tz TZH TZM OF"
TYPES = {
    "timestamp": "TIMESTAMP", "timestamptz": "TIMESTAMP WITH TIME ZONE", "interval": "INTERVAL",
    "numeric": "DECIMAL(9,2)", "float8": "DOUBLE", "float4": "FLOAT",
}  # fmt: skip


NAMES = {"DOUBLE": "float8", "FLOAT": "float4"}


def test_formats_are_postgresqls() -> None:
    """Of moments, intervals and numbers: padding, fill mode, ordinals, signs, Roman numbers."""
    for kind, value, form, expected in FIXED:
        assert (form, characters(kind, value, form)) == (form, expected)
    assert characters("TIMESTAMP", "infinity", "YYYY") is None
    assert characters("BIGINT", "1", "") is None


def form_of_time(chance: random.Random, words: str) -> str:
    parts = [
        chance.choice(["", "", "FM", "TM"])
        + chance.choice(words.split())
        + chance.choice(["", "", "th", "TH"])
        + chance.choice([" ", "-", ":", ",", '"text"', "z", '\\"', "x", "\\"])
        for _ in range(chance.randint(1, 5))
    ]
    return "".join(parts)


def form_of_number(chance: random.Random) -> str:
    text = chance.choice(["", "", "FM"]) + chance.choice(["", "", "S", "MI", "PL", "SG", "L"])
    text += "".join(chance.choice(["9", "9", "0", "9,", "G"]) for _ in range(chance.randint(1, 8)))
    if chance.random() < 0.6:
        text += chance.choice(".D") + "".join(
            chance.choice("990") for _ in range(chance.randint(0, 4))
        )
    return text + chance.choice(
        ["", "", "S", "MI", "PL", "SG", "PR", "th", "TH", "EEEE", " %", "V99", "RN"]
    )


@pytest.mark.slow
def test_random_formats_give_what_postgresql_gives() -> None:
    """Thousands of formats of values of each type; what PostgreSQL refuses is not compared."""
    databases = pytest.importorskip("tests.databases")
    import psycopg

    chance = random.Random(7)
    with databases.postgres(16) as server, psycopg.connect(server.url(), autocommit=True) as con:
        con.execute("SET timezone = 'UTC'")
        for kind, value, form, expected in FIXED:
            given = value.replace(" (BC) 12:00:00", " 12:00:00 BC")
            query = f"SELECT to_char(CAST(%s AS {NAMES.get(kind, kind)}), %s)"
            assert con.execute(query, (given, form)).fetchall() == [(expected,)]
        for turn in range(3_000):
            kind = list(TYPES)[turn % len(TYPES)]
            if kind.startswith("timestamp"):
                value, form = (
                    chance.choice(MOMENTS),
                    form_of_time(chance, f"{OF_SPANS} {OF_CALENDARS}"),
                )
            elif kind == "interval":
                value, form = chance.choice(SPANS), form_of_time(chance, OF_SPANS)
            else:
                value, form = chance.choice(NUMBERS), form_of_number(chance)
            query = f"SELECT to_char(%s::{kind}, %s)"
            try:
                [(expected,)] = con.execute(query, (value, form)).fetchall()
            except psycopg.Error:
                continue
            assert (query, value, form, characters(TYPES[kind], value, form)) == (
                query, value, form, expected,
            )  # fmt: skip


def test_queries_over_views_call_it(tmp_path: Path) -> None:
    """In every place of a query; a format that makes no sense, or a text, is an error that says so."""
    views = Views(commit(clicks(), tmp_path / "shop.penstock"))
    query = "SELECT to_char(max(window_end), 'HH24:MI') AS t, to_char(sum(n), 'FM009') AS n FROM per_user"
    assert views.sql(query).to_pylist() == [{"t": "12:01", "n": "020"}]
    assert views.sql(f"{query} WHERE to_char(n, '9') > ' 6'").to_pylist() == [
        {"t": "12:01", "n": "014"}
    ]
    for wrong, reason in (
        ("n, 'PR9'", "found '9' behind 'PR'"),
        ("\"user\", '9'", "found a VARCHAR"),
    ):
        with pytest.raises(QueryError, match=reason):
            views.sql(f"SELECT to_char({wrong}) FROM per_user")

"""Messages about programs in SQL name what SQL has, not what Python has."""

from __future__ import annotations

import re

import pytest

import penstock as ps
from penstock.errors import UserError

CLICKS = "CREATE STREAM clicks (url STRING, at TIMESTAMP NOT NULL, n BIGINT, WATERMARK FOR at);"
VIEW = "CREATE MATERIALIZED VIEW v AS SELECT url, n FROM clicks;"
WRONG = {
    CLICKS: "Add CREATE MATERIALIZED VIEW or CREATE SINK",
    f"{CLICKS}{VIEW} CREATE SINK s INTO 'out' AS SELECT * FROM v EMIT UPSERTS": "or write EMIT CHANGES",
    f"{CLICKS} CREATE SINK s INTO 'out' AS SELECT url, count(*) AS n FROM clicks GROUP BY url EMIT ON CLOSE":
        r"over TUMBLE\(…\), HOP\(…\) or SESSION\(…\)",
    f"CREATE STREAM clicks (url STRING) WITH (format = 'xml'); {VIEW}": "format = 'json', 'csv' or 'pattern'",
    f"{CLICKS}{VIEW}{VIEW}": "expected each view once",
    f"CREATE TABLE t (id BIGINT); {VIEW}": r"expected PRIMARY KEY \(…\)",
    f"{CLICKS} CREATE MATERIALIZED VIEW v AS SELECT count(*) AS n FROM TUMBLE(clicks, n, INTERVAL 1 MINUTE) "
    "GROUP BY window_start": r"expected the event time of 'clicks' in TUMBLE",
}  # fmt: skip
PYTHON = re.compile(
    r"\b(app|ps)\.\w|\b(emit|time|format|key)=|\b(select|where|window|group_by|agg|to)\(…"
)


def made(program: str) -> None:
    app = ps.App("shop")
    app.sql(program)
    app.graph()


@pytest.mark.parametrize(("program", "expected"), WRONG.items(), ids=range(len(WRONG)))
def test_mistakes_in_sql_name_what_sql_has(program: str, expected: str) -> None:
    """What to write instead is a clause or a statement."""
    with pytest.raises(UserError, match=expected) as error:
        made(program)
    assert not PYTHON.search(str(error.value))


def test_programs_in_python_are_advised_in_python() -> None:
    """The same mistakes keep their words there."""
    app = ps.App("shop")
    clicks = app.stream("clicks", "url STRING, n BIGINT")
    with pytest.raises(UserError, match=r"Add app\.view"):
        app.graph()
    with pytest.raises(UserError, match="Window the stream"):
        clicks.group_by("url").agg(n=ps.count()).to("out", emit="closed")

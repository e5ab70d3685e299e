"""What `joins.py`, `sessions.py`, `late.py`, `patterns.py` measure: events in topics, a query for each side.

Each case has its events (the same numbers always give the same ones), which lie in topics keyed by the
column that they are joined or grouped by, out of order by less than `DISORDER_MS`. A last event of each
partition, far in the future, moves the watermark past all others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

import penstock as ps

__all__ = ["CASES", "PATTERNS", "Case", "Source"]

START_MS: Final = 1_700_000_000_000 - 1_700_000_000_000 % 3_600_000
DISORDER_MS: Final = 2_000
LAST_AFTER_MS: Final = 10 * 3_600_000
CHUNK_ROWS: Final = 500_000
PER_S: Final = 2_000  # events of event time
TEXTS: Final = 1_000  # different ones

WITHIN: Final = "1 minute"
GAP: Final = "30 minutes"
LATE_BY: Final = "10 minutes"
LATE_SHARE: Final = 10  # one of so many events is late


@dataclass(frozen=True)
class Source:
    """A topic.

    Attributes:
        columns: by name, BIGINT, DOUBLE or STRING; the first is the key, `ts` the time in milliseconds.
    """

    columns: Mapping[str, str]

    @property
    def schema(self) -> str:
        """As Penstock reads it."""
        kinds = {**self.columns, "ts": "TIMESTAMP"}
        return ", ".join(f"{name} {kind} NOT NULL" for name, kind in kinds.items())

    @property
    def key(self) -> str:
        """The column that the topic is partitioned by."""
        return next(iter(self.columns))


@dataclass(frozen=True)
class Case:
    """One question.

    Attributes:
        sources: the topics that are read.
        events: of so many rows in all: tables by topic, in the order in which they come.
        build: the result as a pipeline.
        flink: the same as Flink's SQL, where `rt` is the event time; empty where it can't say it.
        truth: the same as DuckDB's, over all events.
        view: whether the result is a view; otherwise it is a topic.
        upserts: whether a record of the topic replaces those of its key.
        settings: of Flink.
    """

    name: str
    sources: Mapping[str, Source]
    events: Callable[[int], Iterator[dict[str, pa.Table]]]
    build: Callable[[Mapping[str, ps.Stream]], ps.Stream | ps.Table]
    flink: str
    truth: str
    view: bool
    upserts: bool = False
    settings: Mapping[str, str] | None = None

    def app(self, directory: str, topic: str, **settings: object) -> ps.App:
        """The program."""
        app = ps.App(self.name.replace("-", "_"), directory=directory, **settings)
        time = ps.event_time("ts", lateness=f"{DISORDER_MS} milliseconds")
        streams = {
            name: app.stream(name, source.schema, time=time, key=source.key)
            for name, source in self.sources.items()
        }
        result = self.build(streams)
        if self.view:
            app.view("result", result)
        else:
            result.to(topic)
        return app

    def last(self, rows: int, partition: int) -> dict[str, pa.Table]:
        """An event of each topic that ends all that waits; no other has its key."""
        at = START_MS + rows * 1_000 // PER_S + LAST_AFTER_MS
        values: dict[str, object] = {"BIGINT": -1 - partition, "DOUBLE": 0.5, "STRING": "last"}
        return {
            topic: pa.table(
                {n: [at if n == "ts" else values[k]] for n, k in source.columns.items()}
            )
            for topic, source in self.sources.items()
        }


def _times(first: int, count: int, random: np.random.Generator) -> np.ndarray:
    """Of events one after the other, set back at random."""
    at = START_MS + np.arange(first, first + count) * 1_000 // PER_S
    return at - random.integers(0, DISORDER_MS, count)


_PATHS: Final = pa.array([f"/{i:07}/of-some-length" for i in range(TEXTS)])


def _texts(count: int, random: np.random.Generator) -> pa.Array:
    return _PATHS.take(pa.array(random.integers(0, TEXTS, count)))


# -- joins --------------------------------------------------------------------------------------------

_SEARCHES = Source({"session": "BIGINT", "query": "STRING", "n": "BIGINT", "ts": "BIGINT"})
_CLICKS = Source({"session": "BIGINT", "url": "STRING", "m": "BIGINT", "ts": "BIGINT"})
_JOINED = "l.session, l.query, l.n, r.url, r.m"


def _searched(rows: int) -> Iterator[dict[str, pa.Table]]:
    """As many searches as clicks, of a tenth as many sessions."""
    random, each = np.random.default_rng(1), rows // 2
    sessions = max(each // 10, 1)
    for first in range(0, each, CHUNK_ROWS):
        count = min(CHUNK_ROWS, each - first)
        tables = {}
        for topic, text, number in (("searches", "query", "n"), ("clicks", "url", "m")):
            columns = {
                "session": random.integers(0, sessions, count),
                text: _texts(count, random),
                number: np.arange(first, first + count),
                "ts": _times(first, count, random),
            }
            tables[topic] = pa.table(columns)
        yield tables


def _join(how: str) -> Case:
    kind = {"inner": "JOIN", "left": "LEFT JOIN"}[how]

    def build(streams: Mapping[str, ps.Stream]) -> ps.Stream:
        searches = streams["searches"].select("session", "query", "n")
        clicks = streams["clicks"].select("session", "url", "m")
        return searches.join(clicks, on="session", within=("0 seconds", WITHIN), how=how)

    return Case(
        f"join-{how}",
        {"searches": _SEARCHES, "clicks": _CLICKS},
        _searched,
        build,
        f"SELECT {_JOINED} FROM searches l {kind} clicks r ON l.session = r.session "
        f"AND r.rt BETWEEN l.rt AND l.rt + INTERVAL '1' MINUTE",
        f"SELECT {_JOINED} FROM searches l {kind} clicks r ON l.session = r.session "
        f"AND r.ts BETWEEN l.ts AND l.ts + 60000",
        view=False,
    )


# -- sessions -----------------------------------------------------------------------------------------

_EVENTS = Source({"user": "BIGINT", "v": "DOUBLE", "ts": "BIGINT"})
PER_SESSION: Final = 10  # events, on average
PAUSE_MS: Final = 60_000  # between two of them, on average


def _visits(rows: int) -> Iterator[dict[str, pa.Table]]:
    """Users are active for a while and then away; as many are active at any time."""
    random = np.random.default_rng(1)
    sessions, users = max(rows // PER_SESSION, 1), max(rows // 50, 1)
    first = random.integers(0, max(rows * 1_000 // PER_S, 1), sessions)
    which = np.sort(random.integers(0, sessions, rows))
    since = np.cumsum(random.exponential(PAUSE_MS, rows).astype(np.int64))
    began = np.concatenate([[True], which[1:] != which[:-1]])
    since -= np.maximum.accumulate(np.where(began, since, 0))
    at = START_MS + first[which] + since
    user = random.integers(0, users, sessions)[which]
    order = np.argsort(at + random.integers(0, DISORDER_MS, rows))
    table = pa.table({"user": user, "v": random.integers(0, 1_000, rows) / 2, "ts": at}).take(
        pa.array(order)
    )
    for begin in range(0, rows, CHUNK_ROWS):
        yield {"events": table.slice(begin, CHUNK_ROWS)}


_SESSIONS = Case(
    "sessions",
    {"events": _EVENTS},
    _visits,
    lambda streams: (
        streams["events"]
        .window(ps.session(GAP))
        .group_by("user")
        .agg(n=ps.count(), total=ps.sum("v"))
    ),
    "SELECT window_start, window_end, `user`, COUNT(*) AS n, SUM(v) AS total "
    "FROM TABLE(SESSION(TABLE events PARTITION BY `user`, DESCRIPTOR(rt), INTERVAL '30' MINUTE)) "
    "GROUP BY `user`, window_start, window_end",
    """WITH since AS (
        SELECT "user", v, ts, ts - lag(ts) OVER (PARTITION BY "user" ORDER BY ts) AS pause FROM events
    ), cut AS (
        SELECT *, sum(CASE WHEN pause < 1800000 THEN 0 ELSE 1 END)
            OVER (PARTITION BY "user" ORDER BY ts ROWS UNBOUNDED PRECEDING) AS nth FROM since
    )
    SELECT epoch_ms(min(ts)) AS window_start, epoch_ms(max(ts) + 1800000) AS window_end, "user",
        count(*) AS n, sum(v) AS total
    FROM cut GROUP BY "user", nth""",
    view=True,
)


# -- late rows ----------------------------------------------------------------------------------------


def _late(rows: int) -> Iterator[dict[str, pa.Table]]:
    """One of LATE_SHARE events comes up to ten minutes late, when its window has long been closed."""
    random = np.random.default_rng(1)
    users = max(rows // 100, 1)
    for first in range(0, rows, CHUNK_ROWS):
        count = min(CHUNK_ROWS, rows - first)
        at = _times(first, count, random)
        late = random.integers(0, LATE_SHARE, count) == 0
        at = np.where(late, at - random.integers(0, 590_000, count), at)
        columns = {
            "user": random.integers(0, users, count),
            "v": random.integers(0, 1_000, count) / 2,
        }
        yield {"events": pa.table({**columns, "ts": at})}


_TRUE_WINDOWS = """SELECT epoch_ms(ts - ts % 60000) AS window_start, "user", count(*) AS n, sum(v) AS total
    FROM events GROUP BY "user", ts - ts % 60000"""
_CORRECTED = Case(
    "late-corrected",
    {"events": _EVENTS},
    _late,
    lambda streams: (
        streams["events"]
        .window(ps.tumbling("1 minute"), late="correct", keep=LATE_BY)
        .group_by("user")
        .agg(n=ps.count(), total=ps.sum("v"))
    ),
    "SELECT TUMBLE_START(rt, INTERVAL '1' MINUTE) AS window_start, `user`, COUNT(*) AS n, SUM(v) AS total "
    "FROM events GROUP BY TUMBLE(rt, INTERVAL '1' MINUTE), `user`",
    _TRUE_WINDOWS,
    view=False,
    upserts=True,
    settings={
        "table.exec.emit.allow-lateness": "10 min",
        "table.exec.emit.late-fire.enabled": "true",
        "table.exec.emit.late-fire.delay": "0 s",
    },
)

# -- row patterns -------------------------------------------------------------------------------------

_STEPS = Source({"user": "BIGINT", "kind": "BIGINT", "v": "BIGINT", "n": "BIGINT", "ts": "BIGINT"})
KINDS: Final = 4
PATTERN_USERS: Final = 100  # events of a user, on average


def _steps(rows: int) -> Iterator[dict[str, pa.Table]]:
    """Events of KINDS kinds, of many users."""
    random, users = np.random.default_rng(1), max(rows // PATTERN_USERS, 1)
    for first in range(0, rows, CHUNK_ROWS):
        count = min(CHUNK_ROWS, rows - first)
        columns = {
            "user": random.integers(0, users, count),
            "kind": random.integers(0, KINDS, count),
            "v": random.integers(0, 100, count),
            "n": np.arange(first, first + count),
            "ts": _times(first, count, random),
        }
        yield {"steps": pa.table(columns)}


def _matched(name: str, pattern: str, within: str, measures: dict[str, str], flink: str,
             truth: str, **defines: str) -> Case:  # fmt: skip
    """A pattern over each user's events."""
    return Case(
        name,
        {"steps": _STEPS},
        _steps,
        lambda streams: streams["steps"].match(
            pattern, by="user", within=within, order="n", measures=measures, **defines
        ),
        flink,
        truth,
        view=False,
    )


_ABC = _matched(
    "pattern-steps",
    "a b c",
    "1 hour",
    {"first": "a.n", "last": "c.n"},
    "SELECT * FROM steps MATCH_RECOGNIZE (PARTITION BY `user` ORDER BY rt, n "
    "MEASURES a.n AS `first`, c.n AS `last` AFTER MATCH SKIP PAST LAST ROW "
    "PATTERN (a b c) WITHIN INTERVAL '1' HOUR "
    "DEFINE a AS a.kind = 0, b AS b.kind = 1, c AS c.kind = 2)",
    """SELECT "user", n AS first, last FROM (
        SELECT *, lead(kind, 1) OVER w AS second, lead(kind, 2) OVER w AS third,
            lead(n, 2) OVER w AS last, lead(ts, 2) OVER w AS until
        FROM steps WINDOW w AS (PARTITION BY "user" ORDER BY ts, n))
    WHERE kind = 0 AND second = 1 AND third = 2 AND until - ts <= 3600000""",
    a="kind = 0",
    b="kind = 1",
    c="kind = 2",
)
_ITERATIVE = _matched(
    "pattern-iterative",
    "a b+ c",
    "1 hour",
    {"first": "a.n", "last": "c.n", "most": "max(b.v)"},
    "SELECT * FROM steps MATCH_RECOGNIZE (PARTITION BY `user` ORDER BY rt, n "
    "MEASURES a.n AS `first`, c.n AS `last`, MAX(b.v) AS `most` AFTER MATCH SKIP PAST LAST ROW "
    "PATTERN (a b+ c) WITHIN INTERVAL '1' HOUR "
    "DEFINE a AS a.kind = 0, b AS b.kind = 1 AND b.v > LAST(a.v), c AS c.kind = 2)",
    """WITH begun AS (
        SELECT *, count(*) FILTER (kind = 0) OVER (PARTITION BY "user" ORDER BY ts, n) AS island
        FROM steps
    ), numbered AS (
        SELECT *, row_number() OVER w AS i, first_value(v) OVER w AS lowest,
            first_value(n) OVER w AS first, first_value(ts) OVER w AS began
        FROM begun WHERE island > 0 WINDOW w AS (PARTITION BY "user", island ORDER BY ts, n)
    ), ended AS (
        SELECT "user", island, min(i) FILTER (i > 1 AND NOT (kind = 1 AND v > lowest)) AS until
        FROM numbered GROUP BY ALL
    )
    SELECT "user", first, max(n) FILTER (i = until) AS last, max(v) FILTER (i BETWEEN 2 AND until - 1) AS most
    FROM numbered JOIN ended USING ("user", island) WHERE i <= until
    GROUP BY "user", island, first, until
    HAVING until > 2 AND max(kind) FILTER (i = until) = 2
        AND max(ts) FILTER (i = until) - min(ts) <= 3600000""",
    a="kind = 0",
    b="kind = 1 AND v > a.v",
    c="kind = 2",
)
_ABSENT = _matched(
    "pattern-absent",
    "a -> !b",
    "1 minute",
    {"first": "a.n"},
    "",  # Flink's SQL has none of it
    """SELECT "user", n AS first FROM steps AS a WHERE kind = 0 AND NOT EXISTS (
        SELECT 1 FROM steps AS b WHERE b."user" = a."user" AND b.kind = 1
            AND (b.ts, b.n) > (a.ts, a.n) AND b.ts <= a.ts + 60000)""",
    a="kind = 0",
    b="kind = 1",
)
PATTERNS: Final = (_ABC, _ITERATIVE, _ABSENT)

CASES: Final = {
    case.name: case for case in (_join("inner"), _join("left"), _SESSIONS, _CORRECTED, *PATTERNS)
}

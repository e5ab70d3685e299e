"""Bad input never stops the flow: random programs over random bytes go on, and count each record once.

A failure says its seed; `pytest tests/engine/test_garbage.py -k SEED` repeats program and records.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import pytest
from tests.effort import rounds

import penstock as ps

SEEDS = rounds("PENSTOCK_GARBAGE_SEEDS", quick=4, full=40)
SCHEMA: Final = (
    "id BIGINT NOT NULL, n BIGINT, i INT, x DOUBLE, s STRING, b BOOLEAN, d DATE, tags ARRAY<STRING>, "
    "at TIMESTAMP"
)
MAY_FAIL: Final = (
    "CAST(s AS BIGINT)", "n * n * n", "make_timestamp(n)", "CAST(x AS INT)", "i + i", "CAST(s AS DATE)",
    "n % i", "x / i", "sqrt(x)", "ln(x)", "tags[i]", "substr(s, i, i)", "repeat(s, 2)", "d + i",
    "date_trunc('week', at)", "CAST(n AS VARCHAR)", "CAST(s AS TIMESTAMP)", "abs(n)", "-n", "x * 1e300",
    "chr(i)", "strftime(at, s)", "list_sort(tags)", "CAST(b AS BIGINT) + n", "epoch_us(at) * n",
)  # fmt: skip

Step = Callable[[ps.Stream, str], Any]
"""What follows the rows: a stream or a table, of rows and an extra column's name."""


def _steps() -> dict[str, Step]:
    hour = ps.tumbling("1 hour")
    return {
        "hours": lambda r, e: (
            r.window(hour).group_by(e).agg(c_n=ps.count(), c_t=ps.sum("n"), c_a=ps.avg("x"))
        ),
        "weeks": lambda r, _: r.window(ps.tumbling("1 week")).agg(
            c_lo=ps.min("x"), c_hi=ps.max("s")
        ),
        "days": lambda r, _: r.window(ps.tumbling("1 day", zone="Europe/Berlin")).agg(
            c_n=ps.count()
        ),
        "hops": lambda r, e: (
            r.window(ps.hopping("1 hour", every="10 minutes"))
            .group_by(e)
            .agg(c_v=ps.variance("x"), c_d=ps.count_distinct("s"))
        ),
        "late": lambda r, _: r.window(hour, late="correct", keep="1 day").agg(c_n=ps.count()),
        "sessions": lambda r, e: (
            r.window(ps.session("10 minutes")).group_by(e).agg(c_t=ps.sum("x"))
        ),
        "sliding": lambda r, _: (
            r.window(ps.sliding("5 minutes")).group_by("s").agg(c_t=ps.sum("n"))
        ),
        "counts": lambda r, _: (
            r.window(ps.count_window(3)).group_by("b").agg(c_q=ps.quantile("x", 0.5))
        ),
        "first": lambda r, _: r.deduplicate("s", within="1 hour"),
        "top": lambda r, e: r.top(2, by=(f"{e} DESC", "id"), per="b"),
        "spread": lambda r, e: r.group_by(e).agg(c_l=ps.collect("n", limit=3), c_f=ps.first("s")),
        "tags": lambda r, _: r.unnest("tags", name="tag").group_by("tag").agg(c_n=ps.count()),
        "pairs": lambda r, _: r.join(
            r.select("s", other="id", then="at"), on="s", within="1 minute", how="left"
        ),
    }


def program(chance: random.Random) -> ps.App:
    """Rows with a column that may fail, counted, and some operators behind them."""
    app = ps.App("p")
    time = ps.event_time("at", lateness=chance.choice(["0 s", "1 hour"]))
    if chance.random() < 0.2:
        time = None
    source = app.stream("rows", SCHEMA, time=time, partitions=chance.randint(1, 3))
    names = ("id", "n", "i", "x", "s", "b", "d", "tags", "at")
    rows = source.select(*names, e=chance.choice(MAY_FAIL))
    if chance.random() < 0.5:
        rows = rows.select(*names, "e", e2=chance.choice(MAY_FAIL))
    app.view("all", rows.group_by().agg(n=ps.count()))
    steps = _steps()
    for name in chance.sample(sorted(steps), 4):
        found = steps[name](rows, chance.choice(["s", "n", "x", "b", "d", "i"]))
        if isinstance(found, ps.Table):
            app.view(name, found)
            found.to(f"{name}-out", emit="changes")
        else:
            found.to(f"{name}-out")
    return app


def record(chance: random.Random, number: int) -> bytes | None:
    """A record that may fit, or may not, in any of many ways."""
    row: dict[str, Any] = {"id": number, "at": _at(chance)}
    for name in ("n", "i", "x", "s", "b", "d", "tags"):
        if chance.random() < 0.8:
            row[name] = _value(chance, name)
    if chance.random() < 0.1:
        row[chance.choice(["id", "at", "n", "tags", "other", ""])] = _any(chance, 3)
    data = json.dumps(row, ensure_ascii=chance.random() < 0.5).encode("utf-8", "surrogatepass")
    kind = chance.random()
    if kind < 0.80:
        return data
    if kind < 0.84:
        return data[: chance.randrange(len(data))]
    if kind < 0.90:
        at = chance.randrange(len(data))
        return data[:at] + bytes(chance.randrange(256) for _ in range(3)) + data[at + 1 :]
    if kind < 0.93:
        return chance.randbytes(chance.randrange(100))
    if kind < 0.96:
        return b"[" * chance.choice([1, 300, 20_000])
    return chance.choice(
        [None, b"", b"null", b"{}", b"[]", b'"', b'{"id":1}', b'{"id":1,"id":2}', b"1e999"]
    )


def _at(chance: random.Random) -> Any:
    minute = chance.randrange(600)
    return chance.choice(
        [
            *[f"2026-01-01T{minute // 60:02}:{minute % 60:02}:00Z"] * 12,
            1_767_225_600_000 + minute * 60_000, 0, -1, 2**62, -(2**63), 10**30, 1.5, True, None, "now", "",
            "9999-12-31T23:59:59Z", "0001-01-01T00:00:00Z", "2026-02-30T00:00:00Z", {"at": 1},
        ]
    )  # fmt: skip


def _value(chance: random.Random, name: str) -> Any:
    fits: dict[str, list[Any]] = {
        "n": [0, 1, -1, 7, 2**62, -(2**63), 2**63 - 1, chance.randrange(10**6)],
        "i": [0, 1, -1, 3, 2**31 - 1, -(2**31)],
        "x": [0.0, -0.0, 1.5, -1e308, 1e308, 5e-324, float("nan"), float("inf"), chance.random()],
        "s": ["", "1", "-7", "x", "ä", "\u0000", "\ud800", "𐍈" * 3, "2026-01-01", "%Q%y", "9" * 40],
        "b": [True, False],
        "d": ["2026-01-01", "0001-01-01", "9999-12-31", "1600-02-29"],
        "tags": [[], ["a"], ["a", None, "b"], [""] * 20],
    }
    return _any(chance, 2) if chance.random() < 0.06 else chance.choice(fits[name])


def _any(chance: random.Random, depth: int) -> Any:
    if depth and chance.random() < 0.4:
        some = [_any(chance, depth - 1) for _ in range(chance.randrange(3))]
        return some if chance.random() < 0.5 else {str(i): value for i, value in enumerate(some)}
    return chance.choice([None, True, 0, -(2**70), 1e400, 0.1, "", "x", "\udfff", "1" * 1_000])


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_bad_input_never_stops_the_flow(seed: int) -> None:
    """Each record is a row that counts, or one dead letter, and what comes behind it counts as well."""
    chance = random.Random(seed)
    run = ps.testing.run(
        program(chance), now="2026-01-02T00:00:00Z", cores=chance.randint(1, 3), seed=seed
    )
    partitions, sent, read = len(run.log.topics["rows"]), 0, 0
    for _ in range(4):
        for _ in range(chance.choice([1, 20, 60])):
            run.send_raw("rows", record(chance, sent), partition=chance.randrange(partitions))
            sent += 1
        while (progress := run.step()) is not None:
            read += progress.rows
        if chance.random() < 0.3:
            run.restart()
    assert read == sent
    balance(run, sent)
    for view in run._graph.views:
        run.view(view.name)
    for partition in range(partitions):
        run.send(
            "rows", partition=partition, id=1, i=1, n=1, x=1.0, s="1", at="2026-01-01T11:00:00Z"
        )
    balance(run, sent + partitions)


def balance(run: ps.testing.Run, sent: int) -> None:
    """Asserts that each record is a row or one dead letter; those that only are late count in `all`."""
    letters = Counter(
        (one.headers["penstock.partition"], one.headers["penstock.offset"])
        for one in run.dead_letters()
        if one.headers["penstock.topic"] == "rows"
        and not one.headers["penstock.reason"].startswith("late: ")
    )
    assert set(letters.values()) <= {1}, "a record is one dead letter"
    assert sum(row["n"] for row in run.view("all").rows()) + len(letters) == sent

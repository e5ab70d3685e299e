"""The whole path in this process: any disorder, any batch split, any crash point, one result."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import datetime
from typing import Any

import orjson
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.effort import examples
from tests.engine.reference import Expected, expect

import penstock as ps
from penstock.testing import Run

EPOCH = "2026-01-01T00:00:00Z"


class Crash(BaseException):
    """A process that dies at a chosen step."""


def app(
    *, every: int, lateness: int, keyed: bool, partitions: int, transactions: bool = False
) -> ps.App:
    """Windows per user, closed ones to a topic, and windows of windows on top."""
    flow = ps.App("p", transactions=transactions)
    events = flow.stream(
        "events",
        "user STRING NOT NULL, v BIGINT NOT NULL, at TIMESTAMP NOT NULL",
        time=ps.event_time("at", lateness=f"{lateness} seconds"),
        key="user" if keyed else None,
        partitions=partitions,
    )
    window = ps.hopping("60 seconds", every=f"{every} seconds")
    table = (
        events.window(window)
        .group_by("user")
        .agg(n=ps.count(), total=ps.sum("v"), low=ps.min("v"), high=ps.max("v"), mean=ps.avg("v"))
    )
    flow.view("per_user", table)
    table.to("closed")
    wide = (
        table.window(ps.tumbling("5 minutes"))
        .group_by()
        .agg(n=ps.sum("n"), low=ps.min("low"), high=ps.max("high"))
    )
    flow.view("wide", wide)
    return flow


rows = st.lists(
    st.fixed_dictionaries(
        {
            "user": st.sampled_from(["ann", "bob", "cid", "dän"]),
            "v": st.integers(-5, 50),
            "at": st.integers(0, 600),
        }
    ),
    max_size=40,
)
logs = st.lists(rows, min_size=1, max_size=3)


def place(log: list[list[dict[str, Any]]], *, keyed: bool) -> list[list[dict[str, Any]]]:
    """The log as producers that keep to a key would have written it: a user has one partition."""
    if not keyed:
        return log
    placed: list[list[dict[str, Any]]] = [[] for _ in log]
    for part in log:
        for row in part:
            placed[ord(row["user"][0]) % len(log)].append(row)
    return placed


def send(run: Run, partition: int, row: dict[str, Any]) -> None:
    """Appends a row; its time is in seconds after EPOCH."""
    value = orjson.dumps({**row, "at": 1_767_225_600_000 + row["at"] * 1_000})
    run.send_raw("events", value, key=row["user"], partition=partition)


def seconds(instant: Any) -> int:
    """Seconds after EPOCH."""
    return int(instant.timestamp()) - 1_767_225_600


def check(run: Run, expected: Expected) -> None:
    """Compares views, closed windows and dead letters with the reference."""
    found = {
        (seconds(row["window_start"]), row["user"]): (
            row["n"], row["total"], row["low"], row["high"], row["mean"],
        )
        for row in run.view("per_user").rows()
    }  # fmt: skip
    assert found == {
        group: (len(vs), sum(vs), min(vs), max(vs), sum(vs) / len(vs))
        for group, vs in expected.view.items()
    }
    wide: dict[int, list[tuple[int, int, int]]] = {}
    for (start, _), vs in expected.view.items():
        wide.setdefault((start + 59) // 300 * 300, []).append((len(vs), min(vs), max(vs)))
    assert {
        seconds(row["window_start"]): (row["n"], row["low"], row["high"])
        for row in run.view("wide").rows()
    } == {
        start: (sum(n for n, _, _ in g), min(lo for _, lo, _ in g), max(hi for _, _, hi in g))
        for start, g in wide.items()
    }
    letters = [
        (int(letter.headers["penstock.partition"]), int(letter.headers["penstock.offset"]))
        for letter in run.dead_letters()
    ]
    assert sorted(letters) == sorted(expected.late), "each late row once"
    closed = [orjson.loads(record.value or b"") for record in run.topic("closed")]
    names = [(seconds(datetime.fromisoformat(row["window_start"])), row["user"]) for row in closed]
    assert sorted(names) == sorted(g for g in expected.view if g[0] + 60 <= expected.watermark)
    for row in closed:
        start = seconds(datetime.fromisoformat(row["window_start"]))
        assert row["n"] == len(expected.view[start, row["user"]]), "closed means complete"


@settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    log=logs,
    every=st.sampled_from([60, 20, 45]),
    lateness=st.sampled_from([0, 30, 200]),
    keyed=st.booleans(),
    cores=st.integers(1, 3),
    seed=st.integers(0, 2**32),
)
def test_any_split_gives_the_reference(
    log: list[list[dict[str, Any]]], every: int, lateness: int, keyed: bool, cores: int, seed: int
) -> None:
    """Views, closed windows and dead letters are those of one pass, however the log is cut."""
    log = place(log, keyed=keyed)
    flow = app(every=every, lateness=lateness, keyed=keyed, partitions=len(log))
    run = ps.testing.run(flow, cores=cores)
    chance = random.Random(seed)
    feed(run, log, chance, run.step)
    check(run, expect(log, size=60, every=every, lateness=lateness, key="user"))


def feed(
    run: Run, log: list[list[dict[str, Any]]], chance: random.Random, step: Callable[[], object]
) -> None:
    """Sends the log, partitions interleaved at random, with batches at random moments."""
    left = [list(part) for part in log]
    while any(left):
        partition = chance.choice([p for p, part in enumerate(left) if part])
        send(run, partition, left[partition].pop(0))
        if chance.random() < 0.3:
            step()


@settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    log=logs,
    keyed=st.booleans(),
    cores=st.integers(1, 2),
    transactions=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_any_crash_point_gives_the_reference(
    log: list[list[dict[str, Any]]], keyed: bool, cores: int, transactions: bool, seed: int
) -> None:
    """A pipeline that dies before or after any write, again and again, ends as if it never had."""
    log = place(log, keyed=keyed)
    flow = app(every=20, lateness=30, keyed=keyed, partitions=len(log), transactions=transactions)
    run = ps.testing.run(flow, cores=cores)
    chance = random.Random(seed)
    armed = True

    def fragile(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if armed and chance.random() < 0.08:
                raise Crash
            result = function(*args, **kwargs)
            if armed and chance.random() < 0.08:
                raise Crash
            return result

        return call

    files = run.store.files
    for owner, names in (
        (run.log, ("send", "begin", "join", "end")),
        (files, ("create", "write", "delete")),
    ):
        for name in names:
            setattr(owner, name, fragile(getattr(owner, name)))

    def step() -> None:
        try:
            run.step()
        except Crash:
            while True:
                try:
                    return run.restart()
                except Crash:
                    continue

    feed(run, log, chance, step)
    for _ in range(20):
        step()
    armed = False
    run.restart()
    check(run, expect(log, size=60, every=20, lateness=30, key="user"))

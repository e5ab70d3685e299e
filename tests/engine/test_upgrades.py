"""Programs that change: what they compute is what they would have computed from the beginning on."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.effort import examples

import penstock as ps
from penstock.engine.savepoints import (
    check_savepoint,
    create_savepoint,
    find_savepoint,
    go_back,
)
from penstock.errors import CorruptError, FencedError, FlowError
from penstock.serve import Snapshot
from penstock.testing import Run

PARTS = (
    "windows",
    "wide",
    "totals",
    "top",
    "sessions",
    "joined",
    "unique",
    "large",
    "shops",
    "pairs",
    "matched",
)
TOPICS = ("p-closed", "p-large", "p-totals", "p-pairs", "p-matched")


class Crash(BaseException):
    """A process that dies at a chosen step."""


def program(*parts: str, factor: int = 1, key: str | None = "user") -> ps.App:
    """A program that has some parts; `factor` changes what all of them compute."""
    app = ps.App("p")
    events = app.stream(
        "events",
        "user STRING NOT NULL, v BIGINT NOT NULL, at TIMESTAMP NOT NULL",
        time=ps.event_time("at", lateness="30 seconds"),
        key=key,
        partitions=2,
    )
    names = app.table("names", "user STRING NOT NULL, shop STRING", key="user")
    if factor != 1:
        events = events.where(f"v * {factor} = v * {factor}")
    windows = events.window(ps.tumbling("1 minute")).group_by("user")
    windows_table = windows.agg(n=ps.count(), total=ps.sum("v"))
    totals = events.group_by("user").agg(n=ps.count(), total=ps.sum("v"))
    if "windows" in parts:
        app.view("windows", windows_table)
        windows_table.to("p-closed", partitions=2)
    if "wide" in parts:
        app.view("wide", windows_table.window(ps.tumbling("5 minutes")).agg(most=ps.max("n")))
    if "totals" in parts:
        app.view("totals", totals)
        totals.to("p-totals")
    if "top" in parts:
        app.view("top", totals.top(2, by=("total DESC", "user")))
    if "sessions" in parts:
        sessions = events.window(ps.session("40 seconds")).group_by("user").agg(n=ps.count())
        app.view("sessions", sessions)
    if "joined" in parts:
        app.view("joined", totals.join(names, on="user", how="left"))
    if "unique" in parts:
        unique = events.deduplicate("user", "v", within="1 minute")
        app.view("unique", unique.group_by("v").agg(n=ps.count()))
    if "large" in parts:
        events.where("v > 20").select("user", "v").to("p-large")
    if "shops" in parts:
        app.view("shops", names.group_by("shop").agg(n=ps.count()))
    if "pairs" in parts:
        low = events.where("v < 10").select("user", "at", small="v")
        high = events.where("v >= 10").select("user", "at", large="v").select("user", "large")
        pairs = low.join(high, on="user", within="20 seconds", how="left")
        app.view("pairs", pairs.group_by("user").agg(n=ps.count(), met=ps.count("large")))
        pairs.select("user", "small", "large").to("p-pairs")
    if "matched" in parts:
        matched = events.match(
            "low high+",
            by="user",
            within="1 minute",
            order="v",
            low="v < 20",
            high="v >= 20",
            measures={"n": "count(*)", "most": "max(v)"},
        )
        app.view("matched", matched.group_by("user").agg(n=ps.sum("n")))
        matched.to("p-matched")
    if not parts:
        app.view("all", events.group_by().agg(n=ps.count()))
    return app


def feed(run: Run, chance: random.Random, start: int, count: int) -> None:
    """Some rows from second `start` on, half a minute out of order, some too late or bad."""
    for second in range(start, start + count):
        user = chance.choice(["ann", "bob", "cid", "dän"])
        at = second + chance.choice([0, 0, 0, -10, -25, -90])
        value: dict[str, Any] = {"user": user, "v": chance.randrange(40)}
        value["at"] = 1_767_225_600_000 + 1_000 * at if chance.random() < 0.97 else "?"
        run.send_raw("events", orjson.dumps(value), key=user, partition=ord(user[0]) % 2)
        if "names" in run.log.topics and chance.random() < 0.2:
            shop = {"user": user, "shop": chance.choice("xy")}
            gone = chance.random() < 0.2
            run.send_raw("names", None if gone else orjson.dumps(shop), key=user)


def contents(run: Run, parts: tuple[str, ...]) -> dict[str, Any]:
    """All that a program made: views, and topics in the order of their records' texts."""
    app = run._graph
    found: dict[str, Any] = {view.name: run.view(view.name).rows() for view in app.views}
    for topic in TOPICS:
        if topic in {output.topic for output in app.outputs}:
            records = [(r.partition, r.key, r.value) for r in run.topic(topic)]
            if topic == "p-totals":  # what lies between depends on how batches are cut
                records = list({key: (p, key, value) for p, key, value in records}.values())
            found[topic] = sorted(records, key=repr)
    return found


def letters(run: Run) -> list[tuple[str, ...]]:
    """Which records are dead letters."""
    found = [
        tuple(r.headers[f"penstock.{n}"] for n in ("topic", "partition", "offset"))
        for r in run.dead_letters()
    ]
    return sorted(found)


def undisturbed(run: Run, app: ps.App) -> Run:
    """A run of a program over the log of another run, in one go."""
    calm = ps.testing.run(app, cores=2)
    for topic in ("events", "names"):
        for record in run.log.records(topic):
            if topic in calm.log.topics:
                calm.log.append(
                    topic, record.partition, record.key, record.value, record.timestamp_ms
                )
    return calm


some_parts = st.sets(st.sampled_from(PARTS), min_size=1, max_size=4).map(lambda s: tuple(sorted(s)))


@settings(
    max_examples=examples(12),
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],  # examples are as small as they get
)
@given(before=some_parts, after=some_parts, seed=st.integers(0, 2**32))
def test_a_changed_program_is_as_if_it_had_always_been(
    before: tuple[str, ...], after: tuple[str, ...], seed: int
) -> None:
    """Views, topics and dead letters; the program of before goes on until the switch."""
    chance = random.Random(seed)
    run = ps.testing.run(program(*before), cores=2)
    for start in range(0, 600, 60):
        feed(run, chance, start, 20)
        run.step()
    old = run.step
    upgrade = run.begin(program(*after))
    fenced = False
    while upgrade is not None and not upgrade.done:
        upgrade.step(run.execute_backfill)
        if chance.random() < 0.5:
            feed(run, chance, 600 + chance.randrange(60), 3)
            try:
                old()
            except FencedError:
                fenced = True
        assert not fenced or upgrade.epoch
    run.restart()
    feed(run, chance, 700, 30)
    calm = undisturbed(run, program(*after))
    assert contents(run, after) == contents(calm, after)
    assert set(letters(run)) >= set(letters(calm)), "none is lost"
    counts = asdict(run.store.version(run.store.newest_version()).counts)
    assert sum(counts["dead"].values()) == len(letters(run))
    if "events" not in {source.topic for source in run._graph.unused}:
        assert counts["rows"]["events"] == len(run.log.records("events"))
    # None is there twice, but for records that are late for operators of both programs at different times.
    bad = [one for one in letters(run) if one in set(letters(undisturbed(run, program())))]
    assert len(bad) == len(set(bad))


@pytest.mark.slow
@settings(
    max_examples=examples(12),
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],  # examples are as small as they get
)
@given(before=some_parts, after=some_parts, seed=st.integers(0, 2**32), rebuild=st.booleans())
def test_any_crash_point_gives_the_same(
    before: tuple[str, ...], after: tuple[str, ...], seed: int, *, rebuild: bool
) -> None:
    """Processes die at any write, of the program of before, the backfill, the switch, and afterwards."""
    chance = random.Random(seed)
    run = ps.testing.run(program(*before), cores=2)
    armed = True

    def fragile(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if armed and chance.random() < 0.03:
                raise Crash
            result = function(*args, **kwargs)
            if armed and chance.random() < 0.03:
                raise Crash
            return result

        return call

    files = run.store.files
    for owner, name in ((run.log, "send"), (files, "create"), (files, "write"), (files, "delete")):
        setattr(owner, name, fragile(getattr(owner, name)))

    def surely(work: Callable[[], object]) -> None:
        while True:
            try:
                work()
            except Crash:
                continue
            return

    def step() -> None:
        try:
            run.step()
        except Crash:
            surely(run.restart)

    for start in range(0, 600, 60):
        feed(run, chance, start, 20)
        step()
    with contextlib.suppress(Crash):  # and nobody starts it again
        run.step()
    surely(lambda: run.change(program(*after), rebuild=rebuild))
    feed(run, chance, 700, 30)
    step()
    armed = False
    run.restart()
    calm = undisturbed(run, program(*after))
    assert contents(run, after) == contents(calm, after)
    assert set(letters(run)) >= set(letters(calm)), "none is lost"


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    "what",
    [
        pytest.param("cores", marks=pytest.mark.slow),
        pytest.param("key", marks=pytest.mark.slow),
        "partitions",
        "shards",
    ],
)
def test_how_a_pipeline_is_cut_may_change(what: str) -> None:
    """Cores, shards, partitions of a topic, and whether its key is relied on."""
    chance = random.Random(7)
    run = ps.testing.run(program(*PARTS), cores=2)
    for start in range(0, 600, 60):
        feed(run, chance, start, 20)
        run.step()
    version = run.store.newest_version()
    app = program(*PARTS, key=None) if what == "key" else program(*PARTS)
    if what == "partitions":
        run.log._topics["events"].append([])
        with pytest.raises(FlowError, match="Start the pipeline again"):
            run.step()
    how: dict[str, Any] = {"cores": {"cores": 3}, "shards": {"shards": 5}}.get(what, {})
    run.change(app, **how)
    assert (run.store.newest_version() == version) == (what == "cores"), "cores need no switch"
    if what == "shards":
        assert run.store.version(run.store.newest_version()).shards == 5
    for start in range(700, 900, 60):
        feed(run, chance, start, 20)
        if what == "partitions":  # a key's records lie in two partitions now
            run.send_raw(
                "events", b'{"user":"ann","v":5,"at":1767226600000}', key="ann", partition=2
            )
        run.step()
    calm = ps.testing.run(program(*PARTS, key=None), cores=2)
    if what == "partitions":
        calm.log._topics["events"].append([])
        calm.restart()
    for topic in ("events", "names"):
        for record in run.log.records(topic):
            calm.log.append(topic, record.partition, record.key, record.value, record.timestamp_ms)
    mine, theirs = contents(run, PARTS), contents(calm, PARTS)
    for topic in TOPICS:  # their keys, and where they lie, differ
        mine[topic], theirs[topic] = (sorted(str(r[2]) for r in c[topic]) for c in (mine, theirs))
    assert mine == theirs


def test_a_rebuild_writes_nothing_twice() -> None:
    """Topics have each record once; with outputs="all" they get all of it again."""
    chance = random.Random(7)
    run = ps.testing.run(program("windows", "large"), cores=2)
    feed(run, chance, 0, 300)
    once = contents(run, ())
    dead = letters(run)
    run.change(program("windows", "large"), rebuild=True)
    assert run.store.version(run.store.newest_version()).switches == 1
    assert contents(run, ()) == once
    assert letters(run) == dead
    run.change(program("windows", "large"), rebuild=True, outputs="all")
    again = contents(run, ())
    assert again["windows"] == once["windows"]
    assert [len(again[t]) for t in ("p-closed", "p-large")] == [
        2 * len(once[t]) for t in ("p-closed", "p-large")
    ]


def test_a_rebuild_fences_whoever_is_about_to_commit() -> None:
    """A driver whose batch is under way while the state is rebuilt commits nothing into it, or before it."""
    chance = random.Random(7)
    run = ps.testing.run(program("windows", "large"), cores=2)
    feed(run, chance, 0, 200)
    run.step()
    feed(run, chance, 200, 100)
    old, host = run._driver, run._host

    def execute(*args: Any) -> Any:
        reports = host.execute(*args)
        run.change(
            program("windows", "large"), rebuild=True
        )  # all of it, before the old one commits
        return reports

    old.step(execute)
    with pytest.raises(FencedError, match="rebuilds its state"):
        old.step(host.execute)
    assert contents(run, ()) == contents(undisturbed(run, program("windows", "large")), ())


def test_the_program_of_before_can_take_the_switch_back() -> None:
    """An upgrade that died at the switch leaves the old program, started again, where it was."""
    chance = random.Random(7)
    run = ps.testing.run(program("windows"), cores=2)
    feed(run, chance, 0, 200)
    run.settle()
    upgrade = run.begin(program("windows", "totals"))
    assert upgrade is not None
    while not upgrade.epoch:
        upgrade.step(run.execute_backfill)
    assert run.begin(program("windows")) is None
    run.restart()
    feed(run, chance, 200, 50)
    assert contents(run, ()) == contents(undisturbed(run, program("windows")), ())

    def finish() -> None:
        while not upgrade.done:
            upgrade.step(run.execute_backfill)

    with pytest.raises(FencedError):
        finish()


@pytest.mark.slow
def test_a_backfill_passes_no_watermark_of_the_pipeline() -> None:
    """A partition that brings nothing while others are backfilled isn't idle: what it brings isn't late."""
    run = ps.testing.run(program("large", key=None), cores=2)

    def send(partition: int, second: int) -> None:
        row = {"user": "ann", "v": 1, "at": 1_767_225_600_000 + 1_000 * second}
        run.send_raw("events", orjson.dumps(row), key="ann", partition=partition)

    send(1, 0)
    for second in range(0, 600, 10):
        send(0, second)
        run.step()
    upgrade = run.begin(program("windows", "sessions", "pairs", key=None), rows_max=1)
    assert upgrade is not None
    while not upgrade.done:
        upgrade.step(run.execute_backfill)
        run._clock_us += 9_000_000
    run.restart()
    send(1, 15)
    assert run.view("windows").rows()[0]["n"] == 8
    assert not run.dead_letters()


def test_a_view_stays_until_its_successor_is_there() -> None:
    """Two names of two operators, side by side; the old one goes with the program that drops it."""
    chance = random.Random(7)
    run = ps.testing.run(program("totals"), cores=2)
    feed(run, chance, 0, 100)
    before = run.view("totals").rows()
    upgrade = run.begin(program("totals", "top"))
    assert upgrade is not None
    while not upgrade.done:
        newest = run.store.version(run.store.newest_version())
        assert list(newest.views) == ["totals"]
        upgrade.step(run.execute_backfill)
    run.restart()
    assert run.view("totals").rows() == before
    assert len(run.view("top").rows()) == 2
    run.change(program("top"))
    newest = run.store.version(run.store.newest_version())
    assert list(newest.views) == ["top"]
    assert len(newest.operators) == 2


def test_topics_that_hold_records_get_what_is_new() -> None:
    """A topic that was written by another definition isn't written over; what is to happen can be said."""
    chance = random.Random(7)
    for outputs, count in ((None, "less"), ("new", "less"), ("all", "more")):
        run = ps.testing.run(program("large"), cores=2)
        feed(run, chance, 0, 100)
        held = len(run.topic("p-large"))
        run.change(program("large", factor=2), outputs=outputs)
        assert (len(run.topic("p-large")) == held) == (count == "less")
        feed(run, chance, 200, 100)
        every = len(undisturbed(run, program("large")).topic("p-large"))
        assert len(run.topic("p-large")) == every + (0 if count == "less" else held)


@pytest.mark.slow
def test_what_an_upgrade_left_behind_goes() -> None:
    """Its files go with the versions that need them; those of one that was given up, with the next one."""
    chance = random.Random(7)
    run = ps.testing.run(program("totals"), cores=2)
    feed(run, chance, 0, 100)
    run.settle()
    given_up = run.begin(program("totals", "sessions"))
    assert given_up is not None
    given_up.step(run.execute_backfill)
    run.change(program("windows"))
    assert run.store.upgrades() != []
    files = run.store.files.list(f"upgrades/{given_up.name}")
    assert [path for path in files if "/epochs/" not in path] == []
    run.change(program())
    for second in range(100):
        feed(run, chance, 200 + second, 1)
        run.step()
    assert run.view("all").rows()
    left = [path for path in run.store.files.list("upgrades") if "/epochs/" not in path]
    live = run.store.version(run.store.newest_version()).upgrades
    assert all(path.split("/")[1] in live for path in left)


@pytest.mark.parametrize("cores", [2, 3])
def test_the_first_batch_of_all_may_be_of_another_program(cores: int) -> None:
    """Begun and never committed, it is run again; unless its topics would be written by other shards."""

    def app(*more: str) -> ps.App:
        app = ps.App("p")
        events = app.stream("events", "user STRING NOT NULL, v BIGINT", partitions=2)
        table = events.group_by("user").agg(n=ps.count())
        table.to("counts", partitions=1)
        for name in more:
            app.view(name, events.group_by("v").agg(n=ps.count()))
        return app

    run = ps.testing.run(app(), cores=2)
    for v in range(20):
        run.send("events", user=f"u{v % 4}", v=v % 3)
    execute = run._host.execute
    with pytest.raises(Crash):
        run._driver.step(lambda *args: _then(execute(*args)))
    if cores == 3:
        with pytest.raises(FlowError, match="previous program"):
            run.change(app("per_v"), cores=3)
        return
    run.change(app("per_v"))
    assert len(run.topic("counts")) == 4
    assert sum(row["n"] for row in run.view("per_v").rows()) == 20


def _then(_: object) -> Any:
    raise Crash


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("how", ["changed", "twice", "rebuild", "rebuild twice", "dies again"])
def test_a_batch_that_was_begun_is_run_again(how: str) -> None:
    """The program of before dies between its output and its commit, for good: no record is lost or twice."""
    chance = random.Random(7)
    before = ("windows", "large")
    run = ps.testing.run(program(*before), cores=2)
    feed(run, chance, 0, 200)
    run.step()
    feed(run, chance, 200, 100)
    old, execute = run._driver, run._host.execute

    def dies(*args: Any) -> Any:
        execute(*args)
        raise Crash

    with pytest.raises(Crash):
        old.step(dies)
    assert len(run.log.records("p-large")) > 100 / 2, "all is written, nothing committed"
    rebuild = how.startswith("rebuild")
    after = before if rebuild else (*before, "totals", "top")
    if how.endswith("twice"):
        run.change(program(*before, *(() if rebuild else ["sessions"])), rebuild=rebuild)
    run.change(program(*after), rebuild=rebuild)
    if how == "dies again":
        with pytest.raises(Crash):
            run._driver.step(lambda *args: _then(run._host.execute(*args)))
        run.restart()
    feed(run, chance, 300, 50)
    calm = undisturbed(run, program(*after))
    assert contents(run, ()) == contents(calm, ())
    assert set(letters(run)) == set(letters(calm))
    if rebuild:
        assert letters(run) == letters(calm)


@pytest.mark.slow
def test_going_back_before_an_upgrade_makes_it_anew() -> None:
    """Files of the upgrade that a savepoint needs stay; its state isn't taken for that of before it."""
    chance = random.Random(7)
    parts = ("sessions", "unique")
    run = ps.testing.run(program("sessions"), cores=2)
    feed(run, chance, 0, 100)
    run.settle()
    create_savepoint(run.store, "early", 1)
    run.change(program(*parts))
    run.settle()
    create_savepoint(run.store, "late", 2)
    feed(run, chance, 100, 100)
    run.settle()
    for name in ("early", "late", "early"):
        go_back(run.store, name, [], again=False)
        run.change(program(*parts))
        check_savepoint(run.store, find_savepoint(run.store, "late"))
        assert contents(run, ()) == contents(undisturbed(run, program(*parts)), ())


def test_what_retention_removed_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    """A view that is made of a log which no longer begins at 0 says so, and from when on it is complete."""
    chance = random.Random(7)
    run = ps.testing.run(program("windows"), cores=2)
    feed(run, chance, 0, 100)
    run.settle()
    starts = run.log.start_offsets
    run.log.start_offsets = lambda topics: {  # type: ignore[method-assign]
        t: {p: 10 if t == "events" else o for p, o in ps.items()}
        for t, ps in starts(topics).items()
    }
    run.change(program("windows", "totals"))
    assert "complete from then on" in caplog.text
    newest = run.store.version(run.store.newest_version())
    begins = [entry.begins for entry in newest.operators.values()]
    assert {"events": {0: 10, 1: 10}} in begins
    assert {} in begins
    [(view, begun)] = Snapshot(run.store, newest).status()["begins"].items()
    assert (view, begun) == ("totals", {"events": {"0": 10, "1": 10}})
    run.change(program("windows", "totals", key=None))  # each row to the shard of its key
    with pytest.raises(FlowError, match="split the state of windows"):  # to that of its partition
        run.change(program("windows", "totals"))
    with pytest.raises(FlowError, match="--rebuild"):  # totals lack rows that their reader had
        run.change(program("windows", "totals", "top", "wide"))


def test_a_rebuild_goes_on_with_a_topic_that_was_made_anew() -> None:
    """What is in it now was never read: it is read, and written, once; the other topics get nothing twice."""
    chance = random.Random(7)
    run = ps.testing.run(program("totals", "large", "shops"), cores=2)
    feed(run, chance, 0, 100)
    large = [r.value for r in run.topic("p-large")]
    shops = run.view("shops").rows()
    run.log._topics["events"] = [[], []]
    run.send_raw("events", b'{"user":"ann","v":39,"at":1767225600000}', key="ann")
    with pytest.raises(FlowError, match="deleted and created again"):
        run.step()
    run.change(program("totals", "large", "shops"), rebuild=True)
    assert run.view("totals").rows() == [{"user": "ann", "n": 1, "total": 39}]
    assert run.view("shops").rows() == shops
    assert [r.value for r in run.topic("p-large")] == [*large, b'{"user":"ann","v":39}']


@pytest.mark.slow
def test_a_rebuild_needs_no_version_that_can_be_read() -> None:
    """The plan of the last batch says how far it was; a flipped byte in the version costs no record."""
    chance = random.Random(7)
    run = ps.testing.run(program("windows", "large"), cores=2)
    feed(run, chance, 0, 200)
    run.settle()
    once, dead = contents(run, ()), letters(run)
    path = f"versions/{run.store.newest_version():020d}.json"
    data = bytes(run.store.files.read(path))
    run.store.files.write(path, [data[:50] + b"!" + data[51:]])
    with pytest.raises(CorruptError, match="--rebuild"):
        run.restart()
    run.change(program("windows", "large"), rebuild=True)
    assert contents(run, ()) == once
    assert letters(run) == dead
    for second in range(40):
        feed(run, chance, 300 + second, 1)
        run.step()
    assert contents(run, ()) == contents(undisturbed(run, program("windows", "large")), ())

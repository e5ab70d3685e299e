"""The example programs, run in this process over real lines and samples."""

from __future__ import annotations

import gzip
import json
import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import orjson
import pytest
from tests.demo.machines import busy_machine

import penstock as ps
from penstock.cli.support.programs import load
from penstock.demo.lines import values_of_lines
from penstock.demo.machine import TOPICS, Sampler
from penstock.demo.programs import example
from penstock.errors import UserError

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def log_lines(count: int, disorder_s: int, seed: int = 1) -> tuple[list[bytes], list[datetime]]:
    """An access log whose lines lie up to so many seconds out of order."""
    rng = random.Random(seed)
    lines, times = [], []
    for i in range(count):
        at = BEGIN + timedelta(seconds=i // 4 - rng.randint(0, disorder_s))
        status = rng.choice([200, 200, 200, 404, 500])
        path = f"/p{rng.randint(0, 5)}?q={i}"
        stamp = f"{at:%d/%b/%Y:%H:%M:%S +0000}"
        lines.append(f'10.0.0.1 - - [{stamp}] "GET {path} HTTP/1.1" {status} {i}'.encode())
        times.append(at)
    return lines, times


def weblog(lateness: str, lines: list[bytes], batch: int) -> ps.testing.Run:
    """The weblog pipeline after these lines, cut into batches."""
    run = ps.testing.run(load(example("weblog")).pipeline(lateness=lateness))
    for lo in range(0, len(lines), batch):
        values, _ = values_of_lines(lines[lo : lo + batch])
        for value in values.to_pylist():
            run.send_raw("requests", value)
        run.settle()
    return run


@pytest.mark.parametrize("batch", [70, 1000])
def test_no_line_is_lost_within_the_lateness(batch: int) -> None:
    """Requests, bytes and errors per minute and per path equal a plain count of the lines."""
    lines, times = log_lines(1000, disorder_s=59)
    run = weblog("60s", lines, batch)
    per_minute = {r["window_start"]: r for r in run.view("per_minute").rows()}
    expected = Counter(at.replace(second=0) for at in times)
    assert {at: r["requests"] for at, r in per_minute.items()} == dict(expected)
    assert sum(r["bytes"] for r in per_minute.values()) == sum(range(1000))
    errors = sum(b'" 404 ' in line or b'" 500 ' in line for line in lines)
    per_path = run.view("per_path").rows()
    assert sum(r["errors"] for r in per_path) == errors
    assert {r["path"] for r in per_path} == {f"/p{i}" for i in range(6)}
    assert run.dead_letters() == []


@pytest.mark.parametrize("batch", [70, 1000])
def test_every_line_is_counted_late_or_bad(batch: int) -> None:
    """With too little lateness, counts, late lines and bad lines add up to all lines."""
    lines, _ = log_lines(1000, disorder_s=59)
    lines[100], lines[500], lines[900] = b"junk", b"", b"\xff"
    run = weblog("10s", lines, batch)
    counted = sum(r["requests"] for r in run.view("per_minute").rows())
    letters = run.dead_letters()
    bad = [letter for letter in letters if letter.value in {b"junk", b"", b"\xff"}]
    late = {x.headers["penstock.offset"] for x in letters if x not in bad}
    assert len(bad) == 3
    assert late
    assert counted + len(late) + len(bad) == 1000


def test_visits_end_after_half_an_hour() -> None:
    """Of a small access log: who came, for how long, and how long the visits of an hour were."""
    run = ps.testing.run(load(example("visits")).pipeline())
    lines = [
        f'10.0.0.{host} - - [01/Jan/2026:{at} +0000] "GET /p HTTP/1.1" {status} 100'.encode()
        for host, at, status in [
            (1, "09:00:00", 200), (2, "09:10:00", 200), (1, "09:20:00", 404), (1, "09:49:59", 200),
            (2, "09:49:30", 200), (1, "10:19:58", 200), (2, "10:16:00", 500), (1, "12:00:00", 200),
            (2, "12:00:01", 200), (1, "12:29:59", 200),
        ]
    ]  # fmt: skip
    values, bad = values_of_lines(lines)
    assert bad == 0
    for value in values.to_pylist():
        run.send_raw("requests", value)
        run.settle()
    visits = [
        (r["ip"][-1], f"{r['window_start']:%H:%M}", r["requests"], r["errors"], r["seconds"])
        for r in run.view("visits").rows()
    ]
    assert visits == [
        ("1", "09:00", 4, 1, 4_798), ("2", "09:10", 1, 0, 0), ("2", "09:49", 1, 0, 0),
        ("1", "12:00", 2, 0, 1_799), ("2", "12:00", 1, 0, 0),
    ]  # fmt: skip
    lengths = [(r["visits"], r["mean_s"], r["longest_s"]) for r in run.view("lengths").rows()]
    assert lengths == [(1, 0, 0), (2, 2_399, 4_798)]
    assert len(run.topic("visits")) == 3
    [late] = run.dead_letters()
    assert late.headers["penstock.reason"].startswith("late")


@pytest.mark.slow
def test_the_machine_pipeline_takes_what_the_sampler_gives() -> None:
    """Every event fits the example's schemas, and every view has rows."""
    machine = busy_machine()
    sampler = Sampler(lambda: machine.now_us, machine)
    run = ps.testing.run(load(example("machine")).pipeline())
    sent = Counter[str]()
    for _ in range(200):
        for topic, rows in sampler.sample().items():
            for row in rows:
                run.send_raw(topic, orjson.dumps(row))
                sent[topic] += 1
        machine.tick()
    assert set(sent) == set(TOPICS)
    loads = run.view("load_per_minute").rows()
    assert sum(r["samples"] for r in loads) == sent["cpu"]
    assert all(49 < r["load"] < 51 for r in loads)
    for view in ("load_smoothed", "load_now", "memory", "disk", "network"):
        assert run.view(view).rows(), view
    busiest = run.view("busiest_processes").rows()
    assert sum(r["samples"] for r in busiest) == sent["work"]
    assert sum(r["starts"] for r in run.view("starts_per_minute").rows()) > 0
    assert run.dead_letters() == []


def test_programs_that_are_none_are_refused(tmp_path: Path) -> None:
    """A missing file, another kind of file and a mistake in it each have their message."""
    with pytest.raises(UserError, match="expected a program in Python or SQL"):
        load(tmp_path / "nope.py")
    (tmp_path / "shop.txt").write_text("SELECT 1")
    with pytest.raises(UserError, match="expected a program in Python or SQL"):
        load(tmp_path / "shop.txt")
    (tmp_path / "shop.sql").write_text("SELECT 1")
    with pytest.raises(UserError, match=r"shop\.sql: line 1, column .*expected CREATE"):
        load(tmp_path / "shop.sql")
    (tmp_path / "shop.sql").write_text("SET kolor = 'red'")
    with pytest.raises(UserError, match="line 1: expected SET of name"):
        load(tmp_path / "shop.sql")
    (tmp_path / "bad.py").write_text("def (")
    with pytest.raises(UserError, match="line 1"):
        load(tmp_path / "bad.py")


def test_gzip_of_json_is_no_log(tmp_path: Path) -> None:
    """A file of another kind has only bad lines, and none is taken for an event."""
    data = gzip.compress(
        json.dumps({"at": "2026-01-01T00:00:00Z", "status": 1, "bytes": 1}).encode()
    )
    values, bad = values_of_lines(gzip.decompress(data).split(b"\n"))
    run = ps.testing.run(load(example("weblog")).pipeline())
    run.send_raw("requests", values[0].as_py())
    assert bad == 1
    assert run.view("per_minute").rows() == []
    assert len(run.dead_letters()) == 1


def test_scans() -> None:
    """Ten misses of one address in a minute and then a hit are a scan; fewer, or slower ones, are none."""
    run = ps.testing.run(load(example("scans")).pipeline())

    def ask(ip: str, second: int, status: int) -> None:
        at = BEGIN + timedelta(seconds=second)
        path = f"/{second}"
        run.send("requests", ip=ip, at=at.isoformat(), path=path, status=status, bytes=1)

    for second in range(60):
        if second % 5 == 0:
            ask("scanner", second, 404)
            ask("slow", second * 2, 404)
        if second == 12:
            ask("scanner", second, 301)
        if second % 20 == 10:
            ask("visitor", second, 404 if second == 10 else 200)
    ask("scanner", 58, 200)
    ask("slow", 119, 200)
    ask("visitor", 400, 200)
    [scan] = [json.loads(record.value or b"") for record in run.topic("scans")]
    assert (scan["ip"], scan["misses"], scan["hit"]) == ("scanner", 10, "/58")
    assert scan["since"] == "2026-01-01T00:00:00Z"
    assert run.view("scanners").rows() == [{"ip": "scanner", "scans": 1, "hit": "/58"}]
    [probe] = run.view("probes").rows()
    assert (probe["ip"], probe["misses"]) == ("slow", 7)


@pytest.mark.slow
def test_searches() -> None:
    """Clicks count for their search within ten minutes, and searches without any are told, each once."""
    rng = random.Random(3)
    sent = []
    wanted: Counter[tuple[str, str]] = Counter()
    unanswered = []
    for search in range(200):
        at = BEGIN + timedelta(seconds=search * 30)
        query = rng.choice(["shoes", "hats"])
        sent.append((at, "searches", {"search": search, "query": query, "at": at.isoformat()}))
        delays = [rng.choice([0, 20, 599, 600, 601, 620]) for _ in range(rng.randint(0, 2))]
        for seconds in delays:
            clicked = at + timedelta(seconds=seconds)
            row = {"search": search, "url": "/", "clicked": clicked.isoformat()}
            sent.append((clicked, "clicks", row))
        answers = sum(seconds <= 600 for seconds in delays)
        wanted[query, "clicks"] += answers
        wanted[query, "unanswered"] += not answers
        unanswered += [] if answers else [search]
    end = (BEGIN + timedelta(days=1)).isoformat()
    sent.sort(key=lambda one: one[0] + timedelta(seconds=rng.randint(0, 20)))
    run = ps.testing.run(load(example("searches")).pipeline())
    for number, (_, topic, values) in enumerate(sent):
        run.send(topic, **values)
        if number % 40 == 0:
            run.step()
    run.send("searches", search=-1, query="the end", at=end)
    run.send("clicks", search=-2, url="/", clicked=end)
    found: Counter[tuple[str, str]] = Counter()
    for row in run.view("per_query").rows():
        found.update({(row["query"], what): row[what] for what in ("clicks", "unanswered")})
    assert found == wanted
    searches = [
        json.loads(record.value)["search"] for record in run.topic("unanswered") if record.value
    ]
    assert sorted(searches) == unanswered
    assert not run.dead_letters()


def test_press() -> None:
    """Each person is notified once of an article that searches of his match while they are saved."""
    run = ps.testing.run(load(example("press")).pipeline())
    saved = [
        ("ann", "floods", "+title:rhine flood*"),
        ("ann", "storms", "storm"),
        ("bob", "x", "(a"),
    ]
    for person, name, search in saved:
        run.send("searches", person=person, name=name, search=search)
    articles = [
        ("a1", "The Rhine", "Flooded again, after the storms", "09:00:00"),
        ("a1", "The Rhine", "Flooded again, after the storm", "09:30:00"),
        ("a2", "The Moselle", "Floods", "09:31:00"),
    ]
    for article, title, text, at in articles:
        run.send("articles", article=article, title=title, text=text, at=at)
    run.settle()
    run.send("searches", person="ann", name="storms", search="nothing")
    run.send("searches", person="bob", name="x", search="a")
    run.settle()
    run.restart()
    run.send("articles", article="a3", title="Storm", text=None, at="09:32:00")
    told = [orjson.loads(record.value or b"") for record in run.topic("told")]
    assert [(row["person"], row["article"]) for row in told] == [("ann", "a1")]
    assert set(told[0]["terms"]) & {"rhine", "flood", "storm"}
    counts = {(row["person"], row["name"]): row["articles"] for row in run.view("hits").rows()}
    assert counts == {("ann", "floods"): 1, ("ann", "storms"): 1}
    assert [orjson.loads(letter.value or b"")["person"] for letter in run.dead_letters()] == ["bob"]

"""The console's endpoints, over a real broker."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pytest
from tests.web.logs import NOW_MS, RECORDS, Log, filled_log, write_letters

import penstock as ps
from penstock.client import Client, Producer
from penstock.client.letters.lateness import Mark
from penstock.core.time import instant_us
from penstock.errors import SetupError
from penstock.web import Console, create_app

_numbers = itertools.count()


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Log]:
    """A broker with topics, a group that is behind, and no letters yet."""
    with filled_log(tmp_path_factory.mktemp("console")) as found:
        yield found


def ask(
    log: Log, path: str, *, allow_changes: bool = False, marks: Any = None, **options: Any
) -> httpx.Response:
    """The answer of a page over the log; with `json`, a change."""
    console = Console(
        lambda: log.address, has_pipeline=False, allow_changes=allow_changes, marks=marks
    )
    transport = httpx.ASGITransport(create_app(None, lambda **_: {}, console=console))

    async def answer() -> httpx.Response:
        async with httpx.AsyncClient(
            transport=transport, base_url="http://127.0.0.1:8750", timeout=60
        ) as client:
            method = "POST" if "json" in options or "content" in options else "GET"
            return await client.request(method, path, **options)

    return asyncio.run(answer())


def page(log: Log, topic: str, **asked: Any) -> dict[str, Any]:
    """A page of records."""
    answer = ask(log, f"/api/topics/{topic}/records", params=asked)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def ids(found: dict[str, Any]) -> list[int]:
    """The ids in the values of records."""
    return [json.loads(one["value"]["text"])["id"] for one in found["records"]]


def positions(found: dict[str, Any]) -> str:
    """Where the next page begins, as it is asked for."""
    return ",".join(f"{p}:{offset}" for p, offset in found["next"].items())


def test_topics_have_sizes_partitions_and_configs(log: Log) -> None:
    """Each with what it holds; of one, the configs and which of them were set."""
    topics = {one["name"]: one for one in ask(log, "/api/topics").json()["topics"]}
    assert (topics["clicks"]["partitions"], topics["clicks"]["records"]) == (2, RECORDS)
    assert topics["clicks"]["bytes"] > topics["empty"]["bytes"] == 0
    clicks = ask(log, "/api/topics/clicks").json()
    assert [one["next"] for one in clicks["partitions"]] == [60, 60]
    assert [c["name"] for c in clicks["configs"] if c["is_own"]] == ["retention.ms"]
    missing = ask(log, "/api/topics/click")
    assert missing.status_code == 404
    assert "did you mean 'clicks'?" in missing.json()["error"]


@pytest.mark.parametrize("start", ["newest", "oldest"])
@pytest.mark.parametrize("limit", [7, 50, 500])
def test_pages_follow_one_another_without_gaps(log: Log, start: str, limit: int) -> None:
    """All pages together are all records, each once, in the order of their times."""
    asked: dict[str, Any] = {"from": start, "limit": limit}
    seen: list[int] = []
    while True:
        found = page(log, "clicks", **asked)
        assert len(found["records"]) <= limit
        seen += ids(found)
        if not found["next"]:
            break
        asked["positions"] = positions(found)
    wanted = list(range(RECORDS))
    assert seen == (wanted if start == "oldest" else wanted[::-1])


@pytest.mark.parametrize("start", ["newest", "oldest"])
def test_pages_have_each_record_once_where_times_go_back(log: Log, start: str) -> None:
    """Records of late events are on one page, too, and none is on two."""
    topic = f"disorder-{start}"
    chance = random.Random(3)
    with Client(log.address) as client, Producer(log.address, acks="all") as producer:
        client.create_topic(topic, 2, {"retention.ms": "-1"})
        for p in (0, 1):
            values = [json.dumps({"id": 2 * i + p}).encode() for i in range(40)]
            times = np.array([NOW_MS + chance.randrange(60_000) for _ in values], np.int64)
            producer.send(topic, p, None, pa.array(values, pa.binary()), times)
    asked: dict[str, Any] = {"from": start, "limit": 7}
    seen: list[int] = []
    for _ in range(80):  # more pages than there are records would go round in a circle
        found = page(log, topic, **asked)
        seen += ids(found)
        if not found["next"]:
            break
        asked["positions"] = positions(found)
    assert sorted(seen) == list(range(80))
    for p in (0, 1):
        mine = [one for one in seen if one % 2 == p]
        assert mine == sorted(mine, reverse=start == "newest")


def test_records_are_found_by_time_offset_and_partition(log: Log) -> None:
    """From a time on; from an offset on; of one partition."""
    assert ids(page(log, "clicks", **{"from": "2026-01-01T00:01:30Z", "limit": 3})) == [90, 91, 92]
    at = page(log, "clicks", **{"from": "oldest", "positions": "0:10,1:10", "limit": 3})
    assert ids(at) == [20, 21, 22]
    assert ids(page(log, "clicks", partition=1, limit=2)) == [119, 117]
    assert page(log, "clicks", **{"from": "1 hour ago"})["records"] == []
    for asked in ({"from": "yesterdy"}, {"positions": "0"}, {"limit": "x"}, {"partition": "-1"}):
        assert ask(log, "/api/topics/clicks/records", params=asked).status_code == 400


def test_search_looks_at_keys_values_and_headers(log: Log) -> None:
    """In any case; what isn't found is said with how much was looked at."""
    assert ids(page(log, "clicks", search="USER-3", limit=500)) == list(range(115, 0, -7))
    assert ids(page(log, "clicks", search="k77")) == [77]
    assert ids(page(log, "clicks", search="t41")) == [41]
    nothing = page(log, "clicks", search="nobody")
    assert (nothing["records"], nothing["scanned"], nothing["next"]) == ([], RECORDS, {})


def test_any_bytes_are_shown(log: Log) -> None:
    """Bytes that are no text, tombstones, long values."""
    values = [one["value"] for one in page(log, "odd", **{"from": "oldest"})["records"]]
    assert values[0] == {"text": "ff 00", "form": "hex"}
    assert values[1] is None
    assert (len(values[2]["text"]), values[2]["bytes"]) == (20_000, 30_000)
    assert values[3]["text"] == '{"n": 12345678901234567890}'


def test_groups_have_lag_and_positions(log: Log) -> None:
    """Of each group the sum; of one, each partition."""
    groups = ask(log, "/api/groups").json()["groups"]
    [audit] = [one for one in groups if one["name"] == "audit"]
    assert (audit["name"], audit["topics"], audit["lag"]) == ("audit", ["clicks"], 50)
    group = ask(log, "/api/groups/audit").json()
    assert [(p["committed"], p["lag"]) for p in group["positions"]] == [(10, 50), (60, 0)]
    assert ask(log, "/api/groups/nobody").status_code == 400


def test_share_groups_are_groups(log: Log) -> None:
    """What is not settled is their lag; a member is counted."""
    with ps.Queue("jobs", log.address) as jobs:
        for i in range(3):
            jobs.put(f"job {i}")
        assert next(iter(jobs)) is not None
        found = {one["name"]: one for one in ask(log, "/api/groups").json()["groups"]}
        assert (found["jobs"]["kind"], found["jobs"]["lag"]) == ("share", 3)
        group = ask(log, "/api/groups/jobs").json()
        assert (group["members_count"], group["positions"][0]["lag"]) == (1, 3)


@pytest.fixture
def letters(log: Log) -> str:
    """Three dead letters, one of them late, in a topic of the test's own."""
    return write_letters(log, f"orders-{next(_numbers)}")


def states(log: Log, topic: str) -> dict[tuple[str, str], int]:
    """How many letters there are by the first word of their reason and their state."""
    found = ask(log, "/api/letters").json()["groups"]
    return {
        (one["reason"].split()[0], one["state"]): one["letters"]
        for one in found
        if one["topic"] == topic
    }


class Known:
    """The watermark of topics whose records have their event time in `at`, and of others."""

    def __init__(self, address: str) -> None:
        self.address = address

    def marks(self, topic: str) -> list[Mark]:
        return [] if "odd" in topic else [Mark(instant_us("2026-01-01T10:00:00Z"), "at")]

    def unknown(self, topic: str) -> str | None:
        return "no pipeline has read it" if "odd" in topic else None


def test_letters_with_any_reason_may_be_behind_the_watermark(log: Log, letters: str) -> None:
    """As `dlq replay` counts them: by the value that is replayed; where nobody knows, the page says so."""
    path = f"/api/letters/{letters}"
    early = {"values": {"0/0": '{"at": "2026-01-01T09:00Z"}', "0/1": '{"at": "2026-01-01T11:00Z"}'}}
    ask(log, f"{path}/repair", allow_changes=True, json=early)
    found = ask(log, path, marks=Known).json()
    assert [(one["late_again"], one["behind"]) for one in found["letters"]] == [
        (False, True), (False, False), (True, False),
    ]  # fmt: skip
    assert found["unknown"] == []
    found = ask(log, f"/api/letters/{write_letters(log, f'odd-{letters}')}", marks=Known).json()
    [said] = found["unknown"]
    assert said.endswith("are before its watermark isn't known: no pipeline has read it.")
    assert not any(one["behind"] for one in found["letters"])


def test_letters_are_repaired_replayed_and_dropped(log: Log, letters: str) -> None:
    """By reason or one by one, each once; the origin gets what was repaired."""
    assert states(log, letters) == {("no", "open"): 2, ("late:", "open"): 1}
    path = f"/api/letters/{letters}"
    shown = ask(log, path, params={"state": "open"}).json()["letters"]
    assert [one["late_again"] for one in shown] == [False, False, True]
    repaired = {"values": {"0/0": '{"user": 1}'}}
    done = ask(log, f"{path}/repair", allow_changes=True, json=repaired)
    assert done.json() == {"repaired": 1}
    reason = {"reason": "no such field: usr", "origin": shown[0]["origin"]}
    assert ask(log, f"{path}/replay", allow_changes=True, json=reason).json() == {"replayed": 2}
    assert ask(log, f"{path}/replay", allow_changes=True, json=reason).json() == {"replayed": 0}
    gone = {"letters": ["0/2"], "because": "counted by hand"}
    assert ask(log, f"{path}/drop", allow_changes=True, json=gone).json() == {"dropped": 1}
    assert states(log, letters) == {("no", "replayed"): 2, ("late:", "dropped"): 1}
    origin = letters.removesuffix(".dead-letters")
    texts = [one["value"]["text"] for one in page(log, origin, **{"from": "oldest"})["records"]]
    assert texts == ['{"user": 1}', '{"usr": 2}']


@pytest.mark.parametrize("action", ["repair", "replay", "drop"])
def test_nothing_is_changed_unless_it_is_allowed(log: Log, letters: str, action: str) -> None:
    """A page is read-only; one that isn't takes JSON of its own origin alone, which says what is meant."""
    path = f"/api/letters/{letters}/{action}"
    body = {"letters": ["0/0"], "values": {"0/0": "x"}}
    refused = ask(log, path, json=body)
    assert refused.status_code == 403
    assert "--allow-changes" in refused.json()["error"]
    foreign = {"Origin": "http://evil.example"}
    assert ask(log, path, allow_changes=True, json=body, headers=foreign).status_code == 403
    text = {"Content-Type": "text/plain"}
    content = json.dumps(body)
    assert ask(log, path, allow_changes=True, content=content, headers=text).status_code == 400
    if action != "repair":
        assert ask(log, path, allow_changes=True, json={}).status_code == 400
    assert (
        ask(log, path.replace(letters, "clicks"), allow_changes=True, json=body).status_code == 400
    )
    assert ("no", "open") in states(log, letters)
    assert states(log, letters)["no", "open"] == 2


def test_a_log_that_is_stopped_is_said_to_be() -> None:
    """Why, and how to start it; the page itself is there."""

    def stopped() -> str:
        raise SetupError("expected the broker of shop to run; found it stopped. Start it")

    console = Console(stopped, has_pipeline=False)
    transport = httpx.ASGITransport(create_app(None, lambda **_: {}, console=console))

    async def answers() -> tuple[httpx.Response, httpx.Response]:
        async with httpx.AsyncClient(
            transport=transport, base_url="http://127.0.0.1:8750"
        ) as client:
            return await client.get("/api/console"), await client.get("/api/topics")

    about, topics = asyncio.run(answers())
    assert (about.json()["log"], about.json()["pipeline"]) == (None, False)
    assert "Start it" in about.json()["error"]
    assert topics.status_code == 503
    assert "Start it" in topics.json()["error"]


def tail(log: Log, topic: str, **asked: Any) -> dict[str, Any]:
    """A look at a topic's new records."""
    answer = ask(log, f"/api/topics/{topic}/tail", params=asked)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def send(log: Log, topic: str, first: int, count: int, partition: int = 0, body: str = "") -> None:
    """Records with ids from `first` on, a second apart."""
    values = [json.dumps({"id": first + i, "body": body}).encode() for i in range(count)]
    times = np.array([NOW_MS + 1_000 * (first + i) for i in range(count)], np.int64)
    with Producer(log.address, acks="all") as producer:
        producer.send(topic, partition, None, pa.array(values, pa.binary()), times)


def new_topic(log: Log, partitions: int) -> str:
    """A topic of its own."""
    name = f"tail-{next(_numbers)}"
    with Client(log.address) as client:
        client.create_topic(name, partitions, {"retention.ms": "-1"})
    return name


def test_a_tail_has_each_new_record_once(log: Log) -> None:
    """First the newest there are; then what came since, the newest first; nothing where nothing came."""
    topic = new_topic(log, 2)
    send(log, topic, 0, 5)
    found = tail(log, topic, limit=3)
    assert (ids(found), found["arrived"], found["skipped"]) == ([4, 3, 2], 0, 0)
    send(log, topic, 5, 2)
    send(log, topic, 7, 1, partition=1)
    found = tail(log, topic, limit=3, positions=positions(found))
    assert (ids(found), found["arrived"], found["skipped"]) == ([7, 6, 5], 3, 0)
    found = tail(log, topic, limit=3, positions=positions(found))
    assert (ids(found), found["arrived"], found["skipped"]) == ([], 0, 0)


def test_a_tail_reads_a_bounded_number_of_records(log: Log) -> None:
    """However many came, the newest of each partition are read; the others are counted."""
    topic = new_topic(log, 2)
    start = positions(tail(log, topic))
    send(log, topic, 0, 20_000)
    send(log, topic, 20_000, 10, partition=1)
    found = tail(log, topic, limit=10, positions=start)
    assert len(found["records"]) == 10
    assert (found["arrived"], found["skipped"]) == (20_010, 20_000)
    assert {one["partition"] for one in found["records"]} == {0, 1}
    assert tail(log, topic, limit=10, positions=positions(found))["arrived"] == 0


def test_a_tail_of_long_records_is_bounded_in_bytes(log: Log) -> None:
    """Of long values fewer are sent than were asked for; the others count as skipped."""
    topic = new_topic(log, 1)
    start = positions(tail(log, topic))
    send(log, topic, 0, 100, body="x" * 30_000)
    found = tail(log, topic, limit=100, positions=start)
    assert 1 < len(found["records"]) < 100
    assert sum(len(one["value"]["text"]) for one in found["records"]) <= 1 << 20
    assert found["skipped"] == 100 - len(found["records"])


def test_a_tail_searches_and_keeps_to_a_partition(log: Log) -> None:
    """What doesn't have the text isn't shown, and isn't skipped either."""
    topic = new_topic(log, 2)
    start = positions(tail(log, topic))
    send(log, topic, 0, 100)
    send(log, topic, 100, 100, partition=1)
    found = tail(log, topic, search='"id": 42,', positions=start)
    assert (ids(found), found["skipped"]) == ([42], 0)
    found = tail(log, topic, partition=1, limit=2, positions=start)
    assert (ids(found), found["arrived"]) == ([199, 198], 100)
    wrong = ask(log, f"/api/topics/{topic}/tail", params={"partition": 7})
    assert "expected a partition" in wrong.json()["error"]

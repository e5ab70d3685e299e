"""What a follower does whatever its body: requests, reports, and how all of them are listed."""

from __future__ import annotations

import itertools
import urllib.request
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pytest
from click.testing import CliRunner
from tests.follow.test_contract import CaptureSubject, IngestSubject, NumbersSubject, SinkSubject

from penstock.cli import main
from penstock.client import Client, Producer, Reader
from penstock.errors import BrokerError
from penstock.follow import follower as module
from penstock.follow.control import Requests, control_topic
from penstock.follow.listing import listed
from penstock.follow.metrics import follower_families, serve
from penstock.follow.report import group_of

_numbers = itertools.count()


@pytest.fixture
def name() -> str:
    """One that no other test uses."""
    return f"one{next(_numbers)}"


def written(log: str, topic: str, *pairs: tuple[bytes, bytes | None]) -> None:
    """Writes requests as any release does."""
    with Client(log) as client, Producer(log) as producer:
        client.create_topic(topic, 1, {"cleanup.policy": "compact"}, exists_ok=True)
        keys, values = (pa.array(one, pa.binary()) for one in zip(*pairs, strict=True))
        producer.send(topic, 0, keys, values, np.zeros(len(pairs), np.int64))


@pytest.mark.parametrize("kind", ["sink", "capture"])
def test_requests_are_the_newest_of_each_key(log, name, kind) -> None:
    """Of a topic that is deleted nothing is asked, and of one that is created again only what is there."""
    found = Requests(control_topic(kind, name))
    with Client(log) as client, Reader(log) as reader:

        def looked() -> tuple[bool, dict[bytes, bytes]]:
            found.look(client, lambda: reader)
            return found.is_paused, found.values

        assert looked() == (False, {})
        written(log, found.topic, (b"command", b"pause"), (b"position", b"7"))
        assert looked() == (True, {b"command": b"pause", b"position": b"7"})
        written(log, found.topic, (b"position", None), (b"command", b"resume"))
        assert looked() == (False, {b"command": b"resume"})
        client.delete_topic(found.topic)
        assert looked() == (False, {})
        written(log, found.topic, (b"command", b"pause"))
        assert looked() == (True, {b"command": b"pause"})


def test_all_followers_of_a_broker_are_in_one_table(log, name, tmp_path) -> None:
    """Captures, imports and sinks, with where records come from and go to, and how many went through."""
    made = {
        "capture": CaptureSubject(log, f"{name}c", tmp_path),
        "ingest": IngestSubject(log, f"{name}i", tmp_path),
        "sink": SinkSubject(log, f"{name}s", tmp_path),
    }
    for one in made.values():
        one.feed()
        one.carry(1)
    arguments = ["status", "--broker", log]
    rows = [
        orjson.loads(line)
        for line in CliRunner().invoke(main, [*arguments, "--json"]).output.splitlines()
    ]
    own = {one["kind"]: one for one in rows if one["name"].startswith(name)}
    assert {kind: one["phase"] for kind, one in own.items()} == dict.fromkeys(made, "stopped")
    assert all(one["records"] >= 1 for one in own.values())
    assert {kind: one["lag"] for kind, one in own.items() if kind == "sink"} == {"sink": 0}
    assert own["capture"]["source"].endswith("shop.db")
    assert own["ingest"]["target"] == f"{name}i"
    assert own["sink"]["source"] == f"{name}s"
    shown = CliRunner().invoke(main, arguments).output
    assert all(one.name in shown for one in made.values())


def test_a_capture_of_a_release_without_reports_is_listed_as_unknown(log, name) -> None:
    """Its topics show that it is there, and its own status knows more."""
    with Client(log) as client:
        for end in ("capture", "capture.control"):
            client.create_topic(f"{name}.{end}", 1)
    found = CliRunner().invoke(main, ["status", "--broker", log, "--json"]).output
    rows = [orjson.loads(line) for line in found.splitlines()]
    assert [(one["kind"], one["phase"]) for one in rows if one["name"] == name] == [
        ("capture", "unknown")
    ]


def test_a_source_that_may_not_report_continues(log, name, monkeypatch, caplog) -> None:
    """It warns once; what it carries doesn't depend on reports."""

    def refused(*_: Any) -> None:
        raise BrokerError("expected the right to READ the group; found none", code=30)

    monkeypatch.setattr(module, "LOOK_S", 0.01)
    monkeypatch.setattr(module, "UNREPORTED_S", 0.0)
    monkeypatch.setattr(Client, "commit", refused)
    subject = NumbersSubject(log, name)
    subject.feed()
    done = subject.carry(1)
    assert (done.phase, done.retries) == ("stopped", 0)
    assert [group_of("numbers", name) in line for line in caplog.messages] == [True]
    assert [one for one in listed(log) if one.name == name] == []


def test_metrics_of_all_followers_have_one_form(log, name) -> None:
    """A kind without figures of its own has those that all have."""
    follower = NumbersSubject(log, name).follower()
    follower.enter("waiting", "it is away")
    with (
        serve(
            "127.0.0.1", 0, lambda: follower_families("numbers", (), {name: follower.figures()})
        ) as port,
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer,
    ):
        text = answer.read().decode()
    own = f'{{kind="numbers",name="{name}"'
    assert f'penstock_follower_state{own},state="waiting"}} 1.0' in text
    assert f'penstock_follower_state{own},state="paused"}} 0.0' in text
    assert f"penstock_follower_records_total{own}}} 0.0" in text

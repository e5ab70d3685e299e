"""Topics of other clusters, and servers that get changes by HTTP."""

from __future__ import annotations

import base64
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any

import orjson
import pytest
from tests.broker.security.test_security import certificates
from tests.effort import rounds
from tests.killing import kill
from tests.sinks.conftest import Topic
from tests.sinks.elastic_server import serving

from penstock.broker.process import BrokerProcess
from penstock.broker.security.users import Users
from penstock.client import Client, Reader, Security
from penstock.client.groups import GroupAdmin
from penstock.errors import FencedError, SetupError, UserError
from penstock.sinks import Sink, from_address, http, kafka
from penstock.sinks.targets.http import Web

SCHEMA = "id BIGINT NOT NULL, name STRING"
KILLS = rounds("PENSTOCK_SINK_KILLS", quick=1, full=3)
SINK = """
import sys
from penstock.sinks import Sink, body, kafka
body.STEP_OFFSETS = 7
other, topic, log = sys.argv[1:]
Sink(kafka(other, table=topic), topic, "id BIGINT NOT NULL", log=log).run()
"""


@pytest.fixture(scope="module")
def other(tmp_path_factory) -> Iterator[str]:
    """Another cluster."""
    process = BrokerProcess(tmp_path_factory.mktemp("other"), die_with_parent=False).start()
    yield process.address
    process.stop()


def follow(target, topic, schema=SCHEMA, key="id", **settings):
    """Follows until everything was written."""
    sink = Sink(target, topic.name, schema, key=key, log=topic.log, **settings)
    return sink.run(until=lambda done: done.lag == 0)


def records(address: str, topic: str, **settings: Any) -> list[tuple]:
    """Keys and values of committed records."""
    with Client(address, **settings) as client, Reader(address, **settings) as reader:
        return [
            pair
            for partition, end in client.offsets(topic).items()
            for some in reader.read(topic, partition, 0, end)
            for pair in zip(some.keys().to_pylist(), some.values().to_pylist(), strict=True)
        ]


def test_a_topic_of_another_cluster_follows(other, topic) -> None:
    """Rows and tombstones have their keys; a run goes on where the last one stopped."""
    topic.send({"id": 1, "name": "ann"}, {"id": 2, "name": "bob"})
    follow(from_address(f"kafka://{other}", "users"), topic)
    topic.send(b"2", {"id": 1, "name": None})
    follow(kafka(other, table="users"), topic)
    with GroupAdmin(other) as admin:  # offsets of groups are forgotten after a week
        assert not admin.committed_entries(f"penstock.target.{topic.name}.users.{topic.name}")
    found = [
        (k, None if v is None else orjson.loads(v)["name"]) for k, v in records(other, "users")
    ]
    assert sorted(found, key=str) == [(b"1", "ann"), (b"1", None), (b"2", "bob"), (b"2", None)]


def test_a_second_sink_fences_the_first(other, topic) -> None:
    """Who has the transactional id no more commits nothing."""
    one = Sink(kafka(other, table="fenced"), topic.name, SCHEMA, key="id", log=topic.log)
    one._target.open(one.name, one._rows)
    follow(kafka(other, table="fenced"), topic)
    with pytest.raises(FencedError):
        one._target.write(one._body._nothing, {0: 5})
    one._target.close()


def test_records_that_the_other_cluster_refuses_are_dead_letters(other, topic) -> None:
    """Nothing of the transaction in which one was found stays: the others are there once."""
    with Client(other) as client:
        client.create_topic("small", 1, {"max.message.bytes": "2000"})
    topic.send(*({"id": 2 * i, "name": "x" * (5000 if i == 3 else 1)} for i in range(6)))
    done = follow(kafka(other, table="small"), topic)
    assert done.dead == 1
    assert [k for k, _ in records(other, "small")] == [b"0", b"2", b"4", b"8", b"10"]


def test_sinks_of_two_topics_keep_offsets_apart(other, topic) -> None:
    """Also under one name and with one target."""
    second = Topic(topic.log)
    for number, one in enumerate((topic, second)):
        one.send({"id": 2 * number, "name": "x"})
        follow(kafka(other, table="both"), one, name="both")
    assert sorted(k for k, _ in records(other, "both")) == [b"0", b"2"]


@pytest.mark.timeout(300)
def test_each_record_is_in_the_other_cluster_once_after_kills(other, topic) -> None:
    """The sink is killed again and again; each row was appended once, in its partition's order."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    random_ = random.Random(seed)
    for n in range(KILLS):
        command = [sys.executable, "-c", SINK, other, topic.name, topic.log]
        process = subprocess.Popen(command, env={**os.environ, "PYTHONWARNINGS": "ignore"})
        topic.send(*({"id": n * 60 + i} for i in range(60)))
        time.sleep(random_.uniform(0.5, 2.5))  # when it is killed is the input, not a wait
        kill(process)
    follow(kafka(other, table=topic.name), topic, "id BIGINT NOT NULL", ())
    found = [orjson.loads(value)["id"] for _, value in records(other, topic.name)]
    assert sorted(found) == list(range(KILLS * 60))
    partition = {i: sum(str(i).encode()) % 2 for i in found}
    for one in (0, 1):
        mine = [i for i in found if partition[i] == one]
        assert mine == sorted(mine)


class Hook:
    """What a server was sent; `answers` are the statuses of the next requests."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, list[dict]]] = []
        self.answers: list[int] = []
        self.authorizations: list[str | None] = []
        self.closes = False
        self.url = ""


@contextmanager
def hook() -> Iterator[Hook]:
    """A server, for a while; it refuses requests with a row called `bad`."""
    one = Hook()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            changes = [orjson.loads(line) for line in body.splitlines()]
            one.authorizations.append(self.headers["Authorization"])
            status = one.answers.pop(0) if one.answers else 200
            if any(change["row"].get("name") == "bad" for change in changes):
                status = 422
            if status == 200:
                one.requests.append((self.headers["Idempotency-Key"], changes))
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()
            self.close_connection = one.closes

        def log_message(self, *_: object) -> None:
            pass

    with serving(Handler) as address:
        one.url = f"{address}/hook"
        yield one


def test_a_server_gets_each_change_with_an_id(topic) -> None:
    """Failures that pass are tried again; a run goes on behind the group's offsets."""
    topic.send({"id": 2, "name": "ann"}, {"id": 4, "name": "bob"}, b"2")
    with hook() as one:
        one.answers = [503, 429]
        follow(from_address(one.url, ""), topic)
        topic.send({"id": 6, "name": "eve"})
        follow(http(one.url), topic)
        [(first, changes), (second, more)] = one.requests
    t = topic.name
    assert (first, second) == (f"{t}-0-1..{t}-0-2-delete", f"{t}-0-3")
    assert changes == [
        {"id": f"{t}-0-1", "op": "upsert", "row": {"id": 4, "name": "bob"}},
        {"id": f"{t}-0-2-delete", "op": "delete", "row": {"id": 2}},
    ]
    assert more == [{"id": f"{t}-0-3", "op": "upsert", "row": {"id": 6, "name": "eve"}}]


def test_a_record_that_changes_a_key_is_two_changes_with_two_ids(topic) -> None:
    """A server that takes each id once has both; the deletion is the first."""
    topic.send(
        {"id": 2, "type": "update", "data": {"id": 4, "name": "ann"}, "old": {"id": 2}},
    )
    with hook() as one:
        follow(http(one.url, batch="one"), topic, format="maxwell")
        found = [(key, change["id"], change["op"]) for key, [change] in one.requests]
    t = f"{topic.name}-0-0"
    assert found == [(f"{t}-delete", f"{t}-delete", "delete"), (t, t, "upsert")]


def test_changes_that_a_server_refuses_are_dead_letters(topic) -> None:
    """They are found by smaller requests; one change in a request is the smallest."""
    topic.send(*({"id": 2 * i, "name": "bad" if i == 3 else "x"} for i in range(9)))
    with hook() as one:
        done = follow(http(one.url, batch="one"), topic)
        sent = {change["row"]["id"] for _, changes in one.requests for change in changes}
    assert done.dead == 1
    assert sent == {0, 2, 4, 8, 10, 12, 14, 16}


def test_a_connection_that_the_server_has_closed_is_opened_again() -> None:
    """Servers close what is idle; that is no failure."""
    with hook() as one:
        one.closes = True
        web = Web(one.url)
        body = orjson.dumps({"row": {}})
        assert [web.ask("POST", "/hook", body)[0] for _ in range(3)] == [200, 200, 200]
        web.close()


def test_secrets_are_taken_from_the_environment(topic, empty, monkeypatch) -> None:
    """They aren't in the address, which others may see."""
    monkeypatch.setenv("PENSTOCK_SINK_PASSWORD", "p:w@/ü")
    topic.send({"id": 2, "name": "x"})
    with hook() as one:
        for user in ("", "ann@"):
            target = from_address(one.url.replace("//", f"//{user}"), "")
            follow(target, topic, name=f"{user}{topic.name}")
            assert "p:w" not in target.name
        monkeypatch.setenv("PENSTOCK_SINK_AUTHORIZATION", "Bearer abc")
        follow(from_address(one.url, ""), topic, name=f"bearer{topic.name}")
        credentials = base64.b64encode("ann:p:w@/ü".encode()).decode()
        assert one.authorizations == [None, f"Basic {credentials}", "Bearer abc"]
    empty.client.config_set("requirepass", "p:w@/ü")
    try:
        empty.client.auth("p:w@/ü")
        follow(from_address(empty.url, "users"), topic)
        monkeypatch.setenv("PENSTOCK_SINK_PASSWORD", "wrong")
        with pytest.raises(SetupError, match="Correct the user and the password"):
            follow(from_address(empty.url, "users"), topic)
    finally:
        empty.client.config_set("requirepass", "")


def test_a_server_that_does_not_let_it_in_ends_the_sink(topic) -> None:
    """The message says so."""
    topic.send({"id": 2, "name": "x"})
    with hook() as one:
        one.answers = [401]
        with pytest.raises(SetupError, match="to be let in"):
            follow(http(one.url), topic)
        for status in (308, 405):  # no row's fault: none is a dead letter
            one.answers = [status]
            with pytest.raises(SetupError, match=rf"found {status}.* Correct the address"):
                follow(http(one.url), topic)
    with pytest.raises(UserError, match="http://host/path"):
        http("ftp://x")


SECRET = "swordfish, with = and @"


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("variable", ["PENSTOCK_SINK_PASSWORD", "PENSTOCK_PASSWORD"])
def test_the_command_writes_to_a_cluster_with_tls_and_a_log_in(tmp_path, topic, variable) -> None:
    """The password is in the environment alone; a wrong one and an unknown authority are said."""
    _, files, _ = certificates(tmp_path)
    Users(tmp_path / "data").add("ann", SECRET)
    command = [sys.executable, "-m", "penstock.cli", "sink", topic.name]
    rest = ["--table", "users", "--schema", SCHEMA, "--key", "id", "--broker", topic.log, "--once"]
    topic.send({"id": 1, "name": "ann"}, {"id": 2, "name": "bob"})
    with BrokerProcess(
        tmp_path / "data",
        listen="SASL_SSL://127.0.0.1:0",
        arguments=["--tls-cert", str(files.certificate)],
    ) as process:
        address = f"kafka+tls://ann@{process.addresses[0]}?ca={tmp_path / 'ca.pem'}"

        def run(password: str) -> subprocess.CompletedProcess[str]:
            environment = {**os.environ, variable: password}
            return subprocess.run(
                [*command, address, *rest],
                capture_output=True,
                text=True,
                env=environment,
                check=False,
            )

        refused = run("another one")
        assert refused.returncode != 0
        assert "SASL_AUTHENTICATION_FAILED" in refused.stderr
        done = run(SECRET)
        assert (done.returncode, SECRET in done.stdout + done.stderr) == (0, False), done.stderr
        assert "another one" not in refused.stdout + refused.stderr
        found = records(address, "users", security=Security(password=SECRET))
    assert sorted(found) == [(b"1", b'{"id":1,"name":"ann"}'), (b"2", b'{"id":2,"name":"bob"}')]


@pytest.mark.parametrize(
    ("address", "what"),
    [
        ("kafka+tls://ann:secret@a:1", "found a password"),
        ("kafka+tls://a:1?cacert=x", "found cacert"),
        ("kafka+sasl://a:1", "expected a user"),
    ],
)
def test_a_mistake_in_the_address_of_a_cluster_is_said_at_once(address, what) -> None:
    """Before anything is connected to; what is secret isn't repeated."""
    with pytest.raises(UserError, match=what) as refused:
        from_address(address, "users")
    assert "secret" not in str(refused.value)

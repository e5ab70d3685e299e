"""Targets equal the topic, though the process that writes them is killed; some have tests of their own."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

import orjson
import pytest
from tests.effort import rounds
from tests.sinks import kinds
from tests.sinks.elastic_server import serving
from tests.sinks.kinds import Kind

from penstock.sinks import Sink

KILLS = rounds("PENSTOCK_SINK_KILLS", quick=1, full=2)
SCHEMA = "id BIGINT NOT NULL, name STRING"
PROGRAM = f"""
import json, sys, threading, time
from penstock.sinks import Sink, body, from_address
body.STEP_OFFSETS = 7
topic, log, targets = json.loads(sys.argv[1])
sinks = []
for address, table in targets:
    target = from_address(address, table)
    target.pace_s = 0.0
    sinks.append(Sink(target, topic, {SCHEMA!r}, key="id", log=log, name=topic + address[:8]))
threads = [threading.Thread(target=one.run) for one in sinks]
for one in threads:
    one.start()
while any(one.done.phase != "following" for one in sinks):
    time.sleep(0.01)
print("they run", flush=True)
for one in threads:
    one.join()
"""


@contextlib.contextmanager
def hook() -> Iterator[Kind]:
    """A server that makes of changes what their rows come to."""
    rows: dict[int, str | None] = {}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            for change in map(orjson.loads, body.splitlines()):
                rows.pop(change["row"]["id"], None)
                if change["op"] == "upsert":
                    rows[change["row"]["id"]] = change["row"]["name"]
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with serving(Handler) as address:
        yield Kind(address, "", lambda: rows)


def change(topic: Any, random_: random.Random, rows: dict[int, str]) -> None:
    """Rows appear, change, and go."""
    for _ in range(40):
        id_, name = random_.randrange(25), f"v{random_.randrange(10**6)}"
        rows.pop(id_, None)
        is_gone = random_.random() < 0.2
        if not is_gone:
            rows[id_] = name
        topic.send(str(id_).encode() if is_gone else {"id": id_, "name": name})


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_every_target_equals_the_topic_after_kills(request, topic, seed: int) -> None:
    """One process writes them, and is killed while rows change; Redis and MariaDB are killed, too."""
    random_, rows = random.Random(seed), {}
    with hook() as web:
        names = [
            "mysql",
            "sqlite",
            "duckdb",
            "redis",
            "tantivy",
            "elasticsearch",
            "delta",
            "parquet",
        ]
        found = {n: kinds.kind(n, request) for n in names} | {"http": web}
        job = orjson.dumps([topic.name, topic.log, [(k.address, k.table) for k in found.values()]])
        servers = [request.getfixturevalue(one) for one in ("cache", "mysql_server")]
        for kill in range(KILLS):
            process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, job],
                env={**os.environ, "PYTHONWARNINGS": "ignore"},
                stdout=subprocess.PIPE,
            )
            assert process.stdout is not None
            assert process.stdout.readline()
            change(topic, random_, rows)
            time.sleep(random_.uniform(0.0, 1.5))  # when it is killed is the input, not a wait
            if kill < len(servers):
                servers[kill].kill()
                servers[kill].start()
            kill(process)
            process.communicate()
        for one in found.values():
            target, name = one.make(), topic.name + one.address[:8]
            sink = Sink(target, topic.name, SCHEMA, key="id", log=topic.log, name=name)
            assert sink.run(until=lambda done: done.lag == 0).dead == 0
        assert {n: one.rows() for n, one in found.items()} == dict.fromkeys(found, rows)

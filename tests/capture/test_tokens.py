"""A database's position as a token: who has written waits until it was captured, and then for the readers."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from click.testing import CliRunner
from tests.patience import PATIENCE_S, wait_until

import penstock as ps
from penstock.capture import output as output_module
from penstock.capture import token
from penstock.cli import main
from penstock.cli.support.host import LateViews
from penstock.client import Client
from penstock.errors import LimitError, UserError
from penstock.serve import Answer, Question
from penstock.serve.questions import answer
from penstock.web import create_app

LSN = "SELECT pg_current_wal_lsn()::text"
PROGRAM = """
import sys
import penstock as ps

directory, log, topic = sys.argv[1:]
app = ps.App("shop", directory=directory, log=f"kafka://{log}")
users = app.table(topic, "id INT NOT NULL, city STRING", key="id", format="debezium")
app.view("cities", sql=f'SELECT city, count(*) AS n FROM "{topic}" GROUP BY city')
app.run()
"""


class Served(LateViews):
    """Views whose questions this process answers."""

    def ask(self, query: str | Question, gone: Callable[[], bool]) -> Answer:
        question = query if isinstance(query, Question) else Question(query, 100)
        return answer(self._there(), question, 1 << 28)


def end(log: str, topic: str) -> int:
    """The offset behind a topic's newest record."""
    with Client(log) as client:
        return client.offsets(topic, uncommitted=True)[0]


def rows(path: Path) -> list[tuple[int]]:
    """What the sink's table has."""
    with sqlite3.connect(path) as sql:
        return sql.execute("SELECT id FROM users").fetchall()


@contextmanager
def running(sink: ps.sinks.Sink) -> Iterator[None]:
    """A sink runs meanwhile."""
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(sink.run)
        try:
            yield
        finally:
            sink.stop()
            done.result()


def asked(web: Any, query: str, after: str) -> list[list[Any]]:
    """The rows of an answer that has seen a write."""

    async def get() -> httpx.Response:
        transport = httpx.ASGITransport(web, raise_app_exceptions=False)
        headers = {"Penstock-After": after, "Penstock-Wait": "60"}
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return await client.get(f"/api/query?sql={query}", headers=headers)

    answer = asyncio.run(get())
    assert answer.status_code == 200, answer.text
    found: list[list[Any]] = answer.json()["rows"]
    return found


def test_a_position_is_waited_for(any_source) -> None:
    """The token is the end of the topic; before the capture has got there, time is up."""
    source = any_source
    source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with pytest.raises(UserError, match=r"of the captures|found no captures"):
        token(source.name, "1", log=source.log, timeout=0)
    source.run("t")
    topic, kind = source.topic("t"), source.capture("t")._kind
    source.execute("INSERT INTO t VALUES (1)")
    position = kind.position(source.end(), {})
    with pytest.raises(LimitError, match="penstock capture status"):
        token(source.name, position, log=source.log, timeout=0)
    source.run("t")
    waits_for = token(source.name, position, log=source.log, timeout=0)
    assert waits_for == f"{topic}-0:{end(source.log, topic) - 1}"
    with pytest.raises(UserError, match="expected a position of"):
        token(source.name, "xyz", log=source.log)
    with pytest.raises(UserError, match="expected one of the topics"):
        token(source.name, position, log=source.log, topics=["other"])


def test_a_position_is_stored_when_it_is_asked_for(source, monkeypatch) -> None:
    """Also where no table of the capture has changed since, whose position would be stored later."""
    source.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE other (id int)")
    with source.running("t") as capture:
        source.follows(capture, lambda: capture.done.is_caught_up)
        monkeypatch.setattr(output_module, "IDLE_STORE_S", 10 * PATIENCE_S)
        source.execute("INSERT INTO other VALUES (1)")
        [(lsn,)] = source.rows(LSN)
        assert token(source.name, lsn, log=source.log, timeout=PATIENCE_S) == ""


@pytest.mark.slow
def test_a_view_and_a_sink_have_what_was_committed_before_the_token(source, tmp_path) -> None:
    """On the command line, by HTTP and in Python; each answer has the row that was written just before."""
    source.execute("CREATE TABLE users (id int PRIMARY KEY, city text)")
    source.execute("INSERT INTO users VALUES (0, 'Ulm')")
    directory, topic = tmp_path / "shop.penstock", source.topic("users")
    program = [sys.executable, "-c", PROGRAM, str(directory), source.log, topic]
    target = ps.sinks.sqlite(tmp_path / "sink.db", table="users")
    columns = {"schema": "id INT NOT NULL, city STRING", "key": "id", "format": "debezium"}
    sink = ps.sinks.Sink(target, topic, **columns, log=source.log, name=f"{source.name}.sink")
    web = create_app(Served(directory), lambda *, history=False: {})  # type: ignore[arg-type]
    with ExitStack() as undo:
        capture = undo.enter_context(source.running("users"))
        source.follows(capture, lambda: capture.done.is_caught_up)
        process = undo.enter_context(subprocess.Popen(program))
        undo.callback(process.kill)
        undo.enter_context(running(sink))
        wait_until(lambda: LateViews(directory).version, "the first version")
        for number in range(1, 4):
            with psycopg.connect(source.url) as one:
                one.execute("INSERT INTO users VALUES (%s, 'Ulm')", (number,))
                one.commit()
                [(lsn,)] = one.execute(LSN).fetchall()
            at = f"{source.name}@{lsn}"
            if number == 1:
                query = ["query", str(directory), "SELECT n FROM cities", "--format", "json"]
                found = CliRunner().invoke(main, [*query, "--after", at, "--wait", str(PATIENCE_S)])
                assert json.loads(found.output) == {"n": 2}, found.output
            elif number == 2:
                assert asked(web, "SELECT n FROM cities", at) == [[3]]
            else:
                wait = ["sink", "wait", sink.name, at, "--broker", source.log]
                found = CliRunner().invoke(main, [*wait, "--wait", str(PATIENCE_S)])
                assert found.exit_code == 0, found.output
                assert len(rows(tmp_path / "sink.db")) == 4

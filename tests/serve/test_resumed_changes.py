"""A client of a view's changes that resumes as the rules say, whatever happens in between."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest
from starlette.requests import Request
from tests.effort import rounds
from tests.serve.committing import commit

import penstock as ps
from penstock.serve import Answer, Question, Views
from penstock.serve.changes import changes
from penstock.serve.questions import answer
from penstock.web import changes_line
from penstock.web.changes import Changes, UnknownViewError

SEEDS = rounds("PENSTOCK_CHANGES_SEEDS", quick=1, full=6)
STEPS = 20
USERS = 6


class Served(Views):
    """Views whose questions this process answers."""

    def ask(self, query: str | Question, gone: Callable[[], bool]) -> Answer:
        question = query if isinstance(query, Question) else Question(query, 100)
        return answer(self, question, 1 << 28)


def program(columns: str = "", *, has_view: bool = True) -> ps.App:
    """Clicks per user; a click of another weight takes back what the user's others were."""
    app = ps.App("shop")
    app.table("users", "id BIGINT, city STRING", key="id")
    app.view("total", sql="SELECT count(*) AS n FROM users")
    if has_view:
        app.view("cities", sql=f"SELECT city, count(*) AS n {columns} FROM users GROUP BY city")
    return app


class Pipeline:
    """Versions that are made, dropped and lost."""

    def __init__(self, directory: Path, chance: random.Random) -> None:
        self.run = ps.testing.run(program(), shaken=False)
        self.directory, self.chance = directory, chance
        self.grow()
        self.views = Served(directory)

    def grow(self) -> None:
        for _ in range(self.chance.randrange(1, 4)):
            user, city = self.chance.randrange(USERS), self.chance.choice("abc")
            if self.chance.random() < 0.2:
                self.run.send_raw("users", None, key=str(user).encode())
            else:
                self.run.send("users", id=user, city=city)
        commit(self.run, self.directory)

    def forget(self) -> None:
        """Versions that are no longer kept."""
        newest = self.views.version
        for path in self.views.store.files.list("versions"):
            if int(Path(path).stem) < newest:
                self.views.store.files.delete(path)

    def kill(self) -> None:
        """The engine's process dies during a batch, and another one repeats it."""
        self.run.send("users", id=0, city=self.chance.choice("abc"))
        self.run.crash(self.chance.choice(("plan", "output", "commit")))
        commit(self.run, self.directory)

    def lose(self) -> None:
        """A machine stops and has lost its last version, which is made again later."""
        if len(self.views.store.files.list("versions")) > 1:
            self.views.store.files.delete(f"versions/{self.views.version:020d}.json")

    def upgrade(self) -> None:
        """Another program: with other columns, without the view, or as it was."""
        columns, has_view = self.chance.choice(
            [("", True), (", min(id) AS least", True), ("", False)]
        )
        self.run.change(program(columns, has_view=has_view))
        commit(self.run, self.directory)

    def act(self) -> None:
        self.chance.choice(
            [self.grow, self.grow, self.grow, self.forget, self.kill, self.lose, self.upgrade]
        )()


class Client:
    """What it has of the view, and the version of it: all that a client has to keep."""

    def __init__(self, endpoint: Changes, chance: random.Random, *, as_events: bool) -> None:
        self.endpoint, self.chance, self.as_events = endpoint, chance, as_events
        self.copy: Counter[bytes] = Counter()
        self.seen: int | None = None

    async def read(self, until: Callable[[], int], most: int) -> None:
        """Connects, and reads until a version, or until the connection breaks after so many messages."""
        headers = [(b"accept", b"text/event-stream" if self.as_events else b"*/*")]
        query = b""
        if self.seen is not None and self.as_events:
            headers.append((b"last-event-id", str(self.seen).encode()))
        elif self.seen is not None:
            query = b"from=%d" % self.seen
        scope = {
            "type": "http",
            "headers": headers,
            "query_string": query,
            "path_params": {"name": "cities"},
        }
        try:
            response = await self.endpoint.changes(Request(scope))
        except UnknownViewError:
            return
        lines = response.body_iterator  # type: ignore[attr-defined]
        try:
            while most and self.seen != until():
                if not self.take(bytes(await anext(lines))):
                    return
                most -= 1
        finally:
            await lines.aclose()

    def take(self, data: bytes) -> bool:
        """Applies a message; False: it says that there are no more."""
        if self.as_events:
            fields = dict(line.split(b": ", 1) for line in data.splitlines() if b": " in line)
            if not fields:
                return True  # it says that the server is there
            if b"event" in fields:
                return False
            data = fields[b"data"]
        if not data.strip():
            return True
        line = orjson.loads(data)
        if "error" in line:
            return False
        if line["since"] is None:
            self.copy.clear()
        else:
            assert line["since"] == self.seen
        for weight, row in line["changes"]:
            self.copy[orjson.dumps(row)] += weight
            assert self.copy[orjson.dumps(row)] >= 0
        self.copy, self.seen = +self.copy, line["version"]
        return True


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_client_that_resumes_has_the_view(tmp_path: Path, seed: int) -> None:
    """Broken connections, slow readers, versions lost or not kept, kills, other programs: it ends equal."""
    chance = random.Random(seed)
    pipeline = Pipeline(tmp_path / "shop.penstock", chance)
    endpoint = Changes(pipeline.views, threading.Event())
    clients = [Client(endpoint, chance, as_events=one) for one in (True, False)]

    async def follow() -> None:
        for _ in range(STEPS):
            pipeline.act()
            for client in clients:
                if chance.random() < 0.6:  # else it is slow
                    await client.read(lambda: pipeline.views.version, chance.randrange(3))
        pipeline.run.change(program())
        pipeline.grow()
        for client in clients:
            while client.seen != pipeline.views.version:
                await client.read(lambda: pipeline.views.version, 1)

    asyncio.run(follow())
    whole = orjson.loads(changes_line(changes(pipeline.views, "cities", None)))
    expected = Counter({orjson.dumps(row): weight for weight, row in whole["changes"]})
    for client in clients:
        assert client.copy == expected, f"seed {seed}"

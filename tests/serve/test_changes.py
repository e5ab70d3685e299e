"""A view's changes between versions: whoever applies them has the view."""

from __future__ import annotations

import asyncio
import importlib
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import httpx
import orjson
import pyarrow as pa
import pytest
from click.testing import CliRunner
from tests.serve.committing import clicks, commit

from penstock.cli.entry import main
from penstock.core.schema import UUID
from penstock.errors import QueryError
from penstock.serve import Answer, Question, ViewPart, Views
from penstock.serve.changes import changes
from penstock.serve.questions import answer
from penstock.web import changes_line, create_app
from penstock.web.changes import Changes


class Served(Views):
    """Views whose questions this process answers."""

    def ask(self, query: str | Question, gone: Callable[[], bool]) -> Answer:
        question = query if isinstance(query, Question) else Question(query, 100)
        return answer(self, question, 1 << 28)


@pytest.fixture
def views(tmp_path: Path) -> Served:
    """Several versions: rows come, change, and are many."""
    run = clicks(20)
    directory = commit(run, tmp_path / "shop.penstock")
    for user in ("u1", "u2", "new"):
        run.send("clicks", user=user, ms=2.5, at="12:00:30")
        commit(run, directory)
    return Served(directory)


def copy_of(lines: list[dict[str, Any]]) -> Counter[bytes]:
    """What a reader has after these messages."""
    copy: Counter[bytes] = Counter()
    seen = None
    for line in lines:
        assert line["since"] in (None, seen)
        if line["since"] is None:
            copy.clear()
        for weight, row in line["changes"]:
            copy[orjson.dumps(row)] += weight
            assert copy[orjson.dumps(row)] >= 0
        seen = line["version"]
    return +copy


def content(views: Views, version: int) -> Counter[bytes]:
    return copy_of([orjson.loads(changes_line(changes(views, "per_user", None, version)))])


def test_changes_lead_from_any_version_to_any_later_one(views: Served) -> None:
    """What a reader of one version applies gives the other's rows, whichever versions it has skipped."""
    newest = views.version
    assert newest >= 4
    assert sum(content(views, newest).values()) == views.table("per_user").num_rows
    for since in range(1, newest):
        for version in range(since, newest + 1):
            found = changes(views, "per_user", since, version)
            assert (found.since, found.version) == (since, version)
            line = orjson.loads(changes_line(found))
            first = orjson.loads(changes_line(changes(views, "per_user", None, since)))
            assert copy_of([first, line]) == content(views, version)
    assert changes(views, "per_user", newest, newest).table.num_rows == 0


def test_a_version_that_is_gone_begins_again(views: Served) -> None:
    """A reader whose version isn't kept gets all rows, and is told; of an unknown view it gets an error."""
    views.store.files.delete(f"versions/{1:020d}.json")
    found = changes(views, "per_user", 1, views.version)
    assert found.since is None
    assert found.table.num_rows == views.table("per_user").num_rows
    with pytest.raises(QueryError, match="per_usr"):
        changes(views, "per_usr", None, views.version)


def test_a_version_that_goes_while_it_is_read_is_reported(
    views: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that a vacuum takes meanwhile: changes are all rows then, and AS OF says what is kept."""
    module = importlib.import_module("penstock.serve.changes")
    read = module._read

    def vacuumed(views: Views, part: ViewPart, *others: Any) -> pa.Table:
        if part.version == 1:
            raise FileNotFoundError
        return read(views, part, *others)

    monkeypatch.setattr(module, "_read", vacuumed)
    found = changes(views, "per_user", 1)
    assert (found.since, found.version) == (None, views.version)
    assert found.table.num_rows == views.table("per_user").num_rows
    monkeypatch.setattr(ViewPart, "read", Mock(side_effect=FileNotFoundError))
    with pytest.raises(QueryError, match="which was dropped while it was read"):
        views.sql("SELECT * FROM per_user AS OF VERSION 1")


def test_versions_that_a_stopped_machine_lost_are_taken_back(views: Served) -> None:
    """A stream that has sent them sends all rows of the one that is left, and then what is made again."""
    newest, files = views.version, views.store.files
    expected = {number: content(views, number) for number in (newest - 2, newest)}
    paths = [f"versions/{number:020d}.json" for number in (newest - 1, newest)]
    kept = [files.read(path) for path in paths]

    async def read() -> list[dict[str, Any]]:
        lines = Changes(views, threading.Event())._lines("per_user", newest, None, as_events=False)
        found: list[dict[str, Any]] = []
        async for line in lines:
            if line.strip():  # else it says that it is there
                found.append(orjson.loads(line))
                if len(found) == 1:
                    for path, data in zip(paths, kept, strict=True):
                        files.create(path, data)
                if found[-1]["version"] == newest:
                    await lines.aclose()
        return found

    for path in paths:
        files.delete(path)
    taken_back, *after = asyncio.run(read())
    assert (taken_back["version"], taken_back["since"]) == (newest - 2, None)
    assert copy_of([taken_back]) == expected[newest - 2]
    assert copy_of([taken_back, *after]) == expected[newest]


def test_columns_may_be_called_as_the_comparison_calls_its_own() -> None:
    """A view's `w` and `weight` are columns as others; UUIDs are text, in all messages."""
    difference = importlib.import_module("penstock.serve.changes")._difference
    keys = pa.array([bytes(15) + b"\1"] * 3, UUID)
    rows = pa.table({"w": [3, 3, 3], "weight": [5, 6, 6], "id": keys})
    found = difference(rows.slice(0, 1), rows)
    line = orjson.loads(changes_line(Answer(found, 1, (), (), 2, 1)))
    row = {"w": 3, "weight": 6, "id": "00000000-0000-0000-0000-000000000001"}
    assert line == {"version": 2, "since": 1, "changes": [[2, row]]}


async def asked(app: Any, path: str, headers: dict[str, str]) -> httpx.Response:
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        return await client.get(path, headers=headers)


def test_a_request_names_the_write_that_it_is_to_see(views: Served) -> None:
    """The header holds the answer until a version has read the record; beyond its time it is an error."""
    app = create_app(views, lambda *, history=False: {})  # type: ignore[arg-type]
    offsets = views.status()["offsets"]["clicks"]
    partition, end = max(offsets.items(), key=lambda one: one[1])
    path = "/api/query?sql=SELECT count(*) AS n FROM per_user"
    for offset, wait, status in ((end - 1, "5", 200), (end, "0", 422), (end, "x", 400)):
        headers = {"Penstock-After": f"clicks-{partition}:{offset}", "Penstock-Wait": wait}
        assert asyncio.run(asked(app, path, headers)).status_code == status


def test_a_stream_of_changes_is_resumed_by_version(views: Served) -> None:
    """NDJSON and server-sent events give the same messages; each goes on where the reader was, and ends."""
    app = create_app(views, lambda *, history=False: {}, stopping=threading.Event())  # type: ignore[arg-type]

    async def get(path: str, **headers: str) -> httpx.Response:
        return await asked(app, f"/api/views/{path}", headers)

    newest = views.version
    answer = asyncio.run(get(f"per_user/changes?from=1&until={newest}"))
    assert answer.headers["content-type"].startswith("application/x-ndjson")
    [line] = [orjson.loads(one) for one in answer.text.splitlines()]
    first = orjson.loads(changes_line(changes(views, "per_user", None, 1)))
    assert copy_of([first, line]) == content(views, newest)
    events = asyncio.run(
        get(
            f"per_user/changes?until={newest}", Accept="text/event-stream", **{"Last-Event-ID": "1"}
        )
    )
    assert events.headers["content-type"].startswith("text/event-stream")
    assert events.text == (
        f"id: {newest}\ndata: {answer.text.strip()}\n\nevent: end\ndata: {{}}\n\n"
    )
    assert asyncio.run(get("nothing/changes")).status_code == 404
    assert asyncio.run(get("per_user/changes?from=x")).status_code == 400


def test_the_command_prints_changes_and_waits_for_writes(
    views: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`penstock subscribe` ends with a version; `penstock query --after` says when it waited in vain."""
    newest = views.version
    runner = CliRunner()
    directory = str(tmp_path / "shop.penstock")
    done = runner.invoke(main, ["subscribe", directory, "per_user", "--until", str(newest)])
    assert done.exit_code == 0, done.output
    assert copy_of([orjson.loads(one) for one in done.output.splitlines()]) == content(
        views, newest
    )
    limited = ["subscribe", directory, "per_user", "--seconds", "0"]
    assert runner.invoke(main, limited).output == done.output
    old = changes(views, "per_user", None, 1)  # there is always a newer one
    monkeypatch.setattr(
        importlib.import_module("penstock.serve.changes"), "changes", lambda *_: old
    )
    assert len(runner.invoke(main, limited).output.splitlines()) == 1
    monkeypatch.undo()
    offsets = views.status()["offsets"]["clicks"]
    partition, end = max(offsets.items(), key=lambda one: one[1])
    query = ["query", directory, "SELECT count(*) AS n FROM per_user", "--format", "csv"]
    done = runner.invoke(main, [*query, "--after", f"clicks-{partition}:{end - 1}"])
    assert done.output.splitlines()[1:] == [str(views.table("per_user").num_rows)]
    done = runner.invoke(main, [*query, "--after", f"clicks-{partition}:{end}", "--wait", "0"])
    assert done.exit_code != 0

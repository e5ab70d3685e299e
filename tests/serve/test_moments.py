"""Versions of the past: what AS OF names, what is kept, and waiting for a write."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from tests.serve.committing import clicks, commit

from penstock.core.time import instant_text
from penstock.errors import LimitError, QueryError, UserError
from penstock.serve import Views
from penstock.serve.moments import AsOf, parted


@pytest.mark.parametrize(
    ("query", "rest", "as_of"),
    [
        ("SELECT 1", "SELECT 1", None),
        ("SELECT * FROM v as of version 3 w", "SELECT * FROM v w", AsOf(version=3)),
        ("SELECT * FROM v AS OF VERSION 3w", "SELECT * FROM v w", AsOf(version=3)),
        (
            "SELECT * FROM v WHERE n = 1 AS OF TIMESTAMP '1970-01-01 00:00:01Z'",
            "SELECT * FROM v WHERE n = 1",
            AsOf(at_us=1_000_000),
        ),
        ("SELECT * FROM v AS OF SAVEPOINT a", "SELECT * FROM v", AsOf(savepoint="a")),
        ("SELECT 'AS OF VERSION 3' FROM v", "SELECT 'AS OF VERSION 3' FROM v", None),
        ("SELECT 1 -- AS OF VERSION 3", "SELECT 1 -- AS OF VERSION 3", None),
        ("SELECT n AS of FROM v", "SELECT n AS of FROM v", None),
    ],
)
def test_a_query_says_which_version_it_reads(query: str, rest: str, as_of: AsOf | None) -> None:
    """The clause is found behind a name and at the end, and not in texts and comments."""
    assert parted(query) == (rest, as_of)


@pytest.mark.parametrize(
    ("query", "said"),
    [
        (
            "SELECT * FROM v AS OF VERSION 1 JOIN w AS OF VERSION 2",
            "expected one version for all views",
        ),
        ("SELECT * FROM v AS OF VERSION 'x'", "expected AS OF VERSION 17"),
        ("SELECT * FROM v AS OF TIMESTAMP 'noon'", "expected AS OF TIMESTAMP of an instant"),
        ("SELECT * FROM v AS OF TIMESTAMP '2 moons ago'", "'2 hours ago' or 'now'; found '2 moons"),
    ],
)
def test_two_versions_or_none_are_errors(query: str, said: str) -> None:
    """All views of a query are of one version."""
    with pytest.raises(QueryError, match=said):
        parted(query)


@pytest.fixture
def growing(tmp_path: Path) -> tuple[Path, Views]:
    """A pipeline of two versions: 20 clicks, then 30."""
    run = clicks(20)
    commit(run, tmp_path / "shop.penstock")
    for i in range(10):
        run.send("clicks", user="u9", ms=1.0, at=f"12:05:{i:02}")
    commit(run, tmp_path / "shop.penstock")
    views = Views(tmp_path / "shop.penstock")
    for number in views.store.kept(views.version):  # a second apart
        content = views.store.version(number)
        views.store.files.delete(f"versions/{number:020d}.json")
        views.store.commit(replace(content, wall_us=number * 1_000_000))
    return tmp_path, views


def test_versions_of_the_past_are_read(growing: tuple[Path, Views]) -> None:
    """By number, by time, by savepoint; where one isn't kept, the error says what is."""
    _, views = growing
    total = "SELECT CAST(sum(n) AS BIGINT) AS n FROM per_user"
    newest = views.version
    first = next(
        n for n in range(1, newest + 1) if views.snapshot(n).sql(total)["n"].to_pylist() == [20]
    )
    assert views.sql(total)["n"].to_pylist() == [30]
    assert views.sql(f"{total}; -- the last one")["n"].to_pylist() == [30]
    assert views.sql(f"{total} AS OF VERSION {first}; -- the first")["n"].to_pylist() == [20]
    assert views.sql(f"{total} AS OF VERSION {first}")["n"].to_pylist() == [20]
    at = instant_text(views.snapshot(first).status()["wall_us"])
    assert views.sql(f"{total} AS OF TIMESTAMP '{at}'")["n"].to_pylist() == [20]
    for late in ("2999-01-01T00:00:00Z", "2 hours ago", "now"):
        assert views.sql(f"{total} AS OF TIMESTAMP '{late}'")["n"].to_pylist() == [30]
    content = views.store.version(first)
    views.store.pin("early", content, 0)
    assert views.sql(f"{total} AS OF SAVEPOINT early")["n"].to_pylist() == [20]
    for wrong in ("VERSION 99", "TIMESTAMP '1969-01-01T00:00:00Z'", "TIMESTAMP '99999 days ago'"):
        with pytest.raises(
            QueryError, match=rf"Kept are versions 1 .* to {newest}, and the savepoints"
        ):
            views.sql(f"{total} AS OF {wrong}")
    with pytest.raises(QueryError, match=r"savepoints.*early.*; found 'late'"):
        views.sql(f"{total} AS OF SAVEPOINT late")


def test_a_reader_waits_for_its_write(growing: tuple[Path, Views]) -> None:
    """A version that has read a record is returned; one that comes later is waited for, within a limit."""
    folder, views = growing
    ends = {int(p): end for p, end in views.status()["offsets"]["clicks"].items()}
    partition, end = next((p, e) for p, e in ends.items() if e)
    assert views.wait_for(f"clicks-{partition}:{end - 1}", 0) == views.version
    missing = f"clicks-{partition}:{end}"
    with pytest.raises(LimitError, match=rf"expected a version that has read {missing} within 0 s"):
        views.wait_for(missing, 0)
    with pytest.raises(
        UserError, match=r"expected a position in one of the topics clicks.*'clocks'"
    ):
        views.wait_for("clocks-0:1", 0)
    with pytest.raises(UserError, match="expected positions such as clicks-0:41"):
        views.wait_for("clicks", 0)
    looked: list[bool] = []
    content = views.store.version(views.version)
    offsets = {"clicks": {**content.offsets["clicks"], partition: end + 1}}
    content = replace(content, number=content.number + 1, offsets=offsets)

    def commit_later() -> bool:
        """Asked while it waits; the version that it waits for is committed meanwhile."""
        if len(looked) == 3:
            Views(folder / "shop.penstock").store.commit(content)
        looked.append(True)
        return False

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(views.wait_for, missing, 60.0, commit_later)
        assert waiting.result() == content.number
    assert views.status()["offsets"]["clicks"][str(partition)] == end + 1

"""The timelines of examples/timelines.py are right after every change."""

from __future__ import annotations

import importlib.util
import json
import random
from pathlib import Path
from typing import Any

import duckdb
import pytest
from tests.effort import rounds, some_slow

import penstock as ps

EXAMPLE = Path(__file__).parents[2] / "examples" / "timelines.py"
CHANGES = rounds("PENSTOCK_CHANGES", quick=60, full=150)
PEOPLE = "abcde"

TIMELINES = """
    SELECT follows.follower, posts.sender, posts.id, posts.text
    FROM posts JOIN follows ON follows.followee = posts.sender
    QUALIFY row_number() OVER (PARTITION BY follower ORDER BY posted DESC, posts.id DESC) <= 3
"""


def pipeline(directory: Path, shown: int) -> ps.App:
    """The example, with short timelines."""
    spec = importlib.util.spec_from_file_location("timelines", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.SHOWN = shown  # type: ignore[attr-defined]
    app: ps.App = module.pipeline(str(directory))
    return app


def wanted(posts: dict[int, Any], follows: dict[int, Any]) -> list[tuple[Any, ...]]:
    """What DuckDB makes of the tables as they are now."""
    with duckdb.connect() as con:
        con.execute(
            "CREATE TABLE posts (id BIGINT, sender VARCHAR, text VARCHAR, posted TIMESTAMP)"
        )
        con.execute("CREATE TABLE follows (id BIGINT, follower VARCHAR, followee VARCHAR)")
        if posts:
            con.executemany("INSERT INTO posts VALUES (?, ?, ?, ?)", list(posts.values()))
        if follows:
            con.executemany("INSERT INTO follows VALUES (?, ?, ?)", list(follows.values()))
        return sorted(con.sql(TIMELINES).fetchall())


@pytest.mark.parametrize("seed", some_slow(range(2), quick=[0]))
def test_timelines_follow_every_change(tmp_path: Path, seed: int) -> None:
    """Post, edit, delete, follow, unfollow; restarts in between; the topic has what the view was made of."""
    chance = random.Random(seed)
    run = ps.testing.run(pipeline(tmp_path / "t", 3), cores=3)
    posts: dict[int, Any] = {}
    follows: dict[int, Any] = {}
    for step in range(CHANGES):
        table, name = ((posts, "posts"), (follows, "follows"))[chance.random() < 0.4]
        if table and chance.random() < 0.3:
            gone = chance.choice(list(table))
            del table[gone]
            run.send_raw(name, None, key=str(gone))
        else:
            key = chance.choice([step, *table])
            one, two = chance.choice(PEOPLE), chance.choice(PEOPLE)
            if table is posts:
                at = f"2026-01-01T{chance.randint(10, 23)}:00:00Z"
                posts[key] = (key, one, f"text {step}", at)
                run.send("posts", id=key, sender=one, text=f"text {step}", posted=at)
            else:
                follows[key] = (key, one, two)
                run.send("follows", id=key, follower=one, followee=two)
        if chance.random() < 0.05:
            run.restart()
        found = [
            (row["follower"], row["sender"], row["id"], row["text"])
            for row in run.view("timelines").rows()
        ]
        assert sorted(found) == wanted(posts, follows), step
    delivered: dict[Any, Any] = {}
    for record in run.topic("deliveries"):
        if record.value is None:
            delivered.pop(record.key, None)
        else:
            delivered[record.key] = json.loads(record.value)
    pairs = {(d["follow"], d["id"]) for d in delivered.values()}
    assert pairs == {(f[0], p[0]) for f in follows.values() for p in posts.values() if f[2] == p[1]}

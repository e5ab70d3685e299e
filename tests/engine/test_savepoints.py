"""Savepoints keep what they need, whatever the pipeline does, and can be gone back to."""

from __future__ import annotations

import pytest

import penstock as ps
from penstock.engine.savepoints import (
    create_savepoint,
    drop_savepoint,
    find_savepoint,
    go_back,
    list_savepoints,
)
from penstock.errors import CorruptError, UserError
from penstock.serve import Snapshot
from penstock.state.garbage import live
from penstock.testing import Run

BATCHES = 100  # more than there are versions kept: old ones are vacuumed


def counting() -> ps.App:
    """Rows per user, and a topic of them."""
    app = ps.App("p")
    clicks = app.stream("clicks", "user STRING NOT NULL, v BIGINT", partitions=2)
    app.view("per_user", clicks.group_by("user").agg(n=ps.count(), total=ps.sum("v")))
    clicks.where("v = 0").to("zeros")
    return app


def feed(run: Run, first: int, count: int) -> None:
    """So many batches of a row each."""
    for v in range(first, first + count):
        run.send("clicks", user=f"u{v % 7}", v=v, partition=v % 2)
        assert run.step() is not None


def test_a_savepoint_keeps_its_files() -> None:
    """However many versions follow; dropped, it lets them go."""
    run = ps.testing.run(counting())
    feed(run, 0, 20)
    before = run.view("per_user").rows()
    made = create_savepoint(run.store, "one", 7)
    assert made.version == 20
    feed(run, 20, BATCHES)
    assert 20 not in run.store.kept(120)
    [found] = list_savepoints(run.store)
    assert found == made == find_savepoint(run.store, "one")
    assert (
        ps.testing.View("", Snapshot(run.store, found.content).table("per_user")).rows() == before
    )
    files = live(found.content.states())
    assert files
    drop_savepoint(run.store, "one")
    feed(run, 120, 40)
    assert not [path for path in files if run.store.files.exists(path)]


def test_going_back_reads_again_what_came_after() -> None:
    """The views are those of then, and become those of now; records are written again, as was agreed."""
    run = ps.testing.run(counting())
    feed(run, 0, 3)
    create_savepoint(run.store, "one", 7)
    feed(run, 3, 4)
    run.send("clicks", user="zero", v=0)
    now = run.view("per_user").rows()
    assert len(run.topic("zeros")) == 2
    with pytest.raises(UserError, match="writes zeros"):
        go_back(run.store, "one", ["zeros"], again=False)
    number = go_back(run.store, "one", ["zeros"], again=True)
    assert number == run.store.newest_version() == 9
    with pytest.raises(ps.PenstockError, match="savepoint 'one'"):
        run.step()  # the owner of before
    run.restart()
    assert run.view("per_user").rows() == now
    assert [r.value for r in run.topic("zeros")].count(b'{"user":"zero","v":0}') == 2


def test_names_are_checked() -> None:
    """A name that is none, taken, or unknown is refused."""
    run = ps.testing.run(counting())
    with pytest.raises(UserError, match="has committed a batch"):
        create_savepoint(run.store, "one", 7)
    feed(run, 0, 1)
    create_savepoint(run.store, "one", 7)
    with pytest.raises(UserError, match="a savepoint 'one' already"):
        create_savepoint(run.store, "one", 8)
    for name in ("", "a/b", "..", "x" * 101):
        with pytest.raises(UserError, match="expected a name"):
            create_savepoint(run.store, name, 8)
    with pytest.raises(UserError, match=r"did you mean 'one'\?"):
        drop_savepoint(run.store, "onne")


def test_a_damaged_version_is_not_pinned() -> None:
    """A file that is missing is noticed when the savepoint is made, and when it is gone back to."""
    run = ps.testing.run(counting())
    feed(run, 0, 3)
    create_savepoint(run.store, "good", 7)
    version = run.store.version(3)
    path = min(live(version.states()))
    run.store.files.delete(path)
    with pytest.raises(CorruptError, match=path):
        create_savepoint(run.store, "bad", 7)
    with pytest.raises(CorruptError, match=path):
        go_back(run.store, "good", [], again=False)
    assert [one.name for one in list_savepoints(run.store)] == ["good"]


def test_a_savepoint_is_a_way_out_of_damage() -> None:
    """Where the last version can't be read any more, an earlier one can be gone back to."""
    run = ps.testing.run(counting())
    feed(run, 0, 3)
    create_savepoint(run.store, "good", 7)
    feed(run, 3, 3)
    now = run.view("per_user").rows()
    path = f"versions/{run.store.newest_version():020d}.json"
    run.store.files.write(path, [b"?"])
    with pytest.raises(CorruptError):
        run.restart()
    with pytest.raises(UserError, match="writes zeros"):
        go_back(run.store, "good", ["zeros"], again=False)
    go_back(run.store, "good", ["zeros"], again=True)
    run.restart()
    assert run.view("per_user").rows() == now

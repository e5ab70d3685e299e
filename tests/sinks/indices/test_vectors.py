"""A vector index follows a topic: nearest rows, as of the sink's newest transaction."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.effort import rounds

from penstock.client import Client
from penstock.errors import CorruptError, UserError
from penstock.sinks import Sink, Vectors, from_address, rebuild
from penstock.sinks import vectors as target
from penstock.sinks.targets import vectors as module

pytest.importorskip("usearch", reason="usearch is not installed")
SCHEMA = "id BIGINT NOT NULL, name STRING, at ARRAY<FLOAT>"
ROUNDS = rounds("PENSTOCK_VECTOR_ROUNDS", quick=3, full=10)


def follow(path: Path, topic: Any, schema: str = SCHEMA, **settings: Any) -> Any:
    """Follows until everything was written."""
    one = target(path, **{"column": "at", "dimensions": 2, **settings})
    sink = Sink(one, topic.name, schema, key="id", log=topic.log, name="near")
    return sink.run(until=lambda done: done.lag == 0)


def found(path: Path, *vector: float, count: int = 10) -> list[tuple[int, float]]:
    """Ids and distances, the nearest first."""
    with Vectors(path) as index:
        return [(row["id"], distance) for row, distance in index.search(vector, count)]


def test_the_nearest_rows_are_found(tmp_path, topic) -> None:
    """Rows are replaced and deleted; a row has all columns but the vector."""
    path = tmp_path / "users.vectors"
    topic.send({"id": 1, "name": "ann", "at": [1, 0]}, {"id": 2, "name": "bob", "at": [0, 1]})
    topic.send({"id": 3, "name": "cy", "at": [-1, 0]})
    follow(path, topic)
    assert found(path, 2, 0) == [(1, 0.0), (2, 1.0), (3, 2.0)]
    with Vectors(path) as index:
        assert index.search([0, 3], 1)[0].row == {"id": 2, "name": "bob"}
        topic.send({"id": 1, "name": "Ann", "at": [0, -1]}, b"2")
        follow(path, topic)
        assert len(index) == 2
        assert [one.row["id"] for one in index.search([0, -5], exact=True)] == [1, 3]
        with pytest.raises(UserError, match="expected 2 numbers"):
            index.search([1, 2, 3])


@pytest.mark.parametrize(("metric", "distance"), [("cos", 0.0), ("l2sq", 1.0), ("ip", -1.0)])
def test_a_metric_says_what_is_near(tmp_path, topic, metric, distance) -> None:
    """The angle, the distance, or the inner product."""
    path = tmp_path / "users.vectors"
    topic.send({"id": 1, "at": [2, 0]})
    follow(path, topic, metric=metric)
    assert found(path, 1, 0) == [(1, distance)]


def test_rows_whose_vectors_do_not_fit_are_dead_letters(tmp_path, topic) -> None:
    """Of another number of dimensions, missing, with a NULL or no direction; the others are written."""
    path = tmp_path / "users.vectors"
    wrong: list[Any] = [[1], [1, 2, 3], None, [1, None], [0, 0], [1e39, 0]]
    topic.send(*({"id": i, "at": at} for i, at in enumerate(wrong)), {"id": 9, "at": [1, 1]})
    done = follow(path, topic)
    assert (done.upserts, done.dead) == (1, len(wrong))
    assert [id_ for id_, _ in found(path, 1, 1)] == [9]
    with Client(topic.log) as client:
        assert "near.dead-letters" in client.topics()


def test_another_form_is_refused(tmp_path, topic) -> None:
    """Another number of dimensions or metric needs another index; the message has both."""
    path = tmp_path / "users.vectors"
    topic.send({"id": 1, "at": [1, 0]})
    follow(path, topic)
    for changed in ({"dimensions": 3}, {"metric": "l2sq"}, {"column": "name"}):
        with pytest.raises(UserError, match=r"expected the index|as an ARRAY"):
            follow(path, topic, **changed)
    one = target(path, column="at", dimensions=2)
    other = Sink(one, topic.name, SCHEMA, key="id", log=topic.log)
    with pytest.raises(UserError, match="belong to the sink"):
        other.run(until=lambda done: done.lag == 0)
    with pytest.raises(UserError, match="expected a vector index"):
        Vectors(tmp_path / "none")


@pytest.mark.parametrize("query", ["", "?column=at", "?column=at&dimensions=x", "?dimensions=2"])
def test_an_address_says_what_vectors_are(tmp_path, query) -> None:
    """Column and dimensions; the metric may be left out."""
    with pytest.raises(UserError, match="expected column=NAME&dimensions=NUMBER"):
        from_address(f"{tmp_path}/a.vectors{query}", "")
    for metric in ("", "&metric=ip"):
        assert from_address(f"{tmp_path}/a.vectors?column=at&dimensions=2{metric}", "")
    with pytest.raises(UserError, match="metric='cos'"):
        from_address(f"{tmp_path}/a.vectors?column=at&dimensions=2&metric=x", "")


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("seed", range(ROUNDS))
def test_a_search_finds_what_a_comparison_of_all_rows_finds(
    tmp_path, topic, monkeypatch, seed
) -> None:
    """Whichever part of the rows the file has, for a reader that stays and for one that opens it anew."""
    monkeypatch.setattr(module, "SAVED_CHANGES", 5)
    path, random_ = tmp_path / "users.vectors", random.Random(seed)
    rows: dict[int, list[float]] = {0: [1.0, 1.0]}
    topic.send({"id": 0, "at": rows[0]})
    follow(path, topic, metric="l2sq")
    with Vectors(path) as stays:
        for _ in range(6):
            for _ in range(random_.randrange(1, 9)):
                id_ = random_.randrange(10)
                if random_.random() < 0.3:
                    rows.pop(id_, None)
                    topic.send(str(id_).encode())
                else:
                    rows[id_] = [random_.gauss(0, 1), random_.gauss(0, 1)]
                    topic.send({"id": id_, "at": rows[id_]})
            follow(path, topic, metric="l2sq")
            asked = np.array([random_.gauss(0, 1), random_.gauss(0, 1)])
            expected = sorted(rows, key=lambda one: ((np.array(rows[one]) - asked) ** 2).sum())
            with Vectors(path) as anew:
                for index in (stays, anew):
                    assert [one.row["id"] for one in index.search(asked, 20)] == expected
            assert len(list(path.glob("index-*"))) <= 1


def test_a_graph_that_is_damaged_or_gone_is_made_again(tmp_path, topic) -> None:
    """It is derived from the rows: without it, all of them are read."""
    path = tmp_path / "users.vectors"
    topic.send(*({"id": i, "at": [1, i]} for i in range(30)))
    follow(path, topic, metric="l2sq")
    [file] = path.glob("index-*")
    file.write_bytes(file.read_bytes()[:50])
    with pytest.raises(CorruptError, match="Remove the file"):
        found(path, 1, 0)
    file.unlink()
    assert found(path, 1, 7, count=1) == [(7, 0.0)]
    topic.send({"id": 30, "at": [1, 30]})
    follow(path, topic, metric="l2sq")
    assert found(path, 1, 30, count=2) == [(30, 0.0), (29, 1.0)]


def test_it_is_rebuilt_with_other_columns(tmp_path, topic) -> None:
    """The new directory takes the old one's place."""
    path = tmp_path / "users.vectors"
    topic.send({"id": 1, "name": "ann", "at": [1, 0], "city": "Ulm"})
    follow(path, topic)
    wider = SCHEMA + ", city STRING"
    one = target(path, column="at", dimensions=2)
    rebuild(Sink(one, topic.name, wider, key="id", log=topic.log, name="near"))
    with Vectors(path) as index:
        assert index.search([1, 0])[0].row == {"id": 1, "name": "ann", "city": "Ulm"}
    follow(path, topic, wider)


KILLED = """
import os, signal, sys, threading
from penstock.sinks import Sink, body, vectors
from penstock.sinks.targets import vectors as module
body.STEP_OFFSETS, module.SAVED_CHANGES = 7, 20
path, topic, log, after = sys.argv[1:]
left = [int(after)]
def traced(frame, event, _):
    if frame.f_code.co_filename == module.__file__:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return traced
    return None
threading.settrace(traced)
sys.settrace(traced)
Sink(vectors(path, column="at", dimensions=2, metric="l2sq"), topic, "id BIGINT NOT NULL, at ARRAY<FLOAT>",
     key="id", log=log, name="near").run(until=lambda done: done.lag == 0)
"""


@pytest.mark.slow
def test_no_kill_loses_or_doubles_a_row(tmp_path, topic) -> None:
    """A process is killed at any line of the index's code; the next one goes on, and at the end all fits."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    random_, path = random.Random(seed), tmp_path / "users.vectors"
    rows: dict[int, list[float]] = {}
    for _ in range(rounds("PENSTOCK_VECTOR_KILLS", quick=4, full=12)):
        for _ in range(30):
            id_ = random_.randrange(20)
            if random_.random() < 0.2:
                rows.pop(id_, None)
                topic.send(str(id_).encode())
            else:
                rows[id_] = [float(random_.randrange(50)), random_.random()]
                topic.send({"id": id_, "at": rows[id_]})
        command = [sys.executable, "-c", KILLED, str(path), topic.name, topic.log]
        environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
        after = str(random_.randrange(20, 800))
        done = subprocess.run([*command, after], env=environment, check=False)
        assert done.returncode in (0, -signal.SIGKILL)
    follow(path, topic, "id BIGINT NOT NULL, at ARRAY<FLOAT>", metric="l2sq")
    assert sorted(id_ for id_, _ in found(path, 0, 0, count=100)) == sorted(rows)
    for id_, vector in rows.items():
        assert found(path, *vector, count=1)[0][1] == pytest.approx(0.0, abs=1e-9), id_


@pytest.mark.slow
def test_each_row_of_a_small_index_is_found(tmp_path, topic) -> None:
    """After many changes a graph doesn't lead to each vector any more; all are compared then."""
    random_, path = random.Random(7), tmp_path / "users.vectors"
    rows: dict[int, list[float]] = {}
    for _ in range(20):
        for id_ in random_.sample(range(40), 20):
            if random_.random() < 0.4:
                rows.pop(id_, None)
                topic.send(str(id_).encode())
            else:
                rows[id_] = [50 * random_.random(), 50 * random_.random()]
                topic.send({"id": id_, "at": rows[id_]})
        follow(path, topic, "id BIGINT NOT NULL, at ARRAY<FLOAT>", metric="l2sq")
        assert sorted(id_ for id_, _ in found(path, 0, 0, count=100)) == sorted(rows)

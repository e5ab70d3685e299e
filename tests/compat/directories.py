"""A pipeline's directory, as `App.run` leaves it: log, state, and what else it notes there. On Spark."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from tests.compat.cases import FILES, Case, Facts
from tests.compat.programs import feeds, queries

import penstock as ps
from penstock.app.facts import read_facts
from penstock.client import Client, Producer
from penstock.engine.savepoints import find_savepoint
from penstock.serve import Views

TOPICS: Final = ("events", "orders")
ROUNDS: Final = 6
MORE: Final = 3
SAVEPOINT: Final = "first"


class Wire:
    """What `feeds` sends with, to a log instead of a test's."""

    def __init__(self, address: str) -> None:
        self.topics = {topic: range(1) for topic in TOPICS}
        self.log = self
        self._producer = Producer(address)

    def send_raw(
        self, topic: str, value: bytes | None, *, key: str | None, partition: int, timestamp_ms: int
    ) -> None:
        """Sends a record."""
        keys = pa.array([None if key is None else key.encode()], pa.binary())
        times = np.array([timestamp_ms], np.int64)
        self._producer.send(topic, partition, keys, pa.array([value], pa.binary()), times)

    def close(self) -> None:
        """Closes the connections."""
        self._producer.close()


def _send(run: Any, first: int, end: int) -> None:
    for number in range(first, end):
        chance = random.Random(number)
        feeds.events(run, chance, number)
        feeds.orders(run, chance, number)


def _run(folder: Path, first: int, end: int) -> None:
    """Runs the program until it has read some rounds."""
    app = queries.directory(str(folder / FILES / "directory.penstock"))
    sent: dict[str, dict[str, int]] = {}

    def start(address: str) -> None:
        with Client(address) as client:
            for topic in TOPICS:
                client.create_topic(topic, 1, {"retention.ms": "-1"}, exists_ok=True)
            wire = Wire(address)
            _send(wire, first, end)
            wire.close()
            sent.update({topic: {"0": client.offsets(topic)[0]} for topic in TOPICS})

    def is_read() -> bool:
        try:
            return bool(Views(app.directory).status()["offsets"] == sent)
        except ps.PenstockError:
            return False

    app.run(on_start=start, until=is_read, seconds=300)
    assert is_read(), "the pipeline has not read all records"


def _views(folder: Path) -> dict[str, list[str]]:
    snapshot = Views(folder / FILES / "directory.penstock").snapshot()
    names = ("minutes", "spent", "lagged")
    return {name: sorted(map(repr, snapshot.table(name).to_pylist())) for name in names}


def _whole(end: int) -> dict[str, list[str]]:
    """The views of a run of this release alone, without Spark."""
    run = ps.testing.run(queries.directory("unused"), shaken=False)
    _send(run, 0, end)
    return {n: sorted(map(repr, run.view(n).rows())) for n in ("minutes", "spent", "lagged")}


def write(folder: Path) -> Facts:
    """Runs the first rounds."""
    from penstock.engine.runtime import open_store
    from penstock.engine.savepoints import create_savepoint

    _run(folder, 0, ROUNDS)
    store = open_store(
        queries.directory(str(folder / FILES / "directory.penstock")).settings.state_uri
    )
    create_savepoint(store, SAVEPOINT, 1_767_225_600_000_000)
    shutil.rmtree(folder / FILES / "directory.penstock" / "spark")  # logs and temporary files
    return {"rows": {name: len(rows) for name, rows in _views(folder).items()}}


def check(folder: Path, facts: Facts) -> None:
    """Reads the views, runs the others, and looks at the savepoint."""
    noted = read_facts(folder / FILES / "directory.penstock")
    assert noted is not None
    assert list(noted.facts.topics) == list(TOPICS)
    found = _views(folder)
    assert found == _whole(ROUNDS)
    assert {name: len(rows) for name, rows in found.items()} == facts["rows"]
    _run(folder, ROUNDS, ROUNDS + MORE)
    assert _views(folder) == _whole(ROUNDS + MORE)
    store = Views(folder / FILES / "directory.penstock").store
    assert find_savepoint(store, SAVEPOINT).version < store.newest_version()


DIRECTORIES: Final = (Case("directory", write, check, is_slow=True, is_spark=True),)

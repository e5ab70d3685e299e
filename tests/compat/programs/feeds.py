"""The records that the cases send. Frozen: what a fixture was made of must be sent again, to the letter."""

from __future__ import annotations

import random

import orjson
import pyarrow as pa

from penstock.core.partitioner import murmur2_partitions
from penstock.testing import Run

START_MS = 1_767_225_600_000  # 2026-01-01
USERS = ("ann", "bob", "cid", "dän", "eve", None)
PARTITIONS = 2

EVENTS = (
    "user STRING, kind STRING, v BIGINT, price DECIMAL(12, 2), x DOUBLE, tags STRING[], "
    "at TIMESTAMP NOT NULL"
)
USERS_TABLE = "user STRING NOT NULL, shop STRING, score BIGINT"
ORDERS_TABLE = "id BIGINT NOT NULL, user STRING, total BIGINT"


def events(run: Run, chance: random.Random, number: int, topic: str = "events") -> None:
    """Some events: out of order, some too late, some that can't be read; the first round has more."""
    for _ in range(100 if number == 0 else 8):
        user = chance.choice(USERS)
        second = 20 * number + chance.randrange(20) - chance.choice([0, 0, 0, 0, 15, 70])
        row = {
            "user": user,
            "kind": chance.choice(["click", "view", "buy"]),
            "v": chance.choice([None, *range(30)]),
            "price": f"{chance.randrange(10_000) / 100:.2f}",
            "x": chance.choice([None, 0.1, 2.5, -1e9, 1e300, 0.0]),
            "tags": chance.sample(["a", "b", "c"], chance.randrange(3)),
            "at": "never"
            if chance.random() < 0.03
            else START_MS + 1_000 * second + chance.randrange(1_000),
        }
        _send(run, topic, user, row, (START_MS // 1_000 + 20 * number) * 1_000)


def users(run: Run, chance: random.Random, number: int) -> None:
    """Changes of the table of users; some are deletions."""
    for _ in range(3):
        user = chance.choice(USERS[:-1])
        row = {"user": user, "shop": chance.choice(["x", "y", None]), "score": chance.randrange(9)}
        at_ms = START_MS + 20_000 * number + chance.randrange(20_000)
        _send(run, "users", user, None if chance.random() < 0.2 else row, at_ms)


def orders(run: Run, chance: random.Random, number: int) -> None:
    """Changes of the table of orders; some are deletions."""
    for _ in range(20 if number == 0 else 5):
        order = chance.randrange(40)
        row = {"id": order, "user": chance.choice(USERS), "total": chance.randrange(100)}
        at_ms = START_MS + 20_000 * number
        _send(run, "orders", str(order), None if chance.random() < 0.2 else row, at_ms)


def _send(run: Run, topic: str, key: str | None, row: dict[str, object] | None, at_ms: int) -> None:
    if topic not in run.log.topics:
        return
    text = "" if key is None else key
    count = len(run.log.topics[topic])
    partition = int(murmur2_partitions(pa.array([text.encode()], pa.binary()), count)[0])
    value = None if row is None else orjson.dumps(row)
    run.send_raw(topic, value, key=key, partition=partition, timestamp_ms=at_ms)

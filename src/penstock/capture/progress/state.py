"""How far a capture got, and what is asked of it: what topics say about that.

The newest record of a capture's topic is its state; see `log`, which writes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from penstock.capture.table_schemas import Version
from penstock.client import Client, Reader
from penstock.client.letters.dead_letters import TOPIC_SUFFIX
from penstock.errors import CorruptError
from penstock.follow import control as follow

__all__ = [
    "KIND",
    "POSITION",
    "REQUEST",
    "Control",
    "State",
    "Watched",
    "control_topic",
    "last_value",
    "letters_topic",
    "load",
    "schemas_topic",
    "state_topic",
    "stored",
    "versions",
]

LOOKED_BACK: Final = 1000
"""Records that are looked at for the newest state, before all of them are."""
KIND: Final = "capture"
"""What a capture is called among followers."""
POSITION: Final = b"position"
"""The key of the position that someone waits for."""
REQUEST: Final = b"snapshot:"
"""What keys of requests for snapshots begin with, before their numbers."""


@dataclass(frozen=True)
class Watched:
    """A table that is captured.

    Attributes:
        topic: where its records go.
        since: the position of its snapshot: transactions that committed before are in that.
        rows: of the snapshot.
        identity: which table it is: another number where it was created again.
        emptied: by partition of the topic, the offset behind which keys are that aren't deleted: where the
            table was emptied last.
        unseen: by partition, the offset from which on all its rows are written again, while they are; keys
            that are only before it are deleted once they have been. Empty: they are not.
    """

    topic: str
    since: int
    rows: int = 0
    identity: int = 0
    emptied: tuple[int, ...] = ()
    unseen: tuple[int, ...] = ()


@dataclass(frozen=True)
class State:
    """How far a database was captured.

    Attributes:
        server: its address, without a password.
        system: which database it is.
        kind: of database.
        details: what this kind of database needs to continue: `slot`, `publication`.
        position: transactions that committed before it are in the log.
        time_us: when the newest of them committed, since 1970.
        tables: by name.
        stored_ms: when this was written, since 1970.
        owner: the process that wrote it.
        is_begun: whether it has only begun: the database may keep something for it, and nothing was captured.
    """

    server: str
    system: str
    kind: str
    details: dict[str, Any] = field(default_factory=dict)
    position: int = 0
    time_us: int = 0
    tables: dict[str, Watched] = field(default_factory=dict)
    stored_ms: int = 0
    owner: str = ""
    is_begun: bool = False

    def encoded(self) -> bytes:
        """As a record's value."""
        return orjson.dumps(self)

    @staticmethod
    def decoded(value: bytes) -> State:
        """Reads it.

        Raises:
            CorruptError: another program has written to the topic.
        """
        try:
            found = orjson.loads(value)
            tables = {
                name: Watched(
                    **{**one, **{n: tuple(one.get(n, ())) for n in ("emptied", "unseen")}}
                )
                for name, one in found.pop("tables").items()
            }
            return State(**found, tables=tables)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CorruptError(
                f"expected the state of a capture; found {value[:60]!r} ({error}). Something else writes "
                "to its topic: choose another name"
            ) from None


def state_topic(name: str) -> str:
    """The topic with a capture's state."""
    return f"{name}.capture"


def control_topic(name: str) -> str:
    """The topic with requests to it: `pause`, `resume`, snapshots."""
    return follow.control_topic(KIND, name)


def schemas_topic(name: str) -> str:
    """The topic with the versions of its tables' schemas."""
    return f"{name}.capture.schemas"


def letters_topic(name: str) -> str:
    """The topic with rows that couldn't be written."""
    return f"{name}.capture{TOPIC_SUFFIX}"


@dataclass(frozen=True)
class Control:
    """What is asked of a capture from outside, but for pauses.

    Attributes:
        requests: for snapshots, by increasing numbers.
        position: that someone waits for.
    """

    requests: dict[int, dict[str, Any]]
    position: int = 0

    @staticmethod
    def of(values: Mapping[bytes, bytes]) -> Control:
        """What the newest requests of each key ask for."""
        requests = {
            int(key.removeprefix(REQUEST)): orjson.loads(value)
            for key, value in values.items()
            if key.startswith(REQUEST)
        }
        return Control(dict(sorted(requests.items())), int(values.get(POSITION) or 0))


def versions(client: Client, address: str, name: str, **settings: Any) -> dict[str, Version]:
    """The newest version of each table's schema, by table."""
    topic, found = schemas_topic(name), dict[str, Version]()
    for key, value in _pairs(client, address, topic, **settings):
        if key is not None and value is not None:
            found[key.decode()] = Version.decoded(value)
    return found


def _pairs(
    client: Client, address: str, topic: str, **settings: Any
) -> Iterator[tuple[bytes | None, bytes | None]]:
    """Keys and values of a topic of one partition."""
    first, end = client.offsets(topic, "earliest")[0], client.offsets(topic, "latest")[0]
    with Reader(address, **settings) as reader:
        for records in reader.read(topic, 0, first, end):
            yield from zip(records.keys().to_pylist(), records.values().to_pylist(), strict=True)


def load(client: Client, address: str, name: str, **settings: Any) -> State | None:
    """How far a capture got; None where there is nothing, or it has only begun."""
    found = stored(client, address, name, **settings)
    return None if found is None or found.is_begun else found


def stored(client: Client, address: str, name: str, **settings: Any) -> State | None:
    """How far a capture got, if only that it has begun; None where there is nothing."""
    value = last_value(client, address, state_topic(name), **settings)
    return State.decoded(value) if value is not None else None


def last_value(client: Client, address: str, topic: str, **settings: Any) -> bytes | None:
    """The newest record's value; None where there is none, or it is a tombstone."""
    first, end = client.offsets(topic, "earliest")[0], client.offsets(topic, "latest")[0]
    with Reader(address, **settings) as reader:
        for begin in (max(first, end - LOOKED_BACK), first):
            values: list[bytes | None] = []
            for records in reader.read(topic, 0, begin, end):
                values += records.values().to_pylist()[-1:]
            if values:
                return values[-1]
    return None

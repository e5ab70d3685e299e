"""Requests to a follower, wherever it runs: one compacted topic each, with the newest request of each key.

`pause` and `resume` have the key `command`, which all followers obey. Other keys are for the body, such as
the snapshots that a capture is asked for.
"""

from __future__ import annotations

import re
import time
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from penstock.client import Client, Reader

__all__ = ["COMMAND", "Command", "Requests", "asked_of", "control_topic", "own_topic", "send"]

Command = Literal["pause", "resume"]
COMMAND: Final = b"command"
"""The key of `pause` and `resume`."""
TOPIC_CHARS_MAX: Final = 249
"""Of the name of a topic of Kafka."""


def own_topic(name: str, end: str = "") -> str:
    """A topic of a follower, whose name may have what Kafka's topics may not.

    >>> own_topic("users.users", ".dead-letters"), own_topic("users.Größen", ".dead-letters")
    ('users.users.dead-letters', 'users.Gr__en_89d8d5e5.dead-letters')
    """
    own = re.sub(r"[^A-Za-z0-9._-]", "_", name)
    if own == name and len(own) + len(end) <= TOPIC_CHARS_MAX:
        return own + end
    return f"{own[: TOPIC_CHARS_MAX - 9 - len(end)]}_{zlib.crc32(name.encode()):08x}{end}"


def control_topic(kind: str, name: str) -> str:
    """The topic of requests to a follower.

    >>> control_topic("sink", "users.users")
    'users.users.sink.control'
    """
    return own_topic(name, f".{kind}.control")


class Requests:
    """What is asked of a follower; a topic that doesn't exist asks for nothing.

    Args:
        topic: with the requests.
    """

    def __init__(self, topic: str) -> None:
        self.topic = topic
        #: The newest request of each key.
        self.values: dict[bytes, bytes] = {}
        #: The offset behind the newest one; None: there is no topic.
        self.end: int | None = None

    @property
    def is_paused(self) -> bool:
        """Whether it is to pause."""
        return self.values.get(COMMAND) == b"pause"

    def look(self, client: Client, reader: Callable[[], Reader]) -> None:
        """Reads what came since the last look.

        Args:
            client: of the log.
            reader: gives one of the log, where there is something to read.
        """
        if self.topic not in client.topics():
            self.values, self.end = {}, None
            return
        end = client.offsets(self.topic)[0]
        if self.end is None or end < self.end:  # else it was created again
            self.values, self.end = {}, client.offsets(self.topic, "earliest")[0]
        if end > self.end:
            for records in reader().read(self.topic, 0, self.end, end, missing="skip"):
                pairs = zip(records.keys().to_pylist(), records.values().to_pylist(), strict=True)
                for key, value in pairs:
                    if value is None:
                        self.values.pop(key or b"", None)
                    else:
                        self.values[key or b""] = value
        self.end = end


def asked_of(address: str, kind: str, name: str, **settings: Any) -> Requests:
    """What is asked of a follower, as the log has it now.

    Args:
        address: the broker's.
        kind: the follower's, such as `sink`.
        name: the follower's.
        settings: further arguments of `penstock.client.Client`.
    """
    from penstock.client import Client, Reader

    found = Requests(control_topic(kind, name))
    with Client(address, **settings) as client, Reader(address, **settings) as reader:
        found.look(client, lambda: reader)
    return found


def send(address: str, kind: str, name: str, key: bytes, value: bytes, **settings: Any) -> None:
    """Writes a request to a follower, which obeys within a second, or when it is started.

    Args:
        address: the broker's.
        kind: the follower's, such as `sink`.
        name: the follower's.
        key: of the request.
        value: of the request.
        settings: further arguments of `penstock.client.Client`.
    """
    import numpy as np  # looking at followers needs none of these
    import pyarrow as pa

    from penstock.client import Client, Producer

    topic = control_topic(kind, name)
    with Client(address, **settings) as client, Producer(address, **settings) as producer:
        client.create_topic(topic, 1, {"cleanup.policy": "compact"}, exists_ok=True)
        columns = pa.array([key], pa.binary()), pa.array([value], pa.binary())
        producer.send(topic, 0, *columns, np.array([time.time_ns() // 1_000_000]))

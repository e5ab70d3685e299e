"""One side of a comparison: a broker, its own ids and names, and its answers in a common form.

Ids that a broker makes up (topic ids, member ids, producer ids) differ from side to side. A script
therefore speaks of placeholders (`Ref("topic t1")`): a side puts its own id in their place when it
asks, and the placeholder in the id's place when it answers. What has no meaning for a comparison
(addresses, throttle times, wording) is left out.
"""

from __future__ import annotations

import contextlib
import re
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock.wire import batches
from penstock.wire.messages import response_codec
from penstock.wire.protocol import ApiKey, ErrorCode

Answer = Any

LEFT_OUT = {
    "throttle_time": "time is no one's promise",
    "host": "an address",
    "port": "an address",
    "cluster_id": "an id that each cluster makes up",
    "error_message": "wording is each broker's own; codes are compared",
    "batch_index_error_message": "wording is each broker's own; which records are told is compared",
    "documentation": "wording",
    "node_endpoints": "an address, given where the leader has moved",
    "client_host": "Kafka puts a slash before it",
    "transaction_start_time": "a clock",
    "session_id": "an id that each broker makes up",
}
CLOCK_MS_MIN = 1_500_000_000_000
SET_LIKE = {
    "topics",
    "groups",
    "configs",
    "members",
    "results",
    "responses",
    "active_producers",
    "coordinators",
    "transaction_states",
    "aborted_transactions",
    "topic_partitions",
    "subscribed_topic_names",
}
UNORDERED = {(9, "partitions")}
"""Offsets of all partitions: Kafka gives them in the order of its hash table."""
EPOCH_KEYS = {68, 69}
EPOCHS = {"member_epoch", "group_epoch", "assignment_epoch"}
"""Of consumer groups: Kafka's begin with epoch 1, ours with 0."""
READY_S_MAX = 20.0
SETTLE_S = 0.1
"""Kafka's coordinators learn of a topic later than those who ask for metadata."""
NOT_LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER
RETRIES_MAX = 20
MARKER_MS_MAX = 500_000
"""Scripts write records of times longer ago than this."""


@dataclass(frozen=True)
class Ref:
    """Stands for an id that each side makes up itself."""

    name: str


class Side:
    """A broker that is asked what the other one is asked."""

    def __init__(self, connect: Callable[[str], Any], address: str, label: str) -> None:
        self.connect = connect
        self.address = address
        self.label = label
        self.real: dict[str, Any] = {}
        self.shown: dict[Any, str] = {}
        self.lines: dict[str, Any] = {}
        self.first_epoch = 0
        keys = self.line("main").call(ApiKey.API_VERSIONS, 0)["api_keys"]
        self.versions = {one["api_key"]: (one["min_version"], one["max_version"]) for one in keys}

    def line(self, name: str) -> Any:
        """A connection of that name."""
        if name not in self.lines:
            self.lines[name] = self.connect(self.address)
        return self.lines[name]

    def hang_up(self, name: str) -> None:
        """Closes a connection; the next use opens another."""
        if line := self.lines.pop(name, None):
            line.socket.close()

    def close(self) -> None:
        """Closes all connections."""
        for name in list(self.lines):
            self.hang_up(name)

    def learn(self, name: str, real: Any) -> None:
        """From now on the placeholder stands for this side's id."""
        self.real[name] = real
        self.shown[real] = f"<{name}>"

    def filled(self, value: Any) -> Any:
        """A request's fields with this side's ids."""
        match value:
            case Ref(name):
                return self.real.get(name, uuid.UUID(int=7) if name.startswith("topic") else 0)
            case dict():
                return {name: self.filled(one) for name, one in value.items()}
            case list():
                return [self.filled(one) for one in value]
        return value

    def ask(self, line: str, key: int, version: int, fields: dict[str, Any]) -> Answer:
        """The answer as it came; None where the broker closed the connection or said nothing."""
        try:
            return self.line(line).call(key, version, **self.filled(fields))
        except (ConnectionError, TimeoutError):
            self.hang_up(line)
            return None

    def call(self, key: int, version: int, fields: dict[str, Any], line: str = "main") -> Answer:
        """The answer in its common form. A new partition of Kafka's may not know its leader yet."""
        for _ in range(RETRIES_MAX):
            answer = self.common(self.ask(line, key, version, fields), key)
            if not re.search(rf"error_code': {NOT_LEADER}\b", str(answer)):
                break
            time.sleep(0.1)
        return answer

    def frame(self, key: int, version: int, body: bytes, *, flexible: bool) -> Answer:
        """What comes back for a body that no codec wrote."""
        line = self.line("main")
        line.socket.settimeout(3)
        try:
            line.socket.sendall(line.frame(key, version, body, flexible=flexible))
            data = line.exactly(int.from_bytes(line.exactly(4), "big"))
        except ConnectionError:
            self.hang_up("main")
            return "closed"
        except TimeoutError:
            self.hang_up("main")
            return "silent"
        line.socket.settimeout(10)
        codec = response_codec(key, version)
        return self.common(codec.decode(data[5 if codec.flexible and key != 18 else 4 :]), key)

    def common(self, value: Any, key: int, name: str = "") -> Answer:
        """A value in its common form."""
        match value:
            case None:
                return "closed" if not name else None
            case dict():
                return {
                    field: self.common(one, key, field)
                    for field, one in value.items()
                    if field not in LEFT_OUT
                }
            case list() | tuple():
                items = [self.common(one, key, name) for one in value]
                is_numbers = name == "partitions" and all(isinstance(one, int) for one in items)
                is_set = name in SET_LIKE or is_numbers or (key, name) in UNORDERED
                return sorted(items, key=repr) if is_set else items
            case uuid.UUID():
                return self.shown.get(value, str(value) if not value.int else "<id>")
            case bytes() if name == "records":
                return [self.batch(value, at, header) for at, header in batches.iterate(value)]
            case str() | int() if value in self.shown and name in {
                "member_id",
                "leader",
                "producer_id",
                "ongoing_txn_producer_id",
            }:
                return self.shown[value]
            case int() if name in EPOCHS and key in EPOCH_KEYS and value > 0:
                return value - self.first_epoch
            case int() if name == "timestamp" and value > time.time() * 1000 - MARKER_MS_MAX:
                return "<now>"  # a marker's: the broker wrote it
            case int() if name in {"log_append_time", "max_timestamp"} and value > 0:
                return value if value < CLOCK_MS_MIN or name == "max_timestamp" else "<now>"
        return value

    def batch(self, data: bytes, at: int, header: batches.Header) -> dict[str, Any]:
        """A batch as a reader sees it."""
        assert batches.checksum_matches(data, at, header)
        fields = header._asdict()
        for left_out in ("length", "crc", "leader_epoch"):
            del fields[left_out]
        if header.is_append_time or header.is_control:
            fields["max_timestamp"] = fields["base_timestamp"] = "<now>"
        fields["producer_id"] = self.shown.get(header.producer_id, header.producer_id)
        if not header.is_control:
            fields["bytes"] = data[at + batches.HEADER_BYTES : at + header.size].hex()
        return fields

    def until(
        self,
        key: int,
        version: int,
        fields: dict[str, Any],
        done: Any,
        s_max: float = READY_S_MAX,
    ) -> Answer:
        """Asks until the answer (as it came) is what is waited for, or for so many seconds."""
        deadline = time.monotonic() + s_max
        while True:
            answer = self.ask("main", key, version, fields)
            with contextlib.suppress(IndexError, KeyError, TypeError):
                if done(answer):
                    return answer
            if time.monotonic() > deadline:
                return answer
            time.sleep(0.01)


Step = tuple[str, Callable[[Side], Answer]]
"""A step of a session: what it is, and how it is carried out on a side."""


def differences(ours: Answer, theirs: Answer, path: str = "") -> list[tuple[str, Any, Any]]:
    """Where two answers differ: path, ours, theirs."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return [
            found
            for name in ours.keys() | theirs.keys()
            for found in differences(ours.get(name), theirs.get(name), f"{path}.{name}")
        ]
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        return [
            found
            for n, (one, other) in enumerate(zip(ours, theirs, strict=True))
            for found in differences(one, other, f"{path}[{n}]")
        ]
    return [] if ours == theirs else [(path, ours, theirs)]


def know(side: Side, name: str, count: int | None = None) -> int:
    """Waits until the topic (with so many partitions) is led; learns its id; its partitions."""
    fields = {"topics": [{"name": name}], "allow_auto_topic_creation": False}

    def done(found: Any) -> bool:
        (topic,) = found["topics"]
        parts = topic["partitions"]
        led = all(one["leader_id"] >= 0 and not one["error_code"] for one in parts)
        return not topic["error_code"] and led and (count is None or len(parts) == count)

    (topic,) = side.until(3, 10, fields, done)["topics"]
    side.learn(f"topic {name}", topic["topic_id"])
    time.sleep(SETTLE_S)
    return len(topic["partitions"])

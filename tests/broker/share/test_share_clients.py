"""Share groups with librdkafka's share consumer, a foreign client that needs no JVM."""

from __future__ import annotations

from typing import Any

from confluent_kafka import ShareConsumer
from share_worker import GROUP, configure
from tests.patience import wait_until

from penstock.wire import batches
from penstock.wire.protocol import ApiKey

ROUNDS = 8
"""Of which every other one failed."""


def consumer(address: str, group: str, topic: str) -> ShareConsumer:
    """A share consumer that says of each record what became of it."""
    settings = {
        "bootstrap.servers": address,
        "group.id": group,
        "share.acknowledgement.mode": "explicit",
        "log_level": 3,
    }
    made = ShareConsumer(settings)
    made.subscribe([topic])
    return made


def accept(one: ShareConsumer) -> list[bytes | None]:
    """Takes what there is, and accepts it."""
    found = []
    for message in one.poll(0.2):
        assert message.error() is None, message.error()
        found.append(message.value())
        one.acknowledge(message)
    return found


def taken_by_one_that_closes(address: str, group: str, topic: str, value: bytes) -> list[Any]:
    """What a consumer gets until it has got that value, and accepts before it closes."""
    found: list[Any] = []
    one = consumer(address, group, topic)
    try:
        wait_until(lambda: found.extend(accept(one)) or value in found, value)
    finally:
        one.close()
    return found


def test_what_was_acknowledged_before_closing_stays_so(raw: Any, address: str, topic: str) -> None:
    """A consumer accepts records and closes: its heartbeat that leaves may be there first."""
    group = f"closing-{topic}"
    configure(raw, GROUP, group, share_auto_offset_reset="earliest")
    for number in range(ROUNDS):
        value = b"%d" % number
        raw.produce(topic, batches.build([(None, value)]))
        assert taken_by_one_that_closes(address, group, topic, value) == [value]


def test_a_topic_that_is_made_anew_is_read(raw: Any, address: str, topic: str) -> None:
    """A consumer lives on while its topic is deleted and made again: it gets the new records, and
    doesn't ask for the old ones over and over meanwhile.
    """
    group = f"anew-{topic}"
    configure(raw, GROUP, group, share_auto_offset_reset="earliest")
    configure(raw, GROUP, group, share_heartbeat_interval_ms="1000")
    raw.produce(topic, batches.build([(None, b"old")]))
    one = consumer(address, group, topic)
    try:
        wait_until(lambda: b"old" in accept(one), "the old record")
        raw.call(ApiKey.DELETE_TOPICS, 5, topic_names=[topic], timeout=5000)
        wanted = {"name": topic, "num_partitions": 2, "replication_factor": 1}
        assert (
            raw.call(ApiKey.CREATE_TOPICS, 5, topics=[wanted], timeout=5000)["topics"][0][
                "error_code"
            ]
            == 0
        )
        raw.produce(topic, batches.build([(None, b"new")]))
        wait_until(lambda: b"new" in accept(one), "the new record")
    finally:
        one.close()

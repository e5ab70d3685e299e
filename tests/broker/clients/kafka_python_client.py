"""A session with kafka-python, in a process of its own: it leaves sockets to the collector."""

from __future__ import annotations

import itertools
import sys
import time

NO_LIBRARY = 77


def main(address: str, topic: str, group: str, compression: str) -> int:
    """Produces, consumes in a group, commits; an exception says what was wrong."""
    from kafka import KafkaConsumer, KafkaProducer, TopicPartition

    try:
        writer = KafkaProducer(
            bootstrap_servers=address,
            acks="all",
            linger_ms=5,
            compression_type=None if compression == "none" else compression,
        )
    except (AssertionError, RuntimeError) as error:
        print(error)
        return NO_LIBRARY
    for n in range(100):
        writer.send(topic, b"%d" % n, partition=n % 2, timestamp_ms=5000 + n)
    writer.flush()
    writer.close()
    reader = KafkaConsumer(
        bootstrap_servers=address,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        consumer_timeout_ms=100_000,
    )
    while not reader.partitions_for_topic(topic):  # for the reason that group_member.py tells
        time.sleep(0.1)
    reader.subscribe([topic])
    got = [message.value for message in itertools.islice(reader, 100)]
    assert sorted(got, key=int) == [b"%d" % n for n in range(100)], f"{len(got)} of 100"
    reader.commit()
    place = TopicPartition(topic, 0)
    assert reader.committed(place) == 50
    assert reader.offsets_for_times({place: 5051})[place].offset == 26
    assert reader.beginning_offsets([place]) == {place: 0}
    assert reader.end_offsets([place]) == {place: 50}
    reader.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

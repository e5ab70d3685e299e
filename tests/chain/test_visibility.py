"""A transaction becomes visible in all topics at once: what a batch of a pipeline reads is whole."""

from __future__ import annotations

import threading

import numpy as np
import pyarrow as pa

from penstock.client import Client, TransactionalProducer
from penstock.client.producer import Part
from penstock.engine.log import KafkaLog

TOPICS = ("whole-a", "whole-b", "whole-c")
TRANSACTIONS = 25


def test_no_look_at_the_log_cuts_a_transaction(log: str) -> None:
    """Each way to ask for the ends of topics finds as many transactions in one topic as in the others."""
    with Client(log) as client:
        for topic in TOPICS:
            client.create_topic(topic, 1)
    looks: list[dict[str, dict[int, int]]] = []
    end = threading.Event()

    def look() -> None:
        reader = KafkaLog(log)
        places = dict.fromkeys(((topic, 0) for topic in TOPICS), 0)
        while not end.is_set():
            looks.append(reader.end_offsets(TOPICS))
            looks.append(reader.look(places, 0.001))
            places = {(topic, 0): looks[-1][topic][0] for topic in TOPICS}
        reader.close()

    thread = threading.Thread(target=look)
    thread.start()
    producer = TransactionalProducer(log, "whole")
    producer.start()
    try:
        for number in range(TRANSACTIONS):
            keys, stamps = pa.array([b"k"], pa.binary()), np.array([number], np.int64)
            producer.send_together([Part(topic, 0, keys, keys, stamps) for topic in TOPICS])
            producer.commit()
    finally:
        end.set()
        thread.join()
        producer.close()
    found = {tuple(one[topic][0] for topic in TOPICS) for one in looks}
    assert all(len(set(ends)) == 1 for ends in found), found
    assert len(found) > 2  # it looked while there was something to see

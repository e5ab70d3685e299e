"""What kafka-python does with transactions, in a process of its own: importing it warns.

    python kafka_python_transactions.py ADDRESS TOPIC

Commits and aborts in turn, and reads what was committed, in a fetch session. Prints the values.
"""

from __future__ import annotations

import json
import sys

TRANSACTIONS = 6
RECORDS = 3


def main(address: str, topic: str) -> None:
    """Writes and reads in turn."""
    from kafka import KafkaConsumer, KafkaProducer, TopicPartition

    producer = KafkaProducer(bootstrap_servers=address, transactional_id=topic, linger_ms=0)
    producer.init_transactions()
    reader = KafkaConsumer(
        bootstrap_servers=address, isolation_level="read_committed", auto_offset_reset="earliest"
    )
    reader.assign([TopicPartition(topic, 0), TopicPartition(topic, 1)])
    seen: list[list[object]] = []
    for n in range(TRANSACTIONS):
        producer.begin_transaction()
        for i in range(RECORDS):
            producer.send(topic, b"%d-%d" % (n, i), partition=n % 4 // 2)
        producer.flush()
        if n % 2:
            producer.abort_transaction()
            continue
        producer.commit_transaction()
        wanted = len(seen) + RECORDS
        for _ in range(1000):
            for part, records in reader.poll(timeout_ms=100).items():
                seen += [[part.partition, one.offset, one.value.decode()] for one in records]
            if len(seen) >= wanted:
                break
    reader.close()
    producer.close()
    print(json.dumps(seen))


if __name__ == "__main__":
    main(*sys.argv[1:])

"""An idempotent producer of kafka-python's: run by `test_lost_files.py` in a process of its own, as
importing it warns.

    python kafka_python_producer.py ADDRESS TOPIC VALUE...      prints the offsets
"""

from __future__ import annotations

import json
import sys


def main(address: str, topic: str, values: list[str]) -> None:
    """Writes each value to partition 0, and waits for its acknowledgement."""
    from kafka import KafkaProducer

    producer = KafkaProducer(bootstrap_servers=address, enable_idempotence=True, acks="all")
    sent = [producer.send(topic, one.encode(), partition=0) for one in values]
    print(json.dumps([one.get(60).offset for one in sent]))
    producer.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])

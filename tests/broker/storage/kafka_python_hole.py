"""What kafka-python does at a hole: run by `test_holes.py` in a process of its own, as importing it
warns.

    python kafka_python_hole.py ADDRESS GROUP NEXT      prints the errors' positions, and what it read
"""

from __future__ import annotations

import json
import sys


def main(address: str, group: str, following: int) -> None:
    """Reads topic `t` to its end, and seeks past the hole at the second error."""
    from kafka import KafkaConsumer
    from kafka.errors import CorruptRecordError

    consumer = KafkaConsumer(
        "t", bootstrap_servers=address, group_id=group, auto_offset_reset="earliest"
    )
    found: list[int] = []
    errors: list[int] = []
    end = None
    while end is None or not found or found[-1] < end - 1:
        try:
            for records in consumer.poll(1000).values():
                found += [one.offset for one in records]
        except CorruptRecordError:
            (place,) = consumer.assignment()
            errors.append(consumer.position(place))
            end = consumer.end_offsets([place])[place]
            if len(errors) == 2:
                consumer.seek(place, following)
    consumer.close()
    print(json.dumps([errors, found]))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))

"""Dead letters of a sink: records that don't fit, or that the target refuses, as they are in the topic."""

from __future__ import annotations

import logging
import time
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.client import Client, Producer
from penstock.client.letters.dead_letters import CUT_HEADER
from penstock.sinks.names import letters_topic
from penstock.wire.columns import Records

__all__ = ["LETTER_BYTES_MAX", "Letters"]

LETTER_BYTES_MAX: Final = 8 << 20
"""Of a dead letter; what is longer is cut."""
REASON_CHARS_MAX: Final = 2_000
CONFIGS: Final = {"retention.ms": "-1", "max.message.bytes": str(LETTER_BYTES_MAX + (1 << 20))}
"""The settings of their topic: one is larger than its record, which was compressed and without the reason."""
_log = logging.getLogger(__name__)


class Letters:
    """Writes them to the topic of a sink, which is created for the first one.

    Args:
        client: of the log.
        producer: of the log.
        sink: its name.
        topic: that it follows.
    """

    def __init__(self, client: Client, producer: Producer, sink: str, topic: str) -> None:
        self._client, self._producer = client, producer
        self._sink, self._topic = sink, topic
        self._has_topic = False

    def send(self, records: Records, rows: np.ndarray, reasons: list[str], partition: int) -> None:
        """Writes letters.

        Args:
            records: of one partition.
            rows: which of them.
            reasons: of each.
            partition: of the topic that the sink follows.
        """
        place = letters_topic(self._sink)
        if not self._has_topic:
            self._client.create_topic(place, 1, CONFIGS, exists_ok=True)
            self._has_topic = True
        chosen = pa.array(rows)
        keys, values = records.keys().take(chosen), records.values().take(chosen)
        headers = [
            [
                ("penstock.reason", reason[:REASON_CHARS_MAX].encode()),
                ("penstock.topic", self._topic.encode()),
                ("penstock.partition", str(partition).encode()),
                ("penstock.offset", str(offset).encode()),
                *_cut(length),
            ]
            for reason, offset, length in zip(
                reasons,
                records.offset[rows].tolist(),
                records.value_length[rows].tolist(),
                strict=True,
            )
        ]
        kept = pc.binary_slice(values, 0, LETTER_BYTES_MAX)
        now_ms = np.full(len(rows), time.time_ns() // 1_000_000)
        self._producer.send(place, 0, keys, kept, now_ms, headers=headers)
        some = "a dead letter" if len(rows) == 1 else f"{len(rows)} dead letters, such as"
        _log.warning("%s: %s: %s", self._sink, some, reasons[0])


def _cut(length: int) -> list[tuple[str, bytes]]:
    return [(CUT_HEADER, str(length).encode())] if length > LETTER_BYTES_MAX else []

"""Files that a pipeline reads while it runs: `--ingest TOPIC=FILES`."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Final

from penstock.client import Client
from penstock.demo.feed import PATIENCE_S, BrokerLog, Feed, FeedLog
from penstock.errors import UserError
from penstock.files import ingest

SETTLE_S: Final = 1.0  # that a file must not have changed: a person waits for it
LOOK_S: Final = 0.2  # between two looks whether the pipeline has made its topics
TOPIC_S_MAX: Final = 60.0  # for the pipeline to make its topics


class FileFeed(Feed):
    """Writes the rows of files to a topic, each once, and continues with files that appear.

    Args:
        topic: where they go.
        files: a pattern or a directory.
        address: the broker's.
    """

    def __init__(self, topic: str, files: str, address: str) -> None:
        super().__init__(lambda: BrokerLog(address), lambda: time.time_ns() // 1_000_000)
        self._topic, self._files, self._address = topic, files, address

    def _with_log(self) -> None:
        self._wait_for_topic(self.stopping)
        ingest(
            self._files,
            to=self._topic,
            log=self._address,
            watch=True,
            settle=SETTLE_S,
            until=lambda _: self.stopping.is_set(),
            client_id="penstock-ingest",
            patience_s=PATIENCE_S,
        )

    def _wait_for_topic(self, stopping: threading.Event) -> None:
        """Lets the pipeline make its topic first, with as many partitions as the program says."""
        deadline = time.monotonic() + TOPIC_S_MAX
        with Client(self._address, client_id="penstock-ingest", patience_s=PATIENCE_S) as client:
            while self._topic not in client.topics() and time.monotonic() < deadline:
                if stopping.wait(LOOK_S):
                    return

    def _feed(self, log: FeedLog) -> None:
        raise NotImplementedError("it uses its own transactions")


def file_feeds(said: Sequence[str], address: str) -> list[Feed]:
    """The feeds that `--ingest` asks for.

    Raises:
        UserError: one isn't TOPIC=FILES.
    """
    return [FileFeed(topic, files, address) for topic, files in map(parted, said)]


def parted(text: str) -> tuple[str, str]:
    """A topic and a pattern.

    Raises:
        UserError: it is none.

    >>> parted("clicks=data/*.jsonl")
    ('clicks', 'data/*.jsonl')
    """
    topic, equals, files = text.partition("=")
    if not topic or not equals or not files:
        raise UserError(f"expected --ingest TOPIC=FILES, as clicks=data/*.jsonl; found {text!r}")
    return topic, files

"""Files that a pipeline reads while it runs: `--ingest TOPIC=FILES`."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from penstock.client import Client
from penstock.core.names import hint, known_names
from penstock.errors import UserError
from penstock.files import ingest
from penstock.files.feed import PATIENCE_S, Feed

if TYPE_CHECKING:
    from penstock.app import App
    from penstock.flow.graph import Source

SETTLE_S: Final = 1.0  # that a file must not have changed: a person waits for it
LOOK_S: Final = 0.2  # between two looks whether the pipeline has made its topics
TOPIC_S_MAX: Final = 60.0  # for the pipeline to make its topics


class FileFeed(Feed):
    """Writes the rows of files to a topic, each once, and continues with files that appear.

    Args:
        topic: where they go.
        files: a pattern or a directory.
        address: the broker's.
        source: what the program says of the topic, such as when the rows happened.
    """

    def __init__(self, topic: str, files: str, address: str, source: Source | None = None) -> None:
        super().__init__()
        self._topic, self._files, self._address, self._source = topic, files, address, source

    def _run(self) -> None:
        self._wait_for_topic(self.stopping)
        ingest(
            self._files,
            to=self._topic,
            log=self._address,
            time=None if self._source is None else self._source.time,
            columns=None if self._source is None else self._source.schema,
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


def checked_files(said: Sequence[str], app: App) -> list[tuple[str, str, Source | None]]:
    """What `--ingest` asks for: topics, files, and what the program says of the topics.

    Args:
        said: the options' values.
        app: the pipeline that is to read the topics.

    Raises:
        UserError: one isn't TOPIC=FILES, or the program doesn't read the topic.
    """
    if not said:
        return []
    pairs = [parted(one) for one in said]
    sources = {source.topic: source for source in app.graph().sources}
    known = [*sources, *(topic for topic in app.targets() if topic not in sources)]
    for topic, _ in pairs:
        if topic not in known:
            raise UserError(
                f"expected --ingest into a topic that the program reads ({known_names(known)}); found "
                f"{topic!r}{hint(topic, known)}. For another one: penstock ingest FILES --topic {topic}"
            )
    return [(topic, files, sources.get(topic)) for topic, files in pairs]


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

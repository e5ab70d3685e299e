"""The topics of a data directory: which there are, and their partitions.

    DATA/topics/NAME/topic.json     id, partition count, settings; written last
    DATA/topics/NAME/0/...          one directory per partition (see `penstock.log.partition`)
    DATA/trash/...                  deleted topics on their way out

Every change is on disk before it is visible. A topic whose description is damaged or lost is *refused*:
it isn't served and its name isn't given out again, the others are served. The description restored,
the next start serves it as before.
"""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from penstock.broker.limits import PARTITIONS_MAX, PARTITIONS_PER_TOPIC_MAX, TOPICS_MAX
from penstock.broker.storage.topic_settings import log_config
from penstock.errors import CorruptError, LimitError, SetupError
from penstock.log.disk import documents
from penstock.log.disk.files import LogFiles
from penstock.log.errors import StorageError
from penstock.log.partition import Partition
from penstock.log.tier import Tier
from penstock.log.validation import LogConfig

if TYPE_CHECKING:
    import asyncio

__all__ = ["Hosted", "Topic", "Topics", "described", "name_fault"]

NAME_CHARACTERS_MAX: Final = 249
"""Longest topic name, as in Kafka: it becomes a directory's name."""
_log = logging.getLogger(__name__)
_NAME = re.compile(r"[a-zA-Z0-9._-]+")
FORMAT: Final = 1


class Hosted:
    """A partition and those who wait for its next record."""

    __slots__ = ("committed_waiters", "index", "is_tiering", "log", "topic", "waiters")

    def __init__(self, topic: Topic, index: int, log: Partition) -> None:
        self.topic = topic
        self.index = index
        self.log = log
        self.waiters: set[asyncio.Future[None]] = set()
        #: For records that are committed: those of open transactions don't concern them.
        self.committed_waiters: set[asyncio.Future[None]] = set()
        self.is_tiering = False  # its list of remote segments is being written

    @property
    def is_busy(self) -> bool:
        """Whether something is being written to the partition's directory in another thread."""
        return self.is_tiering or self.log.is_syncing or self.log.compactor.is_busy

    def wake(self) -> None:
        """Notifies all waiters that something changed."""
        self.wake_for_open()
        _wake(self.committed_waiters)

    def wake_for_open(self) -> None:
        """Notifies the waiters that there are more records of an open transaction."""
        _wake(self.waiters)


def _wake(waiters: Iterable[asyncio.Future[None]]) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)


@dataclass(slots=True)
class Topic:
    """One topic."""

    name: str
    id: uuid.UUID
    settings: dict[str, str]
    config: LogConfig
    partitions: list[Hosted] = field(default_factory=list)
    is_deleted: bool = False

    def partition(self, index: int) -> Hosted | None:
        """The partition of that number, if there is one."""
        return self.partitions[index] if 0 <= index < len(self.partitions) else None


def name_fault(name: str) -> str | None:
    """The fault of a topic's name; None if it is valid."""
    if not name or len(name) > NAME_CHARACTERS_MAX or name in {".", ".."}:
        return f"expected a name of 1 to {NAME_CHARACTERS_MAX} characters; found {name!r}"
    if not _NAME.fullmatch(name):
        return f"expected only letters, digits, '.', '_' and '-' in a name; found {name!r}"
    return None


def described(name: str, content: bytes | None) -> tuple[Topic, int]:
    """A topic without its partitions, and how many it has, as the bytes of its description say.

    Raises:
        CorruptError: they say nothing, or there are none.
    """
    path = f"topics/{name}/topic.json"
    fault = f"expected a topic's description in {path}; found none"
    try:
        if content is not None:
            fields = documents.load(content, path)
            if fields["format"] != FORMAT:
                raise ValueError(f"format {fields['format']!r}")
            settings = dict(fields["settings"])
            topic = Topic(name, uuid.UUID(fields["id"]), settings, log_config(settings))
            return topic, int(fields["partitions"])
    except SetupError as error:
        fault = str(error)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        fault = f"expected a topic's description in {path}; found {content!r:.80} ({error!r})"
    raise CorruptError(
        f"{fault}. The topic isn't served: restore the file, or move the topic's directory away, and "
        "start the broker again"
    )


class Topics:
    """All topics of one data directory.

    Args:
        files: the data directory.
        clock_ms: the time.
        lost_power: whether the machine may have gone down since the last process wrote there.

    Attributes:
        before_create: is notified of each new topic's name before it is there.
    """

    def __init__(
        self, files: LogFiles, clock_ms: Callable[[], int], *, lost_power: bool = True
    ) -> None:
        self._files = files
        self._clock_ms = clock_ms
        self._lost_power = lost_power
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[bytes, Topic] = {}
        self._leaving: set[str] = set()
        self._refused: dict[str, str] = {}
        self.before_create: Callable[[str], None] = lambda _: None
        self._tier: Tier | None = None
        self.partition_count = 0
        self.version = 0  # is another one whenever a topic came, grew, or went
        self._files.delete("trash")
        self._doomed: list[tuple[int, str]] = []
        self._defaults: dict[str, str] = {}
        for name in files.list("topics"):
            self._open(name)

    def __iter__(self) -> Iterator[Topic]:
        return iter(list(self._by_name.values()))

    def __len__(self) -> int:
        return len(self._by_name)

    @property
    def is_empty(self) -> bool:
        """Whether there is no topic, not even one that is refused."""
        return not (self._by_name or self._refused)

    def get(self, name: str) -> Topic | None:
        """The topic of that name."""
        return self._by_name.get(name)

    def hosted(self, name: str, index: int) -> Hosted | None:
        """A partition by its topic's name and its number; None where there is none.

        Raises:
            StorageError: the topic is refused, so there may be one.
        """
        if name in self._refused:
            raise StorageError(self._refused[name])
        topic = self._by_name.get(name)
        return topic.partition(index) if topic is not None else None

    def is_taken(self, name: str) -> bool:
        """Whether a topic of that name is there, served or refused, or not quite gone."""
        return name in self._by_name or name in self._leaving or name in self._refused

    @property
    def refused(self) -> Mapping[str, str]:
        """Why which topics aren't served."""
        return self._refused

    def is_leaving(self, name: str) -> bool:
        """Whether a topic of that name is not quite gone."""
        return name in self._leaving

    def by_id(self, topic_id: bytes) -> Topic | None:
        """The topic with that id (16 bytes)."""
        return self._by_id.get(topic_id)

    def partitions(self) -> Iterator[Hosted]:
        """Every partition."""
        for topic in self:
            yield from topic.partitions

    def _open(self, name: str) -> None:
        path = f"topics/{name}/topic.json"
        content = self._files.load(path)
        if content is None and self._is_unfinished(name):
            self._discard(name, uuid.uuid4())
            return
        try:
            topic, count = described(name, content)
        except CorruptError as error:
            _log.error("%s", error)
            self._refused[name] = str(error)
            return
        topic.config = self._config_of(topic.settings)
        self._add_partitions(topic, count, was_there=True)
        self._register(topic)

    def _is_unfinished(self, name: str) -> bool:
        """Whether a topic's creation was cut short: it was never acknowledged, and its logs are
        empty.
        """
        for partition in self._files.list(f"topics/{name}"):
            directory = f"topics/{name}/{partition}"
            for file in self._files.list(directory):
                if not file.endswith(".log") or self._files.open(f"{directory}/{file}").size():
                    return False
        return True

    def names(self) -> Collection[str]:
        """Every topic's name."""
        return self._by_name.keys()

    def find(self, name: str) -> tuple[uuid.UUID, int] | None:
        """A topic's id and number of partitions."""
        topic = self._by_name.get(name)
        return (topic.id, len(topic.partitions)) if topic is not None else None

    def _register(self, topic: Topic) -> None:
        self.version += 1
        self._by_name[topic.name] = topic
        self._by_id[topic.id.bytes] = topic

    def _add_partitions(self, topic: Topic, count: int, *, was_there: bool = False) -> None:
        for index in range(len(topic.partitions), count):
            directory = f"topics/{topic.name}/{index}"
            log = Partition(
                self._files,
                directory,
                topic.config,
                self._clock_ms(),
                was_there=was_there,
                lost_power=self._lost_power,
            )
            if topic.config.remote_storage and not was_there:
                self._files.sync_directory(directory)  # what is missing later was lost
            log.tier = self._tier
            topic.partitions.append(Hosted(topic, index, log))
            self.partition_count += 1

    def attach(self, tier: Tier) -> None:
        """Lets every partition, those to come too, read its remote segments there."""
        self._tier = tier
        for hosted in self.partitions():
            hosted.log.tier = tier

    def check_room(self, topics: int, partitions: int, in_topic: int) -> None:
        """Raises LimitError if that many more topics and partitions are too many."""
        if len(self) + topics > TOPICS_MAX:
            raise LimitError(f"expected at most {TOPICS_MAX} topics; delete one first")
        if in_topic > PARTITIONS_PER_TOPIC_MAX:
            raise LimitError(
                f"expected up to {PARTITIONS_PER_TOPIC_MAX} partitions in a topic; found {in_topic}"
            )
        if self.partition_count + partitions > PARTITIONS_MAX:
            raise LimitError(
                f"expected at most {PARTITIONS_MAX} partitions in all; found "
                f"{self.partition_count} and {partitions} more; delete a topic first"
            )

    def create(self, name: str, partitions: int, settings: dict[str, str]) -> Topic:
        """Makes a topic. Its name, settings and count must have been checked.

        Raises:
            LimitError: there are too many topics or partitions.
            OSError: the disk refuses.
        """
        assert not self.is_taken(name)
        assert name_fault(name) is None
        self.check_room(1, partitions, partitions)
        topic = Topic(name, uuid.uuid4(), settings, self._config_of(settings))
        try:
            self.before_create(name)
            self._add_partitions(topic, partitions)
            self._store(topic)
        except OSError:
            self.partition_count -= len(topic.partitions)
            self._discard(name, topic.id)
            raise
        self._register(topic)
        return topic

    def grow(self, topic: Topic, partitions: int) -> None:
        """Adds partitions to a topic."""
        more = partitions - len(topic.partitions)
        self.check_room(0, more, partitions)
        self._add_partitions(topic, partitions)
        self.version += 1
        self._store(topic)

    def configure(self, topic: Topic, settings: dict[str, str]) -> None:
        """Replaces a topic's settings."""
        topic.settings = settings
        topic.config = self._config_of(settings)
        self._store(topic)
        for hosted in topic.partitions:
            hosted.log.config = topic.config

    def set_defaults(self, defaults: Mapping[str, str]) -> None:
        """Replaces what holds for topics where they have no setting of their own; it isn't kept."""
        self._defaults = dict(defaults)
        for topic in self:
            topic.config = self._config_of(topic.settings)
            for hosted in topic.partitions:
                hosted.log.config = topic.config

    def _config_of(self, settings: Mapping[str, str]) -> LogConfig:
        return log_config({**self._defaults, **settings})

    def withdraw(self, topic: Topic) -> None:
        """Begins to delete a topic: it is no longer found, and nothing more is written to it."""
        self.version += 1
        del self._by_name[topic.name]
        del self._by_id[topic.id.bytes]
        self._leaving.add(topic.name)
        self.partition_count -= len(topic.partitions)
        topic.is_deleted = True
        for hosted in topic.partitions:
            hosted.log.failure = f"expected a topic; found that {topic.name} was deleted"
            hosted.wake()

    def discard(self, topic: Topic, *, keeps_name: bool = False) -> None:
        """Removes a withdrawn topic from the disk. No sync of its partitions may be under way.

        With `keeps_name` there can be no new topic of that name until `free_name`: others have yet to
        forget this one.
        """
        assert topic.is_deleted
        assert not any(one.is_busy for one in topic.partitions)
        self._discard(topic.name, topic.id, topic.config.file_delete_delay_ms)
        if not keeps_name:
            self.free_name(topic.name)

    def free_name(self, name: str) -> None:
        """A deleted topic's name may be another one's."""
        self._leaving.discard(name)

    def _discard(self, name: str, topic_id: uuid.UUID, delay_ms: int = 0) -> None:
        path = f"trash/{topic_id}"
        self._files.rename(f"topics/{name}", path)
        if delay_ms:
            self._doomed.append((self._clock_ms() + delay_ms, path))
        else:
            self._files.delete(path)

    def remove_doomed(self, now_ms: int, *, is_urgent: bool) -> None:
        """Removes files of what was deleted once their time (`file.delete.delay.ms`) has come; at once
        where it is urgent.
        """
        for hosted in self.partitions():
            hosted.log.remove_doomed(now_ms, is_urgent=is_urgent)
        due = [one for one in self._doomed if is_urgent or one[0] <= now_ms]
        for one in due:
            self._files.delete(one[1])
            self._doomed.remove(one)

    def _store(self, topic: Topic) -> None:
        fields = {
            "format": FORMAT,
            "id": str(topic.id),
            "partitions": len(topic.partitions),
            "settings": topic.settings,
        }
        self._files.store(f"topics/{topic.name}/topic.json", documents.dump(fields))
        self._files.sync_directory("topics")

    def close(self) -> None:
        """Makes everything durable, with checkpoints."""
        for hosted in self.partitions():
            try:
                hosted.log.close()
            except (OSError, StorageError) as error:  # the others are closed in order all the same
                _log.error("expected to close %s in order; found: %s", hosted.log.directory, error)

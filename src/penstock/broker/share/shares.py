"""All share groups of a broker: their members, sessions and partitions, and their journal.

Order of events: a state machine changes, the change is appended to the journal, the answer is sent.
An answer to an acknowledgement waits until the journal is durable; one that hands out records does
not, so a power failure (not a crash of the process) may forget that a delivery was counted.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeVar

from penstock.broker.groups.registry import SHARE, Summary
from penstock.broker.groups.settings import GroupSettings
from penstock.broker.share.coordinator import ShareGroups
from penstock.broker.share.held import Held
from penstock.broker.share.journal import Key, ShareJournal
from penstock.broker.share.letters import Letters
from penstock.broker.share.model import Rules
from penstock.broker.share.partition import SharePartition
from penstock.broker.share.policy import Policy
from penstock.broker.share.sessions import Session, Sessions
from penstock.broker.storage.flusher import Durable
from penstock.broker.storage.topics import Hosted, Topic, Topics
from penstock.errors import LimitError
from penstock.log.disk.files import LogFiles
from penstock.log.errors import StorageError
from penstock.wire.protocol import ErrorCode

if TYPE_CHECKING:
    from penstock.broker.tier.reader import Cache

__all__ = ["Shares"]

T = TypeVar("T")
HELD_MAX: Final = 100_000
"""Most share partitions of all groups; each takes a KB or more."""
_log = logging.getLogger(__name__)


class Shares:
    """The share groups of one broker.

    Args:
        files: the data directory.
        settings: settings of groups.
        topics: what they share.
        make_durable: see `Flusher`.
        new_producer_id: gives out an id that was never given out before.
        clock_ms: the time.
        now_ms: a monotonic clock for timeouts.
        spawn: runs something next to the requests.
        cache: through which object storage is read; None: nothing lies there.
    """

    def __init__(
        self,
        files: LogFiles,
        settings: GroupSettings,
        topics: Topics,
        *,
        make_durable: Callable[[Iterable[Durable]], Awaitable[None]],
        new_producer_id: Callable[[], int],
        clock_ms: Callable[[], int],
        now_ms: Callable[[], int],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        cache: Cache | None = None,
    ) -> None:
        self.settings = settings
        self.groups = ShareGroups(topics.find)
        self.sessions = Sessions()
        self.unreadable = 0  # records that were passed over, as the log is damaged there
        self.now_ms = now_ms
        self._clock_ms = clock_ms
        self._topics = topics
        self._spawn = spawn
        self._cache = cache
        self._policies: dict[str, tuple[dict[str, str], Policy]] = {}
        self._held: dict[str, dict[tuple[str, int], Held]] = {}
        self.held_count = 0
        self._journal = ShareJournal(files, clock_ms() - now_ms())
        self.letters = Letters(
            topics,
            self._journal.journal,
            policy=self.policy,
            save=self.save,
            loaded=self.loaded,
            make_durable=make_durable,
            new_producer_id=new_producer_id,
            clock_ms=clock_ms,
        )
        self._restore(now_ms())

    @property
    def journal(self) -> Any:
        """What must be durable before an acknowledgement is answered."""
        return self._journal.journal

    def _restore(self, now_ms: int) -> None:
        for key, change, producer_id in self._journal.entries(now_ms):
            known = self._held.get(key.group, {}).get((key.topic_id, key.partition))
            if change is None:
                if known is not None:
                    self._drop(known)
                continue
            if known is None:
                topic = self._topics.by_id(uuid.UUID(key.topic_id).bytes)
                hosted = topic.partition(key.partition) if topic is not None else None
                if hosted is None:
                    continue
                known = Held(key, hosted, SharePartition(Rules(), change.start_offset))
                self._keep(known)
            known.state.apply(change)
            known.producer_id = producer_id
        for held in self:
            held.state.rules = self.policy(held.key.group).rules
            if not held.hosted.log.is_end_unknown:
                held.state.cut_end(held.hosted.log.end_offset)
            self.save(held)

    async def loaded(self, work: Callable[[], T]) -> T:
        """What `work` gives, once what it reads from the tier is at hand."""
        if self._cache is None:
            return work()
        found, _ = await self._cache.loaded(work)
        return found

    # -- what there is -----------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Held]:
        for some in list(self._held.values()):
            yield from list(some.values())

    def of(self, group: str) -> list[Held]:
        """A group's partitions."""
        return list(self._held.get(group, {}).values())

    def get(self, group: str, topic_id: bytes, index: int) -> Held | None:
        """A group's partition, if the group knows it."""
        return self._held.get(group, {}).get((topic_id.hex(), index))

    def policy(self, group: str) -> Policy:
        """What a group's settings say now."""
        settings = self.settings.of(group)
        cached = self._policies.get(group)
        if cached is None or cached[0] is not settings:
            if len(self._policies) > HELD_MAX:
                self._policies.clear()
            cached = self._policies[group] = settings, Policy.of(self.settings.in_force(group))
        return cached[1]

    def has(self, group: str) -> bool:
        """Whether this is a share group: it has members, or partitions."""
        return self.groups.get(group) is not None or group in self._held

    def list(self) -> list[tuple[str, str]]:
        """Every share group and its state: `Stable` with members, `Empty` without."""
        names = {*self._held, *(one.id for one in self.groups)}
        return [
            (name, "Stable" if self.groups.get(name) is not None else "Empty")
            for name in sorted(names)
        ]

    def summaries(self) -> Iterator[Summary]:
        """The same, for the list of all groups."""
        for name, state in self.list():
            yield Summary(name, SHARE, state, SHARE)

    # -- partitions --------------------------------------------------------------------------------

    def _keep(self, held: Held) -> None:
        key = held.key
        self._held.setdefault(key.group, {})[key.topic_id, key.partition] = held
        self.held_count += 1

    def _drop(self, held: Held) -> None:
        key = held.key
        some = self._held[key.group]
        del some[key.topic_id, key.partition]
        if not some:
            del self._held[key.group]
        self.held_count -= 1
        held.wake()

    def open(self, group: str, topic: Topic, index: int) -> Held | None:
        """A group's partition; it begins where the group's settings say when it is new.

        Raises:
            LimitError: there are too many.
            StorageError: the disk is full or failed, or nothing says where the log begins.
        """
        held = self.get(group, topic.id.bytes, index)
        if held is not None:
            return held
        hosted = topic.partition(index)
        if hosted is None:
            return None
        policy = self.policy(group)
        return self.place(group, hosted, self._first_offset(hosted, policy.reset))

    def place(self, group: str, hosted: Hosted, offset: int) -> Held:
        """Makes a group's partition begin at an offset, for the first time or again."""
        key = Key(group, hosted.topic.id.hex, hosted.index)
        held = self._held.get(group, {}).get((key.topic_id, key.partition))
        if held is None:
            if self.held_count >= HELD_MAX:
                raise LimitError(f"expected at most {HELD_MAX} partitions of share groups")
            held = Held(key, hosted, SharePartition(self.policy(group).rules, offset))
            self._journal.write(key, held.state.whole(), -1)
            held.state.drain()
            self._keep(held)
        else:
            held.state.reset(offset)
            self.save(held)
            held.wake()
        return held

    def _first_offset(self, hosted: Hosted, reset: str | int) -> int:
        log = hosted.log
        log.require_end()
        if reset == "earliest":
            return log.start_offset
        if reset == "latest":
            return log.end_offset
        assert isinstance(reset, int)
        found = log.find_time(self._clock_ms() - reset)
        return found[0] if found is not None else log.end_offset

    def save(self, held: Held) -> None:
        """Appends to the journal what has changed.

        Raises:
            StorageError: the disk is full or failed; the next success writes all.
        """
        change = held.state.drain()
        if change is None:
            return
        try:
            self._journal.write(held.key, change, held.producer_id)
        except StorageError:
            held.state.rewrite()
            raise
        if held.state.counts.rejected and not held.is_burying:
            held.is_burying = True
            self._spawn(self._bury(held))

    async def _bury(self, held: Held) -> None:
        try:
            await self.letters.write(held)
        finally:
            held.is_burying = False

    def forget(self, held: Held) -> None:
        """A group has nothing more to do with a partition."""
        self._journal.forget(held.key)
        self._drop(held)

    def delete(self, group: str) -> ErrorCode:
        """Forgets a group without members."""
        if self.groups.get(group) is not None:
            return ErrorCode.NON_EMPTY_GROUP
        if group not in self._held:
            return ErrorCode.GROUP_ID_NOT_FOUND
        try:
            for held in self.of(group):
                self.forget(held)
        except StorageError:
            return ErrorCode.KAFKA_STORAGE_ERROR
        return ErrorCode.NONE

    # -- sessions that end -------------------------------------------------------------------------

    def end_session(self, session: Session) -> None:
        """Ends a session, and takes back what its member has: it was delivered."""
        self.sessions.end(session)
        now_ms = self.now_ms()
        for held in self.of(session.group):
            if held.state.counts.acquired:
                held.state.release(now_ms, session.member, is_counted=True)
                self.save(held)
                held.wake()

    # -- in the background -------------------------------------------------------------------------

    def tick(self, connections: Collection[object]) -> None:
        """Ends what has run out: members, sessions of connections that are gone, locks, delays."""
        now_ms = self.now_ms()
        try:
            self.groups.tick(now_ms)
            for session in self.sessions:
                if session.connection not in connections:
                    self.end_session(session)
            for held in self:
                self._tick_one(now_ms, held)
        except StorageError as error:
            _log.warning("could not keep note of share groups: %s", error)

    def _tick_one(self, now_ms: int, held: Held) -> None:
        if held.hosted.topic.is_deleted:
            self.forget(held)
        elif held.state.tick(now_ms):
            self.save(held)
            held.wake()
        elif held.state.counts.rejected and not held.is_burying:
            held.is_burying = True
            self._spawn(self._bury(held))

    def settings_changed(self, group: str) -> None:
        """A group's settings were changed: its partitions follow the new ones."""
        rules = self.policy(group).rules
        for held in self.of(group):
            if rules.in_key_order and not held.state.rules.in_key_order:
                held.state.lacks_keys = True
            held.state.rules = rules
            held.wake()

    def compact(self) -> None:
        """Rewrites the journal if most of it is obsolete. No sync may be under way.

        While a topic is refused, nothing else knows of its partitions.
        """
        if self._topics.refused:
            return
        self._journal.compact((one.key, one.state.whole(), one.producer_id) for one in self)

"""Consumer groups for operators: lag, the time that is left, resets.

A reset is made in two steps: `GroupAdmin.planned` says what each offset would become, `GroupAdmin.
reset` does it, and only to a group that has no members.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.client.client import Client, Partition
from penstock.client.retention import Limits, growth_of, size_left_ms, time_left_ms
from penstock.core.names import hint, known_names
from penstock.errors import BrokerError, UserError
from penstock.wire.protocol import ApiKey, ConfigResource, ErrorCode

if TYPE_CHECKING:
    from penstock.client.reader import Reader

__all__ = ["GroupAdmin", "GroupInfo", "GroupPosition", "Member", "Target"]

QUIET_STATES: Final = frozenset({"Empty", "Dead", ""})
"""States of groups without members."""


class GroupInfo(NamedTuple):
    """A group as the broker lists it."""

    name: str
    kind: str
    state: str


class Member(NamedTuple):
    """A member of a group."""

    id: str
    client_id: str
    host: str


@dataclass(frozen=True, slots=True)
class GroupPosition:
    """How far a group has come in a partition.

    Attributes:
        start: the partition's first offset.
        end: its next offset.
        committed: the group's.
        metadata: what the group wrote next to it.
        time_left_ms: until retention, by time or by size, reaches the group's position; None: never,
            or there is no lag, or it wasn't asked for.
    """

    topic: str
    partition: int
    start: int
    end: int
    committed: int
    metadata: str
    time_left_ms: int | None = None

    @property
    def place(self) -> Partition:
        """The topic and the partition."""
        return self.topic, self.partition

    @property
    def lag(self) -> int:
        """Records that the group has yet to read."""
        return max(self.end - max(self.committed, self.start), 0)

    @property
    def lost(self) -> int:
        """Records that were removed before the group read them."""
        return max(self.start - self.committed, 0)


@dataclass(frozen=True, slots=True)
class Target:
    """Where a group is to continue.

    Attributes:
        kind: `earliest`, `latest`, `time` (value: ms), `shift` (by value), `offset` (value).
        value: see there.
    """

    kind: str
    value: int = 0


class GroupAdmin(Client):
    """A client for groups; not to be shared between threads."""

    def list_groups(self) -> list[GroupInfo]:
        """Every group, by name."""
        answer = self._cluster.request("list groups", self._cluster.any, ApiKey.LIST_GROUPS, {})
        return sorted(
            GroupInfo(
                one["group_id"],
                one.get("group_type", "classic").lower(),
                one.get("group_state", ""),
            )
            for one in answer["groups"]
        )

    def info(self, group: str) -> GroupInfo:
        """One group.

        Raises:
            UserError: there is none of that name.
        """
        known = {one.name: one for one in self.list_groups()}
        if group in known:
            return known[group]
        if not known:
            raise UserError(
                f"expected a group that exists; found {group!r} in a log without groups"
            )
        raise UserError(
            f"expected a group among {known_names(known)}; found {group!r}{hint(group, known)}"
        )

    def members(self, info: GroupInfo) -> list[Member]:
        """A group's members."""
        api = ApiKey.CONSUMER_GROUP_DESCRIBE if info.kind == "consumer" else ApiKey.DESCRIBE_GROUPS
        names = "group_ids" if info.kind == "consumer" else "groups"
        answer = self._cluster.request(
            f"describe group {info.name!r}",
            lambda: self._coordinator(info.name),
            api,
            {names: [info.name], "include_authorized_operations": False},
            "groups",
        )
        return [
            Member(one["member_id"], one["client_id"], one["client_host"])
            for one in answer["groups"][0]["members"]
        ]

    def topic_settings(self, topic: str) -> dict[str, str]:
        """A topic's settings, defaults included."""
        resource = {
            "resource_type": ConfigResource.TOPIC,
            "resource_name": topic,
            "configuration_keys": None,
        }
        answer = self._cluster.request(
            f"describe the settings of topic {topic!r}",
            self._cluster.any,
            ApiKey.DESCRIBE_CONFIGS,
            {"resources": [resource], "include_synonyms": False, "include_documentation": False},
            "results",
        )
        return {one["name"]: one["value"] for one in answer["results"][0]["configs"]}

    def sizes(self, places: Iterable[Partition]) -> dict[Partition, int]:
        """Bytes of partitions on their leaders' disks; none of those that may not be asked for."""
        wanted = list(places)

        def ask() -> dict[Partition, int]:
            found: dict[Partition, int] = {}
            for connection, mine in self._cluster.by_leader(wanted).items():
                topics: dict[str, list[int]] = {}
                for topic, p in mine:
                    topics.setdefault(topic, []).append(p)
                asked = [{"topic": topic, "partitions": some} for topic, some in topics.items()]
                answer = self._cluster.call(connection, ApiKey.DESCRIBE_LOG_DIRS, {"topics": asked})
                for directory in answer["results"]:
                    for one in directory["topics"]:
                        for part in one["partitions"]:
                            if not part[
                                "is_future_key"
                            ]:  # a copy that is on its way to another disk
                                found[one["name"], part["partition_index"]] = part["partition_size"]
            return found

        return self._cluster.attempt("return the sizes of partitions", ask)

    def positions(
        self, group: str, reader: Reader | None = None, now_ms: int = 0
    ) -> list[GroupPosition]:
        """How far a group has come; with a reader, also how much time it has left."""
        entries = self.committed_entries(group)
        found = []
        for topic in sorted({topic for topic, _ in entries}):
            try:
                starts, ends = self.offsets(topic, "earliest"), self.offsets(topic, "latest")
            except BrokerError as error:
                if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise
                continue  # the topic is gone, what was committed isn't yet
            for (name, p), (committed, metadata) in sorted(entries.items()):
                if name == topic and p in ends:
                    found.append(GroupPosition(topic, p, starts[p], ends[p], committed, metadata))
        return found if reader is None else self._with_time_left(found, reader, now_ms)

    def _with_time_left(
        self, positions: list[GroupPosition], reader: Reader, now_ms: int
    ) -> list[GroupPosition]:
        """The same, with how long retention by time or by size, whichever is first, leaves it."""
        names = {one.topic for one in positions if one.lag}
        limits = {name: Limits.of(self.topic_settings(name)) for name in names}
        bounded = [one.place for one in positions if one.lag and limits[one.topic].size_bytes >= 0]
        growth = growth_of(self, self.sizes(bounded))
        found = []
        for one in positions:
            left: list[int | None] = []
            if one.lag and limits[one.topic].age_ms >= 0:
                at = max(one.committed, one.start)
                record_ms = _record_ms(reader, one.topic, one.partition, at, one.end)
                left.append(time_left_ms(record_ms, limits[one.topic].age_ms, now_ms))
            if one.place in growth:
                size_bytes = limits[one.topic].size_bytes
                left.append(size_left_ms(one.lag, size_bytes, growth[one.place]))
            least = min((some for some in left if some is not None), default=None)
            found.append(replace(one, time_left_ms=least))
        return found

    def planned(
        self, group: str, target: Target, topics: Mapping[str, Iterable[int] | None] | None = None
    ) -> list[tuple[str, int, int | None, int]]:
        """What a reset would do: topic, partition, offset now, offset then.

        Args:
            group: its name.
            target: where it is to continue.
            topics: which topics, and of them which partitions; None: all that it has offsets of.

        Raises:
            UserError: there is nothing to reset.
        """
        committed = {place: offset for place, (offset, _) in self.committed_entries(group).items()}
        if topics is None:
            topics = dict.fromkeys(sorted({topic for topic, _ in committed}))
        if not topics:
            raise UserError(
                f"expected group {group!r} to have committed offsets; found none; name the topic: "
                "--topic NAME"
            )
        rows = []
        for topic, chosen in topics.items():
            starts, ends = self.offsets(topic, "earliest"), self.offsets(topic, "latest")
            times = self.offsets(topic, target.value) if target.kind == "time" else {}
            for p in sorted(ends if chosen is None else chosen):
                if p not in ends:
                    raise UserError(f"expected a partition of {topic!r}; found {p}")
                now = committed.get((topic, p))
                wanted = _wanted(target, now, starts[p], ends[p], times.get(p, 0))
                if wanted is not None:
                    rows.append((topic, p, now, min(max(wanted, starts[p]), ends[p])))
        return rows

    def reset(self, group: str, offsets: Mapping[Partition, int]) -> None:
        """Commits offsets for a group.

        Raises:
            UserError: it has members, which would not notice and commit over it.
        """
        self.require_quiet(group)
        self.commit(group, offsets)

    def require_quiet(self, group: str) -> None:
        """Raises UserError if a group has members."""
        for one in self.list_groups():
            if one.name == group and one.state not in QUIET_STATES:
                raise UserError(
                    f"expected group {group!r} to have no members; found that it is {one.state}; "
                    "stop its consumers first"
                )

    def delete_group(self, group: str) -> None:
        """Forgets a group without members, and its offsets."""
        self._cluster.request(
            f"delete group {group!r}",
            lambda: self._coordinator(group),
            ApiKey.DELETE_GROUPS,
            {"groups_names": [group]},
            "results",
            advice="Stop its consumers first, or check its name",
        )


def _wanted(target: Target, now: int | None, start: int, end: int, at_time: int) -> int | None:
    match target.kind:
        case "earliest":
            return start
        case "latest":
            return end
        case "time":
            return at_time
        case "offset":
            return target.value
        case _:
            assert target.kind == "shift"
            return None if now is None else now + target.value


def _record_ms(reader: Reader, topic: str, partition: int, offset: int, end: int) -> int:
    """The time of the first record at or after an offset; 0 where there is none any more."""
    stop = min(offset + 1_000, end)
    for records in reader.read(topic, partition, offset, stop, chunk_bytes=1, missing="skip"):
        return int(records.timestamp_ms[0])
    return 0

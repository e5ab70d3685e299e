"""Settings of single groups (Kafka's resource type GROUP): names, defaults and meaning as in Kafka.

DATA/groups/settings.json       {"groups": {group: {name: value}}}, what was set; there from the first
                                start on
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from typing import Final

from penstock.broker.storage.topic_settings import BOOLEAN, FLAG, INT, STRING, Setting, SettingError
from penstock.errors import LimitError, SetupError
from penstock.log.disk import documents
from penstock.log.disk.files import LogFiles

__all__ = [
    "BROKER_WIDE",
    "GROUP_SETTINGS",
    "GroupSettings",
    "broker_wide",
    "groups_in",
    "reset_of",
    "validate_group",
]

PATH: Final = "groups/settings.json"
GROUPS_MAX: Final = 10_000
"""Groups with settings of their own; each takes some hundred bytes."""
_DURATION: Final = re.compile(
    r"by_duration:P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?"
)

GROUP_SETTINGS: Final[dict[str, Setting]] = {
    one.name: one
    for one in (
        Setting("consumer.assignment.interval.ms", INT, "1000"),
        Setting("share.assignment.interval.ms", INT, "1000"),
        Setting("streams.assignment.interval.ms", INT, "1000"),
        Setting("streams.heartbeat.interval.ms", INT, "5000"),
        Setting("streams.initial.rebalance.delay.ms", INT, "3000"),
        Setting("streams.num.standby.replicas", INT, "0"),
        Setting("streams.session.timeout.ms", INT, "45000"),
        Setting(
            "consumer.heartbeat.interval.ms",
            INT,
            "5000",
            minimum=500,
            maximum=15_000,
            field="heartbeat_ms",
            doc="How often members say that they live (protocol of KIP-848).",
        ),
        Setting(
            "consumer.session.timeout.ms",
            INT,
            "45000",
            minimum=6_000,
            maximum=1_800_000,
            field="session_ms",
            doc="Silence after which a member has lost its place (protocol of KIP-848).",
        ),
        Setting(
            "errors.deadletterqueue.copy.record.enable",
            BOOLEAN,
            "false",
            values=FLAG,
            field="copies_record",
            doc="Whether a dead letter carries the record, or only says where it is.",
        ),
        Setting(
            "errors.deadletterqueue.topic.name",
            STRING,
            "",
            field="letter_topic",
            doc="Where records go that can't be delivered; empty: nowhere.",
        ),
        Setting(
            "penstock.share.order",
            STRING,
            "none",
            values=("none", "key"),
            field="order",
            doc="key: a record waits until all earlier ones of its key are done.",
        ),
        Setting(
            "penstock.share.retry.backoff.max.ms",
            INT,
            "60000",
            maximum=86_400_000,
            field="backoff_max_ms",
            doc="The longest wait of a released record.",
        ),
        Setting(
            "penstock.share.retry.backoff.ms",
            INT,
            "0",
            maximum=86_400_000,
            field="backoff_ms",
            doc="How long a released record waits after its first delivery; doubled with each.",
        ),
        Setting(
            "share.auto.offset.reset",
            STRING,
            "latest",
            field="reset",
            doc="Where a share group begins: latest, earliest, or by_duration:PnDTnHnMn.nS.",
        ),
        Setting(
            "share.delivery.count.limit",
            INT,
            "5",
            minimum=2,
            maximum=10,
            field="delivery_count_limit",
            doc="The most deliveries of a record.",
        ),
        Setting(
            "share.heartbeat.interval.ms",
            INT,
            "5000",
            minimum=500,
            maximum=15_000,
            field="share_heartbeat_ms",
            doc="How often members of a share group say that they live.",
        ),
        Setting(
            "share.isolation.level",
            STRING,
            "read_uncommitted",
            values=("read_uncommitted", "read_committed"),
            field="isolation",
            doc="Whether a share group sees records of transactions that are open or aborted.",
        ),
        Setting(
            "share.partition.max.record.locks",
            INT,
            "2000",
            minimum=100,
            maximum=4000,
            field="unsettled_max",
            doc="Most records of a partition that are acquired or wait for another delivery.",
        ),
        Setting(
            "share.record.lock.duration.ms",
            INT,
            "30000",
            minimum=1_000,
            maximum=3_600_000,
            field="lock_ms",
            doc="How long a record is a member's before others may have it.",
        ),
        Setting(
            "share.renew.acknowledge.enable",
            BOOLEAN,
            "true",
            values=FLAG,
            field="may_renew",
            doc="Whether members may keep a record for longer (KIP-1222).",
        ),
        Setting(
            "share.session.timeout.ms",
            INT,
            "45000",
            minimum=6_000,
            maximum=1_800_000,
            field="share_session_ms",
            doc="Silence after which a member of a share group has lost its place.",
        ),
    )
}


_DEFAULTS: Final = {one.name: one.default for one in GROUP_SETTINGS.values()}
BROKER_WIDE: Final = (
    "group.consumer.heartbeat.interval.ms",
    "group.consumer.session.timeout.ms",
    "group.share.delivery.count.limit",
    "group.share.heartbeat.interval.ms",
    "group.share.partition.max.record.locks",
    "group.share.record.lock.duration.ms",
    "group.share.session.timeout.ms",
)
"""Kafka's names of the broker settings that apply to groups without a setting of their own."""
_PREFIX: Final = "group."
_NOTHING: Final[dict[str, str]] = {}


def broker_wide(given: Mapping[str, str]) -> dict[str, str]:
    """Checks a broker's settings for all groups; returns them by the names of the group settings.

    Raises:
        SettingError: a name or a value isn't known, or sessions would end between two heartbeats.
    """
    for name in given:
        if name not in BROKER_WIDE:
            raise SettingError(
                f"expected a setting of {', '.join(BROKER_WIDE)}; found {name!r}. Other settings are "
                "a group's own"
            )
    plain = {name.removeprefix(_PREFIX): value for name, value in given.items()}
    found = {name: validate_group(name, value) for name, value in plain.items()}
    _check_sessions({**_DEFAULTS, **found})
    return found


def _check_sessions(values: Mapping[str, str]) -> None:
    for kind in ("consumer", "share"):
        names = f"{kind}.session.timeout.ms", f"{kind}.heartbeat.interval.ms"
        session, beat = (int(values[one]) for one in names)
        if session <= beat:
            raise SettingError(f"expected {names[0]} > {names[1]}; found {session} and {beat}")


def validate_group(name: str, value: str | None) -> str:
    """Checks a group setting's new value.

    Raises:
        SettingError: the setting or the value isn't known.
    """
    setting = GROUP_SETTINGS.get(name)
    if setting is None or value is None:
        raise SettingError(f"expected a group setting with a value; found {name!r}: {value!r}")
    if setting.is_fixed:
        if value.strip() != setting.default:
            raise SettingError(
                f"expected {name}={setting.default}, the only value that this broker carries out; "
                f"found {value!r}"
            )
        return setting.default
    if setting.kind != INT:
        if setting.values and value not in setting.values:
            raise SettingError(
                f"expected {name} to be one of {', '.join(setting.values)}; found {value!r}"
            )
        if name == "share.auto.offset.reset":
            reset_of(value)
        return value
    if not value.strip().isdigit() or not setting.minimum <= int(value) <= setting.maximum:
        raise SettingError(
            f"expected {name} from {setting.minimum} to {setting.maximum}; found {value!r}"
        )
    return str(int(value))


def reset_of(value: str) -> str | int:
    """What share.auto.offset.reset says: `earliest`, `latest`, or how far back (ms).

    >>> reset_of("by_duration:PT1H30M")
    5400000

    Raises:
        SettingError: it says something else.
    """
    if value in {"earliest", "latest"}:
        return value
    found = _DURATION.fullmatch(value)
    if found is None or not any(found.groups()):
        raise SettingError(
            "expected share.auto.offset.reset to be earliest, latest or by_duration:P1DT2H3M4S; "
            f"found {value!r}"
        )
    days, hours, minutes, seconds = (float(one or 0) for one in found.groups())
    return int((((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000)


def groups_in(content: bytes) -> dict[str, dict[str, str]]:
    """What the bytes of the file say.

    Raises:
        SetupError: they say nothing.
    """
    groups = documents.load(content, PATH).get("groups")
    if not isinstance(groups, dict):
        raise SetupError(f"expected groups' settings in {PATH}; found {content[:80]!r}; restore it")
    return groups


class GroupSettings:
    """All groups' settings.

    Args:
        files: the data directory.
        broker_wide: what groups have that aren't configured otherwise: see `broker_wide`.
    """

    def __init__(self, files: LogFiles, broker_wide: Mapping[str, str] = _NOTHING) -> None:
        self._files = files
        self.broker_wide = broker_wide
        self._defaults = {**_DEFAULTS, **broker_wide}
        content = files.load(PATH)
        self._groups: dict[str, dict[str, str]] = {}
        if content is not None:
            self._groups = groups_in(content)
        else:
            with contextlib.suppress(OSError):  # a full disk: what is missing is reported again
                files.store(PATH, documents.dump({"groups": {}}))

    def of(self, group_id: str) -> dict[str, str]:
        """What was set for a group; don't change it. As long as nothing is set, it is the same object."""
        return self._groups.get(group_id, _NOTHING)

    def in_force(self, group_id: str) -> dict[str, str]:
        """The values of all settings."""
        return {**self._defaults, **self.of(group_id)}

    def groups(self) -> list[str]:
        """Groups for which something was set."""
        return list(self._groups)

    def number(self, group_id: str, name: str) -> int:
        """A setting's value in force."""
        return int(self.of(group_id).get(name) or self._defaults[name])

    def check(self, settings: Mapping[str, str]) -> None:
        """Raises SettingError if sessions would end between two heartbeats."""
        _check_sessions({**self._defaults, **settings})

    def replace(self, group_id: str, settings: dict[str, str]) -> None:
        """Sets all of a group's settings, durably. They must have been checked.

        Raises:
            LimitError: too many groups have settings.
            OSError: the disk refuses; nothing is changed.
        """
        changed = {**self._groups, group_id: settings}
        if not settings:
            changed.pop(group_id)
        if len(changed) > GROUPS_MAX:
            raise LimitError(f"expected at most {GROUPS_MAX} groups with settings; reset some")
        self._files.store(PATH, documents.dump({"groups": changed}))
        self._groups = changed

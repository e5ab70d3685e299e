"""The broker's settings that clients change while it runs, as Kafka's dynamic ones: for all brokers at
once, or for this one, which comes first.

    DATA/settings.json      {"cluster": {name: value}, "broker": {name: value}}, what was set; there from
                            the first start on

Most are defaults of topics without a setting of their own. Some are the broker's own. The others are
stored and shown, but have no effect. The effective value is the one set for this broker, else the one
set for all, else the one given at the start, else Kafka's default.
"""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from penstock.broker.broker_settings import (
    TOPIC_DEFAULTS,
    BrokerSetting,
    broker_settings,
)
from penstock.broker.storage.topic_settings import (
    BOOLEAN,
    DOUBLE,
    FLAG,
    INT,
    LONG,
    TOPIC_SETTINGS,
    SettingError,
    validate,
)
from penstock.errors import SetupError
from penstock.log.disk import documents
from penstock.log.disk.files import LogFiles

__all__ = [
    "CLEANER_BACKOFF_MS",
    "CLEANER_BYTES_PER_S",
    "CLUSTER",
    "CONNECTIONS",
    "CONNECTIONS_PER_IP",
    "CONNECTIONS_PER_IP_OVERRIDES",
    "PRODUCER_EXPIRY_MS",
    "DynamicSettings",
    "Source",
    "dynamic_settings_in",
    "is_carried_out",
    "overrides_in",
    "validate_dynamic",
]

PATH: Final = "settings.json"
VALUE_CHARACTERS_MAX: Final = 10_000
"""Longest value; there are some hundred settings, so the file has its end."""
_RANGES: Final = {INT: (-(1 << 31), (1 << 31) - 1), LONG: (-(1 << 63), (1 << 63) - 1)}

CLEANER_BACKOFF_MS: Final = "log.cleaner.backoff.ms"
CLEANER_BYTES_PER_S: Final = "log.cleaner.io.max.bytes.per.second"
CONNECTIONS: Final = "max.connections"
CONNECTIONS_PER_IP: Final = "max.connections.per.ip"
CONNECTIONS_PER_IP_OVERRIDES: Final = "max.connections.per.ip.overrides"
PRODUCER_EXPIRY_MS: Final = "producer.id.expiration.ms"
_LEAST: Final = {
    CLEANER_BACKOFF_MS: 0,
    CLEANER_BYTES_PER_S: 1,
    CONNECTIONS: 1,  # with 0, no client could set it back
    CONNECTIONS_PER_IP: 1,
    PRODUCER_EXPIRY_MS: 1,
}
"""The least value of what the broker itself carries out."""


class Source(NamedTuple):
    """A value that was set, and for whom: Kafka's number."""

    value: str
    number: int


BROKER, CLUSTER = 2, 3
"""Kafka's numbers of what was set for this broker, and for all."""


def validate_dynamic(name: str, value: str | None) -> str:
    """Checks a setting's new value.

    Raises:
        SettingError: it can't be changed while the broker runs, or not to this value.
    """
    setting = broker_settings()[name]
    if not setting.is_changeable:
        raise SettingError(
            f"expected a setting that can be changed while the broker runs; found {name}: see `penstock "
            "broker --help` for the options that it takes at start"
        )
    if value is None or len(value) > VALUE_CHARACTERS_MAX:
        raise SettingError(
            f"expected a value of at most {VALUE_CHARACTERS_MAX} characters for {name}; found "
            f"{'null' if value is None else len(value)}"
        )
    if name in TOPIC_DEFAULTS:
        try:
            return validate(TOPIC_DEFAULTS[name], value)
        except SettingError as error:
            raise SettingError(f"{name}: {error}") from None
    if name == CONNECTIONS_PER_IP_OVERRIDES:
        overrides_in(value)
        return value
    return _checked(setting, value.strip())


def _checked(setting: BrokerSetting, value: str) -> str:
    """A value of the setting's type."""
    if setting.kind == BOOLEAN:
        if value.lower() not in FLAG:
            raise SettingError(f"expected true or false for {setting.name}; found {value!r}")
        return value.lower()
    if setting.kind not in {*_RANGES, DOUBLE}:
        return value
    try:
        number = float(value) if setting.kind == DOUBLE else int(value)
    except ValueError:
        raise SettingError(f"expected a number for {setting.name}; found {value!r}") from None
    least, most = _RANGES.get(setting.kind, (float("-inf"), float("inf")))
    least = max(least, _LEAST.get(setting.name, least))
    if not least <= number <= most:
        raise SettingError(f"expected {setting.name} from {least} to {most}; found {number}")
    return value


def is_carried_out(name: str) -> bool:
    """Whether it makes a difference what a setting is set to."""
    if name in TOPIC_DEFAULTS:
        return TOPIC_SETTINGS[TOPIC_DEFAULTS[name]].field is not None
    return name in _LEAST or name == CONNECTIONS_PER_IP_OVERRIDES


def overrides_in(text: str) -> dict[str, int]:
    """Connections by address.

    >>> overrides_in("10.0.0.7:5, ::1:20")
    {'10.0.0.7': 5, '::1': 20}

    Raises:
        SettingError: the text says something else.
    """
    found = {}
    for one in filter(None, (part.strip() for part in text.split(","))):
        address, _, count = one.rpartition(":")
        try:
            found[str(ipaddress.ip_address(address.strip("[]")))] = int(count)
        except ValueError:
            raise SettingError(
                f"expected ADDRESS:CONNECTIONS and commas between them; found {one!r}"
            ) from None
    return found


def dynamic_settings_in(content: bytes) -> dict[str, dict[str, str]]:
    """What the bytes of the file say: by `cluster` and `broker`.

    Raises:
        SetupError: they can't be read, or have a value that can't be set.
    """
    found = documents.load(content, PATH)
    try:
        return {
            who: {name: validate_dynamic(name, value) for name, value in found[who].items()}
            for who in ("cluster", "broker")
        }
    except (KeyError, AttributeError, TypeError, SettingError) as error:
        raise SetupError(
            f"expected the broker's settings in {PATH}; found {content[:80]!r} ({error!r}); restore it, "
            "or remove it and set them again"
        ) from None


class DynamicSettings:
    """What was set."""

    def __init__(self, files: LogFiles) -> None:
        self._files = files
        self._followers: list[Callable[[], None]] = []
        content = files.load(PATH)
        self._set: dict[str, dict[str, str]] = {"cluster": {}, "broker": {}}
        if content is not None:
            self._set = dynamic_settings_in(content)
        else:
            with contextlib.suppress(OSError):  # a full disk: what is missing is reported again
                files.store(PATH, documents.dump(self._set))

    def of(self, *, cluster: bool) -> Mapping[str, str]:
        """What was set for all brokers, or for this one."""
        return self._set["cluster" if cluster else "broker"]

    def sources(self, name: str) -> list[Source]:
        """What was set under a name, the effective value first."""
        found = [("broker", BROKER), ("cluster", CLUSTER)]
        return [Source(self._set[who][name], n) for who, n in found if name in self._set[who]]

    def value(self, name: str) -> str | None:
        """The effective value of what was set; None where nothing was."""
        return next((one.value for one in self.sources(name)), None)

    def number(self, name: str, default: float) -> float:
        """The same, as a number."""
        value = self.value(name)
        return default if value is None else float(value)

    def topic_defaults(self) -> dict[str, str]:
        """Defaults of topics' settings, by their names there."""
        found = {}
        for name, topics_name in TOPIC_DEFAULTS.items():
            value = self.value(name)
            if value is not None:
                found[topics_name] = value
        return found

    def replace(self, settings: Mapping[str, str], *, cluster: bool) -> None:
        """Replaces all that is set for all brokers, or for this one, durably, and notifies followers.
        The values must have been checked.

        Raises:
            OSError: the disk refuses; nothing is changed.
        """
        changed = {**self._set, "cluster" if cluster else "broker": dict(settings)}
        self._files.store(PATH, documents.dump(changed))
        self._set = changed
        for work in self._followers:
            work()

    def follow(self, work: Callable[[], None]) -> None:
        """Has something done now, and whenever something has changed."""
        self._followers.append(work)
        work()

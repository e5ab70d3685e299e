"""Quotas: how much of the broker a user or a client id may take (KIP-13, KIP-124, KIP-219, KIP-546).

A quota is about an entity: a user, a client id, or both; either may be the default, which applies to
all without a quota of their own. The most specific entity counts. A client beyond its quota is answered
at once, with a throttle time, and is not read from for that long.

Where Kafka averages over a window, this is a token bucket: what is not used within `BURST_S` is lost,
and an excess must first be refilled. Time is an argument.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from penstock.broker.security.files import SecurityFile
from penstock.errors import LimitError, SetupError, UserError

__all__ = ["DEFAULT", "Entity", "Quota", "Quotas", "entity_of"]

QUOTAS_MAX: Final = 10_000
"""Entities with quotas; the file is written whole."""
BUCKETS_MAX: Final = 20_000
"""Users and clients whose use is remembered; the one that was seen least recently is forgotten."""
BURST_S: Final = 2.0
"""How many seconds' worth may be taken at once after a silence."""
THROTTLE_S_MAX: Final = 30.0
"""Longest silence: clients give a request up after as long."""
NAME_CHARACTERS_MAX: Final = 1024
USER, CLIENT = "user", "client-id"
DEFAULT: Final = None
"""The name of the entity that stands for all others."""

Entity = tuple[tuple[str, str | None], ...]
"""Types and names, in the order of the types."""

_log = logging.getLogger(__name__)


class Quota(StrEnum):
    """What is limited."""

    PRODUCE = "producer_byte_rate"
    FETCH = "consumer_byte_rate"
    REQUEST = "request_percentage"


def entity_of(names: Mapping[str, str | None]) -> Entity:
    """An entity from its types and names.

    Raises:
        UserError: a type or a name makes no sense.
    """
    if not names or set(names) - {USER, CLIENT}:
        raise UserError(f"expected an entity of {USER} and {CLIENT}; found {sorted(names)}")
    for name in names.values():
        if name is not None and not 0 < len(name) <= NAME_CHARACTERS_MAX:
            raise UserError(f"expected a name of 1 to {NAME_CHARACTERS_MAX} characters")
    return tuple(sorted(names.items()))


def _candidates(user: str, client: str) -> Iterator[dict[str, str | None]]:
    """The entities that a request may belong to, the most specific first."""
    for owner in (user, DEFAULT):
        yield {USER: owner, CLIENT: client}
        yield {USER: owner, CLIENT: DEFAULT}
        yield {USER: owner}
    yield {CLIENT: client}
    yield {CLIENT: DEFAULT}


class _Bucket:
    """What may be taken now; below zero: what was taken too much."""

    __slots__ = ("at_s", "level", "rate")

    def __init__(self, rate: float, now_s: float) -> None:
        self.rate = rate
        self.level = rate * BURST_S
        self.at_s = now_s

    def take(self, amount: float, now_s: float) -> float:
        """Takes; the seconds until nothing is owed."""
        flowed = max(now_s - self.at_s, 0.0) * self.rate
        self.level = min(self.level + flowed, self.rate * BURST_S) - amount
        self.at_s = now_s
        self.level = max(self.level, -THROTTLE_S_MAX * self.rate)
        return max(-self.level / self.rate, 0.0)


class Quotas:
    """The quotas of a data directory, in `security/quotas.json`, and what was taken of them.

    Raises:
        SetupError: the file can't be read.
    """

    def __init__(self, data: Path) -> None:
        self._file = SecurityFile(data, "quotas.json", "quotas")
        self._quotas: dict[Entity, dict[str, float]] = {}
        self._buckets: OrderedDict[tuple[Quota, str | None, str | None], _Bucket] = OrderedDict()
        #: Answers after which a client had to be silent, so far.
        self.throttled = 0
        self._load()

    @property
    def is_on(self) -> bool:
        """Whether anything is limited."""
        return bool(self._quotas)

    def _load(self) -> None:
        try:
            self._quotas = {
                entity_of(one["entity"]): {
                    Quota(k).value: float(v) for k, v in one["values"].items()
                }
                for one in self._file.load() or ()
            }
        except (AttributeError, KeyError, TypeError, ValueError, UserError) as error:
            raise SetupError(
                f"expected quotas in {str(self._file.path)!r}; found: {error!r}; restore the file"
            ) from None
        self._buckets.clear()

    def refresh(self) -> None:
        """Reads the file again if it has changed; keeps what it had where that fails."""
        if self._file.has_changed():
            try:
                self._load()
            except SetupError as error:
                _log.warning("keeping the quotas that are known: %s", error)

    def __iter__(self) -> Iterator[tuple[Entity, dict[str, float]]]:
        return iter(sorted(self._quotas.items(), key=lambda one: repr(one[0])))

    def find(self, quota: Quota, user: str, client: str) -> tuple[float, Entity] | None:
        """The limit that counts, and whose it is; None where there is none."""
        for names in _candidates(user, client):
            entity = tuple(sorted(names.items()))
            value = self._quotas.get(entity, {}).get(quota)
            if value is not None:
                return value, entity
        return None

    def take(self, quota: Quota, user: str, client: str, amount: float, now_s: float) -> float:
        """Takes an amount (bytes, or percent of a second); for how many seconds to be silent then."""
        found = self.find(quota, user, client)
        if found is None:
            return 0.0
        rate, entity = found
        types = {kind for kind, _ in entity}
        key = quota, user if USER in types else None, client if CLIENT in types else None
        bucket = self._buckets.get(key)
        if bucket is None or bucket.rate != rate:
            bucket = self._buckets[key] = _Bucket(rate, now_s)
            while len(self._buckets) > BUCKETS_MAX:
                self._buckets.popitem(last=False)
        self._buckets.move_to_end(key)
        silent_s = bucket.take(amount, now_s)
        self.throttled += silent_s > 0
        return silent_s

    def change(self, changes: Mapping[Entity, Mapping[str, float | None]]) -> None:
        """Sets and removes (None) limits.

        Raises:
            LimitError: there would be too many.
            SetupError, OSError: the file can't be written.
        """
        with self._file.locked():
            self._load()
            quotas = {entity: dict(values) for entity, values in self._quotas.items()}
            for entity, values in changes.items():
                kept = quotas.setdefault(entity, {})
                for key, value in values.items():
                    if value is None:
                        kept.pop(key, None)
                    else:
                        kept[key] = value
            quotas = {entity: values for entity, values in quotas.items() if values}
            if len(quotas) > max(QUOTAS_MAX, len(self._quotas)):
                raise LimitError(f"expected at most {QUOTAS_MAX} entities with quotas")
            self._file.store([_write(entity, values) for entity, values in quotas.items()])
            self._quotas = quotas
            self._buckets.clear()


def _write(entity: Entity, values: dict[str, float]) -> dict[str, Any]:
    return {"entity": dict(entity), "values": values}

"""What a registry knows: subjects, their versions and ids, as the records of its topic say it.

The records are those of Confluent's registry (topic `_schemas`), so either reads what the other wrote. The
state is a function of the records alone: all who have read them as far have the same.

Invariant: a schema has one id, an id one schema, and no id is given out twice, although compaction removes
the records of schemas that were deleted for good: the greatest id is written with each such deletion.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from penstock.schemas.parsing import Kind

__all__ = ["TOPIC", "Entry", "Reference", "Schema", "Subjects", "Write"]

TOPIC: Final = "_schemas"
"""Where Confluent's registry, and those that are compatible with it, keep schemas."""

Write = tuple[bytes, bytes | None]
"""A record to write: its key, and its value or a tombstone."""


class Reference(NamedTuple):
    """Another schema that a schema names: under which name, and where it is."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True)
class Schema:
    """A schema as it was registered.

    Attributes:
        kind: what it is.
        text: of the schema.
        references: what it names.
        more: its metadata and rules, as they were given.
    """

    kind: Kind
    text: str
    references: tuple[Reference, ...] = ()
    more: str = ""

    def plain(self) -> dict[str, Any]:
        """As Confluent's API shows it."""
        found: dict[str, Any] = {"schema": self.text}
        if self.kind is not Kind.AVRO:
            found["schemaType"] = str(self.kind)
        if self.references:
            found["references"] = [one._asdict() for one in self.references]
        return found | (json.loads(self.more) if self.more else {})


class Entry(NamedTuple):
    """A version of a subject."""

    subject: str
    version: int
    id: int
    schema: Schema
    is_deleted: bool = False


@dataclass
class Subjects:
    """The state. `apply` takes the records in their order; everything else reads.

    A state that others may read isn't changed: records are applied to a copy, which takes its place.
    """

    by_subject: dict[str, dict[int, Entry]] = field(default_factory=dict)
    by_id: dict[int, Schema] = field(default_factory=dict)
    ids: dict[Schema, int] = field(default_factory=dict)
    configs: dict[str | None, dict[str, Any]] = field(default_factory=dict)
    modes: dict[str | None, str] = field(default_factory=dict)
    greatest_id: int = 0

    def copy(self) -> Subjects:
        """One that can be changed by itself."""
        return Subjects(
            {subject: dict(versions) for subject, versions in self.by_subject.items()},
            dict(self.by_id),
            dict(self.ids),
            dict(self.configs),
            dict(self.modes),
            self.greatest_id,
        )

    def apply(self, key: bytes | None, value: bytes | None) -> None:
        """Takes a record; one that is none of a registry's is passed over."""
        try:
            parsed_key = json.loads(key or b"null")
            content = json.loads(value) if value else None
            self._apply(parsed_key, content)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return

    def _apply(self, key: Any, value: Any) -> None:
        subject = key.get("subject")
        match key["keytype"]:
            case "SCHEMA":
                self._put(str(subject), int(key["version"]), value)
            case "DELETE_SUBJECT" if value is not None:
                for entry in list(self.by_subject.get(str(subject), {}).values()):
                    if entry.version <= int(value["version"]):
                        self.by_subject[entry.subject][entry.version] = entry._replace(
                            is_deleted=True
                        )
            case "CONFIG":
                self.configs.pop(subject, None)
                if value is not None:
                    self.configs[subject] = dict(value)
            case "MODE":
                self.modes.pop(subject, None)
                if value is not None:
                    self.modes[subject] = value["mode"]
            case "NOOP" if value is not None:
                self.greatest_id = max(self.greatest_id, int(value["greatestId"]))

    def _put(self, subject: str, version: int, value: Any) -> None:
        if value is None:
            versions = self.by_subject.get(subject, {})
            gone = versions.pop(version, None)
            if not versions:
                self.by_subject.pop(subject, None)
            if gone is not None and not any(one.id == gone.id for one in self.entries()):
                self.by_id.pop(gone.id, None)
                self.ids.pop(gone.schema, None)
            return
        references = value.get("references") or ()
        more = {name: value[name] for name in ("metadata", "ruleSet") if value.get(name)}
        schema = Schema(
            Kind(value.get("schemaType") or "AVRO"),
            str(value["schema"]),
            tuple(
                Reference(one["name"], one["subject"], int(one["version"])) for one in references
            ),
            json.dumps(more, sort_keys=True) if more else "",
        )
        id_ = int(value["id"])
        entry = Entry(subject, version, id_, schema, bool(value.get("deleted")))
        self.by_subject.setdefault(subject, {})[version] = entry
        self.by_id[id_] = schema
        self.ids.setdefault(schema, id_)
        self.greatest_id = max(self.greatest_id, id_)

    def entries(self) -> Iterator[Entry]:
        """Every version of every subject, deleted ones too."""
        for versions in self.by_subject.values():
            yield from versions.values()

    def versions(self, subject: str, *, deleted: bool = False) -> list[Entry]:
        """A subject's versions in their order."""
        found = sorted(self.by_subject.get(subject, {}).values(), key=lambda one: one.version)
        return found if deleted else [one for one in found if not one.is_deleted]

    def check(self) -> None:
        """Asserts the invariant."""
        for entry in self.entries():
            assert self.by_id[entry.id] == entry.schema, entry
            assert entry.id <= self.greatest_id, entry


def schema_record(entry: Entry) -> Write:
    """The record that says a version."""
    value = {
        "subject": entry.subject,
        "version": entry.version,
        "id": entry.id,
        **entry.schema.plain(),
        "deleted": entry.is_deleted,
    }
    return schema_key(entry.subject, entry.version), _json(value)


def schema_key(subject: str, version: int) -> bytes:
    """The key of a version's record."""
    return _json({"keytype": "SCHEMA", "subject": subject, "version": version, "magic": 1})


def config_record(subject: str | None, value: Mapping[str, Any] | None) -> Write:
    """The record that says how compatible a subject's schemas must be; of all subjects with None."""
    key = {"keytype": "CONFIG", "subject": subject, "magic": 0}
    return _json(key), None if value is None else _json(value)


def mode_record(subject: str | None, mode: str | None) -> Write:
    """The record that says what may be written."""
    key = {"keytype": "MODE", "subject": subject, "magic": 0}
    return _json(key), None if mode is None else _json({"mode": mode})


def greatest_id_record(id_: int) -> Write:
    """The record that keeps ids from being given out again; Confluent's registry passes it over."""
    return _json({"keytype": "NOOP", "magic": 0}), _json({"greatestId": id_})


def delete_record(subject: str, version: int) -> Write:
    """The record that marks a subject's versions, up to one, as deleted."""
    key = {"keytype": "DELETE_SUBJECT", "subject": subject, "magic": 0}
    return _json(key), _json({"subject": subject, "version": version})


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()

"""Finding things in a registry's state, and what forbids to change it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from penstock.registry.refusals import Refusal, no_subject, no_version
from penstock.schemas import Level
from penstock.schemas.subjects import Entry, Reference, Subjects

SUBJECT_CHARACTERS_MAX: Final = 1_000
"""Of a subject's name; a topic's has 249 at most."""
REFERENCES_MAX: Final = 1_000
"""Schemas that one schema may need, with those that they need."""
DEFAULT: Final = {"compatibilityLevel": str(Level.BACKWARD)}
"""The global config at first."""


def invalid_version(version: object) -> Refusal:
    """It isn't a number that a version can have."""
    return Refusal(
        42202,
        f"The specified version '{version}' is not a valid version id. Allowed values are between "
        '[1, 2^31-1] and the string "latest"',
    )


def find_entry(
    state: Subjects,
    subject: str,
    version: str,
    *,
    deleted: bool = False,
    latest_deleted: bool = False,
) -> Entry:
    """A version by its number or as `latest`; -1 is that, too."""
    found = state.versions(subject, deleted=deleted)
    if version in ("latest", "-1"):
        known = found if latest_deleted else [one for one in found if not one.is_deleted]
        if not known:
            raise no_subject(subject)
        return known[-1]
    if not version.isdecimal() or not 1 <= int(version) < 2**31:
        raise invalid_version(version)
    if not found:
        raise no_subject(subject)
    for one in found:
        if one.version == int(version):
            return one
    raise no_version(version)


def references_in(state: Subjects, body: Mapping[str, Any]) -> tuple[Reference, ...]:
    """What a request's schema names; the version -1 is the latest."""
    found: list[Reference] = []
    given = body.get("references") or []
    if not isinstance(given, list):
        raise Refusal(42201, f"Invalid references: expected a list; found {given!r}")
    for one in given:
        try:
            reference = Reference(str(one["name"]), str(one["subject"]), int(one["version"]))
        except (KeyError, TypeError, ValueError):
            raise Refusal(
                42201, f"Invalid reference: expected name, subject and version; found {one!r}"
            ) from None
        if reference.version == -1:
            latest = find_entry(state, reference.subject, "latest")
            reference = reference._replace(version=latest.version)
        found.append(reference)
    return tuple(found)


def texts_of(state: Subjects, references: Sequence[Reference]) -> tuple[tuple[str, str], ...]:
    """The names and texts of what a schema needs, each after what it needs itself."""
    found: dict[str, str] = {}

    def add(reference: Reference) -> None:
        if reference.name in found:
            return
        if len(found) >= REFERENCES_MAX:
            raise Refusal(42201, f"Invalid schema: expected at most {REFERENCES_MAX} references")
        entry = state.by_subject.get(reference.subject, {}).get(reference.version)
        if entry is None:
            raise Refusal(
                42201,
                f'Invalid schema: no schema reference found for subject "{reference.subject}" and '
                f"version {reference.version}",
            )
        for one in entry.schema.references:
            add(one)
        found[reference.name] = entry.schema.text

    for one in references:
        add(one)
    return tuple(found.items())


def users_of(state: Subjects, entry: Entry) -> list[Entry]:
    """The versions that name a version."""
    place = entry.subject, entry.version
    return [
        one for one in state.entries()
        if not one.is_deleted
        and any((used.subject, used.version) == place for used in one.schema.references)
    ]  # fmt: skip


def check_unused(state: Subjects, entry: Entry, but: str | None = None) -> None:
    """Refuses to delete what others name."""
    if any(one.subject != but for one in users_of(state, entry)):
        raise Refusal(
            42206,
            f"One or more references exist to the schema {{magic=1,keytype=SCHEMA,subject="
            f"{entry.subject},version={entry.version}}}.",
        )


def check_subject(subject: str) -> None:
    """Refuses names that no subject can have."""
    if not subject or len(subject) > SUBJECT_CHARACTERS_MAX or not subject.isprintable():
        raise Refusal(42208, f"The specified subject '{subject[:100]}' is not a valid.")


def config_of(state: Subjects, subject: str | None) -> dict[str, Any]:
    """A subject's config, and what it has of the global one."""
    return {**DEFAULT, **state.configs.get(None, {}), **state.configs.get(subject, {})}


def normalizes(state: Subjects, subject: str, *, asked: bool) -> bool:
    """Whether schemas are compared in their normal form."""
    return asked or bool(config_of(state, subject).get("normalize"))


def level_of(state: Subjects, subject: str) -> str:
    """How compatible a subject's schemas must be."""
    return str(config_of(state, subject)["compatibilityLevel"])


def mode_of(state: Subjects, subject: str | None) -> str:
    """What may be written of a subject."""
    everywhere = state.modes.get(None, "READWRITE")
    if everywhere == "READONLY_OVERRIDE":
        return everywhere
    return state.modes.get(subject, everywhere)


def check_writable(state: Subjects, subject: str | None) -> None:
    """Refuses changes of what is read-only."""
    if mode_of(state, subject) in ("READONLY", "READONLY_OVERRIDE"):
        raise Refusal(42205, f"Subject {subject} is in read-only mode")

"""What a registry does: each method is an endpoint of Confluent's API, without HTTP.

What changes something is decided on all that the log has, and written in one transaction of the one writer
that the log knows (see `penstock.registry.store`).
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from penstock.registry.looking import (
    DEFAULT,
    check_subject,
    check_unused,
    check_writable,
    config_of,
    find_entry,
    invalid_version,
    level_of,
    mode_of,
    normalizes,
    references_in,
    texts_of,
    users_of,
)
from penstock.registry.refusals import Refusal, no_schema, no_subject
from penstock.registry.store import Store
from penstock.schemas import Kind, Level, Malformed, Parsed, breaks_between, parse
from penstock.schemas.levels import Incompatible
from penstock.schemas.protobuf import ProtoFile, serialized
from penstock.schemas.subjects import (
    Entry,
    Schema,
    Subjects,
    Write,
    config_record,
    delete_record,
    greatest_id_record,
    mode_record,
    schema_key,
    schema_record,
)

__all__ = ["MODES", "Registry"]

MODES: Final = ("READWRITE", "READONLY", "READONLY_OVERRIDE", "IMPORT")
PARSED_MAX: Final = 1_000
"""Parsed schemas that are kept."""
COMPARED_MAX: Final = 100
"""Comparisons whose results are kept: a writer finds there what was compared before it began."""
_Written: TypeAlias = tuple[Schema, tuple[tuple[str, str], ...]]
"""A schema, and the names and texts of those that it names."""
_CONFIG: Final = ("normalize", "compatibilityGroup", "defaultMetadata", "overrideMetadata",
                  "defaultRuleSet", "overrideRuleSet", "alias", "validateFields")  # fmt: skip


class Registry:
    """The registry over a log.

    Args:
        store: where its records are.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._parse = functools.lru_cache(PARSED_MAX)(self._parse_anew)
        self._compare = functools.lru_cache(COMPARED_MAX)(self._compare_anew)

    def _state(self) -> Subjects:
        """The state, with all that has been written anywhere."""
        return self._store.fresh()

    # -- schemas -----------------------------------------------------------------------------------

    def schema(
        self, id_: int, subject: str = "", form: str = "", *, max_id: bool = False
    ) -> dict[str, Any]:
        """`GET /schemas/ids/{id}`."""
        schema = self._by_id(id_)
        if subject and not any(one.subject == subject for one in self._entries_of(id_)):
            raise no_schema(id_)
        found = self._formed(schema, schema.plain(), form)
        if max_id:
            found["maxId"] = self._store.state.greatest_id
        return found

    def _formed(self, schema: Schema, shown: dict[str, Any], form: str) -> dict[str, Any]:
        """What is shown of a schema, with its text as it is asked for: `serialized` of Protobuf."""
        if form == "serialized" and schema.kind is Kind.PROTOBUF:
            parsed = self._parsed(self._store.state, schema)
            assert isinstance(parsed.schema, ProtoFile)
            shown["schema"] = serialized(parsed.schema)
        return shown

    def _by_id(self, id_: int) -> Schema:
        """A schema; one that is known doesn't change, so the log isn't asked."""
        found = self._store.state.by_id.get(id_) or self._state().by_id.get(id_)
        if found is None:
            raise no_schema(id_)
        return found

    def _entries_of(self, id_: int, *, deleted: bool = True) -> list[Entry]:
        found = [one for one in self._state().entries() if one.id == id_]
        return [one for one in found if deleted or not one.is_deleted]

    def places(self, id_: int, *, deleted: bool = False) -> list[dict[str, Any]]:
        """`GET /schemas/ids/{id}/versions`."""
        self._by_id(id_)
        found = self._entries_of(id_, deleted=deleted)
        return [{"subject": one.subject, "version": one.version} for one in found]

    def schemas(
        self, prefix: str = "", *, deleted: bool = False, latest: bool = False
    ) -> list[dict[str, Any]]:
        """`GET /schemas`."""
        state = self._state()
        found: list[Entry] = []
        for subject in sorted(state.by_subject):
            if subject.startswith(prefix):
                versions = state.versions(subject, deleted=deleted)
                found += versions[-1:] if latest else versions
        return [_shown(one) for one in found]

    # -- subjects ----------------------------------------------------------------------------------

    def subjects(
        self, prefix: str = "", *, deleted: bool = False, deleted_only: bool = False
    ) -> list[str]:
        """`GET /subjects`."""
        state = self._state()
        found = [one for one in sorted(state.by_subject) if one.startswith(prefix)]
        if deleted_only:
            return [one for one in found if not state.versions(one)]
        return [one for one in found if state.versions(one, deleted=deleted)]

    def versions(self, subject: str, *, deleted: bool = False) -> list[int]:
        """`GET /subjects/{subject}/versions`."""
        found = self._state().versions(subject, deleted=deleted)
        if not found:
            raise no_subject(subject)
        return [one.version for one in found]

    def version(
        self, subject: str, version: str, form: str = "", *, deleted: bool = False
    ) -> dict[str, Any]:
        """`GET /subjects/{subject}/versions/{version}`."""
        found = find_entry(self._state(), subject, version, deleted=deleted)
        return self._formed(found.schema, _shown(found), form)

    def referenced_by(self, subject: str, version: str) -> list[int]:
        """`GET /subjects/{subject}/versions/{version}/referencedby`."""
        state = self._state()
        entry = find_entry(state, subject, version, deleted=True)
        return sorted({one.id for one in users_of(state, entry)})

    def lookup(
        self,
        subject: str,
        body: Mapping[str, Any],
        form: str = "",
        *,
        normalize: bool,
        deleted: bool,
    ) -> dict[str, Any]:
        """`POST /subjects/{subject}`."""
        state = self._state()
        normalize = normalizes(state, subject, asked=normalize)
        if not state.versions(subject, deleted=deleted):
            raise no_subject(subject)
        schema, parsed = self._taken(state, body, normalize=normalize)
        found = self._same(
            state, state.versions(subject, deleted=deleted), schema, parsed, normalize=normalize
        )
        if found is None:
            raise no_schema()
        return self._formed(found.schema, _shown(found), form)

    def register(
        self, subject: str, body: Mapping[str, Any], *, normalize: bool = False
    ) -> dict[str, Any]:
        """`POST /subjects/{subject}/versions`."""
        # Without a writer at first: most producers register an existing schema, and a long comparison, whose
        # result is kept, holds up nobody.
        entry, is_new = self._entry_for(self._state(), subject, body, normalize=normalize)
        if not is_new:
            return _registered(entry)
        made: list[Entry] = []

        def decide(state: Subjects) -> list[Write]:
            made.clear()
            entry, is_new = self._entry_for(state, subject, body, normalize=normalize)
            made.append(entry)
            return [schema_record(entry)] if is_new else []

        self._store.write(decide)
        return _registered(made[0])

    def _entry_for(
        self, state: Subjects, subject: str, body: Mapping[str, Any], *, normalize: bool
    ) -> tuple[Entry, bool]:
        """The version that a schema is, and whether it must be written."""
        check_subject(subject)
        mode = mode_of(state, subject)
        normalize = normalizes(state, subject, asked=normalize)
        schema, parsed = self._taken(state, body, normalize=normalize)
        for key in ("id", "version"):
            if not isinstance(body.get(key), int | None):
                raise Refusal(42201, f"Invalid {key}: expected a number; found {body[key]!r}")
        before = state.versions(subject)
        same = self._same(state, before, schema, parsed, normalize=normalize)
        asked_id = body.get("id")
        if same is not None and asked_id in (None, -1, same.id):
            return same, False
        if mode in ("READONLY", "READONLY_OVERRIDE"):
            raise Refusal(42205, f"Subject {subject} is in read-only mode")
        version = max((one.version for one in state.versions(subject, deleted=True)), default=0) + 1
        if asked_id not in (None, -1) or body.get("version") not in (None, -1, version):
            if mode != "IMPORT":
                raise Refusal(42205, f"Subject {subject} is not in import mode")
            return self._imported(state, subject, body, schema, version), True
        if mode == "IMPORT":
            raise Refusal(42205, f"Subject {subject} is in import mode: an id is needed")
        broken = self._breaks(state, subject, schema, [*before])
        if broken:
            shown = "; ".join(map(str, broken))
            level = level_of(state, subject)
            raise Refusal(
                409,
                f"Schema being registered is incompatible with an earlier schema for subject "
                f'"{subject}", details: [{shown}], compatibility: {level}',
            )
        id_ = self._id(state, schema, parsed, normalize=normalize)
        return Entry(subject, version, id_, state.by_id.get(id_, schema)), True

    def _imported(
        self, state: Subjects, subject: str, body: Mapping[str, Any], schema: Schema, version: int
    ) -> Entry:
        id_ = int(body.get("id") or 0)
        if not 1 <= id_ < 2**31:
            raise Refusal(42205, f"expected an id of [1, 2^31-1] in import mode; found {id_}")
        if state.by_id.get(id_, schema) != schema:
            raise Refusal(42205, f"Overwrite new schema with id {id_} is not permitted.")
        version = int(body.get("version") or version)
        if not 1 <= version < 2**31:
            raise invalid_version(version)
        return Entry(subject, version, id_, schema)

    def _id(self, state: Subjects, schema: Schema, parsed: Parsed, *, normalize: bool) -> int:
        """The id that a schema has in any subject, or the next."""
        if schema in state.ids:
            return state.ids[schema]
        if normalize:
            same = self._same(state, list(state.entries()), schema, parsed, normalize=normalize)
            if same is not None:
                return same.id
        return state.greatest_id + 1

    def _taken(
        self, state: Subjects, body: Mapping[str, Any], *, normalize: bool
    ) -> tuple[Schema, Parsed]:
        """A request's schema."""
        text = body.get("schema")
        if not isinstance(text, str) or not text.strip():
            raise Refusal(42201, f"Empty schema: expected a text in 'schema'; found {text!r}")
        named = body.get("schemaType") or "AVRO"
        if not isinstance(named, str) or named not in Kind.__members__:
            raise Refusal(42201, f"Invalid schema type {named}: expected {', '.join(Kind)}")
        references = references_in(state, body)
        more = {key: body[key] for key in ("metadata", "ruleSet") if body.get(key)}
        schema = Schema(
            Kind(named), text, references, json.dumps(more, sort_keys=True) if more else ""
        )
        try:
            parsed = self._parse(schema, texts_of(state, references))
        except Malformed as error:
            raise Refusal(42201, f"Invalid schema of type {named}: {error}") from None
        text = parsed.normalized() if normalize else parsed.text
        if normalize:
            references = tuple(sorted(references))
        return Schema(schema.kind, text, references, schema.more), parsed

    @staticmethod
    def _parse_anew(schema: Schema, references: tuple[tuple[str, str], ...]) -> Parsed:
        return parse(schema.kind, schema.text, references)

    def _parsed(self, state: Subjects, schema: Schema) -> Parsed:
        """A schema that was registered."""
        return self._parse(schema, texts_of(state, schema.references))

    def _same(
        self,
        state: Subjects,
        entries: Sequence[Entry],
        schema: Schema,
        parsed: Parsed,
        *,
        normalize: bool,
    ) -> Entry | None:
        """The newest of these versions that is this schema."""
        for one in reversed(entries):
            if one.schema == schema:
                return one
            if normalize and (one.schema.kind, one.schema.more) == (schema.kind, schema.more):
                other = self._parsed(state, one.schema)
                if other.normalized() == parsed.normalized() and set(one.schema.references) == set(
                    schema.references
                ):
                    return one
        return None

    # -- deletions ---------------------------------------------------------------------------------

    def delete_subject(self, subject: str, *, permanent: bool = False) -> list[int]:
        """`DELETE /subjects/{subject}`."""
        found: list[int] = []

        def decide(state: Subjects) -> list[Write]:
            check_writable(state, subject)
            every = state.versions(subject, deleted=True)
            if not every:
                raise no_subject(subject)
            living = [one for one in every if not one.is_deleted]
            chosen = every if permanent else living
            for one in chosen:
                check_unused(state, one, but=subject)
            found[:] = [one.version for one in chosen]
            if permanent:
                if living:
                    raise Refusal(
                        40405,
                        f"Subject '{subject}' was not deleted first before being permanently deleted",
                    )
                gone: list[Write] = [(schema_key(subject, one.version), None) for one in every]
                config = [config_record(subject, None)] if subject in state.configs else []
                mode = [mode_record(subject, None)] if subject in state.modes else []
                return [*gone, *config, *mode, greatest_id_record(state.greatest_id)]
            if not living:
                raise Refusal(
                    40404,
                    f"Subject '{subject}' was soft deleted.Set permanent=true to delete permanently",
                )
            marked = [schema_record(one._replace(is_deleted=True)) for one in living]
            return [*marked, delete_record(subject, living[-1].version)]

        self._store.write(decide)
        return found

    def delete_version(self, subject: str, version: str, *, permanent: bool = False) -> int:
        """`DELETE /subjects/{subject}/versions/{version}`."""
        found: list[int] = []

        def decide(state: Subjects) -> list[Write]:
            check_writable(state, subject)
            if not state.versions(subject, deleted=True):
                raise no_subject(subject)
            one = find_entry(state, subject, version, deleted=True, latest_deleted=permanent)
            check_unused(state, one)
            found[:] = [one.version]
            if permanent and not one.is_deleted:
                raise Refusal(
                    40407,
                    f"Subject '{subject}' Version {one.version} was not deleted first before being "
                    "permanently deleted",
                )
            if permanent:
                gone: Write = (schema_key(subject, one.version), None)
                return [gone, greatest_id_record(state.greatest_id)]
            if one.is_deleted:
                raise Refusal(
                    40406,
                    f"Subject '{subject}' Version {one.version} was soft deleted.Set permanent=true to "
                    "delete permanently",
                )
            return [schema_record(one._replace(is_deleted=True))]

        self._store.write(decide)
        return found[0]

    # -- compatibility -----------------------------------------------------------------------------

    def compatibility(
        self, subject: str, version: str | None, body: Mapping[str, Any], *, normalize: bool
    ) -> list[str]:
        """`POST /compatibility/subjects/{subject}/versions[/{version}]`: what breaks."""
        state = self._state()
        normalize = normalizes(state, subject, asked=normalize)
        schema, _ = self._taken(state, body, normalize=normalize)
        if version is None:
            before = state.versions(subject)
        else:
            try:
                before = [find_entry(state, subject, version)]
            except Refusal as refusal:
                if version == "latest" and refusal.code in (40401, 40402):
                    return []
                raise
        return [str(one) for one in self._breaks(state, subject, schema, before)]

    def _breaks(
        self, state: Subjects, subject: str, schema: Schema, before: list[Entry]
    ) -> tuple[Incompatible, ...]:
        """What the subject's level forbids."""
        level = Level(level_of(state, subject))
        if level is Level.NONE or not before:
            return ()
        chosen = before if level.is_transitive else before[-1:]
        olds = tuple((one.version, self._written(state, one.schema)) for one in chosen)
        return self._compare(level, self._written(state, schema), olds)

    @staticmethod
    def _written(state: Subjects, schema: Schema) -> _Written:
        return schema, texts_of(state, schema.references)

    def _compare_anew(
        self, level: Level, new: _Written, olds: tuple[tuple[int, _Written], ...]
    ) -> tuple[Incompatible, ...]:
        pairs = [(version, self._parse(*old)) for version, old in olds]
        return tuple(breaks_between(self._parse(*new), pairs, level))

    # -- config and mode ---------------------------------------------------------------------------

    def config(self, subject: str | None, *, or_global: bool = False) -> dict[str, Any]:
        """`GET /config[/{subject}]`."""
        state = self._state()
        if subject is None:
            return {**DEFAULT, **state.configs.get(None, {})}
        if subject not in state.configs:
            if not or_global:
                raise Refusal(
                    40408,
                    f"Subject '{subject}' does not have subject-level compatibility configured",
                )
            return config_of(state, subject)
        return state.configs[subject]

    def set_config(self, subject: str | None, body: Mapping[str, Any]) -> dict[str, Any]:
        """`PUT /config[/{subject}]`."""
        level = body.get("compatibility")
        if level is not None and str(level).upper() not in Level.__members__:
            raise Refusal(
                42203,
                "Invalid compatibility level. Valid values are none, backward, forward, full, "
                "backward_transitive, forward_transitive, and full_transitive",
            )
        if subject is not None:
            check_subject(subject)
        value = {key: body[key] for key in _CONFIG if body.get(key) is not None}
        if level is not None:
            value["compatibilityLevel"] = str(level).upper()

        def decide(state: Subjects) -> list[Write]:
            check_writable(state, subject)
            return [config_record(subject, {**state.configs.get(subject, {}), **value})]

        self._store.write(decide)
        return dict(body) | ({} if level is None else {"compatibility": str(level).upper()})

    def delete_config(self, subject: str | None) -> dict[str, Any]:
        """`DELETE /config[/{subject}]`."""
        before: dict[str, Any] = {}

        def decide(state: Subjects) -> list[Write]:
            check_writable(state, subject)
            before.clear()
            if subject is not None and subject not in state.configs:
                raise no_subject(subject)
            before.update(state.configs.get(subject, DEFAULT))
            return [config_record(subject, None)]

        self._store.write(decide)
        return before

    def mode(self, subject: str | None, *, or_global: bool = False) -> dict[str, str]:
        """`GET /mode[/{subject}]`."""
        state = self._state()
        if subject is not None and subject not in state.modes and not or_global:
            raise Refusal(40409, f"Subject '{subject}' does not have subject-level mode configured")
        return {"mode": mode_of(state, subject)}

    def set_mode(
        self, subject: str | None, body: Mapping[str, Any], *, force: bool = False
    ) -> dict[str, str]:
        """`PUT /mode[/{subject}]`."""
        mode = str(body.get("mode")).upper()
        if mode not in MODES:
            raise Refusal(42204, f"Invalid mode. Valid values are {', '.join(MODES)}")
        if subject is not None:
            check_subject(subject)

        def decide(state: Subjects) -> list[Write]:
            if mode == "IMPORT" and mode_of(state, subject) != "IMPORT" and not force:
                taken = state.by_subject if subject is None else state.versions(subject)
                if taken:
                    raise Refusal(
                        42205,
                        "Cannot import since found existing subjects; pass force=true to import all "
                        "the same",
                    )
            return [mode_record(subject, mode)]

        self._store.write(decide)
        return {"mode": mode}

    def delete_mode(self, subject: str) -> dict[str, str]:
        """`DELETE /mode/{subject}`."""
        before: list[str] = []

        def decide(state: Subjects) -> list[Write]:
            if subject not in state.modes:
                raise no_subject(subject)
            before[:] = [state.modes[subject]]
            return [mode_record(subject, None)]

        self._store.write(decide)
        return {"mode": before[0]}


def _shown(entry: Entry) -> dict[str, Any]:
    head = {"subject": entry.subject, "version": entry.version, "id": entry.id}
    deleted = {"deleted": True} if entry.is_deleted else {}
    return {**head, **entry.schema.plain(), **deleted}


def _registered(entry: Entry) -> dict[str, Any]:
    return {"id": entry.id, "version": entry.version, **entry.schema.plain()}

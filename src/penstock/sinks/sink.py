"""`Sink`: a target follows a topic, with a pace and offsets of its own."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, cast

from penstock.client.schemas import registered_kinds, registered_schemas
from penstock.core.delta import PLACEHOLDER
from penstock.core.schema import JSON, Schema
from penstock.errors import UserError
from penstock.flow.checks import check_changelog
from penstock.follow.follower import Follower
from penstock.formats.changelog import ChangelogDecoder, ChangelogFormat
from penstock.formats.registered import (
    Encoded,
    RegisteredChangelog,
    RegisteredFormat,
    registered_changelog,
)
from penstock.sinks.body import STEP_OFFSETS, Followed, Following
from penstock.sinks.checks import check_batching
from penstock.sinks.control import forget
from penstock.sinks.figures import SinkFigures
from penstock.sinks.merging import Merging
from penstock.sinks.targets.contract import Rows, Target

__all__ = ["Followed", "Sink"]

REGISTRY_S: Final = 5.0
"""How long a registry is asked for schemas, before the sink says that it waits."""


class Sink:
    """Keeps a table of another system equal to a topic.

    Args:
        target: such as `ps.sinks.postgres(…)`; docs/sinks.md lists them.
        topic: the topic that the sink follows.
        schema: the columns, as for `App.table`.
        key: the column, or columns, that distinguish rows; without one, rows are appended.
        log: the broker's address.
        format: of the records: `json`, `debezium`, `debezium-precise` or `maxwell`; with a registry: `avro`,
            `json-schema` or `protobuf`, rows, or `debezium`, envelopes of any of these.
        registry: the URL of the schema registry that knows the records' schemas.
        name: the name under which offsets are stored; by default `TOPIC.TABLE`. Only one process at a time
            can use a name: a second one fences the first.
        pace_s: the shortest time between two writes, in seconds. Records that arrive in between are
            written together. By default the target's, which is 0 if a write costs little. The last
            records of a run don't wait.
        batch_records: the most records in a transaction of the target; 4 MiB is another limit.
        placeholder: the text that stands for a large value that an update didn't change, if Debezium's
            `unavailable.value.placeholder` is set. The target keeps its value.
        settings: further arguments of `penstock.client.Client`.

    Raises:
        UserError: an argument is wrong.
    """

    def __init__(
        self,
        target: Target,
        topic: str,
        schema: str | Schema,
        *,
        key: str | tuple[str, ...] = (),
        log: str = "127.0.0.1:9092",
        format: ChangelogFormat | RegisteredFormat = "json",  # noqa: A002 - the field's name
        registry: str | None = None,
        name: str | None = None,
        pace_s: float | None = None,
        batch_records: int | None = None,
        placeholder: str = PLACEHOLDER,
        **settings: Any,
    ) -> None:
        check_batching(pace_s, batch_records, STEP_OFFSETS)
        columns = Schema.parse(schema) if isinstance(schema, str) else schema
        keys = (key,) if isinstance(key, str) else tuple(key)
        for one in keys:
            if columns[one].type == JSON:  # a column that isn't there raises an error as well
                raise UserError(f"expected a key of single values; found {one!r}, which is JSON")
        # A NULL has no place in a key: some targets refuse it, others would take it for a text.
        columns = Schema(tuple(replace(f, required=f.required or f.name in keys) for f in columns))
        changes, encoded = check_changelog(format, registry)
        if changes != "json" and not keys:
            raise UserError(f"expected a key with format={format!r}; found none")
        self._target, self._rows = target, Rows(topic, columns, keys)
        self._format, self._registry, self._placeholder = format, registry, placeholder
        self._address, self._settings = log.removeprefix("kafka://"), settings
        self._batch_records = batch_records
        self.name = name or f"{topic}.{target.table}"
        self._body = Following(
            *(self.name, target, self._rows, _decoder(columns, keys, changes, encoded)),
            *(Merging(self._rows, target, placeholder), pace_s, batch_records),
        )
        self._follower = Follower(self._body, self._address, settings)
        self.done = self._body.done

    @property
    def target(self) -> Target:
        """What it writes to."""
        return self._target

    @property
    def rows(self) -> Rows:
        """What it follows: the topic, the columns and the key."""
        return self._rows

    def beside(self, target: Target, name: str) -> Sink:
        """Another sink of the same records, with a target and a name of its own."""
        topic, schema, key = self._rows.topic, self._rows.schema, self._rows.key
        settings: dict[str, Any] = {"log": self._address, "format": self._format, **self._settings}
        settings |= {"registry": self._registry, "batch_records": self._batch_records}
        settings["placeholder"] = self._placeholder
        return Sink(target, topic, schema, key=key, name=name, **settings)

    @property
    def group(self) -> str:
        """The consumer group whose offsets show the lag."""
        return self._follower.group

    def stop(self) -> None:
        """Ends `run` soon. Can be called from any thread."""
        self._follower.stop()

    def finish(self) -> None:
        """Ends `run` when all there is was written; from any thread."""
        self._body.finish()

    def forget(self) -> None:
        """Deletes what the log has of the sink, except its dead letters. It must not run."""
        forget(self._address, self.name, **self._settings)

    def run(self, *, until: Callable[[Followed], bool] | None = None) -> Followed:
        """Follows the topic until it is stopped. While the target or the log is unavailable, it waits.

        Args:
            until: polled; `run` ends when it returns true.

        Raises:
            FencedError: another process has begun under this name.
            UserError: the target's table doesn't fit.
            SetupError: the target can't be used.
        """
        return self._follower.run(until)

    def figures(self) -> SinkFigures:
        """What this sink does now, as values of JSON; `Followed` describes them.

        Returns:
            `topic` and `source`, both the topic, `letters_topic`, `target` (without a password), `phase`,
            `breaker`, `trouble`, `last_error`, `lag`, `progress`, `records`, `upserts`, `deletes`, `dead`,
            `retries`, `behind_ms`; `since_ms`, when the phase began, and `at_ms`, now, in milliseconds since
            1970.
        """
        return cast("SinkFigures", self._follower.figures())  # `Doing`, and what the body adds


def _decoder(
    columns: Schema, keys: tuple[str, ...], changes: ChangelogFormat, encoded: Encoded | None
) -> ChangelogDecoder | RegisteredChangelog:
    """What decodes the records; a registry that is away is waited for as the log is, with reports."""
    if encoded is None:
        return ChangelogDecoder(columns, keys, changes)
    assert changes in ("json", "debezium"), "`check_changelog` lets no other one pass"
    schemas = functools.partial(registered_schemas, patience_s=REGISTRY_S)
    kinds = functools.partial(registered_kinds, patience_s=REGISTRY_S)
    return registered_changelog(columns, keys, changes, encoded, schemas, kinds)

"""Topic settings: names, defaults and meaning as in Kafka; one table, no code per setting.

A topic setting that this broker carries out can be changed. One that it doesn't is reported with
the value that describes what the broker does, and any other value is refused, so that no client relies
on a setting without effect.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from penstock.errors import PenstockError
from penstock.log.segments.index import INTERVAL_BYTES, INTERVAL_BYTES_MAX
from penstock.log.validation import LogConfig

__all__ = ["TOPIC_SETTINGS", "Setting", "SettingError", "log_config", "validate"]

_INT64_MAX: Final = (1 << 63) - 1
_INT32_MAX: Final = (1 << 31) - 1


class SettingError(ValueError):
    """A setting that is unknown, or a value that it can't have."""


def _check_schema(text: str) -> None:
    """Raises SchemaError unless a text is a schema."""
    from penstock.core.schema import Schema  # brings Arrow: 35 MB that a broker mostly doesn't need

    Schema.parse(text)


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting.

    Attributes:
        name: Kafka's name.
        kind: Kafka's type number in DescribeConfigs: 1 boolean, 2 string, 3 int, 5 long, 6 double,
            7 list.
        default: the default, as text.
        minimum: least value of a number.
        maximum: greatest value of a number.
        values: what the setting may be, where it is not a number of a range.
        check: for free text: raises ValueError where it isn't right; empty text is always.
        field: the `LogConfig` field that it sets.
        is_moot: whether every value means the same here.
        doc: what it means.
    """

    name: str
    kind: int
    default: str
    minimum: int = 0
    maximum: int = _INT64_MAX
    values: tuple[str, ...] = ()
    check: Callable[[str], object] | None = None
    field: str | None = None
    is_moot: bool = False
    doc: str = ""

    @property
    def is_fixed(self) -> bool:
        """Whether the broker knows only one behaviour."""
        return self.field is None and self.check is None and not self.is_moot


BOOLEAN, STRING, INT, LONG, DOUBLE, LIST = 1, 2, 3, 5, 6, 7
FLAG: Final = ("true", "false")


def _table_name(text: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)+", text):
        raise ValueError("expected NAMESPACE.TABLE of letters, digits and _")


def _replicas(text: str) -> None:
    if text != "*" and not re.fullmatch(r"\d+:\d+(,\d+:\d+)*", text):
        raise ValueError("expected *, or PARTITION:BROKER and commas between them")


TOPIC_SETTINGS: Final[dict[str, Setting]] = {
    one.name: one
    for one in (
        Setting(
            "cleanup.policy",
            LIST,
            "delete",
            values=("delete", "compact", "compact,delete", ""),
            field="cleanup_policy",
            doc="Whether old segments are deleted, compacted (the last record of each key is kept), or "
            "both; empty: nothing is ever removed.",
        ),
        Setting(
            "compression.type",
            STRING,
            "producer",
            values=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
            field="compression_type",
            doc="How batches are stored: in a compression of the topic's own, or as producers have "
            "compressed them.",
        ),
        Setting(
            "compression.gzip.level",
            INT,
            "-1",
            values=("-1", *map(str, range(1, 10))),
            field="gzip_level",
            doc="From 1 (fast) to 9 (small); -1: gzip's own default.",
        ),
        Setting(
            "compression.lz4.level",
            INT,
            "9",
            minimum=1,
            maximum=17,
            field="lz4_level",
            doc="From 1 (fast) to 17 (small).",
        ),
        Setting(
            "compression.zstd.level",
            INT,
            "3",
            minimum=-131072,
            maximum=22,
            field="zstd_level",
            doc="From -131072 (fast) to 22 (small).",
        ),
        Setting(
            "confluent.key.schema.validation",
            BOOLEAN,
            "false",
            values=FLAG,
            check=str,
            doc="Whether each key must begin with the id of a schema of the subject TOPIC-key, in the "
            "registry whose topic _schemas is in this log. Null keys are taken.",
        ),
        Setting(
            "confluent.value.schema.validation",
            BOOLEAN,
            "false",
            values=FLAG,
            check=str,
            doc="Whether each value must begin with the id of a schema of the subject TOPIC-value, in the "
            "registry whose topic _schemas is in this log. Null values are taken.",
        ),
        Setting(
            "delete.retention.ms",
            LONG,
            "86400000",
            field="delete_retention_ms",
            doc="How long compaction keeps tombstones once they were cleaned.",
        ),
        Setting(
            "errors.deadletterqueue.group.enable",
            BOOLEAN,
            "false",
            values=FLAG,
            field="takes_dead_letters",
            doc="Whether groups may put their dead letters into this topic.",
        ),
        Setting(
            "file.delete.delay.ms",
            LONG,
            "0",
            field="file_delete_delay_ms",
            doc="How long files of deleted segments and topics stay on the disk, unless it is full.",
        ),
        Setting(
            "flush.messages",
            LONG,
            str(_INT64_MAX),
            minimum=1,
            field="flush_messages",
            doc="A write that leaves so many records of a partition off the disk is answered once they "
            "are on it, whatever its acks.",
        ),
        Setting(
            "flush.ms",
            LONG,
            str(_INT64_MAX),
            field="flush_ms",
            doc="Within which time records are on the disk, where that is less than the broker's "
            "log.flush.interval.ms.",
        ),
        Setting(
            "follower.replication.throttled.replicas",
            LIST,
            "",
            check=_replicas,
            doc="Replicas that are copied slowly: a partition has one replica here, so none is.",
        ),
        Setting(
            "index.interval.bytes",
            INT,
            str(INTERVAL_BYTES),
            maximum=_INT32_MAX,
            field="index_interval_bytes",
            doc=f"Bytes of the log between two entries of a segment's index: what a look-up reads; "
            f"more than {INTERVAL_BYTES_MAX} count as {INTERVAL_BYTES_MAX}.",
        ),
        Setting(
            "leader.replication.throttled.replicas",
            LIST,
            "",
            check=_replicas,
            doc="Replicas that are copied from slowly: a partition has one replica here, so none is.",
        ),
        Setting(
            "local.retention.bytes",
            LONG,
            "-2",
            minimum=-2,
            field="local_retention_bytes",
            doc="Bytes per partition that stay on the local disk once the tier has them; -2: as "
            "retention.bytes.",
        ),
        Setting(
            "local.retention.ms",
            LONG,
            "-2",
            minimum=-2,
            field="local_retention_ms",
            doc="How long records stay on the local disk once the tier has them; -2: as "
            "retention.ms.",
        ),
        Setting(
            "max.compaction.lag.ms",
            LONG,
            str(_INT64_MAX),
            minimum=1,
            field="max_compaction_lag_ms",
            doc="How long a record may stay uncompacted.",
        ),
        Setting(
            "max.message.bytes",
            INT,
            "1048588",
            maximum=64 << 20,
            field="max_message_bytes",
            doc="Largest record batch.",
        ),
        Setting(
            "message.timestamp.after.max.ms",
            LONG,
            "3600000",
            field="timestamp_after_max_ms",
            doc="How far a timestamp may be ahead of the broker's clock.",
        ),
        Setting(
            "message.timestamp.before.max.ms",
            LONG,
            str(_INT64_MAX),
            field="timestamp_before_max_ms",
            doc="How far a timestamp may be behind the broker's clock.",
        ),
        Setting(
            "message.timestamp.type",
            STRING,
            "CreateTime",
            values=("CreateTime", "LogAppendTime"),
            field="append_time",
            doc="Whether a record's time is the producer's or the broker's.",
        ),
        Setting(
            "min.cleanable.dirty.ratio",
            DOUBLE,
            "0.5",
            maximum=1,
            field="min_cleanable_dirty_ratio",
            doc="Share of the log that must be new for a compaction.",
        ),
        Setting(
            "min.compaction.lag.ms",
            LONG,
            "0",
            field="min_compaction_lag_ms",
            doc="How long a record stays uncompacted at least.",
        ),
        Setting(
            "min.insync.replicas",
            INT,
            "1",
            minimum=1,
            maximum=_INT32_MAX,
            is_moot=True,
            doc="How many replicas a write with acks=all needs, but no more than there are: here, one.",
        ),
        Setting(
            "penstock.iceberg.table",
            STRING,
            "",
            check=_table_name,
            doc="NAMESPACE.TABLE of the broker's Iceberg catalog that the topic's history is "
            "appended to.",
        ),
        Setting(
            "penstock.schema",
            STRING,
            "",
            check=_check_schema,
            doc="Columns of the topic's JSON values, as in 'user BIGINT NOT NULL, at TIMESTAMP': "
            "in its Iceberg table they are columns.",
        ),
        Setting(
            "preallocate",
            BOOLEAN,
            "false",
            values=FLAG,
            is_moot=True,
            doc="Whether a segment's file takes its room when it is begun: here it never does.",
        ),
        Setting(
            "remote.log.copy.disable",
            BOOLEAN,
            "false",
            values=FLAG,
            field="remote_copy_disable",
            doc="Stops copying to the tier; copied records stay readable.",
        ),
        Setting(
            "remote.log.delete.on.disable",
            BOOLEAN,
            "false",
            values=FLAG,
            field="remote_delete_on_disable",
            doc="Permits to switch remote.storage.enable off, which deletes what is in the tier.",
        ),
        Setting(
            "remote.storage.enable",
            BOOLEAN,
            "false",
            values=FLAG,
            field="remote_storage",
            doc="Whether closed segments are copied to the broker's tier.",
        ),
        Setting(
            "retention.bytes",
            LONG,
            "-1",
            minimum=-1,
            field="retention_bytes",
            doc="Bytes per partition that are kept; -1: no limit.",
        ),
        Setting(
            "retention.ms",
            LONG,
            "604800000",
            minimum=-1,
            field="retention_ms",
            doc="How long records are kept; -1: without limit.",
        ),
        Setting(
            "segment.bytes",
            INT,
            str(1 << 30),
            minimum=1024,
            maximum=_INT32_MAX,
            field="segment_bytes",
            doc="Size at which a new segment is begun.",
        ),
        Setting(
            "segment.index.bytes",
            INT,
            "10485760",
            minimum=4,
            maximum=_INT32_MAX,
            field="segment_index_bytes",
            doc="Size of a segment's index at which a new segment is begun.",
        ),
        Setting(
            "segment.jitter.ms",
            LONG,
            "0",
            field="segment_jitter_ms",
            doc="How much sooner than segment.ms a new segment may be begun, so that those of many "
            "partitions aren't begun at once.",
        ),
        Setting(
            "segment.ms",
            LONG,
            "604800000",
            minimum=1,
            field="segment_ms",
            doc="Age at which a new segment is begun.",
        ),
        Setting(
            "unclean.leader.election.enable",
            BOOLEAN,
            "false",
            values=FLAG,
            is_moot=True,
            doc="Whether a replica that lags may lead: a partition has one replica here, so none does.",
        ),
    )
}


def validate(name: str, value: str | None) -> str:
    """Checks a topic setting's new value.

    Raises:
        SettingError: the setting or the value isn't known.
    """
    setting = TOPIC_SETTINGS.get(name)
    if setting is None:
        raise SettingError(f"expected a topic setting; found {name!r}")
    if value is None:
        raise SettingError(f"expected a value for {name}; found null")
    if setting.is_fixed:
        if value.strip().lower() != setting.default.lower():
            raise SettingError(
                f"expected {name}={setting.default}, the only value that this broker carries out; "
                f"found {value!r}"
            )
        return setting.default
    if setting.values:
        value = value.strip().lower() if setting.values == FLAG else value
        known = value
        if setting.kind == LIST:  # kept in the order in which it was given, as Kafka does
            parts = dict.fromkeys(one.strip() for one in value.split(","))
            value, known = ",".join(parts), ",".join(sorted(parts))
        if known not in setting.values:
            raise SettingError(
                f"expected {name} to be one of {', '.join(setting.values)}; found {value!r}"
            )
        return value
    if setting.check is not None:
        try:
            if value:
                setting.check(value)
        except (ValueError, PenstockError) as error:
            raise SettingError(f"expected {name} to make sense; found {value!r}: {error}") from None
        return value
    try:
        number = float(value) if setting.kind == DOUBLE else int(value)
    except ValueError:
        raise SettingError(f"expected a number for {name}; found {value!r}") from None
    if not setting.minimum <= number <= setting.maximum:
        raise SettingError(
            f"expected {name} from {setting.minimum} to {setting.maximum}; found {number}"
        )
    return str(number)


def log_config(settings: Mapping[str, str]) -> LogConfig:
    """The log's configuration that a topic's settings amount to."""
    fields: dict[str, Any] = {}
    for name, value in settings.items():
        field = TOPIC_SETTINGS[name].field
        if field == "append_time":
            fields[field] = value == "LogAppendTime"
        elif field is not None and TOPIC_SETTINGS[name].values == FLAG:
            fields[field] = value == "true"
        elif TOPIC_SETTINGS[name].kind in {LIST, STRING} and field is not None:
            fields[field] = value
        elif TOPIC_SETTINGS[name].kind == DOUBLE and field is not None:
            fields[field] = float(value)
        elif field is not None:
            fields[field] = int(value)
    return LogConfig(**fields)

"""A topic of another cluster: records and offsets are one of its transactions.

The offsets are the newest record of a compacted topic with one partition, `penstock.target.NAME.TOPIC`
(`own_topic`), which only this sink's transactions write: when one begins, those before are ended, and
their records can be read. A group's offsets would be forgotten after a week without commits. Those of earlier
releases are read from the group of this name.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import orjson
import pyarrow as pa

from penstock.client import Client, Reader, Security, TransactionalProducer
from penstock.client.groups import GroupAdmin
from penstock.client.network.security import parse_target
from penstock.core.databases import described
from penstock.errors import BrokerError, LimitError, SetupError, UserError
from penstock.follow.control import own_topic
from penstock.sinks.targets.contract import (
    BaseTarget,
    Batch,
    RefusedError,
    Rows,
    Unchanged,
    fenced,
)
from penstock.sinks.targets.kind import Address, Facts, TargetKind
from penstock.sinks.targets.texts import json_rows, key_texts
from penstock.wire.protocol import ErrorCode

__all__ = ["KINDS", "KafkaTarget", "kafka"]

LOOKED_BACK: Final = 100
"""Offsets before the end that are read first: markers of transactions are behind the newest record."""
EPOCH: Final = "epoch"
"""Next to the offsets: how often the sink was opened."""
_NOT_LET_IN: Final = frozenset(
    {ErrorCode.UNSUPPORTED_SASL_MECHANISM, ErrorCode.SASL_AUTHENTICATION_FAILED}
)
STATE_CONFIGS: Final = {"cleanup.policy": "compact", "segment.ms": "3600000"}


def kafka(
    bootstrap: str, *, table: str, partitions: int = 1, compact: bool = True, **settings: Any
) -> KafkaTarget:
    """A topic of another cluster, whichever speaks Kafka's protocol.

    A record's key is the text of the key column, or a JSON object of several; its value is the row as JSON,
    or nothing where the key was deleted. Records of a partition stay in a partition, in their order.

    Args:
        bootstrap: `host:port[,host:port]`, or `kafka+tls://user@host:port?ca=FILE` for TLS and a log-in. The
            password is PENSTOCK_PASSWORD or `security=Security(password=…)`.
        table: the topic, created if it doesn't exist.
        partitions: of a topic that is created.
        compact: whether a topic that is created keeps the newest record of each key.
        settings: as for `penstock.client.Client`, such as `security=…`.
    """
    return KafkaTarget(bootstrap, table, partitions, settings, compact=compact)


class KafkaTarget(BaseTarget):
    """See `kafka`."""

    def __init__(
        self,
        bootstrap: str,
        table: str,
        partitions: int,
        settings: dict[str, Any],
        *,
        compact: bool,
    ) -> None:
        if not table:
            raise UserError(f"expected a topic, such as table='users'; found {table!r}")
        self._address = bootstrap.removeprefix("kafka://")
        parse_target(self._address, settings.get("security"))  # a mistake in it is said at once
        self.table, self._partitions, self._settings = table, partitions, settings
        self._compact = compact
        self.name = f"kafka {described(bootstrap)} {table}"
        # Compaction would remove the record with the value.
        self.unchanged: Unchanged = "refused" if compact else "logged"
        self._writer: TransactionalProducer | None = None
        self._owned: tuple[str, int] | None = None  # the topic of offsets, and this one's epoch

    @property
    def passing(self) -> tuple[type[BaseException], ...]:
        """Of connections, and leaders that change."""
        return (BrokerError, OSError)

    def open(self, sink: str, rows: Rows) -> dict[int, int]:
        """Takes the transactional id over; the next offsets.

        Raises:
            FencedError: another process has done so since this one had it.
            SetupError: the cluster doesn't let the user in.
        """
        try:
            return self._open(sink, rows)
        except BrokerError as error:
            if error.code in _NOT_LET_IN:
                raise SetupError(
                    f"{error}. The command reads PENSTOCK_SINK_PASSWORD first"
                ) from None
            raise

    def _open(self, sink: str, rows: Rows) -> dict[int, int]:
        self.close()
        self._sink, self._rows = sink, rows
        self._group = f"penstock.target.{sink}.{rows.topic}"
        self._states = own_topic(self._group)
        configs = {"cleanup.policy": "compact"} if self._compact and rows.key else {}
        with Client(self._address, **self._settings) as client:
            client.create_topic(self.table, self._partitions, configs, exists_ok=True)
            self._count = len(client.partitions(self.table))
            client.create_topic(self._states, 1, STATE_CONFIGS, exists_ok=True)
            self._check_owner((self._stored(client) or {}).get(EPOCH, 0))
            self._writer = TransactionalProducer(self._address, self._group, **self._settings)
            self._writer.start()  # what another one left is ended then; offsets are read after that
            stored = self._stored(client)
        self._offsets = stored if stored is not None else self._of_earlier_release()
        self._epoch = self._offsets.pop(EPOCH, 0) + 1
        self._store(self._offsets)
        self._owned = (self._states, self._epoch)
        return {int(p): int(o) for p, o in self._offsets.items()}

    def _check_owner(self, epoch: int) -> None:
        owned, before = self._owned or ("", 0)
        if owned == self._states and epoch > before:
            raise fenced(self.table, self._sink)

    def _stored(self, client: Client) -> dict[str, int] | None:
        """The newest offsets, with the epoch; None: there are none."""
        first = client.offsets(self._states, "earliest")[0]
        end, back = client.offsets(self._states)[0], LOOKED_BACK
        with Reader(self._address, **self._settings) as reader:
            while True:
                found: dict[str, int] | None = None
                begin = max(first, end - back)
                for records in reader.read(self._states, 0, begin, end, missing="skip"):
                    if len(records.values()):
                        found = orjson.loads(records.values()[-1].as_py())
                if found is not None or begin == first:
                    return found
                back *= 10

    def _of_earlier_release(self) -> dict[str, int]:
        with GroupAdmin(self._address, **self._settings) as admin:
            found = admin.committed_entries(self._group).get((self.table, 0))
        earlier: dict[str, int] = {} if found is None else orjson.loads(found[1] or "{}")
        return earlier

    def write(self, batch: Batch, offsets: Mapping[int, int]) -> None:
        """Writes records and offsets in one transaction."""
        if self._writer is None:
            raise OSError(f"{self.name} is closed")
        partition = batch.partition % self._count
        if not len(batch) and not offsets:
            return
        after = {**self._offsets, **{str(p): o for p, o in offsets.items()}}
        if len(batch):
            try:
                self._send(batch, partition)
            except LimitError as error:
                self._reopen()
                raise RefusedError(str(error)) from None
        self._store(after)
        self._offsets = after

    def _store(self, offsets: Mapping[str, int]) -> None:
        """Commits the transaction with these offsets."""
        assert self._writer is not None, "open comes first"
        values = pa.array([orjson.dumps({**offsets, EPOCH: self._epoch})], pa.binary())
        now_ms = np.array([time.time_ns() // 1_000_000])
        self._writer.send(self._states, 0, pa.array([b"offsets"], pa.binary()), values, now_ms)
        self._writer.commit()

    def _reopen(self) -> None:
        """Ends the open transaction, of which some may be stored.

        Raises:
            ConnectionError: another process has written meanwhile.
        """
        before = self._offsets
        self.open(self._sink, self._rows)
        if self._offsets != before:
            raise ConnectionError(f"another process has written to {self.name} meanwhile")

    def _send(self, batch: Batch, partition: int) -> None:
        assert self._writer is not None, "open comes first"
        values = [*json_rows(batch.upserts), *([None] * len(batch.deletes))]
        keys: pa.Array | None = None
        if self._rows.key:
            texts = [
                key
                for rows in (batch.upserts, batch.deletes)
                if len(rows)
                for key in key_texts(rows, self._rows.key)
            ]
            keys = pa.array([text.encode() for text in texts], pa.binary())
        order = np.argsort(np.concatenate([batch.upserted_at, batch.deleted_at]))
        now_ms = np.full(len(values), time.time_ns() // 1_000_000)
        self._writer.send(
            self.table,
            partition,
            None if keys is None else keys.take(order),
            pa.array(values, pa.binary()).take(order),
            now_ms,
        )

    def close(self) -> None:
        """Ends the connections."""
        if self._writer is not None:
            self._writer.close()
        self._writer = None


def _of(address: Address) -> KafkaTarget:
    return kafka(address.url, table=address.table, security=Security(password=address.password))


KINDS: Final = (
    TargetKind(
        name="kafka",
        title="Kafka, another cluster",
        make=kafka,
        arguments="address, table=…",
        examples=("kafka://host:9092", "kafka+tls://user@host:9093?ca=FILE"),
        schemes=("kafka", "kafka+tls", "kafka+sasl"),
        table="the topic",
        of=_of,
        facts=Facts(
            guarantee="yes, for readers of committed data",
            exactly_once="records and offsets are one transaction of that cluster",
            older_process="is fenced by its transactional id",
            loading="batches",
            others="can read committed data",
            left_out="makes the record a dead letter, as compaction would remove the earlier value. In a "
            "topic without compaction (`compact=False`), it is the placeholder, with a warning",
        ),
    ),
)

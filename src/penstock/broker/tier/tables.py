"""A topic's history as an Iceberg table: its records' rows (`penstock.formats.rows`), each once.

Contract: a commit appends the rows of offsets [covered, next) of some partitions and records in the
same commit, in its snapshot's summary, that they are covered up to `next`. The catalog takes a commit
only if the table is still at the snapshot that it was made for. So a commit whose answer was lost, a
crash, or a second writer can't append a record twice: the next writer first reads what is covered.

A data file holds rows of one partition, in order, so that a stretch of offsets is found by the
files' bounds. A value that doesn't fit the schema goes to TABLE_dead_letters with its reason; that
table has its own covered offsets, is written first, and passes over what it has.

Blocking: call it in a thread. Needs pyiceberg, of the extra `iceberg`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from penstock.client.tables.history import ANCESTORS_MAX, COVERED, TOPIC_ID
from penstock.core.schema import Schema
from penstock.errors import PenstockError
from penstock.formats.rows import DEAD_COLUMNS, Rows
from penstock.log.markers import Aborted
from penstock.wire import batches
from penstock.wire.batches import Buffer
from penstock.wire.columns import decode

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

__all__ = [
    "Chunk",
    "HistoryError",
    "HistoryTable",
    "without_aborted",
]

DEAD_LETTERS: Final = "_dead_letters"
RETRIES: Final = "commit.retry.num-retries"
PROPERTIES: Final = {
    "write.parquet.compression-codec": "zstd",
    "write.parquet.page-size-bytes": str(1 << 20),
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    "commit.manifest-merge.enabled": "true",
}


class HistoryError(PenstockError):
    """The table can't be written as it should; nothing was appended."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A stretch of a partition: whole batches, and what of them was aborted."""

    partition: int
    start: int
    end: int
    data: Buffer
    aborted: Sequence[Aborted] = ()


def without_aborted(data: Buffer, aborted: Sequence[Aborted]) -> Buffer:
    """The batches that aren't part of an aborted transaction."""
    if not aborted:
        return data
    view, kept = memoryview(data), []
    for at, head in batches.iterate(data):
        is_aborted = head.is_transactional and any(
            one.producer_id == head.producer_id
            and one.first_offset <= head.base_offset <= one.last_offset
            for one in aborted
        )
        if not is_aborted:
            kept.append(view[at : at + head.size])
    return b"".join(kept)


class _Target:
    """One table, and up to where it covers each partition."""

    def __init__(self, catalog: Catalog, name: str, schema: pa.Schema, topic_id: str) -> None:
        self.table = self._open(catalog, name, schema, topic_id)
        self.name = name
        self.covered = self._read_covered()

    @staticmethod
    def _open(catalog: Catalog, name: str, schema: pa.Schema, topic_id: str) -> Table:
        catalog.create_namespace_if_not_exists(name.rpartition(".")[0])
        properties = PROPERTIES | {TOPIC_ID: topic_id}
        table = catalog.create_table_if_not_exists(name, schema, properties=properties)
        found = table.properties.get(TOPIC_ID)
        if found != topic_id:
            raise HistoryError(
                f"expected table {name} to be this topic's (id {topic_id}); found "
                f"{'that of topic ' + found if found else 'one of another program'}; name another "
                "table in penstock.iceberg.table, or drop this one"
            )
        if table.spec().is_unpartitioned():
            with table.update_spec() as spec:
                spec.add_identity("partition")
        if set(schema.names) - set(table.schema().column_names):
            with table.update_schema() as update:
                update.union_by_name(schema)
        missing = PROPERTIES.keys() - table.properties.keys()
        if missing:
            with table.transaction() as transaction:
                transaction.set_properties({name: PROPERTIES[name] for name in missing})
        return table

    def _read_covered(self) -> dict[int, int]:
        """What the newest snapshot of ours says; others' (a compaction) may lie on top of it."""
        table = self.table
        snapshot = table.current_snapshot()
        for _ in range(ANCESTORS_MAX):
            if snapshot is None:
                break
            said = snapshot.summary.additional_properties if snapshot.summary else {}
            if COVERED in said:
                return _parse(said[COVERED])
            parent = snapshot.parent_snapshot_id
            snapshot = table.snapshot_by_id(parent) if parent is not None else None
        if COVERED in table.properties:  # our snapshots have expired
            return _parse(table.properties[COVERED])
        return {}

    def refresh(self) -> None:
        """Reads again what is covered."""
        self.table.refresh()
        self.covered = self._read_covered()

    def append(self, rows: pa.Table, covered: Mapping[int, int]) -> None:
        """Appends rows that follow the covered ones, in one commit with the new covered offsets."""
        said = {COVERED: json.dumps({str(part): upto for part, upto in sorted(covered.items())})}
        # A retry would append what another writer of ours has appended. This is said here, not in
        # the table: those who compact it, say, should try again when we were faster.
        self.table.metadata.properties[RETRIES] = "0"
        with self.table.transaction() as transaction:
            transaction.append(rows, snapshot_properties=said)
            transaction.set_properties(said)
        self.covered = dict(covered)

    def after_covered(self, rows: pa.Table) -> pa.Table:
        """The rows that aren't in the table yet."""
        part, offset = (rows.column(name).to_numpy() for name in ("partition", "offset"))
        is_new = np.ones(len(rows), bool)
        for one, upto in self.covered.items():
            is_new &= (part != one) | (offset >= upto)
        return rows if is_new.all() else rows.filter(pa.array(is_new))


def _parse(text: str) -> dict[int, int]:
    return {int(part): int(upto) for part, upto in json.loads(text).items()}


class HistoryTable:
    """A topic's table and its dead letters. Blocking; use from one thread at a time.

    Raises:
        HistoryError: the table is another topic's.
    """

    def __init__(self, catalog: Catalog, name: str, schema: Schema | None, topic_id: str) -> None:
        self._catalog = catalog
        self._topic_id = topic_id
        self._rows = Rows(schema)
        self._main = _Target(catalog, name, self._rows.schema, topic_id)
        self._dead: _Target | None = None
        self.name = name

    @property
    def covered(self) -> dict[int, int]:
        """For each partition the first offset that isn't in the table."""
        return dict(self._main.covered)

    def refresh(self) -> None:
        """After a failure: sees what has been committed after all."""
        self._main.refresh()
        self._dead = None

    def append(self, chunks: Iterable[Chunk]) -> tuple[int, int]:
        """Appends chunks that follow the covered rows; returns the numbers of rows and dead letters.

        Raises:
            HistoryError: another writer was first, or the chunks don't follow; nothing was appended.
        """
        covered = self.covered
        rows, dead = [self._rows.schema.empty_table()], [DEAD_COLUMNS.empty_table()]
        for chunk in chunks:
            if chunk.start < covered.get(chunk.partition, 0):
                raise HistoryError(
                    f"expected records of partition {chunk.partition} from offset "
                    f"{covered[chunk.partition]} on for {self.name}; found {chunk.start}"
                )
            records = decode(without_aborted(chunk.data, chunk.aborted))
            records = records.between(chunk.start, chunk.end)
            some, letters = self._rows.make(chunk.partition, records)
            rows.append(some)
            dead.append(letters)
            covered[chunk.partition] = chunk.end
        table, letters = pa.concat_tables(rows), pa.concat_tables(dead)
        self._append_dead(letters, covered)
        if len(table) or len(letters):
            _commit(self._main, table, covered)
        else:  # nothing to write: a commit without a snapshot could pass by another writer's
            self._main.covered = covered
        return len(table), len(letters)

    def _append_dead(self, letters: pa.Table, covered: Mapping[int, int]) -> None:
        if not len(letters):
            return
        if self._dead is None:
            name = self.name + DEAD_LETTERS
            self._dead = _Target(self._catalog, name, DEAD_COLUMNS, self._topic_id)
        new = self._dead.after_covered(letters)
        if len(new):
            before = self._dead.covered  # may be ahead: of a commit to the main table that failed
            further = {one: max(upto, before.get(one, 0)) for one, upto in covered.items()}
            _commit(self._dead, new, {**before, **further})


def _commit(target: _Target, rows: pa.Table, covered: Mapping[int, int]) -> None:
    try:
        target.append(rows, covered)
    except Exception as error:
        raise HistoryError(f"expected to append to {target.name}; found: {error}") from error


def schema_of(settings: Mapping[str, Any]) -> Schema | None:
    """The schema that a topic's settings give its values."""
    text = settings.get("penstock.schema", "")
    return Schema.parse(text) if text else None

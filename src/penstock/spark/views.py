"""Views for Spark's batches: one version, a task for each shard."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from penstock.errors import QueryError, UserError
from penstock.serve import ViewPart, Views, state_of
from penstock.spark import pins
from penstock.spark.arrow import chosen, fitted
from penstock.spark.filters import as_arrow, window_from_us
from penstock.spark.options import Options
from penstock.spark.pins import Pin

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter
    from pyspark.sql.types import StructType

__all__ = ["ViewReader", "pinned", "view_schema"]

ATTEMPTS_MAX: Final = 10
"""Versions that may be replaced, one after the other, while their files are being linked."""


@dataclass(frozen=True)
class _Shard(InputPartition):
    """What one task reads."""

    pin: Pin


class ViewReader(DataSourceReader):
    """Reads a view as of one version.

    Args:
        options: the source's.
        schema: the columns that are read.
    """

    def __init__(self, options: Options, schema: StructType) -> None:
        if options.wants_changes:
            raise UserError(
                "expected changes to be read as a stream (readStream); found a batch. Omit the "
                "option 'changes' to read the view's rows"
            )
        self._options = options
        self._known = view_schema(options)
        self._wanted = chosen(self._known, schema)
        self._filters: list[Filter] = []

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Takes the filters whose meaning is Arrow's as well; gives Spark the others."""
        for one in filters:
            if as_arrow(one, self._known) is None:
                yield one
            else:
                self._filters.append(one)

    def partitions(self) -> list[InputPartition]:
        """A part for each shard, of the version as of now or the one that was named."""
        pin = pinned(self._options)
        return [_Shard(Pin(pin.files, one)) for one in pin.part.shards()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one shard that pass the filters."""
        if not isinstance(partition, _Shard):  # a view without shards: Spark asks once all the same
            return
        pin = partition.pin
        since = window_from_us(self._filters) if pin.part.keeps_windows else None
        tables = pin.read(self._options.need("view", "the view's name"), since)
        try:
            yield from fitted((self._passed(one) for one in tables), self._wanted)
        except FileNotFoundError:
            raise QueryError(
                f"expected version {pin.part.version} of the view {self._options.get('view')!r} to "
                "be kept while it is read; found that its files were deleted. Read it again"
            ) from None

    def _passed(self, rows: pa.Table) -> pa.Table:
        for one in self._filters:
            condition = as_arrow(one, self._known)
            assert condition is not None
            rows = rows.filter(condition)
        return rows


def view_schema(options: Options) -> pa.Schema:
    """A view's columns."""
    return _part(options).schema


def pinned(options: Options) -> Pin:
    """A view, pinned where the state is on a local disk that this process may write to."""
    state = state_of(options.app)
    if "://" in state:
        return Pin(state, _part(options))
    pins.drop_old(state)
    for attempt in range(ATTEMPTS_MAX):
        part = _part(options)
        try:
            return pins.make(state, part, pins.batch_name(part))
        except PermissionError:
            return Pin(state, part)
        except FileNotFoundError:
            if options.get("version") is not None or attempt == ATTEMPTS_MAX - 1:
                raise
    raise AssertionError


def _part(options: Options) -> ViewPart:
    snapshot = Views(options.app).snapshot(options.number("version"))
    return snapshot.part(options.need("view", "the view's name"))

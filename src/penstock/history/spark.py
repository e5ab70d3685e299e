"""A topic's rows for Spark: it reads the table's files itself, its tasks read the rest in Python.

A file is left to Spark where its columns are found by their names and nothing of it is deleted; one
that lies within what is read is taken whole, without a condition that would make Spark read two more
columns. Other files, and the log, are pieces that `mapInArrow` reads. Only APIs that Spark Connect
has too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa

from penstock.client.tables.files import TableFile, TableRows
from penstock.client.tables.history import LogRows, TopicTable
from penstock.core.schema import JSON
from penstock.errors import SetupError
from penstock.history.stretches import Stretch

if TYPE_CHECKING:
    from pyiceberg.table import FileScanTask
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Piece", "frame", "log_pieces", "pieces_of"]

PIECE_OFFSETS: Final = 250_000
"""Offsets of the log that one task reads: a second's work or less, so that all cores have some."""
READING: Final = {
    "datetimeRebaseMode": "CORRECTED",  # the calendar is the usual one, also before 1582
    "mergeSchema": "false",
    "ignoreCorruptFiles": "false",  # whatever the session says: a file that is gone isn't empty
    "ignoreMissingFiles": "false",
}
SCHEMES: Final = {"s3://": "s3a://", "s3n://": "s3a://", "/": "file:///"}
"""What Spark calls the file systems that pyiceberg names otherwise."""
_TYPES: Final = {
    pa.bool_(): "BOOLEAN",
    pa.int32(): "INT",
    pa.int64(): "BIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.string(): "STRING",
    JSON: "STRING",
    pa.binary(): "BINARY",
    pa.date32(): "DATE",
}


@dataclass(frozen=True)
class _LogPiece:
    """A stretch of a partition of the log."""

    rows: LogRows
    partition: int
    span: range
    names: tuple[str, ...]

    def read(self) -> Iterator[pa.Table]:
        """Its rows."""
        return self.rows.read(self.partition, self.span.start, self.span.stop, self.names)


@dataclass(frozen=True)
class _FilePiece:
    """A file of the table, as pyiceberg reads it."""

    rows: TableRows
    task: FileScanTask

    def read(self) -> Iterator[pa.Table]:
        """Its rows."""
        return self.rows.read(self.task)


Piece: TypeAlias = "_LogPiece | _FilePiece"


def log_pieces(rows: LogRows, partition: int, span: range, wanted: pa.Schema) -> list[Piece]:
    """A stretch of the log, as tasks read it."""
    return [
        _LogPiece(
            rows, partition, range(at, min(at + PIECE_OFFSETS, span.stop)), tuple(wanted.names)
        )
        for at in range(span.start, span.stop, PIECE_OFFSETS)
    ]


def pieces_of(table: TopicTable, stretches: Sequence[Stretch], wanted: pa.Schema) -> list[Piece]:
    """The rows of these stretches, as tasks in Python read them: files by pyiceberg."""
    found: list[Piece] = []
    for one in stretches:
        for file in table.files(one.partition, one.table):
            rows = table.rows(file, one.partition, one.table, wanted)
            found.append(_FilePiece(rows, file.task))
        found += log_pieces(table.log, one.partition, one.log, wanted)
    return found


def frame(
    session: SparkSession, table: TopicTable, stretches: Sequence[Stretch], wanted: pa.Schema
) -> DataFrame:
    """The rows of these stretches.

    Args:
        session: Spark's.
        table: the topic's.
        stretches: what is read of each partition, each partition once.
        wanted: the columns.
    """
    ddl = spark_schema(wanted)
    whole, cut, pieces = _divide(table, stretches, wanted)
    for one in stretches:
        pieces += log_pieces(table.log, one.partition, one.log, wanted)
    frames = []
    if whole:
        frames.append(_parquet(session, wanted, whole))
    if cut:
        own = pa.schema([table.schema.field("partition"), table.schema.field("offset")])
        more = [one for one in own if one.name not in wanted.names]
        rows = _parquet(session, pa.schema([*wanted, *more]), cut)
        chosen = rows.where(_condition(stretches))
        frames.append(chosen.select(*(_quoted(name) for name in wanted.names)))
    if pieces or not frames:
        numbers = session.range(0, len(pieces), 1, max(len(pieces), 1))
        frames.append(numbers.mapInArrow(_reading(pieces), ddl))
    return functools.reduce(lambda all_rows, more_rows: all_rows.unionAll(more_rows), frames)


def _divide(
    table: TopicTable, stretches: Sequence[Stretch], wanted: pa.Schema
) -> tuple[list[TableFile], list[TableFile], list[Piece]]:
    """The table's files that Spark takes whole, those it takes in part, and those it can't read."""
    whole: list[TableFile] = []
    cut: list[TableFile] = []
    pieces: list[Piece] = []
    is_plain = table.is_plain(pa.schema([*wanted, *table.columns(["partition", "offset"])]))
    for one in stretches:
        for file in table.files(one.partition, one.table):
            is_parquet = file.task.file.file_format == "PARQUET"
            is_known = file.partition is not None and file.offsets is not None
            if not (is_plain and is_parquet and is_known) or file.task.delete_files:
                rows = table.rows(file, one.partition, one.table, wanted)
                pieces.append(_FilePiece(rows, file.task))
            elif file.is_within(one.partition, one.table):
                whole.append(file)
            else:
                cut.append(file)
    return whole, cut, pieces


def path_for_spark(path: str) -> str:
    """A file's name as Spark takes it."""
    for theirs, sparks in SCHEMES.items():
        if path.startswith(theirs):
            return sparks + path.removeprefix(theirs)
    return path


def _parquet(session: SparkSession, columns: pa.Schema, files: list[TableFile]) -> DataFrame:
    paths = [path_for_spark(one.task.file.file_path) for one in files]
    reader = session.read.schema(spark_schema(columns)).options(**READING)
    try:
        return reader.parquet(*paths)
    except Exception as error:
        scheme = paths[0].partition("//")[0]
        if scheme == "file:":
            raise
        raise SetupError(
            f"expected Spark to read {scheme}//; found: {str(error).strip().splitlines()[0]}. It needs "
            "the file system's classes (for s3a:// those of org.apache.hadoop:hadoop-aws, in the "
            "version of its Hadoop: spark.jars.packages) and credentials (spark.hadoop.fs.s3a.*); "
            "`arrow` reads without them"
        ) from error


def _condition(stretches: Sequence[Stretch]) -> str:
    """The condition, in SQL, that a row of the table is in one of the stretches."""
    return " OR ".join(
        f"(`partition` = {one.partition} AND `offset` >= {one.table.start} "
        f"AND `offset` < {one.table.stop})"
        for one in stretches
        if one.table
    )


def _reading(
    pieces: Sequence[Piece],
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What Spark's tasks do: read the pieces whose numbers they are given."""

    def read(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            asked: Any = batch.column(0).to_pylist()
            for number in asked:
                for rows in pieces[number].read():
                    yield from rows.to_batches()

    return read


def spark_schema(schema: pa.Schema) -> str:
    """An Arrow schema as Spark's DDL.

    >>> spark_schema(pa.schema([("at", pa.timestamp("us", tz="UTC")), ("tags", pa.list_(pa.string()))]))
    '`at` TIMESTAMP, `tags` ARRAY<STRING>'
    """
    return ", ".join(f"{_quoted(one.name)} {_type(one.type)}" for one in schema)


def _type(type_: Any) -> str:
    if pa.types.is_timestamp(type_):
        return "TIMESTAMP"
    if pa.types.is_list(type_):
        return f"ARRAY<{_type(type_.value_type)}>"
    if pa.types.is_map(type_):
        return f"MAP<{_type(type_.key_type)}, {_type(type_.item_type)}>"
    if pa.types.is_struct(type_):
        fields = ", ".join(f"{_quoted(one.name)}: {_type(one.type)}" for one in type_)
        return f"STRUCT<{fields}>"
    if pa.types.is_decimal(type_):
        return f"DECIMAL({type_.precision}, {type_.scale})"
    return _TYPES[type_]


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"

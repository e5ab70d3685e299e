"""The data source: which reader or writer the options ask for."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)

from penstock.errors import UserError
from penstock.spark.options import Options

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["PenstockSource", "source_at"]


class PenstockSource(DataSource):
    """`format("penstock")`."""

    home = "."

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._options = Options.of(dict(options), self.home)

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "penstock"

    def schema(self) -> StructType:
        """The columns of the view or the topic."""
        from penstock.spark.arrow import for_spark

        if self._options.is_view and self._options.wants_changes:
            from penstock.spark.changes import change_schema

            return for_spark(change_schema(self._options))
        if self._options.is_view:
            from penstock.spark.views import view_schema

            return for_spark(view_schema(self._options))
        from penstock.spark.topics import topic_schema

        return for_spark(topic_schema(self._options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Reads a view's changes, or a topic's records as they come."""
        if self._options.is_view:
            from penstock.spark.changes import ChangeStream

            return ChangeStream(self._options, schema)
        from penstock.spark.topics import TopicStream

        return TopicStream(self._options, schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Reads the current rows, or those of a version."""
        if self._options.is_view:
            from penstock.spark.views import ViewReader

            return ViewReader(self._options, schema)
        from penstock.spark.topics import TopicReader

        return TopicReader(self._options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802, FBT001
        """Writes micro-batches to a topic, each once."""
        from penstock.spark.sink import StreamSink

        _check_appends(overwrite=overwrite)
        return StreamSink(self._options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001
        """Writes rows to a topic."""
        from penstock.spark.sink import BatchSink

        _check_appends(overwrite=overwrite)
        return BatchSink(self._options, schema)


def _check_appends(*, overwrite: bool) -> None:
    if overwrite:
        raise UserError(
            "expected rows to be appended to a topic; found a mode that overwrites. Write with "
            ".mode('append'), or .outputMode('append' or 'update')"
        )


def source_at(home: str) -> type[PenstockSource]:
    """The source for programs that run in a directory."""
    # Made here, so that its bytes go to Spark's workers together with the directory.
    return type("PenstockSource", (PenstockSource,), {"home": home, "__module__": "__main__"})

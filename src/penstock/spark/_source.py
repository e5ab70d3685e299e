"""The data source: which reader or writer the options ask for."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader

from penstock.spark._options import Options

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
        from penstock.spark._arrow import for_spark

        if self._options.is_view:
            from penstock.spark._views import view_schema

            return for_spark(view_schema(self._options))
        from penstock.spark._topics import topic_schema

        return for_spark(topic_schema(self._options))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Reads what is there now, or was in a version."""
        if self._options.is_view:
            from penstock.spark._views import ViewReader

            return ViewReader(self._options, schema)
        from penstock.spark._topics import TopicReader

        return TopicReader(self._options, schema)


def source_at(home: str) -> type[PenstockSource]:
    """The source for programs that run in a directory."""
    # Made here, so that its bytes go to Spark's workers together with the directory.
    return type("PenstockSource", (PenstockSource,), {"home": home, "__module__": "__main__"})

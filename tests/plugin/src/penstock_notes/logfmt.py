"""A format of records: lines such as `level=info ms=17`."""

from __future__ import annotations

import pyarrow as pa

from penstock.core.schema import Schema
from penstock.formats import FormatKind, LineDecoder
from penstock.plugins import Option


class LogfmtDecoder(LineDecoder):
    """Finds the columns by their names."""

    def __init__(self, schema: Schema, separator: str = " ") -> None:
        super().__init__(schema)
        self._separator = separator

    def columns(self, lines: pa.Array) -> tuple[dict[str, pa.Array], dict[int, str]]:
        """For each column the texts of every line; and by line why some don't fit."""
        rows, reasons = [], {}
        for number, line in enumerate(lines.to_pylist()):
            pairs = [part.partition("=") for part in line.split(self._separator) if part]
            rows.append({name: text for name, _, text in pairs})
            if not pairs or not all(mark for _, mark, _ in pairs):
                reasons[number] = f"expected name=value; found {line[:80]!r}"
        names = self.schema.names
        return {
            name: pa.array([one.get(name) for one in rows], pa.string()) for name in names
        }, reasons


LOGFMT = FormatKind(
    name="logfmt",
    help="Lines of name=value.",
    decoder=LogfmtDecoder,
    options=(Option("separator", "TEXT", "Between two pairs"),),
)

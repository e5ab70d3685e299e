"""An access log's lines as events: the common and combined formats of Apache and nginx.

    83.149.9.216 - - [17/May/2015:10:05:03 +0000] "GET /a?b=1 HTTP/1.1" 200 203023 "referer" "agent"

Only what the views need is read: address, time, request, status and bytes. What comes after them is
not looked at, so a line whose user agent was cut off still counts. A request that isn't `METHOD
target PROTOCOL` (scanners send anything) has no method, and all of it is the path; a path has no
query string.

A line that doesn't match goes on as it is, byte for byte, so that whoever decodes it refuses it and
keeps it. Whole columns at a time (Polars).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import polars as pl
import pyarrow as pa

# Written so that a line is read once, from left to right, without going back (the regex engine is
# some times faster then); what has escaped quotes or isn't HTTP takes the second, slower pattern.
_HEAD: Final = r'^(?P<ip>[^ ]+) [^ ]+ [^\[]*\[(?P<at>[^\]]+)\] "'
_TAIL: Final = r'" (?P<status>[0-9]{3}) (?P<bytes>[0-9]+|-)'
_USUAL: Final = (
    _HEAD + r'(?P<method>[A-Z]+) (?P<path>[^ "?\\]*)(?:\?[^ "\\]*)? HTTP/[0-9.]+' + _TAIL
)
_ANY: Final = _HEAD + r'(?P<request>(?:[^"\\]|\\.)*)' + _TAIL
_REQUEST: Final = r"^(?P<method>[A-Z]+) (?P<path>[^ ?]*)(?:\?[^ ]*)?(?: HTTP/[0-9.]+)?$"
_TIME: Final = "%d/%b/%Y:%H:%M:%S %z"


def values_of_lines(lines: Sequence[bytes]) -> tuple[pa.Array[Any], int]:
    """Turns lines into the values to send, one for each line and in their order.

    Args:
        lines: without their line ends.

    Returns:
        JSON objects, or for lines that don't match the line itself; and how many didn't match.
    """
    texts = pl.Series("line", [_text(line) for line in lines], pl.String).to_frame()
    fields = texts.select(pl.col("line").str.extract_groups(_USUAL).alias("f")).unnest("f")
    missed = fields["ip"].is_null()
    if missed.any():
        fields = _again(fields.with_columns(texts["line"]), missed)
    rows = _typed(fields)
    good = rows["at"].is_not_null() & rows["status"].is_not_null() & rows["bytes"].is_not_null()
    encoded = rows.select(pl.struct(pl.all()).struct.json_encode().alias("json"))["json"]
    values = encoded.to_arrow().cast(pa.binary())
    bad = (~good).arg_true().to_list()
    if bad:
        listed = values.to_pylist()
        for i in bad:
            listed[i] = _refusable(lines[i])
        values = pa.array(listed, pa.binary())
    return values, len(bad)


def _text(line: bytes) -> str | None:
    try:
        return line.decode()
    except UnicodeDecodeError:
        return None


def _again(fields: pl.DataFrame, missed: pl.Series) -> pl.DataFrame:
    """The fields where the usual pattern missed, read with the one that takes any request."""
    lines = fields.filter(missed).select("line")
    found = lines.select(pl.col("line").str.extract_groups(_ANY).alias("f")).unnest("f")
    request = pl.col("request").str.extract_groups(_REQUEST)
    found = found.select(
        "ip",
        "at",
        request.struct.field("method").alias("method"),
        pl.coalesce(request.struct.field("path"), pl.col("request")).alias("path"),
        "status",
        "bytes",
    )
    rows = fields.with_row_index("row").drop("line")
    merged = [rows.filter(~missed), rows.filter(missed).select("row").hstack(found)]
    return pl.concat(merged).sort("row").drop("row")


def _typed(fields: pl.DataFrame) -> pl.DataFrame:
    at = pl.col("at").str.to_datetime(_TIME, time_unit="us", time_zone="UTC", strict=False)
    return fields.select(
        pl.col("ip"),
        at.dt.strftime("%Y-%m-%dT%H:%M:%SZ").alias("at"),
        pl.col("method"),
        pl.col("path"),
        pl.col("status").cast(pl.Int32, strict=False),
        pl.col("bytes").replace("-", "0").cast(pl.Int64, strict=False),
    )


def _refusable(line: bytes) -> bytes:
    """The line as it is; quoted where it might pass for an event of ours (it begins like JSON)."""
    if line.lstrip()[:1] == b"{":
        return b'"' + line.replace(b"\\", b"\\\\").replace(b'"', b'\\"') + b'"'
    return line

"""An access log's lines as events: the common and combined formats of Apache and nginx.

    83.149.9.216 - - [17/May/2015:10:05:03 +0000] "GET /a?b=1 HTTP/1.1" 200 203023 "referer" "agent"

Only what the views need is read: address, time, request, status and bytes. What comes after them is
not looked at, so a line whose user agent was cut off still counts. A request that isn't `METHOD
target PROTOCOL` (scanners send anything) has no method, and all of it is the path; a path has no
query string.

A line that doesn't match continues as it is, byte for byte, so that its decoder refuses it and
keeps it. Whole columns at a time (Arrow).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.formats.json import encode_rows
from penstock.formats.lines.instants import instants

# Written so that a line is read once, from left to right, without going back (the regex engine is
# some times faster then); what has escaped quotes or isn't HTTP takes the second, slower pattern.
_HEAD: Final = r'^(?P<ip>[^ ]+) [^ ]+ [^\[]*\[(?P<at>[^\]]+)\] "'
_TAIL: Final = r'" (?P<status>[0-9]{3}) (?P<bytes>[0-9]+|-)'
_USUAL: Final = (
    _HEAD + r'(?P<method>[A-Z]+) (?P<path>[^ "?\\]*)(?:\?[^ "\\]*)? HTTP/[0-9.]+' + _TAIL
)
_ANY: Final = _HEAD + r'(?P<request>(?:[^"\\]|\\.)*)' + _TAIL
_REQUEST: Final = r"^(?P<method>[A-Z]+) (?P<path>[^ ?]*)(?:\?[^ ]*)?(?: HTTP/[0-9.]+)?$"
INT64_DIGITS: Final = 18  # of a response's bytes: more is no size that a server has sent
_FIELDS: Final = ("ip", "at", "method", "path", "status", "bytes")
_TIME: Final = "%d/%b/%Y:%H:%M:%S %z"


def values_of_lines(lines: Sequence[bytes]) -> tuple[pa.Array[Any], int]:
    """Turns lines into the values to send, one for each line and in their order.

    Args:
        lines: without their line ends.

    Returns:
        JSON objects, or for lines that don't match the line itself; and how many didn't match.
    """
    texts = pa.array([_text(line) for line in lines], pa.string())
    fields = _fields(texts)
    rows = _typed(fields)
    good = _all_valid(rows, ("at", "status", "bytes"))
    values: Any = encode_rows(rows).cast(pa.binary())
    bad = np.flatnonzero(~good).tolist()
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


def _fields(texts: Any) -> dict[str, Any]:
    """What the patterns find in each line, as text; null where neither matches."""
    found: Any = pc.extract_regex(texts, _USUAL)
    fields = {name: pc.struct_field(found, name) for name in _FIELDS}
    missed = found.is_null()
    at = pa.array(np.flatnonzero(np.asarray(missed)), pa.int64())
    if len(at):
        second = _second(texts.take(at))
        fields = {
            name: pc.replace_with_mask(column, missed, second[name])
            for name, column in fields.items()
        }
    return fields


def _second(lines: Any) -> dict[str, Any]:
    """The fields of lines that the usual pattern misses, by the one that takes any request."""
    found: Any = pc.extract_regex(lines, _ANY)
    fields = {name: pc.struct_field(found, name) for name in ("ip", "at", "status", "bytes")}
    whole = pc.struct_field(found, "request")
    request: Any = pc.extract_regex(whole, _REQUEST)
    fields["method"] = pc.struct_field(request, "method")
    fields["path"] = pc.coalesce(pc.struct_field(request, "path"), whole)
    return fields


def _typed(fields: dict[str, Any]) -> pa.Table:
    bytes_: Any = pc.if_else(pc.equal(fields["bytes"], pa.scalar("-")), "0", fields["bytes"])
    short: Any = pc.less_equal(pc.utf8_length(bytes_), pa.scalar(INT64_DIGITS))
    return pa.table(
        {
            "ip": fields["ip"],
            "at": instants(fields["at"], _TIME),
            "method": fields["method"],
            "path": fields["path"],
            "status": fields["status"].cast(pa.int32()),
            "bytes": pc.if_else(short, bytes_, pa.scalar(None, pa.string())).cast(pa.int64()),
        }
    )


def _all_valid(rows: pa.Table, names: Sequence[str]) -> np.ndarray:
    """Which rows have a value in each of the columns."""
    valid = [np.asarray(rows[name].is_valid()) for name in names]
    found: np.ndarray = np.logical_and.reduce(valid)
    return found


def _refusable(line: bytes) -> bytes:
    """The line as it is; quoted where it might pass for an event of ours (it begins like JSON)."""
    if line.lstrip()[:1] == b"{":
        return b'"' + line.replace(b"\\", b"\\\\").replace(b'"', b'\\"') + b'"'
    return line

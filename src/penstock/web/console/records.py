"""A page of a topic's records: from the newest or the oldest, from offsets or a time, with search; and those
that are new since the last look.

The next page begins at `next`, which has an offset for each partition. Newest first, it is the offset to
stop before; oldest first and for new records, the offset to begin at.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, NotRequired, TypedDict

from penstock.client import Client, Reader
from penstock.core.time import instant_text
from penstock.errors import BrokerError
from penstock.wire.columns import header

PAGE_MAX: Final = 500  # records of one page: what a person looks through
SEARCH_STEP: Final = 5_000  # offsets of each partition that are read at a time
SEARCH_RECORDS_MAX: Final = 200_000  # of one question; the page offers to continue
SEARCH_SECONDS_MAX: Final = 5.0  # likewise: a page that waits longer looks dead
SHOWN_CHARS_MAX: Final = 20_000  # of a key or a value: a browser holds a page of them
DAMAGED_SHOWN_MAX: Final = 10
TAIL_CHARS_MAX: Final = 1 << 20
"""Of keys and values of one look at new records, a second apart: what a browser draws meanwhile."""


@dataclass(frozen=True)
class Wanted:
    """Which records are asked for.

    Attributes:
        topic: its name.
        newest: whether the newest come first.
        positions: where to begin (oldest first) or to stop before (newest first); of partitions that
            aren't named, at the end of that side.
        partitions: which; None is all.
        limit: how many.
        search: a text that the key, the value or a header contains, in any case; empty is none.
    """

    topic: str
    newest: bool = True
    positions: Mapping[int, int] = field(default_factory=dict)
    partitions: tuple[int, ...] | None = None
    limit: int = 50
    search: str = ""


class Shown(TypedDict):
    """Bytes, as a page shows them.

    Attributes:
        text: cut where it is long.
        form: `text`, `hex`, or `avro` of a value that a schema reads.
        bytes: how many there are, where the text is cut.
    """

    text: str
    form: str
    bytes: NotRequired[int]


class RecordJson(TypedDict):
    """A record, as a page shows it.

    Attributes:
        partition: that it lies in.
        offset: of it.
        ms: its timestamp.
        at: the same, as text.
        key: None: it has none.
        value: None: it has none.
        bytes: of key and value.
        headers: names and values.
    """

    partition: int
    offset: int
    ms: int
    at: str
    key: Shown | None
    value: Shown | None
    bytes: int
    headers: list[tuple[str, Shown | None]]


class Page(TypedDict):
    """A page of records.

    Attributes:
        records: in the order that was asked for.
        next: the positions of the next page, by partition; empty where there is none.
        scanned: how many records were looked at.
        damaged: what the broker couldn't read.
    """

    records: list[RecordJson]
    next: dict[int, int]
    scanned: int
    damaged: list[str]


class Tail(TypedDict):
    """The records that are new since a look at a topic.

    Attributes:
        records: the newest first.
        next: the positions of the next look, by partition.
        arrived: by how many offsets the partitions have grown.
        skipped: how many of these were not looked at, or not returned though they fit.
        damaged: what the broker couldn't read.
    """

    records: list[RecordJson]
    next: dict[int, int]
    arrived: int
    skipped: int
    damaged: list[str]


@dataclass
class _Look:
    """What has been seen so far."""

    found: list[RecordJson] = field(default_factory=list)
    scanned: int = 0
    damaged: list[str] = field(default_factory=list)


def read_page(
    client: Client,
    reader: Reader,
    wanted: Wanted,
    decode: Callable[[bytes], str | None] = lambda _: None,
) -> Page:
    """A page of records.

    Args:
        client: asks for offsets.
        reader: reads.
        wanted: which records.
        decode: gives a value that isn't text as JSON; None: it can't.

    Raises:
        BrokerError: there is no such topic or partition.
    """
    chosen, first, last = _ends(client, wanted)
    begin = {p: first[p] for p in chosen}
    end = {p: last[p] for p in chosen}
    side = end if wanted.newest else begin
    for p, offset in wanted.positions.items():
        if p in side:
            side[p] = min(max(offset, first[p]), last[p])
    look = _Look()
    deadline = time.monotonic() + SEARCH_SECONDS_MAX
    step = SEARCH_STEP if wanted.search else wanted.limit
    while any(begin[p] < end[p] for p in chosen):
        spans = {}
        for p in chosen:
            low = max(begin[p], end[p] - step) if wanted.newest else begin[p]
            spans[p] = (low, end[p] if wanted.newest else min(end[p], begin[p] + step))
        _read(reader, wanted, spans, look, decode)
        for p, (low, high) in spans.items():
            if wanted.newest:
                end[p] = low
            else:
                begin[p] = high
        full = len(look.found) >= wanted.limit
        if full or look.scanned >= SEARCH_RECORDS_MAX or time.monotonic() > deadline:
            break
    return _page(look, wanted, begin, end)


def read_tail(
    client: Client,
    reader: Reader,
    wanted: Wanted,
    decode: Callable[[bytes], str | None] = lambda _: None,
) -> Tail:
    """The records that are new since `wanted.positions`; without any, the newest.

    However many arrived, a bounded number is read: the newest of each partition. The others are counted.

    Args:
        client: asks for offsets.
        reader: reads.
        wanted: which records; the answer has at most `limit`.
        decode: as in `read_page`.

    Raises:
        BrokerError: there is no such topic or partition.
    """
    chosen, first, last = _ends(client, wanted)
    begin = {p: min(max(wanted.positions.get(p, first[p]), first[p]), last[p]) for p in chosen}
    news = {p: last[p] - begin[p] for p in chosen if last[p] > begin[p]}
    read = sorted(news, key=lambda p: -news[p])[: wanted.limit]
    fits = not wanted.positions or sum(news.values()) <= wanted.limit
    share = wanted.limit if fits else max(wanted.limit // len(read), 1)
    span = SEARCH_STEP if wanted.search else share
    look = _Look()
    spans = {p: (max(begin[p], last[p] - span), last[p]) for p in read}
    _read(reader, wanted, spans, look, decode)
    shown: list[RecordJson] = []
    chars = 0
    for one in _in_order(look.found, newest=True)[: wanted.limit]:
        chars += sum(len(part["text"]) for part in (one["key"], one["value"]) if part is not None)
        if shown and chars > TAIL_CHARS_MAX:
            break
        shown.append(one)
    unread = sum(news.values()) - sum(high - low for low, high in spans.values())
    return {
        "records": shown,
        "next": {p: last[p] for p in chosen},
        "arrived": sum(news.values()) if wanted.positions else 0,
        "skipped": unread + len(look.found) - len(shown) if wanted.positions else 0,
        "damaged": look.damaged,
    }


def _ends(client: Client, wanted: Wanted) -> tuple[list[int], dict[int, int], dict[int, int]]:
    """The partitions that are meant, and the first and next offsets of all."""
    first = client.offsets(wanted.topic, "earliest")
    last = client.offsets(wanted.topic, "latest")
    chosen = sorted(last) if wanted.partitions is None else list(wanted.partitions)
    for p in chosen:
        if p not in last:
            raise BrokerError(
                f"expected a partition of {wanted.topic!r} from 0 to {len(last) - 1}; found {p}"
            )
    return chosen, first, last


def _read(
    reader: Reader,
    wanted: Wanted,
    spans: Mapping[int, tuple[int, int]],
    look: _Look,
    decode: Callable[[bytes], str | None],
) -> None:
    """Reads a span of each partition; what fits is added to what was found."""
    needle = wanted.search.lower().encode()
    for p, (low, high) in spans.items():
        if low >= high:
            continue

        def damage(begin: int, end: int, p: int = p) -> None:
            if len(look.damaged) < DAMAGED_SHOWN_MAX:
                look.damaged.append(f"partition {p}, offsets {begin} to {end - 1}")

        for records in reader.read(wanted.topic, p, low, high, missing="skip", on_damage=damage):
            look.scanned += len(records)
            keys, values = records.keys().to_pylist(), records.values().to_pylist()
            for i, (key, value) in enumerate(zip(keys, values, strict=True)):
                headers = header(records, i)
                text = None if value is None else decode(value)
                content = value if text is None else text.encode()
                if needle and not _holds(needle, key, content, headers):
                    continue
                at_ms = int(records.timestamp_ms[i])
                one = _record(p, int(records.offset[i]), at_ms, key, value, headers)
                if text is not None and (decoded := shown(content)) is not None:
                    one["value"] = {**decoded, "form": "avro"}
                look.found.append(one)


def _holds(
    needle: bytes,
    key: bytes | None,
    value: bytes | None,
    headers: list[tuple[str, bytes | None]],
) -> bool:
    texts = [value, key, *(text for pair in headers for text in (pair[0].encode(), pair[1]))]
    return any(needle in text.lower() for text in texts if text)


def _page(look: _Look, wanted: Wanted, begin: Mapping[int, int], end: Mapping[int, int]) -> Page:
    """The records to show in their order, and where the next page begins."""
    order = _in_order(look.found, newest=wanted.newest)
    shown, left = order[: wanted.limit], order[wanted.limit :]
    following = {p: end[p] if wanted.newest else begin[p] for p in begin}
    for one in left:  # read, and not shown: the next page has them
        p, offset = one["partition"], one["offset"]
        if wanted.newest:
            following[p] = max(following[p], offset + 1)
        else:
            following[p] = min(following[p], offset)
    more = bool(left) or any(begin[p] < end[p] for p in begin)
    return {
        "records": shown,
        "next": following if more else {},
        "scanned": look.scanned,
        "damaged": look.damaged,
    }


def _in_order(found: list[RecordJson], *, newest: bool) -> list[RecordJson]:
    """Partitions merged by time; the records of each stay in the order of their offsets.

    Times in a partition may go back. A record counts as no earlier than one before it (newest first: as no
    later), so that what is left for the next page always begins at one offset of each partition.
    """
    at_ms: dict[int, int] = {}
    keyed = []
    for one in sorted(found, key=lambda one: one["offset"], reverse=newest):
        p, ms = one["partition"], one["ms"]
        at_ms[p] = (min if newest else max)(at_ms.get(p, ms), ms)
        keyed.append(((at_ms[p], p, one["offset"]), one))
    return [one for _, one in sorted(keyed, key=lambda pair: pair[0], reverse=newest)]


def _record(
    partition: int,
    offset: int,
    at_ms: int,
    key: bytes | None,
    value: bytes | None,
    headers: list[tuple[str, bytes | None]],
) -> RecordJson:
    return {
        "partition": partition,
        "offset": offset,
        "ms": at_ms,
        "at": instant_text(at_ms * 1_000),
        "key": shown(key),
        "value": shown(value),
        "bytes": len(key or b"") + len(value or b""),
        "headers": [(name, shown(text)) for name, text in headers],
    }


def shown(data: bytes | None) -> Shown | None:
    """Bytes for a page: as text where they are UTF-8, in hexadecimal otherwise; cut where they are long.

    >>> shown(b"tea"), shown(bytes([255, 0])), shown(None)
    ({'text': 'tea', 'form': 'text'}, {'text': 'ff 00', 'form': 'hex'}, None)
    """
    if data is None:
        return None
    try:
        text, form = data.decode(), "text"
    except UnicodeDecodeError:
        text, form = data[: SHOWN_CHARS_MAX // 3].hex(" "), "hex"
    found: Shown = {"text": text[:SHOWN_CHARS_MAX], "form": form}
    if len(text) > SHOWN_CHARS_MAX or (form == "hex" and len(data) > SHOWN_CHARS_MAX // 3):
        found["bytes"] = len(data)
    return found

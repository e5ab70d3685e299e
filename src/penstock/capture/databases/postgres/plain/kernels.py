"""Kernels that read messages of pgoutput and write Debezium's envelopes: each byte is looked at once, and
copied once.

Invariant: a message is taken whole or not at all. Where one isn't plain (a kind, a table, a value that these
functions don't know), they end before it, and the caller takes it in another way.

Source: PostgreSQL's documentation, "Logical Replication Message Formats", protocol version 1.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from penstock.core.kernels import BLOCK, Array, Number, instruction, njit, types
from penstock.core.kernels.copying import called, copy_block, copy_plain, inlined
from penstock.formats.json_scan import scan_character

__all__ = [
    "BOOL",
    "COMMIT_LSN",
    "DIGITS_MAX",
    "END",
    "ENDED_US",
    "HAD",
    "INSTANT",
    "IS_OPEN",
    "LEFT_OUT",
    "MICROS",
    "MILLIS",
    "NUMBER",
    "PADDING",
    "PIECES",
    "POSITION",
    "RECORDS",
    "STATE",
    "TEXT",
    "TIME_US",
    "TRANSACTIONS",
    "XID",
    "XIDS",
    "measure",
    "write",
]

PADDING: Final = BLOCK
"""Bytes that inputs and outputs have beyond what is read and written: blocks are copied whole."""
DIGITS_MAX: Final = 20
"""Of a number of 64 bits, with its sign."""
LEFT_OUT, NUMBER, TEXT, BOOL, MICROS, MILLIS, INSTANT = range(7)
"""How a column is written: not at all, as it is, as a string, `true` or `false`, a timestamp as a number of
microseconds or milliseconds, as text in UTC with six digits of a second."""
IS_OPEN, COMMIT_LSN, TIME_US, XID, POSITION, RECORDS, TRANSACTIONS, END, ENDED_US, XIDS, HAD = (
    range(11)
)
STATE: Final = 11
"""Numbers of a state: whether a transaction is open, its commit's position and time (microseconds since
1970), its number; the position behind the last commit; records of the open transaction; how many transactions
ended and have records; the end of the last one, 0 where none ended, and its time; how many began; whether the
first one had records before."""
PIECES: Final = 10
"""Of an envelope, in order: before the row; before the time in milliseconds; before the former position;
before the position; before the time in microseconds; before that in nanoseconds; before the table; before the
position again; behind it, for an insert, and for an update."""

_HEAD = 25  # bytes before a message: of its kind, three numbers
_B, _C, _I, _U, _N, _TEXT_VALUE, _NULL_VALUE = 66, 67, 73, 85, 78, 116, 110
_EPOCH_US = 946_684_800_000_000  # from 1970 to 2000, from which PostgreSQL counts
_QUOTE, _BACKSLASH, _ZERO, _MINUS = 34, 92, 48, 45
_U8 = types.Array(types.uint8, 1, "C", readonly=True)
_I64 = types.Array(types.int64, 1, "C", readonly=True)
_OUT, _I64_OUT, _I32_OUT = types.uint8[::1], types.int64[::1], types.int32[::1]
_NUMBER = types.int64

_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
_SHORT = np.zeros(128, np.uint8)  # what follows the backslash of a byte's escape; 0: it is \\u00..
for _byte, _mark in zip(b'"\\\b\f\n\r\t', b'"\\bfnrt', strict=True):
    _SHORT[_byte] = _mark

load64 = instruction("load64")
marks_text = instruction("marks_text")
trailing_zeros = instruction("trailing_zeros")


@inlined
def big(data: Array, p: Number, size: Number) -> Number:
    """A number of so many bytes, the greatest first."""
    value = _NUMBER(0)
    for k in range(size):
        value = value << 8 | _NUMBER(data[p + k])
    return value


@called
def put_number(out: Array, q: Number, value: Number) -> Number:
    """Writes a number's digits: the position past them."""
    if value < 0:  # no position or time is the smallest number
        out[q] = _MINUS
        q += 1
        value = -value
    size, rest = 1, value // 10
    while rest:
        size += 1
        rest //= 10
    for k in range(size - 1, -1, -1):
        out[q + k] = _ZERO + value % 10
        value //= 10
    return q + size


@called
def put_piece(pieces: Array, at: Array, i: Number, out: Array, q: Number) -> Number:
    """Writes the piece of that number."""
    begin, end = at[i], at[i + 1]
    copy_plain(pieces, begin, out, q, end - begin)
    return q + end - begin


@called
def put_escaped(data: Array, p: Number, end: Number, out: Array, q: Number) -> Number:
    """Writes text with characters that are escaped, or of several bytes; -1 where it isn't UTF-8."""
    while p < end:
        byte = data[p]
        if byte >= 0x80:
            past = scan_character(data, p, end)
            if past < 0:
                return -1
            while p < past:
                out[q] = data[p]
                p += 1
                q += 1
            continue
        p += 1
        if byte >= 32 and byte != _QUOTE and byte != _BACKSLASH:
            out[q] = byte
            q += 1
        elif _SHORT[byte]:
            out[q], out[q + 1] = _BACKSLASH, _SHORT[byte]
            q += 2
        else:
            out[q], out[q + 1], out[q + 2], out[q + 3] = _BACKSLASH, 117, _ZERO, _ZERO
            out[q + 4], out[q + 5] = _HEX[byte >> 4], _HEX[byte & 15]
            q += 6
    return q


@called
def put_text(data: Array, p: Number, size: Number, out: Array, q: Number) -> Number:
    """Writes a string of JSON; -1 where the text isn't UTF-8."""
    end = p + size
    out[q] = _QUOTE
    q += 1
    while p < end:
        copy_block(data, p, out, q)
        plain = min(trailing_zeros(marks_text(data, p)), BLOCK, end - p)
        p += plain
        q += plain
        if plain < BLOCK and p < end:
            q = put_escaped(data, p, end, out, q)
            if q < 0:
                return -1
            break
    out[q] = _QUOTE
    return q + 1


@inlined
def two(data: Array, p: Number) -> Number:
    """The number of two digits; far below zero where they aren't."""
    tens, ones = _NUMBER(data[p]) - _ZERO, _NUMBER(data[p + 1]) - _ZERO
    if tens < 0 or tens > 9 or ones < 0 or ones > 9:
        return _NUMBER(-1_000_000)
    return 10 * tens + ones


@called
def put_timestamp(
    data: Array, p: Number, size: Number, kind: Number, out: Array, q: Number
) -> Number:
    """Writes a timestamp of the years 1000 to 9999, in UTC; -1 where it is another one."""
    if size > 3 and data[p + size - 3] == 43:
        if data[p + size - 2] != _ZERO or data[p + size - 1] != _ZERO:
            return -1
        size -= 3
    if size < 19 or size == 20 or size > 26 or data[p + 4] != _MINUS or data[p + 7] != _MINUS:
        return -1
    if data[p + 10] != 32 or data[p + 13] != 58 or data[p + 16] != 58:
        return -1
    year, month, day = 100 * two(data, p) + two(data, p + 2), two(data, p + 5), two(data, p + 8)
    hour, minute, second = two(data, p + 11), two(data, p + 14), two(data, p + 17)
    if year < 0 or month < 0 or day < 0 or hour < 0 or minute < 0 or second < 0:
        return -1
    part = _NUMBER(0)
    if size > 19:
        if data[p + 19] != 46:
            return -1
        for k in range(20, 26):
            digit = _NUMBER(data[p + k]) - _ZERO if k < size else _NUMBER(0)
            if digit < 0 or digit > 9:
                return -1
            part = 10 * part + digit
    if kind == INSTANT:
        out[q] = _QUOTE
        for k in range(26):
            out[q + 1 + k] = data[p + k] if k < size else _ZERO
        out[q + 11], out[q + 20] = 84, 46
        out[q + 27], out[q + 28] = 90, _QUOTE
        return q + 29
    if month <= 2:  # Howard Hinnant, "chrono-compatible low-level date algorithms"
        year -= 1
    era, of_era = year // 400, year % 400
    of_year = (153 * (month - 3 if month > 2 else month + 9) + 2) // 5 + day - 1
    days = era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468
    us = (((days * 24 + hour) * 60 + minute) * 60 + second) * 1_000_000 + part
    return put_number(out, q, us if kind == MICROS else us // 1000)


@called
def put_value(data: Array, p: Number, size: Number, kind: Number, out: Array, q: Number) -> Number:
    """Writes a value; -1 where it isn't plain."""
    if kind == TEXT:
        return put_text(data, p, size, out, q)
    if kind == NUMBER:
        copy_plain(data, p, out, q, size)
        return q + size
    if kind == BOOL:
        if data[p] == _TEXT_VALUE:
            out[q], out[q + 1], out[q + 2], out[q + 3] = 116, 114, 117, 101  # true
            return q + 4
        out[q], out[q + 1], out[q + 2], out[q + 3], out[q + 4] = 102, 97, 108, 115, 101  # false
        return q + 5
    return put_timestamp(data, p, size, kind, out, q)


@inlined
def put_null(out: Array, q: Number) -> Number:
    out[q], out[q + 1], out[q + 2], out[q + 3] = 110, 117, 108, 108
    return q + 4


@called
def put_row(
    data: Array,
    p: Number,
    end: Number,
    table: Number,
    column_at: Array,
    kinds: Array,
    names: Array,
    name_at: Array,
    places: Array,
    out: Array,
    q: Number,
) -> Number:
    """Writes a row as an object, and notes where each value is in it: -1 where it isn't plain."""
    first, past = column_at[table], column_at[table + 1]
    if p + 2 > end or big(data, p, 2) != past - first:
        return -1
    p += 2
    begun = q
    for i in range(first, past):
        if p >= end:
            return -1
        sent = data[p]
        p += 1
        size = _NUMBER(0)
        if sent == _TEXT_VALUE:
            if p + 4 > end:
                return -1
            size = big(data, p, 4)
            p += 4
            if p + size > end:
                return -1
        elif sent != _NULL_VALUE:
            return -1
        kind = kinds[i]
        if kind != LEFT_OUT:
            q = put_piece(names, name_at, i, out, q)
            places[2 * (i - first)] = q - begun
            q = put_value(data, p, size, kind, out, q) if sent == _TEXT_VALUE else put_null(out, q)
            if q < 0:
                return -1
            places[2 * (i - first) + 1] = q - begun
        p += size
    if p != end:
        return -1
    out[q] = 125
    return q + 1


@inlined
def table_of(oids: Array, oid: Number) -> Number:
    for i in range(len(oids)):
        if oids[i] == oid:
            return i
    return -1


@njit(
    _NUMBER(_U8, _I64, _NUMBER, _I64, _I64, _I64_OUT, _I64_OUT),
    cache=True,
    nogil=True,
)
def measure(
    data: Array, at: Array, first: Number, oids: Array, widths: Array, counts: Array, sizes: Array
) -> Number:
    """How many messages of a run are of plain kinds and tables, up to the last end of a transaction, if
    there is one; and how many records of each table they are at most, and their bytes.

    Args:
        data: messages of the replication protocol, one after another, and `PADDING`.
        at: where they begin, and the end of the last one.
        first: the first that is taken.
        oids: of tables that are known.
        widths: bytes of a record besides its row; -1 of a table whose changes aren't ours.
        counts: filled with the tables' records.
        sizes: filled with the rows' bytes.

    Returns: the place of the message behind them.
    """
    stop, last_end = len(at) - 1, first
    for i in range(first, len(at) - 1):
        p, end = at[i], at[i + 1]
        if end - p <= _HEAD + 5 or data[p] != 119:  # a piece of the server's log
            stop = i
            break
        kind = data[p + _HEAD]
        if kind == _C:
            last_end = i + 1
        elif kind in (_I, _U):
            if table_of(oids, big(data, p + _HEAD + 1, 4)) < 0 or data[p + _HEAD + 5] != _N:
                stop = i
                break
        elif kind != _B:
            stop = i
            break
    if stop == len(at) - 1 and last_end > first:
        stop = last_end
    for i in range(first, stop):
        p = at[i]
        if data[p + _HEAD] == _I or data[p + _HEAD] == _U:
            table = table_of(oids, big(data, p + _HEAD + 1, 4))
            if widths[table] >= 0:
                counts[table] += 1
                sizes[table] += at[i + 1] - p
    return stop


@called
def begin_transaction(
    state: Array, heads: Array, head_at: Array, pieces: Array, piece_at: Array
) -> None:
    """What envelopes of the transaction have in common: before the position, behind it, behind the table."""
    time_us = state[TIME_US]
    q = put_piece(pieces, piece_at, 1, heads, 0)
    q = put_number(heads, q, time_us // 1000)
    q = put_piece(pieces, piece_at, 2, heads, q)
    q = put_number(heads, q, state[POSITION])
    q = put_piece(pieces, piece_at, 3, heads, q)
    head_at[1] = q
    q = put_piece(pieces, piece_at, 4, heads, q)
    q = put_number(heads, q, time_us)
    q = put_piece(pieces, piece_at, 5, heads, q)
    q = put_number(heads, q, 1000 * time_us)
    q = put_piece(pieces, piece_at, 6, heads, q)
    head_at[2] = q
    q = put_number(heads, q, state[XID])
    q = put_piece(pieces, piece_at, 7, heads, q)
    head_at[3] = q


@called
def put_key(
    keys: Array,
    key_at: Array,
    key_names: Array,
    key_name_at: Array,
    table: Number,
    places: Array,
    values: Array,
    row: Number,
    out: Array,
    q: Number,
) -> Number:
    """Writes the key's object, of values that were written."""
    for i in range(key_at[table], key_at[table + 1]):
        q = put_piece(key_names, key_name_at, i, out, q)
        begin, end = places[2 * keys[i]], places[2 * keys[i] + 1]
        for k in range(end - begin):
            out[q + k] = values[row + begin + k]
        q += end - begin
    out[q] = 125
    return q + 1


@njit(
    _NUMBER(
        *(_U8, _I64, _NUMBER, _NUMBER),
        *(_I64, _I64, _I64, _U8, _U8, _I64),
        *(_I64, _I64, _U8, _I64),
        *(_U8, _I64, _U8, _I64),
        *(_OUT, _I64_OUT, _I64_OUT, _I64_OUT, _I64_OUT, _I64, _I64_OUT),
        *(_OUT, _I64, _I32_OUT, _OUT, _I64, _I32_OUT, _I64_OUT),
    ),
    cache=True,
    nogil=True,
)
def write(
    data: Array,
    at: Array,
    first: Number,
    stop: Number,
    oids: Array,
    since: Array,
    column_at: Array,
    kinds: Array,
    names: Array,
    name_at: Array,
    keys: Array,
    key_at: Array,
    key_names: Array,
    key_name_at: Array,
    tables: Array,
    table_at: Array,
    pieces: Array,
    piece_at: Array,
    heads: Array,
    head_at: Array,
    places: Array,
    state: Array,
    xids: Array,
    record_at: Array,
    counts: Array,
    values: Array,
    value_at: Array,
    value_ends: Array,
    key_bytes: Array,
    key_byte_at: Array,
    key_ends: Array,
    times_ms: Array,
) -> Number:
    """The records of a run of messages, by table.

    Args:
        data: messages, as for `measure`.
        at: where they begin, and the end of the last one.
        first: the first that is taken.
        stop: what `measure` gave.
        oids: of tables that are known.
        since: the position from which a table's changes are ours; -1: they never are.
        column_at: where the tables' columns begin in `kinds`.
        kinds: how columns are written.
        names: what precedes a column's value in the row's object, and `PADDING`, as all pieces have it.
        name_at: where these begin.
        keys: which of a table's columns are its key.
        key_at: where the tables' begin in `keys`.
        key_names: what precedes a value in the key's object.
        key_name_at: where these begin.
        tables: what an envelope contains about the tables.
        table_at: where these begin.
        pieces: of an envelope; see `PIECES`.
        piece_at: where these begin.
        heads: room for what a transaction's envelopes have in common.
        head_at: room for four numbers.
        places: room for two numbers for each column of a table.
        state: in and out; see `STATE`.
        xids: filled with the numbers of transactions that began.
        record_at: where a table's records begin in `times_ms`; one more for each table before it in `*_ends`.
        counts: filled with the tables' records.
        values: filled with the values.
        value_at: where a table's begin.
        value_ends: filled with where values begin, from there, and the end of the last one.
        key_bytes: filled with the keys; nothing of a table without one.
        key_byte_at: where a table's begin.
        key_ends: filled as `value_ends`.
        times_ms: filled with the times of the records' commits.

    Returns: the place of the message behind those that were taken.
    """
    has_head = False
    for table in range(len(oids)):
        counts[table] = 0
        value_ends[record_at[table] + table] = 0
        key_ends[record_at[table] + table] = 0
    for i in range(first, stop):
        p, end = at[i] + _HEAD, at[i + 1]
        kind = data[p]
        if kind == _B:
            lsn = big(data, p + 1, 8)
            if state[IS_OPEN] or end - p != 21 or lsn < state[POSITION]:
                return i
            state[IS_OPEN], state[COMMIT_LSN], state[RECORDS] = 1, lsn, 0
            state[TIME_US] = big(data, p + 9, 8) + _EPOCH_US
            state[XID] = big(data, p + 17, 4)
            xids[state[XIDS]] = state[XID]
            state[XIDS] += 1
            has_head = False
            continue
        if not state[IS_OPEN]:
            return i
        if kind == _C:
            if end - p != 26:
                return i
            state[IS_OPEN] = 0
            state[POSITION] = state[END] = big(data, p + 10, 8)
            state[ENDED_US] = state[TIME_US]
            if state[RECORDS] or state[HAD]:
                state[TRANSACTIONS] += 1
            state[RECORDS] = state[HAD] = 0
            continue
        table = table_of(oids, big(data, p + 1, 4))
        if since[table] < 0 or state[COMMIT_LSN] < since[table]:
            continue
        if not has_head:
            begin_transaction(state, heads, head_at, pieces, piece_at)
            has_head = True
        lsn = big(data, at[i] + 1, 8)
        place = record_at[table] + table + counts[table]
        q = value_at[table] + value_ends[place]
        q = put_piece(pieces, piece_at, 0, values, q)
        row = q
        q = put_row(data, p + 6, end, table, column_at, kinds, names, name_at, places, values, q)
        if q < 0:
            return i
        copy_plain(heads, 0, values, q, head_at[1])
        q = put_number(values, q + head_at[1], lsn)
        copy_plain(heads, head_at[1], values, q, head_at[2] - head_at[1])
        q = put_piece(tables, table_at, table, values, q + head_at[2] - head_at[1])
        copy_plain(heads, head_at[2], values, q, head_at[3] - head_at[2])
        q = put_number(values, q + head_at[3] - head_at[2], lsn)
        q = put_piece(pieces, piece_at, 8 if kind == _I else 9, values, q)
        value_ends[place + 1] = q - value_at[table]
        q = key_byte_at[table] + key_ends[place]
        if key_at[table + 1] > key_at[table]:
            q = put_key(
                keys, key_at, key_names, key_name_at, table, places, values, row, key_bytes, q
            )
        key_ends[place + 1] = q - key_byte_at[table]
        times_ms[record_at[table] + counts[table]] = state[TIME_US] // 1000
        counts[table] += 1
        state[RECORDS] += 1
    return stop

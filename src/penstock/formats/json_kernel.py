"""The kernel that reads JSON rows into 8-byte slots, driven by a compiled schema.

One row of bytes either fits for certain (`OK`) and has written one slot per field, or it is left
to the slow path (`SLOW`), which rewrites its slots or says why the row is bad. The kernel accepts
a subset of what the slow path accepts, with equal values.

Speed comes from three expectations, none of which is needed for correctness: a row has its keys
in the order of the row before; a key is spelled `"name":`; a value is of the schema's type. A row that
has all fields and no others is read by `read_expected`, which compares a mark and a key as one word and reads
short numbers from words. Where it isn't such a row, it is read again from its beginning.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from penstock.core.kernels import Array, Number, njit, types
from penstock.formats.json_scalars import (
    INSTANT_MAX_MS,
    POWERS_EXACT,
    POWERS_INT,
    read_date,
    read_decimal,
    read_double_bits,
    read_float_bits,
    read_integer,
    read_timestamp,
)
from penstock.formats.json_scan import (
    is_null,
    scan_boolean,
    scan_string,
    skip_space,
    skip_value,
)
from penstock.formats.words import (
    I64_OUT,
    U8_IN,
    U8_OUT,
    U64,
    bits_of_double,
    called,
    digit_count,
    digits_value,
    inlined,
    load64,
    word,
)

OK: Final = 0
SLOW: Final = 1

BOOLEAN: Final = 0
INT: Final = 1
BIGINT: Final = 2
FLOAT: Final = 3
DOUBLE: Final = 4
STRING: Final = 5
TIMESTAMP: Final = 6
DATE: Final = 7
DECIMAL: Final = 9  # of at most 18 digits
OTHER: Final = 8  # lists: null in the kernel, anything else on the slow path
JSON: Final = 10  # the text of any value
EMBEDDED: Final = 11  # the same, or a string that has it

# Columns of the compiled schema, one row per field.
CODE: Final = 0
REQUIRED: Final = 1
KEY_AT: Final = 2  # where `"name":` stands in the bytes of all keys
KEY_LENGTH: Final = 3  # of `"name":`; 0 where JSON can't spell the name without escapes
TEXT_INDEX: Final = 4  # among the string fields, else -1
SCALE: Final = 5  # of a decimal
PRECISION: Final = 6
FIELD_COLUMNS: Final = 7

KEYS_EXPECTED_MAX: Final = 256  # keys of a row whose order is remembered; later ones are looked up

_UNKNOWN, _FAILED = -1, -2
_I = types.int64
_FIELDS = types.int64[:, ::1]
_SLOTS = types.int64[:, ::1]
_LENGTHS = types.int32[:, ::1]
_VALID = types.uint8[:, ::1]
_INT32_MIN, _INT32_MAX = -(2**31), 2**31 - 1

# What is expected of a row of all fields, one row per key: a word that begins with the mark before the
# key, which bytes of it count, the field, the length of `"name":`, the field's code.
WORD, MASK, FIELD, LENGTH, KIND = range(5)
_EXPECTED_COLUMNS: Final = 5
WHOLE: Final = 3
"""Where the memory counts rows of all fields, behind the last date. Above 0 the next one is expected to be
such a row; where it isn't, the count begins again at `_WHOLE_AGAIN`: mixed rows are rarely read twice."""
_WHOLE_AGAIN: Final = -8
_BEYOND: Final = 32  # bytes behind a row's end that are there, so that whole words can be read

# What is remembered of the last date begins with a date that is right: the day 0.
_EPOCH_FIRST = int.from_bytes(b"1970-01-01"[:8], "little")
_EPOCH_LAST = int.from_bytes(b"1970-01-01"[2:], "little")


@njit(_I(U8_IN, _I, _I, _I), cache=True, nogil=True, error_model="numpy")
def key_slot(buffer: Array, p: Number, length: Number, mask: Number) -> Number:
    """Where a key of `length` bytes at `p` belongs in a hash table of `mask + 1` slots."""
    first = word(buffer, p)
    if length < 8:
        first &= (U64(1) << U64(8 * length)) - U64(1)
    mixed = (first ^ U64(length)) * U64(0x9E3779B97F4A7C15)
    if length > 8:
        mixed = (mixed ^ load64(buffer, p + length - 8)) * U64(0xD6E8FEB86659FD93)
    return _I(mixed >> U64(40)) & mask


@inlined
def same_bytes(left: Array, p: Number, right: Array, q: Number, length: Number) -> Number:
    """Whether two stretches inside their arrays are equal, `length` bytes long."""
    if p + 8 <= len(left) and q + 8 <= len(right):
        different = load64(left, p) ^ load64(right, q)
        if length < 8:
            return (different << U64(64 - 8 * length)) == U64(0) if length > 0 else True
        if different:
            return False
        for k in range(8, length - 8, 8):
            if load64(left, p + k) != load64(right, q + k):
                return False
        return load64(left, p + length - 8) == load64(right, q + length - 8)
    for k in range(length):  # noqa: SIM110
        if left[p + k] != right[q + k]:
            return False
    return True


@called
def read_key(
    buffer: Array, p: Number, end: Number, fields: Array, keys: Array, table: Array
) -> tuple[Number, Number]:
    """A key and its colon: (its field, `_UNKNOWN` or `_FAILED`; the position of its value)."""
    if p >= end or buffer[p] != 34:
        return _FAILED, p
    begin = p + 1
    p, length = scan_string(buffer, begin, end)
    if p < 0 or length != p - 1 - begin:
        return _FAILED, p  # not a string, or it has escapes
    field = _UNKNOWN
    mask = len(table) - 1
    slot = key_slot(buffer, begin, length, mask)
    while table[slot] >= 0:
        candidate = table[slot]
        if fields[candidate, KEY_LENGTH] == length + 3 and same_bytes(
            buffer, begin, keys, fields[candidate, KEY_AT] + 1, length
        ):
            field = candidate
            break
        slot = (slot + 1) & mask
    p = skip_space(buffer, p, end)
    if p >= end or buffer[p] != 58:
        return _FAILED, p
    return field, p + 1


@inlined
def read_fixed(buffer: Array, p: Number, end: Number, code: Number, memo: Array) -> Number:
    """A value of fixed width at `p < end`: (its slot, position past it or -1)."""
    if code == BIGINT or code == INT:  # noqa: SIM109
        value, past = read_integer(buffer, p, end)
        if code == INT and (value < _INT32_MIN or value > _INT32_MAX):
            return 0, -1
        return value, past
    if code == TIMESTAMP:
        return read_timestamp(buffer, p, end, memo)
    if code == DOUBLE:
        return read_double_bits(buffer, p, end)
    if code == BOOLEAN:
        truth = scan_boolean(buffer, p, end)
        return (truth, p + 5 - truth) if truth >= 0 else (0, -1)
    if code == DATE:
        return read_date(buffer, p, end)
    if code == FLOAT:
        return read_float_bits(buffer, p, end)
    return 0, -1


@inlined
def clear(
    row: Number, field: Number, fields: Array, slots: Array, lengths: Array, valid: Array
) -> None:
    """Makes a field of a row NULL; what lies under a NULL is always zero."""
    slots[field, row] = 0
    valid[field, row] = 0
    if fields[field, TEXT_INDEX] >= 0:
        lengths[fields[field, TEXT_INDEX], row] = 0


@inlined
def read_value(
    buffer: Array,
    p: Number,
    end: Number,
    row: Number,
    field: Number,
    fields: Array,
    slots: Array,
    lengths: Array,
    valid: Array,
    memo: Array,
) -> Number:
    """Reads the value of `field` at `p` into the row's slot: the position past it, or -1."""
    if p >= end:
        return -1
    code = fields[field, CODE]
    if buffer[p] == 34 and (code == STRING or code == EMBEDDED):  # noqa: SIM109
        past, length = scan_string(buffer, p + 1, end)
        if past < 0:
            return -1
        # A string with escapes is marked by the complement of its position.
        slots[field, row] = p + 1 if past - p - 2 == length else ~(p + 1)
        lengths[fields[field, TEXT_INDEX], row] = length
        valid[field, row] = 1
        return past
    if buffer[p] == 110 and is_null(buffer, p, end):
        if fields[field, REQUIRED]:
            return -1
        clear(row, field, fields, slots, lengths, valid)
        return p + 4
    if code == STRING:
        return -1
    if code >= JSON:
        past = skip_value(buffer, p, end)
        slots[field, row] = p
        lengths[fields[field, TEXT_INDEX], row] = past - p
        valid[field, row] = 1
        return past
    if code == DECIMAL:
        value, past = read_decimal(buffer, p, end, fields[field, SCALE], fields[field, PRECISION])
    else:
        value, past = read_fixed(buffer, p, end, code, memo)
    slots[field, row] = value
    valid[field, row] = 1
    return past


@called
def expect(fields: Array, keys: Array, order: Array, expected: Array) -> None:
    """Notes of each field, in the order of the keys, what `read_expected` needs."""
    for position in range(len(fields)):
        field = order[position]
        at, length = fields[field, KEY_AT], fields[field, KEY_LENGTH]
        first = U64(44 if position else 123)
        for k in range(min(length, 7)):
            first |= U64(keys[at + k]) << U64(8 * k + 8)
        expected[position, WORD] = _I(first)
        expected[position, MASK] = _I(~U64(0) >> U64(8 * max(7 - length, 0)))
        expected[position, FIELD] = field
        expected[position, LENGTH] = length
        expected[position, KIND] = fields[field, CODE]


@inlined
def read_short(text: Number, buffer: Array, p: Number, code: Number) -> tuple[Number, Number]:
    """A number of few digits and no sign that begins with the word at `p`: (its slot, its bytes or 0).

    Few are 15 of an integer, and 7 on each side of a double's point: the double is then their quotient by an
    exact power of ten, and so the nearest one. What follows isn't looked at: the number is the value only if
    a mark of JSON comes next.
    """
    count = digit_count(text)
    if count == 0 or (count > 1 and text & U64(255) == U64(48)):
        return 0, 0
    number = digits_value(text, count)
    if code == DOUBLE:
        if count == 8:
            return 0, 0
        places = 0
        past = load64(buffer, p + count)
        if past & U64(255) == U64(46):
            count += 1
            past = load64(buffer, p + count)
            places = digit_count(past)
            if places == 0 or places == 8:
                return 0, 0
            number = number * POWERS_INT[places] + digits_value(past, places)
            past >>= U64(8 * places)
        if past & U64(223) == U64(69):
            return 0, 0
        return bits_of_double(np.float64(number) / POWERS_EXACT[places]), count + places
    if count == 8:
        past = load64(buffer, p + 8)
        more = digit_count(past)
        if more == 8:
            return 0, 0
        if more > 0:
            number = number * POWERS_INT[more] + digits_value(past, more)
            count += more
    value = _I(number)
    if code == BIGINT:
        return value, count
    if code == TIMESTAMP and value <= INSTANT_MAX_MS:
        return value * 1000, count
    if code == INT and value <= _INT32_MAX:
        return value, count
    return 0, 0


@inlined
def read_expected(
    buffer: Array,
    p: Number,
    end: Number,
    row: Number,
    fields: Array,
    keys: Array,
    expected: Array,
    slots: Array,
    lengths: Array,
    valid: Array,
    memo: Array,
) -> Number:
    """Reads a row that has all fields in the order of the row before: whether it is one.

    There is no white space in it but one space behind a mark. What is read as a word may continue
    behind `end`, into bytes that are there; what ends there isn't taken.
    """
    if end + _BEYOND > len(buffer):
        return False
    for at in range(U64(len(fields))):  # unsigned, so that no index is checked for being negative
        length = expected[at, LENGTH]
        text = load64(buffer, p)
        if (text >> U64(8)) & U64(255) == U64(32):
            p += 1
            text = (text & U64(255)) | (load64(buffer, p) & ~U64(255))
        if p + length + 1 >= end:
            return False
        if (text ^ U64(expected[at, WORD])) & U64(expected[at, MASK]):
            return False
        field = U64(expected[at, FIELD])
        if length > 7 and not same_bytes(
            buffer, p + 8, keys, fields[field, KEY_AT] + 7, length - 7
        ):
            return False
        p += length + 1
        text = load64(buffer, p)
        if text & U64(255) == U64(32):
            p += 1
            text = load64(buffer, p)
        value, count = read_short(text, buffer, p, expected[at, KIND])
        if count > 0:
            p += count
            slots[field, row] = value
            valid[field, row] = 1
        else:
            p = read_value(buffer, p, end, row, field, fields, slots, lengths, valid, memo)
        if p < 0 or p >= end:
            return False
    return p + 1 == end and buffer[p] == 125


@inlined
def read_row(
    buffer: Array,
    p: Number,
    end: Number,
    row: Number,
    fields: Array,
    keys: Array,
    table: Array,
    order: Array,
    expected: Array,
    seen: Array,
    slots: Array,
    lengths: Array,
    valid: Array,
    memo: Array,
) -> Number:
    """Reads one row: `OK` or `SLOW`."""
    if memo[WHOLE] > 0:
        if read_expected(buffer, p, end, row, fields, keys, expected, slots, lengths, valid, memo):
            return OK
        memo[WHOLE] = _WHOLE_AGAIN
    p = skip_space(buffer, p, end)
    if p >= end or buffer[p] != 123:
        return SLOW
    p = skip_space(buffer, p + 1, end)
    found = position = 0
    if p < end and buffer[p] == 125:
        p += 1
    else:
        while True:
            field = order[position] if position < KEYS_EXPECTED_MAX else _UNKNOWN
            length = fields[field, KEY_LENGTH] if field >= 0 else 0
            if (
                length > 0
                and p + length < end
                and same_bytes(buffer, p, keys, fields[field, KEY_AT], length)
            ):
                p += length
            else:
                field, p = read_key(buffer, p, end, fields, keys, table)
                if field == _FAILED:
                    return SLOW
                if position < KEYS_EXPECTED_MAX:
                    order[position] = field
            position += 1
            p = skip_space(buffer, p, end)
            if field < 0:
                p = skip_value(buffer, p, end)
            else:
                if seen[field] == row:
                    return SLOW  # twice: the last one counts
                seen[field] = row
                found += 1
                p = read_value(buffer, p, end, row, field, fields, slots, lengths, valid, memo)
            if p < 0:
                return SLOW
            p = skip_space(buffer, p, end)
            if p >= end:
                return SLOW
            mark = buffer[p]
            p += 1
            if mark == 125:
                break
            if mark != 44:
                return SLOW
            p = skip_space(buffer, p, end)
    if skip_space(buffer, p, end) != end:
        return SLOW
    if found < len(fields):
        for field in range(len(fields)):
            if seen[field] != row:
                if fields[field, REQUIRED]:
                    return SLOW
                clear(row, field, fields, slots, lengths, valid)
    elif position == found and found <= KEYS_EXPECTED_MAX:
        memo[WHOLE] += 1
        if memo[WHOLE] > 0:
            expect(fields, keys, order, expected)
    return OK


def memories(fields: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """What `read_rows` remembers between rows, at its start.

    Returns:
        order: the field of each position in the row before; `_UNKNOWN`: none is expected there.
        expected: see `WORD` and what follows.
        seen: the row that had each field last.
        memo: the last date, as its first and last eight bytes and its value, and the count at `WHOLE`.
    """
    return (
        np.full(KEYS_EXPECTED_MAX, _UNKNOWN, np.int64),
        np.zeros((fields, _EXPECTED_COLUMNS), np.int64),
        np.full(fields, -1, np.int64),
        np.array([_EPOCH_FIRST, _EPOCH_LAST, 0, 0], np.int64),
    )


@inlined
def read_all(
    buffer: Array,
    start: Array,
    length: Array,
    fields: Array,
    keys: Array,
    table: Array,
    order: Array,
    expected: Array,
    seen: Array,
    memo: Array,
    slots: Array,
    lengths: Array,
    valid: Array,
    status: Array,
) -> Number:
    """Reads all records; gives how many are left to the slow path, or `~row` of one outside the buffer."""
    slow = 0
    for row in range(len(start)):
        begin, size = start[row], _I(length[row])
        state = SLOW
        if size > 0:
            if begin < 0 or begin > len(buffer) - size:
                return ~row
            state = read_row(
                buffer,
                begin,
                begin + size,
                row,
                fields,
                keys,
                table,
                order,
                expected,
                seen,
                slots,
                lengths,
                valid,
                memo,
            )
        status[row] = state
        slow += state
    return slow


_ROWS_IN = types.Array(types.int64, 1, "C", readonly=True)
_LENGTHS_IN = types.Array(types.int32, 1, "C", readonly=True)


@njit(
    _I(
        U8_IN,
        _ROWS_IN,
        _LENGTHS_IN,
        _FIELDS,
        U8_IN,
        I64_OUT,
        I64_OUT,
        types.int64[:, ::1],
        I64_OUT,
        I64_OUT,
        _SLOTS,
        _LENGTHS,
        _VALID,
        U8_OUT,
    ),
    cache=True,
    nogil=True,
)
def read_rows(
    buffer: Array,
    start: Array,
    length: Array,
    fields: Array,
    keys: Array,
    table: Array,
    order: Array,
    expected: Array,
    seen: Array,
    memo: Array,
    slots: Array,
    lengths: Array,
    valid: Array,
    status: Array,
) -> Number:
    """Reads every row and sets its status.

    Returns:
        How many rows are `SLOW`; or the complement of the first row that lies outside the buffer.
    """
    return read_all(
        buffer,
        start,
        length,
        fields,
        keys,
        table,
        order,
        expected,
        seen,
        memo,
        slots,
        lengths,
        valid,
        status,
    )

"""Records of a changelog to changes of a table: upserts of rows, and deletions of keys.

The rules, by format; a record without a value (a *tombstone*) deletes its key in all of them:

- `json`: the value is the row.
- `flat`: the same, as `penstock.capture` writes it: strings in columns of type JSON have JSON in them.
- `debezium`: the value is an envelope `{"op", "before", "after", …}`, be it by itself or as the
  `payload` next to a `schema`. `c`, `r` and `u` are upserts of `after`, `d` deletes the key of `before`,
  or the record's key where there is no `before`. `t`, a truncation, is no change where its header
  `penstock.emptied` says that each key is deleted as well, as `penstock.capture` does it; else it is bad.
  Strings in columns of type JSON have JSON in them (`io.debezium.data.Json`).
- `debezium-precise`: the same; decimals are base64 of the unscaled number, big-endian and in two's
  complement, as Debezium writes them by default (`decimal.handling.mode=precise`).
- `maxwell`: the value is `{"type", "data", "old", …}`. `insert`, `bootstrap-insert` and `update` are upserts
  of `data`; an update whose `old` has a key column deletes the old key before. `delete` deletes the key of
  `data`. The beginning and end of a bootstrap are no change.

A record's key is the text of the key column, or a JSON object with the key columns, alone or as the
`payload` next to a `schema`. An object that has other columns as well is another table's key: the topic may
have several rows where this table has one, so the record is bad, be it a row or a tombstone.

A record that doesn't fit is bad, with a reason; the others aren't touched by it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, Protocol, TypeAlias, cast, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core import vectors
from penstock.core.schema import TIME_OF_DAY, TIMESTAMP, Schema
from penstock.core.text.unscaled import unscaled_decimals
from penstock.core.time import DAY_US, INSTANT_MAX_US, INSTANT_MIN_US
from penstock.formats.json import Decoded, JsonDecoder
from penstock.formats.json_slow import parse
from penstock.formats.members import MemberFinder, Texts
from penstock.wire.columns import Records, gather_column, header

__all__ = [
    "EMPTIED",
    "FORMATS",
    "NEWEST_RECORDS",
    "ChangelogDecoder",
    "ChangelogFormat",
    "Changes",
    "Gathered",
    "other_key",
]

ChangelogFormat: TypeAlias = Literal["json", "flat", "debezium", "debezium-precise", "maxwell"]
FORMATS: Final = get_args(ChangelogFormat)

NEWEST_RECORDS: Final = 100
"""Of a partition, that are read to see which key a topic has before it is followed; the last one counts."""
_EMBEDDING: Final = ("flat", "debezium", "debezium-precise")
EMPTIED: Final = "penstock.emptied"
"""A header of truncations behind which there is a deletion of each key."""
_INSTANTS_US: Final = (INSTANT_MIN_US, INSTANT_MAX_US)
_BRACE: Final = ord("{")
_SHOWN_MAX: Final = 40
"""Bytes of a wrong kind of change that a reason shows; the record itself is kept elsewhere."""


@dataclass(frozen=True)
class Changes:
    """What became of some records.

    Attributes:
        columns: of each change the table's columns; of a deletion those of the key, the others are NULL.
        rows: for each change, the index of its record: int64, ascending; a record may give two.
        deleted: bool[changes], which of them are deletions.
        bad_rows: the indexes of the records that don't fit, int64, ascending.
        reasons: for each of those, what was expected and what was found.
        foreign: the indexes of those whose key is another table's.
    """

    columns: pa.RecordBatch
    rows: np.ndarray
    deleted: np.ndarray
    bad_rows: np.ndarray
    reasons: list[str]
    foreign: frozenset[int] = frozenset()


class Decoding(Protocol):
    """What makes changes of records."""

    def decode(self, records: Records) -> Changes:
        """The changes that some records are."""
        ...


class Gathered:
    """Changes and bad records of one batch, as they are found."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self.parts: list[tuple[np.ndarray, bool, pa.RecordBatch]] = []
        self.bad: dict[int, str] = {}
        self.foreign: set[int] = set()

    def add(self, rows: np.ndarray, decoded: Decoded, *, deleted: bool) -> None:
        """Takes what was decoded of the records of some indexes."""
        self.refuse(rows[decoded.bad_rows], decoded.reasons)
        if len(decoded.rows):
            self.parts.append((rows[decoded.rows], deleted, decoded.columns))

    def refuse(self, rows: np.ndarray, reasons: list[str] | str) -> None:
        """Takes records that don't fit; the first reason counts."""
        causes = [reasons] * len(rows) if isinstance(reasons, str) else reasons
        for row, reason in zip(rows.tolist(), causes, strict=True):
            self.bad.setdefault(row, reason)

    def refuse_key(self, rows: np.ndarray, key: Sequence[str], others: Sequence[str]) -> None:
        """Takes records whose key has columns besides the table's.

        A change of such a record is one of several rows of the table's key: a deletion would delete the
        others.
        """
        mine, more = ", ".join(key), ", ".join(others)
        self.foreign.update(rows.tolist())
        self.refuse(
            rows,
            f"expected the record's key to be that of the rows ({mine}); found {more} in it as well: the "
            f"topic may have several rows of one {mine}. Use the topic's key: {', '.join([*key, *others])}",
        )

    def finish(self) -> Changes:
        """All of it, in the records' order, and of one record in the order that it was taken."""
        return replace(self._finish(), foreign=frozenset(self.foreign))

    def _finish(self) -> Changes:
        parts = [self._whole(*part) for part in self.parts]
        if self.bad:
            parts = [p for p in map(self._without_bad, parts) if len(p[0])]
        bad = np.array(sorted(self.bad), np.int64)
        reasons = [self.bad[row] for row in bad.tolist()]
        if not parts:
            none = pa.RecordBatch.from_pylist([], self.schema)
            return Changes(none, np.zeros(0, np.int64), np.zeros(0, np.bool_), bad, reasons)
        if len(parts) == 1:
            rows, is_deleted, columns = parts[0]
            return Changes(columns, rows, np.full(len(rows), is_deleted), bad, reasons)
        rows = np.concatenate([rows for rows, _, _ in parts])
        deleted = np.repeat([deleted for _, deleted, _ in parts], [len(p[0]) for p in parts])
        order = np.argsort(rows, kind="stable")
        whole = pa.concat_batches([columns for _, _, columns in parts])  # type: ignore[attr-defined] # not in the stubs
        columns = whole.take(vectors.from_int64(order))
        return Changes(columns, rows[order], deleted[order], bad, reasons)

    def _whole(
        self,
        rows: np.ndarray,
        deleted: bool,  # noqa: FBT001
        columns: pa.RecordBatch,
    ) -> tuple[np.ndarray, bool, pa.RecordBatch]:
        names = columns.schema.names
        arrays = [
            columns.column(f.name) if f.name in names else pa.nulls(len(rows), f.type)
            for f in self.schema
        ]
        return rows, deleted, pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _without_bad(
        self, part: tuple[np.ndarray, bool, pa.RecordBatch]
    ) -> tuple[np.ndarray, bool, pa.RecordBatch]:
        rows, deleted, columns = part
        keep = ~np.isin(rows, np.fromiter(self.bad, np.int64, len(self.bad)))
        return rows[keep], deleted, columns.filter(pa.array(keep))


class ChangelogDecoder:
    """Decodes the records of one table. It holds no state between batches; threads may share it.

    Args:
        schema: of the rows.
        key: the columns that identify them, which are NOT NULL; without any, deletions are no change.
        format: of the records' values.
        micros: columns of TIMESTAMP and TIME whose integers are microseconds.
        unscaled: columns whose decimals are base64; None: as `format` says.
        embedded: columns of type JSON whose strings have JSON in them; None: likewise.
    """

    def __init__(
        self,
        schema: Schema,
        key: tuple[str, ...],
        format: ChangelogFormat,  # noqa: A002
        micros: Collection[str] = (),
        unscaled: Collection[str] | None = None,
        embedded: Collection[str] | None = None,
    ) -> None:
        self.schema, self.key, self.format = schema, key, format
        if unscaled is None:
            unscaled = schema.names if format == "debezium-precise" else ()
        if embedded is None:
            embedded = schema.names if format in _EMBEDDING else ()
        names = key or schema.names[:1]  # a schema has columns; without a key none of them is read
        keys = Schema(tuple(schema[name] for name in names))
        self._rows, self._keys = (
            _row_decoder(one, micros, unscaled, embedded) for one in (schema, keys)
        )
        self._olds = JsonDecoder(Schema(tuple(replace(f, required=False) for f in keys)))
        # What is NOT NULL in a row may be NULL in a deletion.
        self._arrow = pa.schema([pa.field(field.name, field.type) for field in schema])
        self._wrapped, self._members = MemberFinder(["payload"]), MemberFinder(names)
        members = ["type", "data", "old"] if format == "maxwell" else ["op", "before", "after"]
        self._envelope = MemberFinder([*members, "payload"])

    def decode(self, records: Records) -> Changes:
        """The changes that some records are.

        Raises:
            LimitError: a string column is longer than `STRING_BYTES_MAX`.
        """
        gathered = Gathered(self._arrow)
        values = Texts(records.buffer, records.value_start, records.value_length)
        keys = Texts(records.buffer, records.key_start, records.key_length)
        gone = np.flatnonzero(~values.known)
        rows = np.flatnonzero(values.known) if len(gone) else np.arange(len(records))
        self.refuse_wider(gathered, keys, np.arange(len(records)))
        self.delete_by_key(gathered, keys, gone)
        match self.format:
            case "json" | "flat":
                self._upsert(gathered, values, rows)
            case "debezium" | "debezium-precise":
                self._debezium(gathered, records, values, keys, rows)
            case "maxwell":
                self._maxwell(gathered, values, rows)
        return gathered.finish()

    def _upsert(self, gathered: Gathered, texts: Texts, rows: np.ndarray) -> None:
        gathered.add(rows, _decoded(self._rows, texts, rows), deleted=False)

    # -- envelopes ----------------------------------------------------------------------------------

    def _debezium(
        self, gathered: Gathered, records: Records, values: Texts, keys: Texts, rows: np.ndarray
    ) -> None:
        for part, found in self._opened(gathered, values, rows, "op"):
            kind, after, before = found["op"], found["after"], found["before"]
            letter = np.where(kind.length == 3, kind.first(1), 0)
            is_row, is_gone = np.isin(letter, [*b"cru"]), letter == ord("d")
            has_after, has_before = after.known, before.known
            self._upsert(gathered, _spread(after, part), part[is_row & has_after])
            gathered.refuse(
                part[is_row & ~has_after], "expected the row as 'after'; found none in the envelope"
            )
            deleted = part[is_gone & has_before]
            decoded = _decoded(self._keys, _spread(before, part), deleted)
            gathered.add(deleted, decoded, deleted=True)
            self.delete_by_key(gathered, keys, part[is_gone & ~has_before])
            for i in np.flatnonzero(~is_row & ~is_gone).tolist():
                if letter[i] == ord("t") and EMPTIED in dict(header(records, int(part[i]))):
                    continue
                gathered.refuse(part[i : i + 1], _no_change(kind, i, "op", "c, r, u or d"))

    def _maxwell(self, gathered: Gathered, values: Texts, rows: np.ndarray) -> None:
        for part, found in self._opened(gathered, values, rows, "type"):
            data, old = _spread(found["data"], part), _spread(found["old"], part)
            types = gather_column(found["type"].buffer, found["type"].start, found["type"].length)

            def of(*names: str, types: Any = types, part: np.ndarray = part) -> np.ndarray:
                quoted = pa.array([f'"{name}"'.encode() for name in names], pa.binary())
                is_one = pc.is_in(types, value_set=quoted)
                return np.asarray(part[is_one.to_numpy(zero_copy_only=False)])

            updated = of("update")
            self._delete_old_keys(gathered, data, old, updated[old.known[updated]])
            self._upsert(gathered, data, of("insert", "bootstrap-insert"))
            self._upsert(gathered, data, updated)
            gone = of("delete")
            gathered.add(gone, _decoded(self._keys, data, gone), deleted=True)
            known = of("insert", "bootstrap-insert", "update", "delete")
            ignored = of("bootstrap-start", "bootstrap-complete")
            others = ~np.isin(part, np.concatenate([known, ignored]))
            for i in np.flatnonzero(others).tolist():
                reason = _no_change(found["type"], i, "type", "insert, update or delete")
                gathered.refuse(part[i : i + 1], reason)

    def _opened(
        self, gathered: Gathered, values: Texts, rows: np.ndarray, kind: str
    ) -> Iterator[tuple[np.ndarray, dict[str, Texts]]]:
        """The members of envelopes: of those that stand by themselves, and of those in a payload."""
        if not len(rows):
            return
        found = self._envelope.find(values.take(rows))
        bad = np.array(sorted(found.bad), np.int64)
        gathered.refuse(rows[bad], [found.bad[i] for i in bad.tolist()])
        wrapped = ~found.of[kind].known & (found.of["payload"].first() == _BRACE)
        plain = ~wrapped
        plain[bad] = False
        if plain.any():
            yield rows[plain], {n: texts.take(plain) for n, texts in found.of.items()}
        if wrapped.any():
            inner = self._envelope.find(found.of["payload"].take(wrapped))
            # What is within a valid row is valid, but it may be nested too deep.
            worse = np.array(sorted(inner.bad), np.int64)
            part = rows[wrapped]
            gathered.refuse(part[worse], [inner.bad[i] for i in worse.tolist()])
            keep = np.ones(len(part), np.bool_)
            keep[worse] = False
            yield part[keep], {n: texts.take(keep) for n, texts in inner.of.items()}

    def _delete_old_keys(
        self, gathered: Gathered, data: Texts, old: Texts, rows: np.ndarray
    ) -> None:
        """Deletes the keys that updates have changed: an old row has the columns that were others."""
        if not len(rows):
            return
        before, now = _decoded(self._olds, old, rows), _decoded(self._olds, data, rows)
        gathered.refuse(rows[before.bad_rows], before.reasons)
        gathered.refuse(rows[now.bad_rows], now.reasons)
        both, mine, other = np.intersect1d(before.rows, now.rows, return_indices=True)
        was = before.columns.take(vectors.from_int64(mine))
        is_ = now.columns.take(vectors.from_int64(other))
        changed = np.zeros(len(both), np.bool_)
        arrays = []
        for one, two in zip(was.columns, is_.columns, strict=True):
            changed |= one.is_valid().to_numpy(zero_copy_only=False)
            arrays.append(pc.coalesce(one, two))
        keys = pa.RecordBatch.from_arrays(arrays, names=was.schema.names)
        keys = keys.filter(pa.array(changed))
        none = np.zeros(0, np.int64)
        decoded = Decoded(keys, np.arange(len(keys)), none, [])
        gathered.add(rows[both[changed]], decoded, deleted=True)

    # -- keys ---------------------------------------------------------------------------------------

    def delete_by_key(self, gathered: Gathered, keys: Texts, rows: np.ndarray) -> None:
        """Deletes what the keys of some records name."""
        if not len(rows) or not self.key:
            return
        known = keys.known[rows]
        gathered.refuse(
            rows[~known],
            "expected the key of what is deleted; found a record without value and key",
        )
        rows = rows[known]
        keys, complete, _ = self._payloads(keys.take(rows))
        objects = keys.first() == _BRACE
        texts = np.zeros(len(rows), np.bool_)
        if len(self.key) == 1:
            texts = ~objects
            if self.schema[self.key[0]].type == pa.string():
                texts |= objects & ~complete
        self._delete_texts(gathered, keys.take(texts), rows[texts])
        decoded = self._keys.decode(
            keys.buffer,
            np.ascontiguousarray(keys.start[~texts]),
            np.ascontiguousarray(keys.length[~texts]),
        )
        reasons = [f"{reason}, in the record's key" for reason in decoded.reasons]
        gathered.add(rows[~texts], replace(decoded, reasons=reasons), deleted=True)

    def refuse_wider(self, gathered: Gathered, keys: Texts, rows: np.ndarray) -> None:
        """Refuses those of some records whose key has columns besides the table's."""
        if not self.key:
            return
        objects = rows[keys.first()[rows] == _BRACE]
        if not len(objects):
            return
        inner, _, wider = self._payloads(keys.take(objects))
        for at in np.flatnonzero(wider).tolist():
            names = parse(inner.text(at)).keys()
            others = [name for name in names if name not in self.key]
            gathered.refuse_key(objects[at : at + 1], self.key, others)

    def _payloads(self, keys: Texts) -> tuple[Texts, np.ndarray, np.ndarray]:
        """Keys, those that are wrapped without the wrapping.

        Returns:
            The keys; which are objects that have all the columns; which of these have others as well.
        """
        complete, wider = np.zeros(len(keys), np.bool_), np.zeros(len(keys), np.bool_)
        some = np.flatnonzero(keys.first() == _BRACE)
        if not len(some):
            return keys, complete, wider
        complete[some], wider[some] = self._columns_of(keys.take(some))
        rest = some[~complete[some]]
        if not len(rest) or "payload" in self.key:
            return keys, complete, wider
        payload = self._wrapped.find(keys.take(rest)).of["payload"]
        wrapped = np.flatnonzero(payload.first() == _BRACE)
        inside, start, length = rest[wrapped], keys.start.copy(), keys.length.copy()
        start[inside], length[inside] = payload.start[wrapped], payload.length[wrapped]
        keys = Texts(payload.buffer, start, length)
        complete[inside], wider[inside] = self._columns_of(keys.take(inside))
        return keys, complete, wider

    def _columns_of(self, objects: Texts) -> tuple[np.ndarray, np.ndarray]:
        """Of objects: which have all the key's columns, and which of these have others as well."""
        found = self._members.find(objects)
        complete = np.logical_and.reduce([one.known for one in found.of.values()])
        return complete, complete & found.others

    def _delete_texts(self, gathered: Gathered, keys: Texts, rows: np.ndarray) -> None:
        """Deletes the rows whose key column has some text."""
        if not len(rows):
            return
        [name] = self.key
        type_ = self.schema[name].type
        texts = gather_column(keys.buffer, keys.start, keys.length)
        if type_ == pa.string():
            valid = _are_text(texts)
            gathered.refuse(rows[~valid], "expected UTF-8; found other bytes in the record's key")
            column = texts.filter(pa.array(valid)).cast(pa.string())
            batch = pa.RecordBatch.from_arrays([column], names=[name])
            none = np.zeros(0, np.int64)
            gathered.add(rows[valid], Decoded(batch, np.arange(len(batch)), none, []), deleted=True)
            return
        head = b"{" + json.dumps(name).encode() + b":"
        quote = _quotes(texts, type_)
        parts: list[Any] = [head, quote, texts, quote, b"}", b""]
        made = cast("pa.Array", pc.binary_join_element_wise(*parts))
        offsets, data = vectors.text(made)
        decoded = self._keys.decode(data, offsets[:-1].astype(np.int64), np.diff(offsets))
        reasons = [f"{reason}, in the record's key" for reason in decoded.reasons]
        gathered.add(rows, replace(decoded, reasons=reasons), deleted=True)


def _quotes(texts: pa.Array, type_: pa.DataType) -> Any:
    """What stands around a key's text where it is a value in JSON, so that numbers stay such: binary[n]."""
    whole = pa.array(np.zeros(len(texts), np.bool_))
    if pa.types.is_binary(type_) or pa.types.is_fixed_size_binary(type_):
        return pc.if_else(whole, b"", b'"')
    if pa.types.is_temporal(type_):
        return pc.if_else(pc.match_substring_regex(texts, "^-?[0-9]+$"), b"", b'"')
    if pa.types.is_floating(type_):
        return pc.if_else(pc.match_substring_regex(texts, "^-?[0-9]"), b"", b'"')
    return pc.if_else(whole, b'"', b"")


def _row_decoder(
    schema: Schema, micros: Collection[str], unscaled: Collection[str], embedded: Collection[str]
) -> JsonDecoder | _PreciseDecoder:
    decimals = [one.name for one in schema if pa.types.is_decimal(one.type)]
    times = [one.name for one in schema if one.type in (TIMESTAMP, TIME_OF_DAY)]
    decimals = [name for name in decimals if name in unscaled]
    times = [name for name in times if name in micros]
    if decimals or times:
        return _PreciseDecoder(schema, decimals, times, embedded)
    return JsonDecoder(schema, embedded=embedded)


class _PreciseDecoder:
    """Decodes rows as `JsonDecoder` does, but for some columns.

    Args:
        schema: of the rows.
        decimals: columns that are base64 of the unscaled number.
        times: columns that are microseconds.
        embedded: see `JsonDecoder`.
    """

    def __init__(
        self,
        schema: Schema,
        decimals: Collection[str],
        times: Collection[str],
        embedded: Collection[str],
    ) -> None:
        self._schema = schema
        self._decimals = [i for i, one in enumerate(schema) if one.name in decimals]
        self._times = [i for i, one in enumerate(schema) if one.name in times]
        types: dict[str, Any] = {
            **dict.fromkeys(decimals, pa.string()),
            **dict.fromkeys(times, pa.int64()),
        }
        fields = (replace(one, type=types.get(one.name, one.type)) for one in schema)
        self._decoder = JsonDecoder(Schema(tuple(fields)), embedded=embedded)

    def decode(self, buffer: np.ndarray, start: np.ndarray, length: np.ndarray) -> Decoded:
        """See `JsonDecoder.decode`."""
        found = self._decoder.decode(buffer, start, length)
        columns, fits = [*found.columns.columns], np.ones(len(found.rows), np.bool_)
        bad: dict[int, str] = dict(zip(found.bad_rows.tolist(), found.reasons, strict=True))
        for i in self._times:
            field, micros = self._schema.fields[i], columns[i]
            low, high = (0, DAY_US - 1) if field.type == TIME_OF_DAY else _INSTANTS_US
            values = micros.fill_null(low).to_numpy()
            outside = (values < low) | (values > high)
            fits &= ~outside
            for row in np.flatnonzero(outside).tolist():
                bad.setdefault(
                    int(found.rows[row]),
                    f"field {field.name!r}: expected microseconds from {low} to {high}; found {values[row]}",
                )
            columns[i] = micros.view(field.type)
        for i in self._decimals:
            field, texts = self._schema.fields[i], columns[i]
            columns[i], is_one = unscaled_decimals(texts, field.type)
            fits &= is_one
            for row in np.flatnonzero(~is_one).tolist():
                bad.setdefault(
                    int(found.rows[row]),
                    f"field {field.name!r}: expected base64 of a number that {field.type} holds; found "
                    f"{texts[row].as_py()[:_SHOWN_MAX]!r}",
                )
        batch = pa.RecordBatch.from_arrays(columns, schema=self._schema.arrow)
        if fits.all():
            return replace(found, columns=batch)
        bad_rows = np.array(sorted(bad), np.int64)
        reasons = [bad[row] for row in bad_rows.tolist()]
        return Decoded(batch.filter(pa.array(fits)), found.rows[fits], bad_rows, reasons)


def other_key(decoder: Decoding, chunks: Iterable[Records]) -> str | None:
    """Why the last of some records is of another table's key; None where it isn't.

    The newest records of a topic show which key it has, before it is followed.
    """
    fault = None
    for records in chunks:
        found = decoder.decode(records)
        fault = found.reasons[-1] if len(records) - 1 in found.foreign else None
    return fault


def _decoded(decoder: JsonDecoder | _PreciseDecoder, texts: Texts, rows: np.ndarray) -> Decoded:
    some = texts.take(rows)
    return decoder.decode(some.buffer, some.start, some.length)


def _spread(texts: Texts, rows: np.ndarray) -> Texts:
    """Texts of some records, to be found by the records' indexes."""
    count = int(rows.max(initial=-1)) + 1
    start, length = np.zeros(count, np.int64), np.full(count, -1, np.int32)
    start[rows], length[rows] = texts.start, texts.length
    return Texts(texts.buffer, start, length)


def _no_change(kinds: Texts, row: int, member: str, expected: str) -> str:
    if kinds.length[row] < 0:
        return f"expected an envelope with {member!r}; found none"
    found = kinds.text(row)[:_SHOWN_MAX].decode(errors="replace")
    clear = ""
    if found == '"t"':
        clear = ": a truncation. Delete the rows one by one, or write the table to a new topic"
    return f"expected {member!r} to be {expected}; found {found}{clear}"


def _are_text(values: pa.Array) -> np.ndarray:
    """bool[n]: which are valid UTF-8."""
    try:
        values.cast(pa.string())
    except pa.ArrowInvalid:
        return np.array([_is_text(value) for value in values.to_pylist()], np.bool_)
    return np.ones(len(values), np.bool_)


def _is_text(value: bytes | None) -> bool:
    try:
        (value or b"").decode()
    except UnicodeDecodeError:
        return False
    return True

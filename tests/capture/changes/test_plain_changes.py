"""Runs of plain changes: their records are those that are made one by one."""

from __future__ import annotations

import struct
from collections import defaultdict
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from penstock.capture.databases.postgres.encoder import Encoder
from penstock.capture.databases.postgres.pgoutput import Begin, Column, Relation
from penstock.capture.databases.postgres.plain import Changes, Place
from penstock.capture.databases.postgres.rows import Facts, Table
from penstock.capture.databases.postgres.types import Type

NOW_NS = 1_700_000_000_123_456_789
EPOCH_US = 946_684_800_000_000
TYPES = [
    *(Type("int4"), Type("text"), Type("bool"), Type("timestamp"), Type("timestamp", modifier=3)),
    *(Type("timestamptz"), Type("bpchar"), Type("mood", "e"), Type("pair", "c")),
]
HARD = Type("float8")
Records = dict[str, list[tuple[Any, ...]]]


def types(oid: int, _: int) -> Type:
    return TYPES[oid] if oid < len(TYPES) else HARD


def relation(oid: int, name: str, columns: list[int], key: int) -> Relation:
    its = [Column(f'c%"{i}', type_, -1, i < key) for i, type_ in enumerate(columns)]
    return Relation(oid, "public", name, "d", tuple(its))


RELATIONS = [
    relation(16384, "plain", [0, 1, 2, 3, 4, 5, 6, 7, 8], 2),
    relation(2**32 - 1, "keyless", [1, 6], 0),
    relation(7, "hard", [0, 99], 1),
    relation(8, "older", [0], 1),
]
SINCE = {"older": 10**9}
FOREIGN = 9


def table(one: Relation) -> Table:
    key = tuple(column.name for column in one.columns if column.is_identity)
    return Table(one, Facts(primary_key=key), types, "precise")  # type: ignore[arg-type]


def encoder() -> Encoder:
    return Encoder("it's %", "shop", "debezium", lambda: NOW_NS)


texts = st.one_of(
    st.text(max_size=70).map(str.encode),
    st.text(st.sampled_from('a"\\\n\t\b\f\r\x00\x1f\x7fé€😀'), max_size=70).map(str.encode),
    st.binary(max_size=40),
)
numbers = st.integers(-(2**31), 2**31 - 1).map(lambda one: b"%d" % one)
days = st.dates().map(lambda one: one.isoformat().encode())
times = st.sampled_from([b"00:00:00", b"23:59:59.5", b"13:45:30.123456", b"13:45:30.000001"])
timestamps = st.one_of(
    st.tuples(days, times).map(b" ".join),
    st.sampled_from(
        [b"infinity", b"-infinity", b"0044-03-15 12:00:00 BC", b"12024-02-29 00:00:00"]
    ),
)
VALUES: dict[str, st.SearchStrategy[bytes]] = {
    "int4": numbers,
    "bool": st.sampled_from([b"t", b"f"]),
    "timestamp": timestamps,
    "timestamptz": timestamps.map(
        lambda one: one if b"inf" in one or b"BC" in one else one + b"+00"
    ),
    "float8": st.sampled_from([b"1.5", b"NaN"]),
}


@st.composite
def row(draw: st.DrawFn, one: Relation) -> bytes:
    """A row as pgoutput sends it; now and then a large value that wasn't touched."""
    found = [struct.pack(">H", len(one.columns))]
    for column in one.columns:
        kind = draw(st.sampled_from("tttttttttttttnu" if not column.is_identity else "t"))
        found.append(kind.encode())
        if kind == "t":
            text = draw(VALUES.get(types(column.oid, -1).name, texts))
            found.append(struct.pack(">I", len(text)) + text)
    return b"".join(found)


@st.composite
def messages(draw: st.DrawFn) -> list[bytes]:
    """Transactions of the replication protocol, the last one perhaps open."""
    found, lsn = [], draw(st.integers(1, 2**40))

    def add(body: bytes) -> None:
        nonlocal lsn
        lsn += draw(st.integers(1, 300))
        found.append(b"w" + struct.pack(">qqq", lsn, lsn, 0) + body)

    for xid in range(draw(st.integers(1, 4))):
        commit = lsn + 100_000
        time_us = draw(st.integers(-(10**9), 10**15))
        add(b"B" + struct.pack(">qqI", commit, time_us, 2**32 - 1 - xid))
        for _ in range(draw(st.integers(0, 4))):
            one = draw(st.sampled_from([*RELATIONS[:1] * 4, *RELATIONS]))
            op = draw(st.sampled_from("IU"))
            if draw(st.integers(0, 20)) == 0:
                found.append(b"k" + struct.pack(">qqB", lsn, 0, 0))
            if draw(st.integers(0, 20)) == 0:
                add(b"I" + struct.pack(">I", FOREIGN) + b"N\0\0")
            add(op.encode() + struct.pack(">I", one.oid) + b"N" + draw(row(one)))
        if draw(st.integers(0, 5)):
            lsn = commit
            add(b"C\0" + struct.pack(">qqq", commit, commit + 8, 0))
        else:
            break
    return found


class OneByOne:
    """The reference: each message by itself, as a stream takes it."""

    def __init__(self) -> None:
        self.records: Records = defaultdict(list)
        self.tables = {one.oid: table(one) for one in RELATIONS}
        self.encoder = encoder()
        self.begin: Begin | None = None
        self.position, self.xids, self.transactions = 0, list[int](), 0
        self.open_records = 0

    def put(self, topic: str, key: Any, value: Any, time_ms: int, headers: Any = ()) -> None:
        assert not headers
        self.records[topic].append((key, value, time_ms))
        self.open_records += 1

    def take(self, message: bytes) -> None:
        if message[:1] == b"k":
            return
        lsn, body = struct.unpack_from(">q", message, 1)[0], message[25:]
        if body[:1] == b"B":
            commit, time_us, xid = struct.unpack_from(">qqI", body, 1)
            self.begin, self.open_records = Begin(commit, time_us + EPOCH_US, xid), 0
            self.encoder.begin(self.begin, self.position)
            self.xids.append(xid)
        elif body[:1] == b"C":
            self.position = struct.unpack_from(">q", body, 10)[0]
            self.transactions += self.open_records > 0
            self.begin, self.open_records = None, 0
        else:
            oid = struct.unpack_from(">I", body, 1)[0]
            assert self.begin is not None
            if oid == FOREIGN:
                return
            its = self.tables[oid]
            if self.begin.commit_lsn < SINCE.get(its.relation.name, 0):
                return
            found, _ = its.parse(body, 6)
            made = self.encoder.inserted if body[:1] == b"I" else self.encoder.updated
            made(its, its.relation.name, found, lsn, self.put)


@given(messages())
def test_a_run_gives_the_records_of_its_messages_one_by_one(some: list[bytes]) -> None:
    """Any messages: what isn't taken in a run is taken by itself, and the records are the reference's."""
    reference, ours, makes = OneByOne(), OneByOne(), encoder()
    for one in some:
        reference.take(one)
    places = {
        one.oid: Place(table(one), one.name, SINCE.get(one.name, 0), makes.said(table(one)))
        for one in RELATIONS
    }
    changes = Changes({**places, FOREIGN: None}, types, "precise")
    assert changes.has_any
    left = some
    while left:
        run = changes.take(left, ours.begin, ours.open_records > 0, ours.position, makes.pieces)
        for block in run.blocks:
            rows = zip(
                block.keys.to_pylist(), block.values.to_pylist(), block.times_ms, strict=True
            )
            ours.records[block.topic] += rows
        ours.xids += run.xids
        ours.transactions += run.transactions
        ours.position = run.end or ours.position
        if run.stop:
            had = 0 if run.xids or run.end else ours.open_records
            ours.begin, ours.open_records = run.begin, run.open_records + had
            if run.begin is not None:
                ours.encoder.begin(run.begin, ours.position)
        left = left[run.stop :]
        if left:
            ours.take(left[0])
            left = left[1:]
    assert ours.records == reference.records
    assert ours.xids == reference.xids
    assert (ours.begin, ours.position) == (reference.begin, reference.position)
    assert (ours.transactions, ours.open_records) == (
        reference.transactions,
        reference.open_records,
    )


def test_plain_messages_are_taken_in_one_run() -> None:
    """A run takes all that is plain, up to the last end of a transaction, or to the first that isn't."""
    places = {one.oid: Place(table(one), one.name, 0, b"") for one in RELATIONS}
    changes = Changes(places, types, "precise")
    head = b"w" + bytes(24)
    begin, end = head + b"B" + bytes(20), head + b"C" + bytes(25)
    text = "é\n😀".encode()
    plain = (
        b"I"
        + struct.pack(">I", 2**32 - 1)
        + b"N\0\2"
        + (b"t\0\0\0" + bytes([len(text)]) + text) * 2
    )
    hard = b"I" + struct.pack(">I", 7) + b"N\0\2nn"
    whole = [begin, head + plain, head + plain, end]

    def stop(some: list[bytes]) -> int:
        return changes.take(some, None, False, 0, encoder().pieces).stop

    assert stop(whole * 3) == 12
    assert stop([*whole * 3, begin, head + plain]) == 12
    assert stop(whole[:3]) == 3
    assert stop([*whole, begin, head + plain, head + hard, end]) == 6


def test_tables_that_share_a_topic_are_not_taken_in_runs() -> None:
    """Their records must be in the order of their changes, and a run's are by table."""
    places = {one.oid: Place(table(one), "both", 0, b"") for one in RELATIONS[:2]}
    assert not Changes(places, types, "precise").has_any

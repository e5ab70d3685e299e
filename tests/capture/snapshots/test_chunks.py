"""Chunks of a table that several connections read ahead, and rows of COPY in columns; without a server."""

from __future__ import annotations

import bisect
import contextlib
import random
import threading
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest
from tests.patience import PATIENCE_S

from penstock.capture.chunked import Chunk, GoneError, Mark, Part, Rows, wrapped
from penstock.capture.chunked.incremental import Changes
from penstock.capture.chunked.queue import Chunks
from penstock.capture.databases.postgres.copy import split
from penstock.capture.databases.postgres.pgoutput import Column, Relation
from penstock.capture.databases.postgres.rows import Facts, Table
from penstock.capture.databases.postgres.snapshots import chunks as chunks_module
from penstock.capture.databases.postgres.snapshots.blocks import rows_of
from penstock.capture.databases.postgres.types import Type
from penstock.errors import CorruptError

TYPES = ("int4", "text", "bool", "float8", "numeric", "timestamp")
TEXTS = {
    "int4": (b"1", b"-7", b"2147483647"),
    "text": (b"", b"ann", b'"', b"\\\\", b"a\\tb\\v", b"\x01\x7f", "\ufeffé☃".encode(), b"\\\\N"),
    "bool": (b"t", b"f"),
    "float8": (b"1.5", b"NaN", b"1e+300"),
    "numeric": (b"12.50", b"NaN", b"0"),
    "timestamp": (b"2024-02-29 13:45:30", b"infinity", b"0001-01-01 00:00:00 BC"),
}


def table(random_: random.Random) -> Table:
    """One with some columns; the first is the key."""
    names = ["text", *random_.sample(TYPES, random_.randint(0, 5))]
    columns = tuple(
        Column(f'{name}%"{i}', TYPES.index(name), -1, i == 0) for i, name in enumerate(names)
    )
    facts = Facts((columns[0].name,))
    return Table(
        Relation(1, "s", "t", "d", columns), facts, lambda at, _: Type(TYPES[at]), "precise"
    )


def is_utf8(data: bytes) -> bool:
    """Whether a text is."""
    return data.decode("utf-8", "replace").encode() == data


@pytest.mark.parametrize("seed", range(20))
def test_rows_in_columns_are_as_rows_one_by_one(seed) -> None:
    """Whatever values there are: NULL, escapes, marks of encodings, bytes that aren't UTF-8."""
    random_ = random.Random(seed)
    one = table(random_)
    types = [TYPES[column.oid] for column in one.relation.columns]
    texts = {
        **TEXTS,
        "text": (*TEXTS["text"], b"\xff") if random_.random() < 0.2 else TEXTS["text"],
    }
    lines = [
        b"\t".join(
            rb"\N" if i and random_.random() < 0.2 else random_.choice(texts[type_])
            for i, type_ in enumerate(types)
        )
        + b"\n"
        for _ in range(random_.randint(1, 20))
    ]
    made = rows_of(one, b"".join(lines), ())
    rows = [one.of_texts(split(line)) for line in lines]
    assert made.keys.to_pylist() == [one.key_of(row) for row in rows]
    assert made.values.to_pylist() == [one.row(row) for row in rows]
    if is_utf8(key := split(lines[-1])[0]):
        found = rows_of(one, b"".join(lines), (one.relation.columns[0].name,))
        assert found.last == (key.decode(),)


@pytest.mark.parametrize("seed", range(5))
def test_values_are_wrapped_as_one_by_one(seed) -> None:
    """Of slices, too, and into memory that was used before."""
    random_ = random.Random(seed)
    scratch = np.empty(0, np.uint8)
    for _ in range(20):
        rows = [random_.randbytes(random_.randint(0, 100)) for _ in range(random_.randint(1, 50))]
        head, tail = (random_.randbytes(random_.choice([0, 1, 31, 32, 200])) for _ in range(2))
        begin = random_.randrange(len(rows))
        made, scratch = wrapped(pa.array(rows, pa.binary()).slice(begin), head, tail, scratch)
        assert made.to_pylist() == [head + one + tail for one in rows[begin:]]


def test_lines_with_another_number_of_values_are_refused() -> None:
    """A table of other columns isn't read as this one."""
    one = table(random.Random(1))
    columns = len(one.relation.columns)
    assert columns > 1
    for line in (b"a" + b"\t1" * columns + b"\n", b"a\n" * 2, b"\t".join([b"1"] * columns)):
        with pytest.raises(CorruptError, match="lines of COPY"):
            rows_of(one, line, ())


class Reads:
    """Reads of the numbers from 0 on, by several connections; some fail, and some chunks are cut."""

    def __init__(self, seed: int, count: int) -> None:
        self.random, self.keys = random.Random(seed), [f"{i:06}" for i in range(count)]
        self.lock = threading.Lock()

    def close(self) -> None: ...

    def cancel(self) -> None: ...

    def sever(self) -> None: ...

    def has_no_room(self, _: Exception) -> bool:
        return False

    def opened(self, part: Part) -> Part:
        return Part(part.table, last=(self.keys[-1],)) if self.keys else part

    def end(self, part: Part, after: tuple[str, ...]) -> tuple[str, ...]:
        at = bisect.bisect(self.keys, *after) if after else 0
        with self.lock:
            return (self.keys[min(at + self.random.randint(0, 20), len(self.keys) - 1)],)

    def read(
        self, part: Part, after: tuple[str, ...], end: tuple[str, ...], mark: Mark
    ) -> Chunk | None:
        begin = bisect.bisect(self.keys, *after) if after else 0
        found = self.keys[begin : bisect.bisect(self.keys, *end)]
        with self.lock:
            if self.random.random() < 0.1:
                return None
            if self.random.random() < 0.3:
                found = found[: self.random.randint(1, len(found))]
        rows = pa.array([one.encode() for one in found])
        return Chunk(part, None, Rows(rows, rows, ()), (found[-1],), mark)


def first(chunks: Chunks, ready: threading.Event) -> Chunk:
    """The next chunk, once it was read."""
    while (found := chunks.first()) is None:
        assert ready.wait(PATIENCE_S), "expected a chunk"
        ready.clear()
    return found


def take_all(chunks: Chunks, ready: threading.Event) -> None:
    """Takes the chunks until the last one."""
    while not first(chunks, ready).is_last:
        chunks.pop()


@pytest.mark.parametrize("seed", range(20))
def test_each_key_is_in_one_chunk_in_the_keys_order(seed) -> None:
    """However many connections read, chunks are cut, and snapshots are taken again."""
    random_ = random.Random(seed)
    reads = Reads(seed, random_.choice([0, 1, 500]))
    ready, found = threading.Event(), []
    chunks = Chunks(
        [reads] * random_.randint(1, 4),
        Part("t"),
        mark=lambda: Mark(len(found)),
        ready=ready.set,
    )
    try:
        while True:
            chunk = first(chunks, ready)
            assert chunks.oldest(len(found)) <= chunk.mark.number <= len(found)
            found += [] if chunk.rows is None else chunk.rows.keys.to_pylist()
            chunks.pop()
            if chunk.is_last:
                break
    finally:
        chunks.close()
    assert [one.decode() for one in found] == reads.keys


def test_what_cannot_be_read_is_reported_where_the_chunk_would_be() -> None:
    """Chunks before it are there."""
    reads, ready = Reads(1, 500), threading.Event()
    chunks = Chunks([reads] * 2, Part("t"), mark=lambda: Mark(0), ready=ready.set)
    try:
        assert first(chunks, ready).count

        def read(*_: object) -> Chunk:
            raise GoneError("it is gone")

        reads.read = read
        with pytest.raises(GoneError):
            take_all(chunks, ready)
    finally:
        chunks.close()


def test_what_a_chunk_lacks_is_newer_than_its_rows() -> None:
    """Of transactions that began after the read: those that aren't in its snapshot."""
    changes = Changes()
    for xid, key in ((10, b"a"), (11, b"b"), (12, b"c"), (13, True)):
        changes.begin(xid)
        changes.add(key)
    has = lambda *xids: lambda xid: xid in xids  # noqa: E731
    assert changes.newer(Chunk(Part("t"), mark=Mark(1), visible=has(12))) == {b"b", True}
    changes.forget(3, 3)
    assert changes.newer(Chunk(Part("t"), visible=has())) == {True}


class Catalog:
    """A server whose snapshots come to lack fewer transactions."""

    def __init__(self, *lacks: str) -> None:
        self.lacks, self.sql = [*lacks], self

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        yield

    def execute(self, _: str) -> None: ...

    def ask(self, query: str, *_: object) -> list[tuple[str, str]]:
        if "pg_current_snapshot" not in query:
            return [("public", "t")]
        if not self.lacks:
            raise GoneError("its snapshot has all")
        return [(f"9:100:{self.lacks.pop(0)}", "0/1")]


def test_a_snapshot_has_what_was_sent_before_also_while_others_are_read() -> None:
    """A transaction is sent before all see it: each of the reads that were begun meanwhile waits for it."""
    changes, lacks = Changes(), Catalog("11", "11")
    changes.begin(10)
    changes.begin(11)
    read = chunks_module.Reader(lacks, "precise").read  # type: ignore[arg-type]
    one, two = changes.mark(), changes.mark()
    assert read(Part("t"), (), ("9",), one) is None
    changes.begin(12)
    changes.forget(changes.mark().number, one.number)  # another chunk, which has it, is written
    assert read(Part("t"), (), ("9",), two) is None
    with pytest.raises(GoneError):
        read(Part("t"), (), ("9",), two)
    assert changes.mark().recent == ()


def test_changed_keys_are_bounded(monkeypatch) -> None:
    """Beyond the bound nothing is remembered: the chunks are read again."""
    monkeypatch.setattr("penstock.capture.chunked.incremental.KEYS_MAX", 2)
    changes = Changes()
    changes.begin(1)
    for key in (b"a", b"b", b"c"):
        changes.add(key)
    assert changes.is_full
    assert changes.newer(Chunk(Part("t"), visible=lambda _: False)) == {b"a", b"b"}
    changes.clear()
    assert not changes.is_full

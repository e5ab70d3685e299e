"""`ingest`: files into a topic."""

from __future__ import annotations

import glob
import logging
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import orjson
import pyarrow as pa

from penstock.client import Client, TransactionalProducer
from penstock.core.names import hint, known_names, natural
from penstock.core.partitioner import murmur2_partitions
from penstock.core.schema import Schema, type_text
from penstock.core.time import duration_us
from penstock.errors import UserError
from penstock.files.progress import FileState, load
from penstock.files.reached import Reached
from penstock.files.reading import (
    FORMATS,
    Letter,
    NoKeyError,
    Piece,
    Shape,
    UnreadableError,
    read,
)
from penstock.flow.times import EventTime
from penstock.follow.control import control_topic
from penstock.follow.follower import Body, Follower
from penstock.follow.report import Doing

__all__ = ["Ingested", "ingest"]

STEP_BYTES: Final = 8 << 20
"""Bytes of a transaction: what is sent between two commits, and is in memory at a time."""
LOOK_S: Final = 1.0
"""How often a directory is looked at."""
TOPIC_SETTINGS: Final = {"retention.ms": "-1", "max.message.bytes": str(32 << 20)}
"""Of topics that are created here: kept forever, as those of pipelines, with lines as long as are read."""
UNFINISHED: Final = (".tmp", ".part", ".partial", ".crdownload", ".swp", "~")
"""Ends of names of files that are still being written."""
SUFFIXES: Final = {
    ".jsonl": "json",
    ".ndjson": "json",
    ".json": "json",
    ".csv": "csv",
    ".parquet": "parquet",
}
_log = logging.getLogger(__name__)

Format = Literal["json", "csv", "parquet"]


@dataclass
class Ingested(Doing):
    """What `ingest` has done.

    Attributes:
        phase: `starting`, `streaming`, `waiting` (for the log), `paused`, `failed` or `stopped`.
        files: read to their ends.
        records: sent to the topic.
        dead: lines that are dead letters, and files that can't be read to their ends.
        changed: files that have changed after they were read; they are not read again.
        unkeyed: records without a key, where one was named.
        behind: files that begin before the event time that earlier ones have reached, less the lateness.
        retries: how often it tried again after an error that passes.
        trouble: why it waits; empty if it doesn't.
        last_error: the last error, also after it has passed.
        breaker: the circuit breaker's state; nothing is read while it is `open`.
    """

    files: int = 0
    records: int = 0
    dead: int = 0
    changed: int = 0
    unkeyed: int = 0
    behind: int = 0


def ingest(
    files: str | Path,
    *,
    to: str,
    log: str = "127.0.0.1:9092",
    format: Format | None = None,  # noqa: A002 - the field's name
    schema: str | Schema | None = None,
    key: str | None = None,
    time: EventTime | None = None,
    columns: str | Schema | None = None,
    watch: bool = False,
    settle: str | float | timedelta = 5.0,
    name: str | None = None,
    until: Callable[[Ingested], bool] | None = None,
    **settings: Any,
) -> Ingested:
    """Writes the rows of files to a topic as JSON objects, each exactly once.

    The position in each file is stored in the same transactions as its rows, so the process can be killed
    at any moment and run again. Files are read in the order of their names, gzipped or not. Numbers in names
    count by their values: `h2.json` comes before `h10.json`.

    A file is read once it hasn't changed for the time `settle`. Names that begin with `.` or `_`, or end
    like those of unfinished files (`.tmp`, `.part`, …), are ignored: write under such a name, then
    rename. A file that changes after reading began is not read any further. A file that was created
    under the name of an earlier one is a new file.

    A line that isn't a row becomes a dead letter in the topic `NAME.dead-letters`, with its file and line.
    So does a file that can't be read to its end.

    Args:
        files: a pattern, as for `glob` (`incoming/*.jsonl.gz`, `logs/**/*.csv`), or a directory.
        to: the topic; created with one partition and without retention if it doesn't exist.
        log: the broker's address.
        format: `json` (lines), `csv` (with a header line) or `parquet`; by default from the names' endings.
        schema: of the rows, as for `App.stream`; rows that don't fit it are dead letters. By default JSON
            lines must be objects, and the columns of CSV are texts.
        key: the column whose text is the record's key; with a schema, the text that pipelines write for its
            value, and without one, as it stands in JSON and CSV. Rows may lack it, but not all of the
            first ones, unless a schema has it.
        time: when rows happened, as for `App.stream`: `ps.event_time("at", lateness="1 minute")`. Where a
            file begins before the time that earlier ones have reached, less the lateness, a warning says so:
            a pipeline takes its rows for late. An expression needs the
            schema, or columns.
        columns: the types of the columns that the event time names; by default the schema's.
        watch: whether to continue with new files until interrupted. Then the log is waited for while it is
            unavailable.
        settle: how long a file must not have changed.
        name: the name under which positions are stored; by default the topic's. Only one process at
            a time can use a name: a second one fences the first.
        until: with `watch`, called after each scan of the directory; reading ends when it returns true.
        settings: further arguments of `penstock.client.Client`.

    Raises:
        UserError: no such format or key; without `watch`, no file matches the pattern; the first file has no
            rows with the key.
        FencedError: another process has begun under this name.
        BrokerError: without `watch`, the broker refused, or can't be reached.
    """
    one = _Ingestion(files, to, format, schema, key, settle, name or to)
    known = schema if columns is None else columns
    one.reached = Reached(time, Schema.parse(known) if isinstance(known, str) else known)
    one.check(watch=watch, until=until)
    return Follower(one, log.removeprefix("kafka://"), settings).run()


@dataclass
class _Pending:
    """What the transaction holds so far."""

    size: int = 0
    states: dict[str, FileState] = field(default_factory=dict)
    letters: list[tuple[str, Letter]] = field(default_factory=list)


class _Ingestion(Body[Ingested]):
    """Files into a topic, transaction by transaction."""

    kind = "ingest"

    def __init__(
        self,
        files: str | Path,
        to: str,
        format_: str | None,
        schema: str | Schema | None,
        key: str | None,
        settle: str | float | timedelta,
        name: str,
    ) -> None:
        if format_ is not None and format_ not in FORMATS:
            raise UserError(f"expected format among {', '.join(FORMATS)}; found {format_!r}")
        columns = Schema.parse(schema) if isinstance(schema, str) else schema
        if columns is not None and key is not None and key not in columns:
            raise UserError(f"expected a key among {', '.join(columns.names)}; found {key!r}")
        if columns is not None and key is not None and pa.types.is_nested(columns[key].type):
            raise UserError(
                f"expected a key that isn't nested; found {key!r}, of the type {type_text(columns[key].type)}"
            )
        pattern = str(files)
        self._is_folder = os.path.isdir(pattern)  # noqa: PTH112
        self._pattern = os.path.join(pattern, "*") if self._is_folder else pattern  # noqa: PTH118
        self._format, self._schema, self._key = format_, columns, key
        self._settle_ns = (
            int(settle * 1e9) if isinstance(settle, int | float) else duration_us(settle) * 1000
        )
        self._to, self.name, self.done = to, name, Ingested()
        self._progress_topic = f"{name}.files"
        self._letter_topic = f"{name}.dead-letters"
        self._watches = False
        self._until: Callable[[Ingested], bool] | None = None
        self._reported: set[str] = set()
        self._unsettled: set[Path] = set()
        self._turn = self._sent = self._unkeyed = 0
        self._has_rows = False
        #: How far files move the watermark.
        self.reached = Reached(None)

    def check(self, *, watch: bool, until: Callable[[Ingested], bool] | None) -> None:
        """Takes how long to read; checks that there is something, unless it may come.

        Raises:
            UserError: no file matches the pattern.
        """
        self._watches, self._until = watch, until
        matches = self._is_folder or glob.glob(self._pattern, recursive=True)  # noqa: PTH207
        if not watch and not matches:
            raise UserError(
                f"expected files that match {self._pattern!r}; found none. Correct the pattern, or wait for "
                "files with --watch (in Python: watch=True)"
            )

    def figures(self) -> dict[str, Any]:
        """See `Body`."""
        done = self.done
        counts = {"records": done.records, "dead": done.dead, "files": done.files}
        return {"source": self._pattern, "target": self._to, **counts}

    def ending(self, error: Exception) -> Exception | None:
        """See `Body`; whoever doesn't watch waits for the end, and learns of every error."""
        return super().ending(error) if self._watches else error

    def attempt(self) -> None:
        """Reads what there is, and with `watch` what comes."""
        follower = self.follower
        self._sent = self._unkeyed = 0
        with TransactionalProducer(
            follower.address, f"penstock.ingest.{self.name}", **follower.settings
        ) as self._writer:
            self._prepare(follower.client)
            follower.enter("streaming")
            follower.look(now=True)
            while not follower.is_paused:
                self._pass()
                follower.succeed()
                if not self._watches:
                    self._warn_of_unsettled()
                if not self._watches or (self._until is not None and self._until(self.done)):
                    follower.stop()
                if follower.look() or follower.is_over or follower.wait(LOOK_S):
                    return

    def _prepare(self, client: Client) -> None:
        for topic in (self._to, self._letter_topic):
            client.create_topic(topic, 1, dict(TOPIC_SETTINGS), exists_ok=True)
        compact = {"cleanup.policy": "compact"}
        for topic in (self._progress_topic, control_topic(self.kind, self.name)):
            client.create_topic(topic, 1, compact, exists_ok=True)
        self._partitions = len(client.partitions(self._to))
        self._writer.start()  # before reading: what another one left is ended then
        settings = self.follower.settings
        self._known = load(self.follower.address, self._progress_topic, **settings)
        self._has_rows = any(one.line and not one.reason for one in self._known.values())

    def _pass(self) -> None:
        """Reads what there is."""
        pending = _Pending()
        self._unsettled.clear()
        for path, found in self._ready():
            for piece, state in self._pieces(path, found):
                if piece is not None:
                    self._send(path, piece, pending)
                pending.states[str(path)] = state
                if pending.size >= STEP_BYTES:
                    self._commit(pending)
                    pending = _Pending()
                    if self.follower.look():  # the next attempt continues there
                        return
        self._commit(pending)

    def _ready(self) -> Iterator[tuple[Path, FileState]]:
        """The files that are to be read, and what is known of each."""
        now_ns = time.time_ns()
        for text in sorted(glob.glob(self._pattern, recursive=True), key=natural):  # noqa: PTH207
            path = Path(text).absolute()
            if path.name.startswith((".", "_")) or path.name.endswith(UNFINISHED):
                continue
            try:
                seen, known = FileState.of(path), self._known.get(str(path))
            except FileNotFoundError:
                continue
            if not path.is_file():
                continue
            if now_ns - seen.mtime_ns < self._settle_ns:
                if known is None or not known.is_same(seen):
                    self._unsettled.add(path)
                continue
            if known is None or known.is_other(seen):
                yield path, seen
            elif not known.is_same(seen):
                self._changed(path)
            elif not known.done:
                yield path, known

    def _warn_of_unsettled(self) -> None:
        if self._unsettled:
            _log.warning(
                "%d files that match have changed in the last %g seconds, and were not read, such as %s. "
                "Run this again later, or with a shorter settle",
                *(len(self._unsettled), self._settle_ns / 1e9, min(self._unsettled)),
            )

    def _changed(self, path: Path) -> None:
        if str(path) not in self._reported:
            self._reported.add(str(path))
            self.done.changed += 1
            _log.warning("%s has changed after it was read, and isn't read again", path)

    def _pieces(self, path: Path, state: FileState) -> Iterator[tuple[Piece | None, FileState]]:
        """What is left of a file, and what is known of it after each piece."""
        try:
            for piece in read(path, self._shape(path), state.place):
                if not FileState.of(path).is_same(state):
                    raise UnreadableError("expected a file that doesn't change; found that it does")
                state = state.moved(piece.end)
                self._check_key(piece)
                self.reached.take(path, piece.values)
                yield piece, state
        except (UnreadableError, OSError) as error:
            if isinstance(error, NoKeyError) and not self._has_rows:
                raise UserError(f"{error} in {path}. Correct the key, or omit it") from None
            letter = Letter(state.line + 1, b"", f"{error}. What is after it was not read")
            nothing = pa.array([], pa.binary())
            yield Piece(None, nothing, (letter,), state.place), state
            state = replace(state, reason=str(error))
        yield None, replace(state, done=True)

    def _check_key(self, piece: Piece) -> None:
        """Counts rows without a key.

        Raises:
            NoKeyError: the first rows of all have none.
        """
        if piece.keys is None or not len(piece.values):
            return
        missing = piece.keys.null_count
        if missing == len(piece.values) and not self._has_rows and self._schema is None:
            names = list(orjson.loads(piece.values[0].as_py()))
            raise NoKeyError(
                f"expected a key among {known_names(names)}; found {self._key!r}{hint(self._key, names)}, "
                "which no row has,"
            )
        self._has_rows = True
        self._unkeyed += missing

    def _shape(self, path: Path) -> Shape:
        format_ = self._format
        if format_ is None:
            suffixes = [one.lower() for one in path.suffixes if one.lower() != ".gz"]
            format_ = SUFFIXES.get(suffixes[-1] if suffixes else "")
        if format_ is None:
            raise UnreadableError(
                f"expected a name that ends in {', '.join(SUFFIXES)} (.gz may follow); found "
                f"{path.name!r}. Name its format"
            )
        return Shape(format_, self._schema, self._key)

    def _send(self, path: Path, piece: Piece, pending: _Pending) -> None:
        pending.letters += [(str(path), one) for one in piece.letters]
        pending.size += piece.values.nbytes + sum(len(one.value) for one in piece.letters)
        count = len(piece.values)
        self._turn += 1
        if not count:
            return
        of = np.full(count, self._turn % self._partitions)
        if piece.keys is not None:
            of = murmur2_partitions(piece.keys, self._partitions)
            of = np.where(of < 0, self._turn % self._partitions, of)
        now = np.full(count, time.time_ns() // 1_000_000)
        for partition in np.unique(of).tolist():
            take: Any = pa.array(np.flatnonzero(of == partition))
            keys = None if piece.keys is None else piece.keys.take(take)
            values = piece.values.take(take)
            self._writer.send(self._to, partition, keys, values, now[: len(take)])
        self._sent += count

    def _commit(self, pending: _Pending) -> None:
        """Makes a step's records, letters and places true together."""
        if not pending.states:
            return
        now_ms = time.time_ns() // 1_000_000
        if pending.letters:
            self._writer.send(
                self._letter_topic,
                0,
                None,
                pa.array([one.value for _, one in pending.letters], pa.binary()),
                np.full(len(pending.letters), now_ms),
                headers=[self._headers(path, one) for path, one in pending.letters],
            )
        paths = [os.fsencode(path) for path in pending.states]
        self._writer.send(
            self._progress_topic,
            0,
            pa.array(paths, pa.binary()),
            pa.array([one.encoded() for one in pending.states.values()], pa.binary()),
            np.full(len(paths), now_ms),
        )
        self._writer.commit()
        self._known |= pending.states
        self.done.records += self._sent
        self.done.behind = self.reached.behind
        self.done.unkeyed += self._unkeyed
        self._sent = self._unkeyed = 0
        self.done.dead += len(pending.letters)
        self.done.files += sum(one.done and not one.reason for one in pending.states.values())

    def _headers(self, path: str, letter: Letter) -> list[tuple[str, bytes | None]]:
        """Those of a pipeline's dead letters, so that `penstock dlq` repairs and replays them."""
        return [
            ("penstock.reason", letter.reason.encode()),
            ("penstock.topic", self._to.encode()),
            ("penstock.partition", b"0"),
            ("penstock.offset", str(letter.line).encode()),
            ("penstock.file", os.fsencode(path)),
        ]

"""A journal: small records appended to one file, whole or not at all; for state that is kept in
memory.

    PATH           record = length (u32, big-endian), CRC-32C of the body (u32), body
    PATH.length    how many bytes are durable at least, with a checksum

Recovery keeps the whole records up to the first torn one, which it cuts off with all that follows. A
record in the middle that was changed (its checksum is wrong, a whole record follows) is left out.
Either is reported. `rewrite` replaces the file by one that holds only what is still of use.

An end that is lost exactly between two records can't be seen in the file. The length next to it shows it:
it is stored after a sync once the journal has grown by `LENGTH_STEP_BYTES`, and when it is closed;
before the journal becomes shorter it is deleted. So it never says too much, whatever crashes.
"""

from __future__ import annotations

import contextlib
import logging
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from penstock.errors import SetupError
from penstock.log.disk.files import LogFile, LogFiles, is_want_of_room
from penstock.log.errors import StorageError
from penstock.wire.batches import Buffer
from penstock.wire.checksum import crc32c

__all__ = ["Journal", "bodies_in", "length_path", "lost_text", "records_in", "stored_length"]

RECORD_BYTES_MAX: Final = 64 << 20
"""Largest record: what a request may carry; a greater length is damage."""
LENGTH_STEP_BYTES: Final = 1 << 20
"""Growth after which the durable length is stored again: a small file for each MiB costs nothing."""
_HEAD = struct.Struct(">II")
_log = logging.getLogger(__name__)


class _Sync:
    def __init__(
        self, file: LogFile, written: Callable[[], int], synced: Callable[[int], None]
    ) -> None:
        self._file = file
        self._written = written
        self._synced = synced
        self.end_offset = -1
        self.may_run_again = True

    def run(self) -> None:
        self.end_offset = self._written()
        self._file.sync()
        self._synced(self.end_offset)


class Journal:
    """One journal. Use from one thread; only a sync task's `run` may run in another."""

    def __init__(self, files: LogFiles, path: str) -> None:
        """Opens it; what is read from it is durable.

        Raises:
            SetupError: its records can't be made durable.
        """
        self.failure: str | None = None
        self.is_short_of_room = False
        self._files = files
        self._path = path
        self._file = files.open(path)
        if self._file.size() == 0:  # new: its name must be as durable as what it will hold
            for directory in _parents(path):
                files.sync_directory(directory)
        self.size = self.cut_bytes = 0
        self._recover()
        self._length = stored_length(files.load(length_path(path)))
        self.lost_bytes = max(self._length - self.size, 0)
        if self.lost_bytes:
            _log.error("%s: %s", path, lost_text(self._length, self.size))
            self._forget_length()
        directory = path.rpartition("/")[0]
        files.sync_directory(directory)  # the file may be new, and its directory, too
        files.sync_directory(directory.rpartition("/")[0])
        if self.size > self._length:  # a process that was killed leaves records in the page cache
            self._make_durable()
        self.durable_offset = self.size

    def _make_durable(self) -> None:
        try:
            self._file.sync()
        except OSError as error:
            raise SetupError(
                f"expected to make {self._path} durable; found: {error.strerror or error}; check the disk "
                "and start again"
            ) from error

    def _recover(self) -> None:
        """Finds the end; counts and reports what is left out."""
        on_disk, kept = self._file.size(), 0
        for body, end in _scan(self._file.read, on_disk):
            kept += _HEAD.size + len(body)
            self.size = end
        self.cut_bytes = on_disk - kept
        if self.cut_bytes:
            _log.warning(
                "%s: expected whole records; found %d bytes that aren't; they are skipped",
                self._path,
                self.cut_bytes,
            )
        if self.size < on_disk:
            self._file.truncate(self.size)

    def __iter__(self) -> Iterator[bytes]:
        """Every record's body, in order."""
        return (body for body, _ in _scan(self._file.read, self.size))

    def append(self, body: bytes) -> None:
        """Appends a record of at least one byte; durable after the next sync.

        Raises:
            StorageError: the disk is full or failed; the journal is unchanged.
        """
        assert body
        if self.failure is not None:
            raise StorageError(self.failure)
        record = _HEAD.pack(len(body), crc32c(body)) + body
        try:
            self._file.write(self.size, record)
        except OSError as error:
            raise StorageError(
                f"expected to append to {self._path}; found: {error.strerror or error}; free some space"
            ) from error
        self.size += len(record)

    def rewrite(self, bodies: Iterable[bytes]) -> None:
        """Replaces all records, durably; without room for that they stay. No sync may be under way."""
        data = b"".join(_HEAD.pack(len(body), crc32c(body)) + body for body in bodies)
        self._forget_length()
        try:
            self._files.store(self._path, data)
        except OSError as error:
            if is_want_of_room(error):
                return
            raise
        self._file.close()
        self._file = self._files.open(self._path)
        self.size = self.durable_offset = len(data)
        self._store_length(len(data))

    def _note_length(self, durable: int) -> None:
        """In a sync: what is durable may be worth a note."""
        if durable - self._length >= LENGTH_STEP_BYTES:
            self._store_length(durable)

    def _store_length(self, durable: int) -> None:
        body = b"%d" % durable
        with contextlib.suppress(OSError):  # a full disk: the next one says more
            self._files.store(length_path(self._path), b"%08x " % crc32c(body) + body)
            self._length = durable

    def _forget_length(self) -> None:
        if self._length:
            self._files.delete(length_path(self._path))
            self._files.sync_directory(self._path.rpartition("/")[0])
            self._length = 0

    @property
    def is_dirty(self) -> bool:
        """Whether records await a sync."""
        return self.durable_offset < self.end_offset

    @property
    def end_offset(self) -> int:
        """Bytes in the journal."""
        return self.size

    def begin_sync(self) -> _Sync:
        """What makes all records durable."""
        return _Sync(self._file, lambda: self.size, self._note_length)

    def note_durable(self, upto: int) -> None:
        """A sync has come that far."""
        self.durable_offset = max(self.durable_offset, min(upto, self.size))

    def end_sync(self, task: _Sync, failure: OSError | None = None) -> None:
        """Takes note of how a sync went; after a failed one nothing more is written."""
        if failure is not None:
            self.is_short_of_room = is_want_of_room(failure)
            self.failure = (
                f"expected to make {self._path} durable; found: {failure.strerror or failure}; "
                "check the disk and restart"
            )
        else:
            self.note_durable(task.end_offset)

    def repair(self) -> bool:
        """Continues after a sync that failed because the disk was full; False where that can't be.

        What isn't known to be durable is read back, checked, and written again; the next sync then
        makes it durable, or fails.
        """
        if self.failure is None or not self.is_short_of_room:
            return False
        try:
            rest = bytes(self._file.read(self.durable_offset, self.size - self.durable_offset))
            if len(rest) != self.size - self.durable_offset or not _is_whole(rest):
                return False
            self._file.write(self.durable_offset, rest)
        except OSError:
            return False
        self.failure, self.is_short_of_room = None, False
        return True

    def close(self) -> None:
        """Makes everything durable and closes the file."""
        if self.failure is None:
            self._file.sync()
            if self.size > self._length:
                self._store_length(self.size)
        self._file.close()


def bodies_in(data: bytes) -> Iterator[bytes]:
    """The bodies of the records that a journal with these bytes is read to have."""
    return (body for body, _ in _scan(lambda at, size: data[at : at + size], len(data)))


def _body_at(read: Callable[[int, int], Buffer], at: int, end: int) -> tuple[bytes | None, int]:
    """The body of the record at `at` (None: its checksum is wrong) and where the next one is; -1
    where there can't be one.
    """
    if at + _HEAD.size > end:
        return None, -1
    size, crc = _HEAD.unpack(read(at, _HEAD.size))
    if not 0 < size <= min(RECORD_BYTES_MAX, end - at - _HEAD.size):
        return None, -1  # zeros are no record: a torn write leaves them
    body = bytes(read(at + _HEAD.size, size))
    return (body if crc32c(body) == crc else None), at + _HEAD.size + size


def _scan(read: Callable[[int, int], Buffer], end: int) -> Iterator[tuple[bytes, int]]:
    """Body and end of each whole record."""
    at = 0
    while True:
        body, following = _body_at(read, at, end)
        if following < 0 or (body is None and _body_at(read, following, end)[0] is None):
            return
        if body is not None:
            yield body, following
        at = following


def records_in(data: bytes) -> Iterator[tuple[bytes, int]]:
    """The whole records at the start of a journal's bytes, each with where it ends."""
    at = 0
    while at + _HEAD.size <= len(data):
        size, crc = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        body = data[at : at + size]
        if len(body) != size or crc32c(body) != crc:
            return
        at += size
        yield body, at


def length_path(path: str) -> str:
    """Where a journal's durable length is kept."""
    return path + ".length"


def stored_length(data: bytes | None) -> int:
    """The length in that file's bytes; 0 where it isn't known."""
    if data is None or data[:9] != b"%08x " % crc32c(data[9:]):
        return 0
    return int(data[9:])


def lost_text(expected: int, found: int) -> str:
    """The message about a journal that is shorter than it was."""
    return (
        f"expected {expected} bytes of whole records at least; found {found}: records that were durable "
        "are lost; stop the broker and put the file back from a copy"
    )


def _is_whole(data: bytes) -> bool:
    """Whether these bytes are whole records."""
    end = 0
    for _, after in records_in(data):
        end = after
    return end == len(data)


def _parents(path: str) -> Iterator[str]:
    """The directories on the way to a file, the nearest first; the last is the root, "" here."""
    while path:
        path = path.rpartition("/")[0]
        yield path

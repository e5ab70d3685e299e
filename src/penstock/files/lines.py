"""Where lines come from: a file, gzipped or not, standard input, or a file that grows.

Lines come in blocks, in order, without their ends. A line longer than `LINE_BYTES_MAX` comes in
pieces, each a line that no parser takes, so that a file of another kind costs no unbounded memory.
"""

from __future__ import annotations

import gzip
import os
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Final, cast

from penstock.errors import UserError

BLOCK_BYTES: Final = 4 << 20  # read at once: tens of thousands of lines
LINE_BYTES_MAX: Final = 1 << 20
"""A log line has hundreds of bytes; Kafka's records have at most 1 MB."""
LOOK_S: Final = 0.25  # how often a file that grows is looked at
LAST_LINE_END: Final = b""  # between two files: a line goes no further than its file
_GZIP: Final = b"\x1f\x8b"


class Lines:
    """The lines of a file, standard input (`-`), or a growing file.

    Args:
        name: the file, or `-`.
        follow: whether to wait for more at the end, and to continue when the file is rotated.
        stop: when set, following ends.
        line_bytes_max: where longer lines are cut.
    """

    def __init__(
        self,
        name: str,
        *,
        follow: bool,
        stop: threading.Event,
        line_bytes_max: int = LINE_BYTES_MAX,
    ) -> None:
        self._line_bytes_max = line_bytes_max
        self.name = name
        self.follow = follow
        self.bytes_read = 0
        self._stop = stop
        if follow and name == "-":
            raise UserError("expected a file to --follow; found '-', which is followed anyway")
        if name != "-":
            _check_readable(Path(name))

    def blocks(self, on_file: Callable[[tuple[int, int]], None]) -> Iterator[list[bytes]]:
        """All lines, in blocks.

        Args:
            on_file: called with the device and inode of each file before its lines come.

        Raises:
            UserError: the file's compression is broken, or a compressed file is to be followed.
        """
        if self.follow:
            yield from _split(self._growing(on_file), self._line_bytes_max)
            return
        if self.name == "-":
            yield from _split(
                self._unpacked(cast("BinaryIO", sys.stdin.buffer)), self._line_bytes_max
            )
            return
        with Path(self.name).open("rb", buffering=0) as file:
            on_file(_identity(os.fstat(file.fileno())))
            yield from _split(self._unpacked(cast("BinaryIO", file)), self._line_bytes_max)

    def _unpacked(self, file: BinaryIO) -> Iterator[bytes]:
        """Blocks of bytes of a file that ends; what is at hand at once, for a pipe may be slow."""
        first = self._read(file)
        while first and len(first) < len(_GZIP) and (more := self._read(file)):
            first += more
        if first[:2] != _GZIP:
            while first:
                yield first
                first = self._read(file)
            return
        unpack = zlib.decompressobj(wbits=31)
        data = first
        try:
            while data:
                yield from _nonempty(unpack.decompress(data, BLOCK_BYTES))
                while unpack.unconsumed_tail:
                    yield from _nonempty(unpack.decompress(unpack.unconsumed_tail, BLOCK_BYTES))
                data = unpack.unused_data.lstrip(b"\0")
                if unpack.eof and (data or (data := self._read(file))):
                    unpack = zlib.decompressobj(wbits=31)  # gzip files may be joined end to end
                elif not unpack.eof:
                    data = self._read(file)
        except (zlib.error, gzip.BadGzipFile) as error:
            raise UserError(f"expected gzip data in {self.name}; found: {error}") from None
        if not unpack.eof:
            raise UserError(
                f"expected whole gzip data in {self.name}; found its end too early. "
                "The lines before it were sent"
            )

    def _read(self, file: BinaryIO) -> bytes:
        data = os.read(file.fileno(), BLOCK_BYTES)
        self.bytes_read += len(data)
        return data

    def _growing(self, on_file: Callable[[tuple[int, int]], None]) -> Iterator[bytes]:
        """The bytes of a file as they are added, and of each new file under its name."""
        path = Path(self.name)
        while not self._stop.is_set():
            with path.open("rb", buffering=0) as file:
                if file.read(2) == _GZIP:
                    raise UserError(f"expected a plain file to follow; found gzip data in {path}")
                file.seek(0)
                on_file(_identity(os.fstat(file.fileno())))
                yield from self._grown(cast("BinaryIO", file), path)

    def _grown(self, file: BinaryIO, path: Path) -> Iterator[bytes]:
        while not self._stop.is_set():
            data = self._read(file)
            if data:
                yield data
            elif _replaced(file, path):
                # Perhaps more was written between our last look and the rotation.
                while data := self._read(file):
                    yield data
                yield LAST_LINE_END
                return
            else:
                self._stop.wait(LOOK_S)


def _check_readable(path: Path) -> None:
    if path.is_dir():
        raise UserError(f"expected a log file; found the directory {str(path)!r}")
    try:
        path.open("rb").close()
    except OSError as error:
        raise UserError(
            f"expected a readable log file; found {str(path)!r}: {error.strerror}"
        ) from None


def _replaced(file: BinaryIO, path: Path) -> bool:
    """Whether the name means another file now, or the file was emptied."""
    here = os.fstat(file.fileno())
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    return _identity(here) != _identity(there) or here.st_size < file.tell()


def _identity(stat: os.stat_result) -> tuple[int, int]:
    return (stat.st_dev, stat.st_ino)


def _nonempty(block: bytes) -> tuple[bytes, ...]:
    return (block,) if block else ()


def _split(blocks: Iterator[bytes], line_bytes_max: int) -> Iterator[list[bytes]]:
    """Blocks of bytes to lists of lines; what follows the last line end of a file is a line too."""
    rest = b""
    for block in blocks:
        lines = (rest + block).split(b"\n")
        rest = lines.pop()
        if block == LAST_LINE_END and rest:
            lines, rest = [*lines, rest], b""
        while len(rest) > line_bytes_max:
            lines.append(rest[:line_bytes_max])
            rest = rest[line_bytes_max:]
        if lines:
            yield [line.removesuffix(b"\r") for line in lines]
    if rest:
        yield [rest.removesuffix(b"\r")]

"""Files: the one seam between state and wherever it is kept.

Contract of every implementation
    1. Paths are relative, parts joined by `/`; directories appear by themselves.
    2. `write` is atomic: a reader sees the whole file or none, or the one before it. After it returns,
       the file survives a crash of the machine as far as the implementation's `fsync` policy says.
    3. `create` is put-if-absent: of several callers with the same path, at most one gets True.
    4. A missing file is `FileNotFoundError` from `read`, `map` and `size`, and nothing from `delete`.
    5. What `map` returned stays readable after the file is replaced or deleted.
    6. `list` gives every file under a prefix, sorted; unfinished writes end in `.tmp` and are
       given only on request.
"""

# ruff: noqa: D102 -- the protocol says what each method does

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable
from itertools import count
from pathlib import Path, PurePosixPath
from typing import Protocol, TypeAlias

import pyarrow as pa
import pyarrow.fs as pafs

from penstock.errors import UserError

Bytes: TypeAlias = bytes | bytearray | memoryview | pa.Buffer

_TEMPORARY = ".tmp"


class StateFiles(Protocol):
    """Named byte strings; the module says what each implementation must keep to."""

    @property
    def identity(self) -> str:
        """Text that is the same for two objects over the same files, within one process."""

    def read(self, path: str) -> bytes:
        """The whole file."""

    def map(self, path: str) -> pa.Buffer:
        """The whole file, memory-mapped where it is local."""

    def size(self, path: str) -> int:
        """The file's length in bytes."""

    def write(self, path: str, chunks: Iterable[Bytes]) -> None:
        """Writes or replaces a file."""

    def create(self, path: str, data: bytes) -> bool:
        """Writes a file if there is none; False where there is one."""

    def list(self, prefix: str, *, temporary: bool = False) -> list[str]:
        """The files whose paths begin with the directory `prefix`."""

    def delete(self, path: str) -> None:
        """Removes a file, if it exists."""

    def exists(self, path: str) -> bool:
        """Whether the file exists."""


def checked(path: str) -> str:
    """A path as it may be used.

    Raises:
        UserError: it is absolute, empty, or leaves the directory.
    """
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts:
        raise UserError(f"expected a relative path such as 'a/b/c'; found {path!r}")
    return path


class MemoryStateFiles:
    """Files in this process's memory: for tests and the in-process host."""

    def __init__(self) -> None:
        self._files: dict[str, pa.Buffer] = {}
        self._lock = threading.Lock()

    @property
    def identity(self) -> str:
        return f"memory:{id(self)}"

    def read(self, path: str) -> bytes:
        return bytes(self.map(path))

    def map(self, path: str) -> pa.Buffer:
        try:
            return self._files[checked(path)]
        except KeyError:
            raise FileNotFoundError(path) from None

    def size(self, path: str) -> int:
        return int(self.map(path).size)

    def write(self, path: str, chunks: Iterable[Bytes]) -> None:
        data = pa.py_buffer(b"".join(bytes(memoryview(chunk)) for chunk in chunks))
        with self._lock:
            self._files[checked(path)] = data

    def create(self, path: str, data: bytes) -> bool:
        with self._lock:
            if checked(path) in self._files:
                return False
            self._files[path] = pa.py_buffer(bytes(data))
            return True

    def list(self, prefix: str, *, temporary: bool = False) -> list[str]:  # noqa: ARG002 -- there are none
        with self._lock:
            return sorted(path for path in self._files if _under(path, prefix))

    def delete(self, path: str) -> None:
        with self._lock:
            self._files.pop(checked(path), None)

    def exists(self, path: str) -> bool:
        return checked(path) in self._files


class LocalStateFiles:
    """Files in a directory of this machine.

    Args:
        directory: made when the first file is written.
        fsync: whether `write` and `create` return only after file and directory entry are on the
            disk. Without it a file survives the process's death, not the machine's.
    """

    def __init__(self, directory: str | Path, *, fsync: bool = True) -> None:
        self.directory = Path(directory).absolute()
        self.fsync = fsync
        self._serial = count()

    @property
    def identity(self) -> str:
        return f"file:{self.directory}"

    def read(self, path: str) -> bytes:
        return self._at(path).read_bytes()

    def map(self, path: str) -> pa.Buffer:
        at = self._at(path)
        if at.stat().st_size == 0:
            return pa.py_buffer(b"")
        with pa.memory_map(str(at)) as source:  # closing frees the descriptor and keeps the mapping
            return source.read_buffer()

    def size(self, path: str) -> int:
        return self._at(path).stat().st_size

    def write(self, path: str, chunks: Iterable[Bytes]) -> None:
        at = self._at(path)
        temporary = self._temporary(at, chunks)
        temporary.replace(at)
        self._sync_directory(at.parent)

    def create(self, path: str, data: bytes) -> bool:
        at = self._at(path)
        temporary = self._temporary(at, [data])
        try:
            os.link(
                temporary, at
            )  # fails where the name is taken: the file system decides who is first
        except FileExistsError:
            return False
        finally:
            temporary.unlink()
        self._sync_directory(at.parent)
        return True

    def list(self, prefix: str, *, temporary: bool = False) -> list[str]:
        base = self._at(prefix) if prefix else self.directory
        found = []
        for root, _, names in os.walk(base):
            relative = Path(root).relative_to(self.directory)
            found += [(relative / n).as_posix() for n in names if temporary or not _is_temporary(n)]
        return sorted(found)

    def delete(self, path: str) -> None:
        self._at(path).unlink(missing_ok=True)

    def exists(self, path: str) -> bool:
        return self._at(path).is_file()

    def _at(self, path: str) -> Path:
        return self.directory / checked(path)

    def _temporary(self, at: Path, chunks: Iterable[Bytes]) -> Path:
        path = at.with_name(
            f"{at.name}.{os.getpid()}-{threading.get_ident()}-{next(self._serial)}{_TEMPORARY}"
        )
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except FileNotFoundError:
            at.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            with open(descriptor, "wb", buffering=1 << 16) as sink:
                sink.writelines(memoryview(chunk) for chunk in chunks)
                if self.fsync:
                    sink.flush()
                    os.fsync(sink.fileno())
        except BaseException:
            with contextlib.suppress(OSError):
                path.unlink()
            raise
        return path

    def _sync_directory(self, directory: Path) -> None:
        if not self.fsync:
            return
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class ArrowStateFiles:
    """Files on any `pyarrow.fs` file system: S3, GCS, HDFS, ...

    `write` goes through a temporary file and a move where the file system has directories
    (`atomic_move`), and straight to the name on object stores, where an upload appears whole.
    `create` looks first and writes then: `pyarrow.fs` has no put-if-absent, so rule 3 holds only
    while no two processes create the same path within that moment. An engine that needs fencing
    keeps its epoch files on a `LocalStateFiles`, or lets one process alone create them.

    Args:
        filesystem: where.
        directory: within the file system; the prefix of all paths.
        atomic_move: whether moving a file over another is atomic there (local, HDFS).
    """

    def __init__(
        self, filesystem: pafs.FileSystem, directory: str, *, atomic_move: bool = False
    ) -> None:
        self.filesystem = filesystem
        self.directory = directory.rstrip("/")
        self.atomic_move = atomic_move
        self._serial = count()

    @property
    def identity(self) -> str:
        return f"{self.filesystem.type_name}:{id(self)}:{self.directory}"

    def read(self, path: str) -> bytes:
        return bytes(self.map(path))

    def map(self, path: str) -> pa.Buffer:
        with self.filesystem.open_input_file(self._at(path)) as source:
            return source.read_buffer()

    def size(self, path: str) -> int:
        info = self._info(path)
        if info.type != pafs.FileType.File:
            raise FileNotFoundError(path)
        return int(info.size)

    def write(self, path: str, chunks: Iterable[Bytes]) -> None:
        at = self._at(path)
        chunks = list(
            chunks
        )  # an upload that fails half-way is closed, and so published, by its stream
        self.filesystem.create_dir(at.rpartition("/")[0], recursive=True)
        target = f"{at}.{os.getpid()}-{next(self._serial)}{_TEMPORARY}" if self.atomic_move else at
        with self.filesystem.open_output_stream(target) as sink:
            for chunk in chunks:
                sink.write(chunk)
        if target != at:
            self.filesystem.move(target, at)

    def create(self, path: str, data: bytes) -> bool:
        if self.exists(path):
            return False
        self.write(path, [data])
        return True

    def list(self, prefix: str, *, temporary: bool = False) -> list[str]:
        base = self._at(prefix) if prefix else self.directory
        selector = pafs.FileSelector(base, recursive=True, allow_not_found=True)
        names = [
            info.path[len(self.directory) + 1 :]
            for info in self.filesystem.get_file_info(selector)
            if info.type == pafs.FileType.File
        ]
        return sorted(name for name in names if temporary or not _is_temporary(name))

    def delete(self, path: str) -> None:
        if self.exists(path):
            self.filesystem.delete_file(self._at(path))

    def exists(self, path: str) -> bool:
        return bool(self._info(path).type == pafs.FileType.File)

    def _at(self, path: str) -> str:
        return f"{self.directory}/{checked(path)}"

    def _info(self, path: str) -> pafs.FileInfo:
        return self.filesystem.get_file_info([self._at(path)])[0]


def _under(path: str, prefix: str) -> bool:
    return not prefix or path == prefix or path.startswith(prefix.rstrip("/") + "/")


def _is_temporary(name: str) -> bool:
    return name.endswith(_TEMPORARY)

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

# ruff: noqa: D102, PTH103, PTH105, PTH108, PTH113, PTH116, PTH120 -- the protocol says what each method
# does; a `Path` costs more than the call that it is for

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
import threading
from collections.abc import Iterable
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from penstock.errors import UserError

# Arrow is imported where it is used: a command that reads a version's JSON needs none, and starts sooner.
if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.fs as pafs

Bytes: TypeAlias = "bytes | bytearray | memoryview | pa.Buffer"

_TEMPORARY: Final = ".tmp"
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_AT_FDCWD: Final = -100  # of Linux: names are as `open` takes them
_RENAME_NOREPLACE: Final = 1


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
    parts = path.split("/")
    if not path or path.startswith("/") or ".." in parts:
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
        import pyarrow as pa

        data = pa.py_buffer(b"".join(bytes(memoryview(chunk)) for chunk in chunks))
        with self._lock:
            self._files[checked(path)] = data

    def create(self, path: str, data: bytes) -> bool:
        import pyarrow as pa

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
        self._root = f"{self.directory}/"
        self._relaxed: LocalStateFiles | None = None
        self._known: set[str] = set()  # directories whose names are on the disk
        self.fsync = fsync
        self._serial = count()

    @property
    def identity(self) -> str:
        return f"file:{self.directory}"

    @property
    def run(self) -> str | None:
        """Text that stays the same until the machine stops; None where nobody knows."""
        return _boot()

    def relaxed(self) -> LocalStateFiles:
        """The same files; what is written survives the process at once, and the machine after `sync`."""
        if self._relaxed is None:
            self._relaxed = LocalStateFiles(self.directory, fsync=False)
        return self._relaxed

    def sync(self, paths: Iterable[str]) -> None:
        """Waits until files, and their names, are on the disk.

        Raises:
            FileNotFoundError: one of them isn't there.
        """
        directories = set()
        for path in paths:
            _sync(self._at(path))
            parts = path.split("/")
            directories |= {"/".join(parts[:n]) for n in range(len(parts))}
        # The names of directories stay: to see them once on the disk is enough.
        for directory in sorted(directories):
            is_last = any(path.rpartition("/")[0] == directory for path in paths)
            if is_last or directory not in self._known:
                _sync(self._root + directory)
        self._known |= directories

    def read(self, path: str) -> bytes:
        with open(self._at(path), "rb", buffering=0) as source:
            return source.read()

    def map(self, path: str) -> pa.Buffer:
        import pyarrow as pa

        at = self._at(path)
        if os.stat(at).st_size == 0:
            return pa.py_buffer(b"")
        with pa.memory_map(at) as source:  # closing frees the descriptor and keeps the mapping
            return source.read_buffer()

    def size(self, path: str) -> int:
        return os.stat(self._at(path)).st_size

    def write(self, path: str, chunks: Iterable[Bytes]) -> None:
        at = self._at(path)
        temporary = self._temporary(at, chunks)
        os.replace(temporary, at)
        self._sync_directory(at)

    def create(self, path: str, data: bytes) -> bool:
        at = self._at(path)
        temporary = self._temporary(at, [data])
        if not _moved(temporary, at):
            return False
        self._sync_directory(at)
        return True

    def list(self, prefix: str, *, temporary: bool = False) -> list[str]:
        found = []
        for root, _, names in os.walk(self._at(prefix) if prefix else self._root[:-1]):
            relative = f"{root}/"[len(self._root) :]
            found += [relative + n for n in names if temporary or not _is_temporary(n)]
        return sorted(found)

    def delete(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._at(path))

    def exists(self, path: str) -> bool:
        return os.path.isfile(self._at(path))

    def _at(self, path: str) -> str:
        return self._root + checked(path)

    def _temporary(self, at: str, chunks: Iterable[Bytes]) -> str:
        serial = next(self._serial)
        path = f"{at}.{os.getpid()}-{threading.get_ident()}-{serial}{_TEMPORARY}"
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(at), exist_ok=True)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            with open(descriptor, "wb", buffering=1 << 16) as sink:
                sink.writelines(memoryview(chunk) for chunk in chunks)
                if self.fsync:
                    sink.flush()
                    os.fsync(sink.fileno())
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(path)
            raise
        return path

    def _sync_directory(self, at: str) -> None:
        """Waits until a name is on the disk."""
        if self.fsync:
            _sync(os.path.dirname(at))


class ArrowStateFiles:
    """Files on any `pyarrow.fs` file system: GCS, HDFS, ...; for S3 see `penstock.state.s3`.

    `write` goes through a temporary file and a move where the file system has directories
    (`atomic_move`), and straight to the name on object stores, where an upload appears whole.
    `create` looks first and writes then: `pyarrow.fs` has no put-if-absent, so rule 3 holds only
    while no two processes create the same path within that moment.

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
        import pyarrow.fs as pafs

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
        import pyarrow.fs as pafs

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
        import pyarrow.fs as pafs

        return bool(self._info(path).type == pafs.FileType.File)

    def _at(self, path: str) -> str:
        return f"{self.directory}/{checked(path)}"

    def _info(self, path: str) -> pafs.FileInfo:
        return self.filesystem.get_file_info([self._at(path)])[0]


@functools.cache
def _boot() -> str | None:
    with contextlib.suppress(OSError):
        return _BOOT.read_text().strip()
    return None


def _sync(at: str) -> None:
    """Waits until a file, or the names in a directory, are on the disk."""
    descriptor = os.open(at, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _moved(source: str, target: str) -> bool:
    """Moves a file to a name that is free; where it is taken, the file goes and False is returned.

    The file system decides who is first.
    """
    code = _renameat2(source, target)
    if code == errno.EEXIST:
        os.unlink(source)
        return False
    if not code:
        return True
    try:
        os.link(source, target)
    except FileExistsError:
        return False
    finally:
        os.unlink(source)
    return True


def _renameat2(source: str, target: str) -> int:
    """Linux's rename that replaces nothing: one change of the directory instead of two; its `errno`."""
    if _LIBC is None:
        return errno.ENOSYS
    names = os.fsencode(source), os.fsencode(target)
    if not _LIBC.renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_NOREPLACE):
        return 0
    return ctypes.get_errno()


def _libc() -> Any:
    """The C library, where it has `renameat2`."""
    libc = ctypes.CDLL(None, use_errno=True)
    return libc if hasattr(libc, "renameat2") else None


_LIBC: Final = _libc()


def _under(path: str, prefix: str) -> bool:
    return not prefix or path == prefix or path.startswith(prefix.rstrip("/") + "/")


def _is_temporary(name: str) -> bool:
    return name.endswith(_TEMPORARY)

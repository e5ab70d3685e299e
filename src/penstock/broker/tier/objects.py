"""Object storage as the broker uses it: whole objects in, ranges out. Blocking: call it in a thread.

    s3://bucket/prefix      through pyarrow; `?endpoint_override=HOST:PORT&scheme=http&region=…`
    file:///srv/tier        a directory, which may be a mount
    gs://, abfs://, …       what pyarrow knows, else what fsspec knows

Credentials come from the environment (AWS_ACCESS_KEY_ID, …, AWS_ENDPOINT_URL) or the machine's
role, never from the URI, so nothing that is logged has any in it. Whatever goes wrong is an
OSError.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import parse_qs, urlsplit

from penstock.errors import SetupError

if TYPE_CHECKING:
    from pyarrow import fs as arrow_fs

__all__ = ["ArrowObjects", "Objects"]

CONNECT_S_MAX: Final = 5
"""How long a connection to the store may take."""
REQUEST_S_MAX: Final = 20
"""How long the store may be silent in a request."""
ATTEMPTS_MAX: Final = 3
"""Attempts of one request within a call; the caller tries again later, with backoff."""
_SECRETS = re.compile(r"key|secret|token|password|credential", re.IGNORECASE)
_OPTIONS: Final = frozenset({"endpoint_override", "scheme", "region"})


class Objects(Protocol):
    """A place for objects. Names are relative, with `/`. Every call may block, and raise OSError."""

    def put(self, name: str, pieces: Iterable[bytes]) -> None:
        """Stores an object; after an error a part of it may be there."""
        ...

    def get(self, name: str, at: int, size: int) -> bytes:
        """Up to `size` bytes of an object from `at` on."""
        ...

    def size(self, name: str) -> int:
        """An object's bytes; -1 where there is none."""
        ...

    def list(self, directory: str) -> list[str]:
        """The names of all objects below a directory; none where there is no such thing."""
        ...

    def delete(self, name: str) -> None:
        """Removes an object; nothing happens where there is none."""
        ...

    def delete_tree(self, directory: str) -> None:
        """Removes all objects below a directory; nothing happens where there are none."""
        ...


class ArrowObjects:
    """A URI's objects. The store is first spoken to when it is first used.

    Raises:
        SetupError: the URI isn't one, or has credentials in it.
    """

    def __init__(self, uri: str) -> None:
        parts = urlsplit(uri)
        if len(parts.scheme) < 2:
            raise SetupError(
                "expected a URI such as s3://bucket/prefix or file:///srv/tier; found "
                f"{parts.path!r}"
            )
        options = parse_qs(parts.query)
        if "@" in parts.netloc or any(_SECRETS.search(one) for one in options):
            raise SetupError(
                "expected a tier's URI without credentials; found some; set them in the "
                "environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY)"
            )
        self.shown = f"{parts.scheme}://{parts.netloc}{parts.path}"
        self._uri = uri
        self._scheme = parts.scheme
        self._options = {name: values[-1] for name, values in options.items()}
        if parts.scheme == "s3" and self._options.keys() - _OPTIONS:
            raise SetupError(
                f"expected only the options {', '.join(sorted(_OPTIONS))} in {self.shown}?…; "
                f"found {', '.join(sorted(self._options))}"
            )
        self._lock = threading.Lock()
        self._fs: arrow_fs.FileSystem | None = None
        self._root = ""
        if parts.scheme == "file":
            self._make_root(Path(parts.path))

    @staticmethod
    def _make_root(path: Path) -> None:
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SetupError(
                f"expected a directory for the tier; found {str(path)!r}: {error.strerror}"
            ) from None

    def _open(self) -> tuple[arrow_fs.FileSystem, str]:
        with self._lock:
            if self._fs is None:
                self._fs, self._root = self._connect()
            return self._fs, self._root

    def _connect(self) -> tuple[arrow_fs.FileSystem, str]:
        import pyarrow as pa
        from pyarrow import fs

        if self._scheme == "s3":
            return self._connect_s3()
        try:
            found, root = fs.FileSystem.from_uri(self._uri)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            from fsspec.core import url_to_fs  # type: ignore[import-untyped] # not a dependency: pyarrow knows the usual ones

            other, root = url_to_fs(self._uri)
            handler: Any = fs.FSSpecHandler
            found = fs.PyFileSystem(handler(other))
        return found, root.rstrip("/")

    def _connect_s3(self) -> tuple[arrow_fs.FileSystem, str]:
        from pyarrow import fs

        parts, env = urlsplit(self._uri), os.environ
        endpoint = self._options.get("endpoint_override") or env.get(
            "AWS_ENDPOINT_URL_S3", env.get("AWS_ENDPOINT_URL")
        )
        scheme = self._options.get("scheme")
        if endpoint and "://" in endpoint:
            given, _, endpoint = endpoint.partition("://")
            scheme = scheme or given
        region = self._options.get("region") or env.get("AWS_REGION", env.get("AWS_DEFAULT_REGION"))
        found = fs.S3FileSystem(
            endpoint_override=endpoint,
            scheme="http" if scheme == "http" else "https",
            region=region,
            connect_timeout=CONNECT_S_MAX,
            request_timeout=REQUEST_S_MAX,
            retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=ATTEMPTS_MAX),
        )
        return found, f"{parts.netloc}{parts.path}".rstrip("/")

    @contextlib.contextmanager
    def _errors(self, doing: str, name: str) -> Iterator[None]:
        """Makes an OSError of whatever a file system raises."""
        try:
            yield
        except OSError:
            raise
        except Exception as error:
            raise OSError(
                errno.EIO, f"expected to {doing} {name} in {self.shown}; found: {error}"
            ) from error

    def put(self, name: str, pieces: Iterable[bytes]) -> None:
        """See `Objects`. In a directory the object is durable afterwards."""
        with self._errors("put", name):
            fs, root = self._open()
            path = f"{root}/{name}"
            if self._scheme != "s3":
                self._check_root(fs, root)
                fs.create_dir(path.rpartition("/")[0], recursive=True)
            with fs.open_output_stream(path) as out:
                for piece in pieces:
                    out.write(piece)
            if self._scheme == "file":
                _sync(Path(path))

    def _check_root(self, fs: arrow_fs.FileSystem, root: str) -> None:
        """A mount that has vanished must not be written past."""
        if (
            self._scheme == "file"
            and not fs.get_file_info(root).is_file
            and not Path(root).is_dir()
        ):
            raise FileNotFoundError(errno.ENOENT, f"expected the directory {root}; found none")

    def get(self, name: str, at: int, size: int) -> bytes:
        """See `Objects`."""
        with self._errors("get", name):
            fs, root = self._open()
            opened: Any = fs.open_input_file(f"{root}/{name}")
            with opened as file:
                return bytes(file.read_at(size, at))

    def size(self, name: str) -> int:
        """See `Objects`."""
        with self._errors("look at", name):
            fs, root = self._open()
            found = fs.get_file_info(f"{root}/{name}")
            return int(found.size) if found.is_file else -1

    def list(self, directory: str) -> list[str]:
        """See `Objects`."""
        from pyarrow import fs as arrow_fs

        with self._errors("list", directory):
            fs, root = self._open()
            self._check_root(fs, root)
            selector = arrow_fs.FileSelector(
                f"{root}/{directory}", recursive=True, allow_not_found=True
            )
            return sorted(
                one.path.removeprefix(f"{root}/").lstrip("/")
                for one in fs.get_file_info(selector)
                if one.is_file
            )

    def delete(self, name: str) -> None:
        """See `Objects`."""
        with self._errors("delete", name):
            fs, root = self._open()
            self._check_root(fs, root)
            with contextlib.suppress(FileNotFoundError):
                fs.delete_file(f"{root}/{name}")

    def delete_tree(self, directory: str) -> None:
        """See `Objects`."""
        with self._errors("delete", directory):
            fs, root = self._open()
            self._check_root(fs, root)
            with contextlib.suppress(FileNotFoundError):
                fs.delete_dir(f"{root}/{directory}")


def _sync(path: Path) -> None:
    """Makes a file and its name durable."""
    for one, flags in ((path, os.O_RDONLY), (path.parent, os.O_RDONLY | os.O_DIRECTORY)):
        descriptor = os.open(one, flags)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

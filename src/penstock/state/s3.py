"""Files in a bucket of S3, or of a store that speaks its protocol.

Reading and writing is `ArrowStateFiles`'. `pyarrow.fs` has no put-if-absent; S3 has it since 2024, as a
condition of a PUT (`If-None-Match: *`), and so have MinIO, Ceph and R2. boto3 sends it. A store that
ignores conditions would let two owners both win, so the first file that is created is created twice: the
second time must be refused.
"""

from __future__ import annotations

import threading
import time
from typing import Any, Final
from urllib.parse import parse_qs, unquote, urlsplit

import pyarrow.fs as pafs

from penstock.core.lazy import installed
from penstock.errors import SetupError
from penstock.state.files import ArrowStateFiles

__all__ = ["S3StateFiles"]

CONFLICTS_MAX: Final = 8
"""Answers in a row that another request for the same name is under way."""
CONFLICT_WAIT_S: Final = 0.2
_TAKEN: Final = frozenset({"PreconditionFailed", "412"})
_CONFLICT: Final = frozenset({"ConditionalRequestConflict", "OperationAborted", "409"})


class S3StateFiles(ArrowStateFiles):
    """Files below a URI such as `s3://bucket/prefix`.

    Args:
        uri: as pyarrow takes it, with `endpoint_override`, `scheme` and `region` where they are needed.
    """

    def __init__(self, uri: str) -> None:
        filesystem, path = pafs.FileSystem.from_uri(uri)
        super().__init__(filesystem, path)
        self._uri = uri
        self._lock = threading.Lock()
        self._client: Any = None
        self._is_checked = False

    def create(self, path: str, data: bytes) -> bool:
        """See `StateFiles`.

        Raises:
            SetupError: boto3 isn't installed, or the store doesn't keep to conditions.
            OSError: the store can't be reached, or refuses.
        """
        if not self._put(path, data):
            return False
        if not self._is_checked:
            if self._put(path, data):
                raise SetupError(
                    "expected a store that refuses to create an object twice (If-None-Match) at "
                    f"{self.directory}; found one that doesn't, where two drivers could both own the "
                    "pipeline. Keep the state in another store, or in a folder"
                )
            self._is_checked = True
        return True

    def _put(self, path: str, data: bytes) -> bool:
        """Whether the object was created."""
        client = self._s3()  # says where boto3 is missing
        from botocore.exceptions import BotoCoreError, ClientError

        bucket, _, key = self._at(path).partition("/")
        for _ in range(CONFLICTS_MAX):
            try:
                client.put_object(Bucket=bucket, Key=key, Body=bytes(data), IfNoneMatch="*")
            except ClientError as error:
                code = str(error.response.get("Error", {}).get("Code", ""))
                if code in _TAKEN:
                    return False
                if code not in _CONFLICT:
                    raise OSError(
                        f"expected to create {path} in {self.directory}; found {error}"
                    ) from error
                time.sleep(CONFLICT_WAIT_S)
            except BotoCoreError as error:
                raise OSError(
                    f"expected to create {path} in {self.directory}; found {error}"
                ) from error
            else:
                return True
        raise OSError(
            f"expected to create {path} in {self.directory}; found that others did so at the same time, "
            f"{CONFLICTS_MAX} times"
        )

    def _s3(self) -> Any:
        """The client, which threads may share once it is made."""
        with self._lock:
            if self._client is None:
                self._client = _client(self._uri, self.filesystem)
            return self._client


def _client(uri: str, filesystem: Any) -> Any:
    """A client for the same store, with the same credentials, as pyarrow's."""
    why = "which creates objects so that two drivers can't both own a pipeline"
    boto3: Any = installed("boto3", "s3", why)
    parts = urlsplit(uri)
    options = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    given: dict[str, Any] = {}
    if "endpoint_override" in options:
        endpoint = options["endpoint_override"].rpartition("://")[2]
        given["endpoint_url"] = f"{options.get('scheme', 'https')}://{endpoint}"
    if parts.username:
        given["aws_access_key_id"] = unquote(parts.username)
        given["aws_secret_access_key"] = unquote(parts.password or "")
    region = options.get("region") or getattr(filesystem, "region", None) or "us-east-1"
    return boto3.session.Session().client("s3", region_name=region, **given)

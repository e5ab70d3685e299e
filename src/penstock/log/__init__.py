"""The log on disk: partitions of segments of record batches. Pure: files and the clock are
arguments.
"""

from __future__ import annotations

from penstock.log.disk.files import LocalFiles, LogFile, LogFiles
from penstock.log.disk.journal import Journal
from penstock.log.errors import AppendError, OffsetRangeError, StorageError
from penstock.log.markers import Aborted
from penstock.log.partition import Appended, Partition, SyncTask
from penstock.log.tier import Manifest, NotLoadedError, RemoteSegment, SegmentInfo, Tier
from penstock.log.validation import LogConfig

__all__ = [
    "Aborted",
    "AppendError",
    "Appended",
    "Journal",
    "LocalFiles",
    "LogConfig",
    "LogFile",
    "LogFiles",
    "Manifest",
    "NotLoadedError",
    "OffsetRangeError",
    "Partition",
    "RemoteSegment",
    "SegmentInfo",
    "StorageError",
    "SyncTask",
    "Tier",
]

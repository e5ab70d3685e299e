"""Reading a damaged log as a consumer does that wants whatever can be had."""

from __future__ import annotations

from penstock.log.errors import DamagedError
from penstock.log.partition import Partition
from penstock.wire import batches


def served(log: Partition, read_bytes: int) -> dict[int, bytes]:
    """Every batch that can be read, by offset; damage is passed over as it says.

    Args:
        log: to read.
        read_bytes: at a time.
    """
    found = {}
    offset = log.start_offset
    while offset < log.end_offset:
        try:
            data = bytes(log.read(offset, read_bytes))
        except DamagedError as damage:
            offset = max(damage.next_offset, offset + 1)
            continue
        assert data
        for at, header in batches.iterate(data):
            found[header.base_offset] = data[at : at + header.size]
            offset = header.next_offset
    return found

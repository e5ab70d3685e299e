"""A pipeline's record: nothing in it is taken for true that isn't what was written."""

from __future__ import annotations

import pytest

from penstock.engine.store import Store
from penstock.errors import CorruptError
from penstock.state import MemoryStateFiles


def test_any_flipped_or_missing_byte_is_noticed() -> None:
    """In plans, versions and epochs: the error names the file and says what to do."""
    files = MemoryStateFiles()
    store = Store(files)
    epoch = store.claim("one")
    store.write_plan(1, {"version": 1, "splits": [{"topic": "t", "start": 0, "end": 10}]})
    store.commit(1, {"version": 1, "offsets": {"t": {"0": 10}}, "counts": {"rows": {"t": 10}}})
    store.claim("two")
    looks = {
        "plans/00000000000000000001.json": lambda: Store(files).plan(1),
        "versions/00000000000000000001.json": lambda: Store(files).version(1),
        "epochs/00000000000000000002.json": lambda: Store(files).check_owner(epoch),
    }
    for path, look in looks.items():
        good = bytes(files.read(path))
        damaged = [
            good[:i] + bytes([good[i] ^ 1 << i % 8]) + good[i + 1 :] for i in range(len(good))
        ]
        damaged += [good[:i] for i in range(len(good))]
        for data in damaged:
            files.delete(path)
            files.create(path, data)
            with pytest.raises(CorruptError, match=path):
                look()
        files.delete(path)
        files.create(path, good)
    assert Store(files).version(1)["version"] == 1


def test_the_newest_version_is_found_from_wherever_one_looked_before() -> None:
    """One further, many further, behind those that were vacuumed, and behind some that were taken back."""
    files = MemoryStateFiles()
    writer, reader = Store(files), Store(files)
    assert reader.newest_version() == 0
    for upto in (1, 2, 4, 20, 21, 100):
        for number in range(writer.newest_version() + 1, upto + 1):
            writer.commit(number, {"version": number})
        assert reader.newest_version() == upto
    for number in (100, 99):
        files.delete(f"versions/{number:020d}.json")
    assert reader.newest_version() == 98
    writer.commit(99, {"version": 99})
    for number in range(1, 99):
        files.delete(f"versions/{number:020d}.json")
    assert reader.newest_version() == 99

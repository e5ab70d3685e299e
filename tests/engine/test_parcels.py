"""Messages arrive whole, by either way, in any order."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.engine.parcels import FILE_BYTES_MIN, PIECE_BYTES, Parcels

MESSAGES = [
    (0, "report", b"{}"),
    (1, "empty", b""),
    (1, "one piece", bytes(PIECE_BYTES)),
    (0, "many", random.Random(1).randbytes(2 * PIECE_BYTES + 1)),
    (2, "least in a file", b"x" * FILE_BYTES_MIN),
    (2, "most in a row", b"y" * (FILE_BYTES_MIN - 1)),
]


def rows(parcels: Parcels, messages: list[tuple[int, str, bytes]]) -> list[tuple[object, ...]]:
    return [tuple(row.values()) for batch in parcels.pack(messages) for row in batch.to_pylist()]


@pytest.mark.parametrize("by_files", [True, False])
@given(random_=st.randoms(use_true_random=False))
def test_messages_arrive_whole(
    tmp_path_factory: pytest.TempPathFactory, by_files: bool, random_: random.Random
) -> None:
    """Whichever order their rows come in; with the rows of an attempt that was repeated."""
    parcels = Parcels(tmp_path_factory.mktemp("parcels") if by_files else None)
    sent = rows(parcels, MESSAGES) + rows(parcels, MESSAGES)
    random_.shuffle(sent)
    assert sorted(parcels.unpack(sent)) == sorted(MESSAGES * 2)


def test_large_messages_are_files_until_the_batch_has_ended(tmp_path: Path) -> None:
    """Spark moves their names."""
    parcels = Parcels(tmp_path / "exchange" / "1")
    sent = rows(parcels, MESSAGES)
    assert len(list((tmp_path / "exchange" / "1").iterdir())) == 3
    assert max(len(str(row[4])) for row in sent) < 2 * FILE_BYTES_MIN
    parcels.clear()
    assert not (tmp_path / "exchange" / "1").exists()
    with pytest.raises(FileNotFoundError):
        parcels.unpack(sent)
    parcels.clear()


def test_between_machines_nothing_is_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a folder that all tasks see, pieces of bounded size go through Spark."""
    monkeypatch.chdir(tmp_path)
    sent = rows(Parcels(), MESSAGES)
    assert max(len(row[4]) for row in sent) == PIECE_BYTES  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())

"""Objects that a run leaves out of garbage collections, and gives back."""

from __future__ import annotations

import gc

import pytest

from penstock.engine.upkeep.pauses import short_pauses


def test_what_was_there_is_left_out_until_the_end() -> None:
    assert gc.get_freeze_count() == 0
    with short_pauses() as shorten:
        before = gc.get_freeze_count()
        assert before > 1_000
        new = [[] for _ in range(1_000)]
        assert gc.get_freeze_count() <= before  # some may have been freed
        shorten()
        assert gc.get_freeze_count() > before + len(new) // 2
    assert gc.get_freeze_count() == 0


def test_it_ends_with_an_error() -> None:
    with pytest.raises(KeyError), short_pauses():
        raise KeyError
    assert gc.get_freeze_count() == 0


def test_what_the_program_had_left_out_itself_stays_so() -> None:
    gc.freeze()
    try:
        with short_pauses():
            pass
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()

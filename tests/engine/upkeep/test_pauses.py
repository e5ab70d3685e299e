"""What a run changes of the interpreter to keep pauses short, and gives back."""

from __future__ import annotations

import gc
import sys

import pytest

from penstock.engine.upkeep.pauses import SWITCH_S, short_pauses


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


def test_threads_take_turns_often_until_the_end() -> None:
    before = sys.getswitchinterval()
    with short_pauses():
        assert sys.getswitchinterval() == pytest.approx(SWITCH_S)
    assert sys.getswitchinterval() == before > SWITCH_S


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

"""How hard the tests try: as hard as they can, or as hard as a few minutes allow.

`./test` alone answers within minutes whether Penstock works here: it leaves out the tests marked `slow`,
and has others try fewer rounds. `./test --all`, and pytest by itself, do everything. `./test --soak`
(tests/soak.py) tries at random for hours, in rounds of its own numbers and without timeouts.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from typing import Any, Final

import pytest

__all__ = ["QUICK", "SOAK", "examples", "rounds", "some_slow"]

VARIABLE: Final = "PENSTOCK_TESTS"
_KIND: Final = os.environ.get(VARIABLE, "all")
QUICK: Final = _KIND == "quick"
SOAK: Final = _KIND == "soak"
assert _KIND in {"all", "quick", "soak"}, f"{VARIABLE} is 'all', 'quick' or 'soak'"


def rounds(variable: str, *, quick: int, full: int) -> int:
    """How often a test tries something: as the environment's variable says, or as this run is meant."""
    return int(os.environ.get(variable) or (quick if QUICK else full))


def examples(full: int) -> int:
    """How many examples Hypothesis tries: a tenth of them in a quick run, but some."""
    return min(full, max(full // 10, 4)) if QUICK else full


def some_slow(values: Iterable[Any], quick: Collection[Any]) -> list[Any]:
    """The values of a parameter; those that aren't in `quick` are marked `slow`."""
    return [one if one in quick else pytest.param(one, marks=pytest.mark.slow) for one in values]

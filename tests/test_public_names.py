"""No public name is lost: `tests/public_names.txt` lists them, and programs count on each.

A name that goes, or is renamed, stands in the changelog, and its old name raises an error that says the new
one. `scripts/reference.py` adds names that have come; one that is gone is taken out of the list by hand.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Final

LIST: Final = Path(__file__).with_name("public_names.txt")
MODULES: Final = (
    *("penstock", "penstock.capture", "penstock.client", "penstock.errors", "penstock.files"),
    *("penstock.queue", "penstock.registry", "penstock.serve", "penstock.sinks"),
    *("penstock.testing",),
)
"""Those that programs import."""


def public_names() -> list[str]:
    """Each public name of the modules, and each public member of their classes."""
    return sorted(set(_names()))


def _names() -> Iterator[str]:
    for name in MODULES:
        module = importlib.import_module(name)
        for one in module.__all__:
            yield f"{name}.{one}"
            found = getattr(module, one)
            if inspect.isclass(found):
                own = {
                    k
                    for base in found.__mro__
                    if base.__module__.startswith("penstock")
                    for k in vars(base)
                }
                yield from (f"{name}.{one}.{k}" for k in own if not k.startswith("_"))


def test_no_public_name_is_lost() -> None:
    """And what has come is in the list, so that it isn't lost later."""
    known, found = set(LIST.read_text().split()), set(public_names())
    assert known - found == set(), "these names are gone: see this module"
    assert found - known == set(), (
        "these have come; add them: .venv/bin/python scripts/reference.py"
    )

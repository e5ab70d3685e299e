"""What ends a batch, in words: what failed, and where in the pipeline."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator
from dataclasses import dataclass

from penstock.errors import PenstockError

__all__ = ["Described", "described", "within"]

_MARK = "penstock: "


@dataclass(frozen=True, slots=True)
class Described:
    """An error of a lane, for the driver to raise.

    Attributes:
        type: the name of its class, one of `penstock.errors`.
        text: its message.
        retriable: whether it may pass.
    """

    type: str
    text: str
    retriable: bool


@contextlib.contextmanager
def within(place: str) -> Iterator[None]:
    """Lets an error know where in the pipeline it was raised; the innermost places come first."""
    try:
        yield
    except Exception as error:
        error.add_note(_MARK + place)
        raise


def described(error: Exception) -> Described:
    """What the driver raises of an error."""
    notes: list[str] = getattr(error, "__notes__", [])
    places = [one.removeprefix(_MARK) for one in notes if one.startswith(_MARK)]
    where = f" That was in {', reading '.join(places)}." if places else ""
    if isinstance(error, PenstockError):
        text = str(error)
        text = f"{text.rstrip('.')}.{where}" if where and not error.retriable else text
        return Described(type(error).__name__, text, error.retriable)
    frame = traceback.extract_tb(error.__traceback__)[-1]
    found = f"{type(error).__name__}: {error} ({frame.filename}, line {frame.lineno})"
    return Described(
        "PenstockError",
        f"expected a task to work; found {found}{'.' if where else ''}{where}",
        retriable=isinstance(error, OSError | MemoryError),
    )

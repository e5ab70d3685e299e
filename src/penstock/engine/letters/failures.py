"""What ends a batch, in words: what failed, and where in the pipeline."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator

from penstock.engine.record.values import Json
from penstock.errors import PenstockError

__all__ = ["described", "within"]

_MARK = "penstock: "


@contextlib.contextmanager
def within(place: str) -> Iterator[None]:
    """Lets an error know where in the pipeline it was raised; the innermost places come first."""
    try:
        yield
    except Exception as error:
        error.add_note(_MARK + place)
        raise


def described(error: Exception) -> Json:
    """An error as JSON, for the driver to raise."""
    notes: list[str] = getattr(error, "__notes__", [])
    places = [one.removeprefix(_MARK) for one in notes if one.startswith(_MARK)]
    where = f" That was in {', reading '.join(places)}." if places else ""
    if isinstance(error, PenstockError):
        text = str(error)
        text = f"{text.rstrip('.')}.{where}" if where and not error.retriable else text
        return {"type": type(error).__name__, "text": text, "retriable": error.retriable}
    frame = traceback.extract_tb(error.__traceback__)[-1]
    found = f"{type(error).__name__}: {error} ({frame.filename}, line {frame.lineno})"
    return {
        "type": "PenstockError",
        "text": f"expected a task to work; found {found}{'.' if where else ''}{where}",
        "retriable": isinstance(error, OSError | MemoryError),
    }

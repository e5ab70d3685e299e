"""A view or a query in a notebook's cell that follows the pipeline."""

from __future__ import annotations

import html
import importlib
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from penstock.errors import PenstockError, UserError
from penstock.serve.shown.tables import table_html
from penstock.serve.views import Views

__all__ = ["Live"]

EVERY_S_MIN: Final = 0.1
"""Shorter than this, a notebook only redraws."""


class Live:
    """Shows a view, or a query's answer, and updates it with each committed version.

    As the last line of a cell it is drawn once and then updated in place by a thread, until `stop`, until its
    time is over, or until the kernel ends. Without IPython it is a table of the current version.

        ps.serve.Live(views, "SELECT url, clicks FROM per_minute ORDER BY clicks DESC LIMIT 10")

    Args:
        views: the pipeline's.
        what: a view's name, or a SELECT over the views.
        measure: the column that the chart of windows draws; None: the first number.
        every_s: seconds between two looks for a new version.
        seconds: how long it is updated; None: until `stop`.

    Raises:
        UserError: a time is too short.
    """

    def __init__(
        self,
        views: Views,
        what: str,
        *,
        measure: str | None = None,
        every_s: float = 1.0,
        seconds: float | None = 3600.0,
    ) -> None:
        if every_s < EVERY_S_MIN:
            raise UserError(f"expected every_s of at least {EVERY_S_MIN}; found {every_s!r}")
        self._views, self._what, self._measure = views, what, measure
        self._every_s, self._seconds = every_s, seconds
        self._stopped = threading.Event()
        self._version = -1

    def stop(self) -> None:
        """Ends the updates; what is shown stays."""
        self._stopped.set()

    def _repr_html_(self) -> str:
        """The current version's chart and rows, or why there are none."""
        try:
            self._version = self._views.version
            if self._version == 0:
                return "<p>Nothing has been committed yet.</p>"
            is_view = self._what in self._views.names()
            table = self._views.table(self._what) if is_view else self._views.sql(self._what)
            keys = self._views.keys(self._what) if is_view else None
            title = self._what if is_view else "query"
            drawn = table_html(table, title, keys, self._measure)
        except (PenstockError, OSError) as error:
            return f"<p>{html.escape(str(error))}</p>"
        return f"{drawn}<small>version {self._version}</small>"

    def _ipython_display_(self) -> None:
        """Draws the cell, and begins to update it."""
        cell: Any = importlib.import_module("IPython.display")  # there is one, as it calls this
        handle = cell.display(cell.HTML(self._repr_html_()), display_id=True)
        self.follow(lambda text: handle.update(cell.HTML(text)))

    def follow(self, draw: Callable[[str], None]) -> threading.Thread:
        """Calls with the HTML of each new version, in a thread of its own.

        Args:
            draw: replaces what is shown.

        Returns:
            The thread; it ends with the updates.
        """
        thread = threading.Thread(
            target=self._follow, args=(draw,), name="penstock-live", daemon=True
        )
        thread.start()
        return thread

    def _follow(self, draw: Callable[[str], None]) -> None:
        end = None if self._seconds is None else time.monotonic() + self._seconds
        while not self._stopped.wait(self._every_s):
            if end is not None and time.monotonic() >= end:
                return
            try:
                has_changed = self._views.version != self._version
            except (PenstockError, OSError):
                continue  # the state is away for a moment; what is shown stays
            if has_changed:
                draw(self._repr_html_())

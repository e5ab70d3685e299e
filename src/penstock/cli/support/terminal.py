"""The short display of a running pipeline: its status, and its views' newest rows.

On a terminal it is redrawn a few times a second. Elsewhere there is a line now and then while it works, and
the reason and what to do when its state changes.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from penstock.cli.support.journal import count_text, delay, summary, summary_parts
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.web import ViewSource
    from penstock.web.status import SourceStatus, Status

REFRESH_S: Final = 0.5  # between two drawings
VIEWS_EVERY_S: Final = 2.0  # between two looks at the views: they cost more than the status
LINE_EVERY_S: Final = 5.0  # between two lines, where there is no terminal
SAME_EVERY_S: Final = 60.0  # likewise, while it isn't live and its state stays the same
ROWS_SHOWN: Final = 3  # of each view
CHARS_MAX: Final = 24  # of a cell


class Terminal:
    """Shows a pipeline's state until `close`.

    Args:
        status: the status board's `status`.
        views: committed views.
        url: of the page, where there is one.
        log: gives the log's address, once it can be used.
        doing: gives what has to be done first, or None.
    """

    def __init__(
        self,
        status: Callable[[], Status],
        views: ViewSource,
        url: str | None,
        log: Callable[[], str | None],
        doing: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._status, self._views, self._url, self._log = status, views, url, log
        self._doing = doing
        self._console = Console(stderr=True)
        self._stop = threading.Event()
        self._newest: dict[str, pa.Table] = {}
        self._looked = 0.0
        live = self._console.is_terminal
        self._thread = threading.Thread(
            target=self._live if live else self._lines, name="penstock-terminal", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Ends the display; what it last showed stays."""
        self._stop.set()
        self._thread.join(REFRESH_S * 4)

    def _live(self) -> None:
        with Live(console=self._console, auto_refresh=False, transient=False) as live:
            while True:
                live.update(self._drawing(), refresh=True)
                if self._stop.wait(REFRESH_S):
                    return

    def _lines(self) -> None:
        lines = Lines()
        while not self._stop.wait(LINE_EVERY_S):
            text = self._doing() or lines.next(self._status(), time.monotonic())
            if text is not None:
                self._console.print(text, highlight=False, soft_wrap=True)

    def _drawing(self) -> Group:
        status = self._status()
        parts: list[Any] = []
        title = Text(status["app"], style="bold")
        if address := self._log():
            if self._url:
                title.append(f"   {self._url}", style="cyan")
            title.append(f"   log {address}", style="cyan")
        parts += [title, Text.assemble(*summary_parts(status))]
        if doing := self._doing():
            parts.append(Text(doing, style="yellow"))
        if status["sources"]:
            parts.append(_topics(status["sources"]))
        self._look()
        parts += [_rows(name, table) for name, table in self._newest.items() if table.num_rows]
        parts.append(Text("Ctrl-C stops", style="dim"))
        return Group(*parts)

    def _look(self) -> None:
        now = time.monotonic()
        if now - self._looked < VIEWS_EVERY_S:
            return
        self._looked = now
        from penstock.serve.shown.series import key_columns, measures

        with contextlib.suppress(PenstockError, OSError):  # there are none yet, or a rebuild begins
            for name in self._views.names():
                table = self._views.table(name)
                keys = key_columns(table, self._views.keys(name))
                self._newest[name] = newest_rows(table, measures(table, keys))


class Lines:
    """Which lines are printed of the states that are looked at."""

    def __init__(self) -> None:
        self._name: str | None = None
        self._printed_s = 0.0

    def next(self, status: Status, now_s: float) -> str | None:
        """What is printed of a state; None: nothing, as it was printed a moment ago.

        Args:
            status: of the status board.
            now_s: the time, by a clock that never goes back.
        """
        name = status["state"]["name"]
        is_same = name == self._name and name != "live"
        if is_same and now_s - self._printed_s < SAME_EVERY_S:
            return None
        self._name, self._printed_s = name, now_s
        return summary(status)


def newest_rows(table: pa.Table, numbers: list[str]) -> pa.Table:
    """The rows of the newest window that are largest by the first of the numbers."""
    if "window_start" not in table.column_names or not table.num_rows:
        return table.slice(0, ROWS_SHOWN)
    order = ["window_start", *numbers[:1]]
    newest = table.sort_by([(name, "descending") for name in order]).slice(0, ROWS_SHOWN)
    latest = newest["window_start"][0]
    rows = sum(1 for at in newest["window_start"] if at == latest)
    return newest.slice(0, rows)


def _topics(sources: Mapping[str, SourceStatus]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("topic", "events/s", "lag", "delay", "held by"):
        table.add_column(name, justify="left" if name in ("topic", "held by") else "right")
    for name, source in sources.items():
        behind = delay(source["watermark_delay_ms"])
        rate, held_by = f"{source['rows_per_s']:,.1f}", source.get("held_by") or ""
        table.add_row(name, rate, count_text(source["lag"]), behind, held_by)
    return table


def _rows(name: str, rows: pa.Table) -> Table:
    table = Table(
        box=None, padding=(0, 2, 0, 0), header_style="dim", title=name, title_justify="left"
    )
    columns = [c for c in rows.column_names if c != "window_end"]
    for column in columns:
        table.add_column(column.replace("window_start", "window"), no_wrap=True)
    from penstock.serve.shown.values import plain_values

    values = [plain_values(rows[c]) for c in columns]
    for row in zip(*values, strict=True):
        table.add_row(*(_short(value) for value in row))
    return table


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.1f}"
    text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    return text if len(text) <= CHARS_MAX else text[: CHARS_MAX - 1] + "…"

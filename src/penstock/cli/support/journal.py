"""A pipeline's status as text, and what happens to a running one as lines of a service's log."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from penstock.core.time import duration_text

if TYPE_CHECKING:
    from penstock.web.status import StateStatus, Status

LOOK_S: Final = 1.0  # between two looks at the state
FIGURES_EVERY_S: Final = 60.0  # between two lines of figures
_STYLES: Final = {"good": "green", "wait": "yellow", "bad": "bold red", "off": "bold"}
_LEVELS: Final = {"good": logging.INFO, "wait": logging.INFO, "bad": logging.ERROR}


class Journal:
    """Logs a pipeline's state until `close`.

    Args:
        status: the status board's `status`.
        log: where to.
        every_s: between two lines of figures.
    """

    def __init__(
        self,
        status: Callable[[], Status],
        log: logging.Logger,
        every_s: float = FIGURES_EVERY_S,
    ) -> None:
        self._status, self._log, self._every_s = status, log, every_s
        self._stop = threading.Event()
        self._state: str | None = None
        self._thread = threading.Thread(target=self._run, name="penstock-journal", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends it."""
        self._stop.set()
        self._thread.join(LOOK_S * 4)

    def _run(self) -> None:
        quiet_s = 0.0
        while True:
            status = self._status()
            self._say_state(status["state"])
            if quiet_s >= self._every_s and status["version"] is not None:
                quiet_s = 0.0
                self._log.info(figures(status))
            if self._stop.wait(LOOK_S):
                return
            quiet_s += LOOK_S

    def _say_state(self, state: StateStatus) -> None:
        if state["name"] == self._state:
            return
        self._state = state["name"]
        text = f"{state['name']}: {state['reason']} {state['advice']}".strip(" :")
        self._log.log(_LEVELS.get(state["level"], logging.WARNING), text)


def figures(status: Status) -> str:
    """The figures of a status in a line.

    >>> figures({"version": 7, "rows_per_s": 12.5, "lag": 0, "late_rows": 1, "unusable_rows": 0})
    'version 7, 12.5 events/s, lag 0, late 1, unusable 0'
    """
    rate = 0.0 if status["rows_per_s"] is None else status["rows_per_s"]
    lag = "unknown" if status["lag"] is None else status["lag"]
    return (
        f"version {status['version']}, {rate:.1f} events/s, lag {lag}, late {status['late_rows']}, "
        f"unusable {status['unusable_rows']}"
    )


def summary(status: Status) -> str:
    """How the pipeline is: one line where all is well, and the reason and what to do elsewhere."""
    return "".join(text for text, _ in summary_parts(status))


def summary_parts(status: Status) -> list[tuple[str, str]]:
    """The texts of `summary`, each with rich's style."""
    state = status["state"]
    parts = [(state["name"], _STYLES[state["level"]])]
    if state["since_us"] is not None and state["name"] != "live":
        seconds = max(0, status["now_us"] - state["since_us"]) // 1_000_000
        parts.append((" for " + " ".join(duration_text(seconds * 1_000_000).split()[:4]), ""))
    if status["version"] is not None:
        text = f"   version {status['version']}   {count_text(status['rows_per_s'])} events/s"
        text += f"   lag {count_text(status['lag'])}   batch {delay(status['batch_ms'])}"
        parts.append((f"{text}   watermark delay {delay(status['watermark_delay_ms'])}", ""))
        counts = ((status["late_rows"], "late"), (status["unusable_rows"], "unusable"))
        parts += [(f"   {count:,} {what}", "yellow" if count else "") for count, what in counts]
        if status["lost_rows"]:  # what retention removed unread is rare, and bad
            parts.append((f"   {status['lost_rows']:,} lost", "red"))
    if state["name"] != "live":
        parts.append((f"\n{state['reason']} {state['advice']}".rstrip(), ""))
    return parts


def count_text(count: float | None) -> str:
    """A count; what isn't known is no zero.

    >>> count_text(1234.5), count_text(None)
    ('1,234', '-')
    """
    return "-" if count is None else f"{count:,.0f}"


def delay(ms: float | None) -> str:
    """A delay in its largest unit: seconds while it matters, years for a log of long ago.

    >>> delay(12_345), delay(None)
    ('12.3 s', '-')
    """
    if ms is None:
        return "-"
    if ms < 1_000:
        return f"{ms:.0f} ms"
    if ms < 60_000:
        return f"{ms / 1000:.1f} s"
    return " ".join(duration_text(int(ms) * 1000).split()[:2])

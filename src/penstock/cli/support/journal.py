"""What happens to a running pipeline, as lines of a service's log: its states, and figures now and then."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, Final

LOOK_S: Final = 1.0  # between two looks at the state
FIGURES_EVERY_S: Final = 60.0  # between two lines of figures
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
        status: Callable[[], dict[str, Any]],
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

    def _say_state(self, state: dict[str, Any]) -> None:
        if state["name"] == self._state:
            return
        self._state = state["name"]
        text = f"{state['name']}: {state['reason']} {state['advice']}".strip(" :")
        self._log.log(_LEVELS.get(state["level"], logging.WARNING), text)


def figures(status: dict[str, Any]) -> str:
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

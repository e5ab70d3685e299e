"""The broker's log: a line of text, or a JSON object, per event.

No secrets are logged on purpose; what looks like one in a message is redacted all the same.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from collections.abc import Callable
from typing import Final

__all__ = ["FORMATS", "Seldom", "configure_logs"]

FORMATS: Final = ("text", "json")
SELDOM_S: Final = 5.0
"""Between two lines of one kind of failure."""
_SECRET = re.compile(
    r"(?i)\b(password|passwd|secret|token|sasl[._]jaas[._]config)(\W{1,3})([^\s,;}]+)"
)


def _clean(text: str) -> str:
    return _SECRET.sub(r"\1\2***", text)


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return _clean(super().format(record))


class _Json(logging.Formatter):
    """One JSON object a line: time (UTC), level, logger, message, and the error where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        fields: dict[str, object] = {
            "time": f"{at}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _clean(record.getMessage()),
        }
        if record.exc_info:
            fields["error"] = _clean(self.formatException(record.exc_info))
        return json.dumps(fields, default=str)


class Seldom:
    """Says the same thing at most once in `SELDOM_S`: a client that retries must not fill the log."""

    def __init__(self, log: logging.Logger, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock_s = clock_s
        self._said: dict[str, tuple[float, int]] = {}

    def say(self, what: str, error: object) -> None:
        """Logs an error under a name for its kind, with how often it was passed over."""
        now = self._clock_s()
        at, passed_over = self._said.get(what, (-SELDOM_S, 0))
        if now - at < SELDOM_S:
            self._said[what] = at, passed_over + 1
            return
        self._said[what] = now, 0
        more = f" (and {passed_over} more of the kind)" if passed_over else ""
        self._log.error("%s: %s%s", what, error, more)


def configure_logs(level: str, form: str) -> None:
    """Sends what is logged to standard error.

    Args:
        level: `debug`, `info`, `warning` or `error`.
        form: `text` or `json`.
    """
    handler = logging.StreamHandler(sys.stderr)
    plain = _Text("%(asctime)s %(levelname)s %(name)s %(message)s")
    handler.setFormatter(_Json() if form == "json" else plain)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())

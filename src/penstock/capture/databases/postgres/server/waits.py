"""Statements that may wait for other sessions: what they wait for is said, and they end with the capture.

The server waits for open transactions when a slot is created, and for locks, for as long as it takes.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Generator
from typing import Any, Final

__all__ = ["Waits"]

SAY_S: Final = 5.0
"""After how long it is said what is waited for."""
LOOK_S: Final = 0.1
"""How often is looked whether the capture is to end."""
CANCEL_S: Final = 2.0
"""How long the server may take to hear that a statement is cancelled."""
_log = logging.getLogger(__name__)
# Of a prepared transaction the number of the process is 0.
_BLOCKING: Final = """
SELECT 'the process ' || pid || ' (' || coalesce(nullif(application_name, ''), usename, 'unknown')
    || coalesce(', in a transaction since ' || date_trunc('second', xact_start)::text, '') || ')'
FROM pg_stat_activity WHERE pid = ANY (pg_blocking_pids(%(pid)s))
UNION ALL
SELECT 'the prepared transaction ' || quote_literal(gid) || ' of the database ' || database
    || ', which COMMIT PREPARED or ROLLBACK PREPARED ends'
FROM pg_prepared_xacts WHERE 0 = ANY (pg_blocking_pids(%(pid)s))"""


class Waits:
    """Watches statements.

    Args:
        connect: makes a connection to the server.
        capture: the capture's name, for messages.
        end: waits, in seconds; whether the capture is to end.
    """

    def __init__(
        self, connect: Callable[[], Any], capture: str, end: Callable[[float], bool]
    ) -> None:
        self._connect, self._capture, self._end = connect, capture, end

    @contextlib.contextmanager
    def watch(self, connection: Any, what: str) -> Generator[None, None, None]:
        """Watches what a connection does meanwhile; a context manager.

        Args:
            connection: which.
            what: it does, for messages: `to create the slot`.
        """
        over = threading.Event()
        thread = threading.Thread(target=self._look, args=(connection, what, over), daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _look(self, connection: Any, what: str, over: threading.Event) -> None:
        import psycopg

        pid, say_at = connection.info.backend_pid, time.monotonic() + SAY_S
        while not over.wait(LOOK_S):
            with contextlib.suppress(psycopg.Error, OSError):
                if self._end(0.0):
                    connection.cancel_safe(timeout=CANCEL_S)
                elif time.monotonic() > say_at:
                    was_said = self._say(pid, what)
                    say_at = float("inf") if was_said else time.monotonic() + SAY_S

    def _say(self, pid: int, what: str) -> bool:
        """Says what is waited for; whether there is anything."""
        with self._connect() as one:
            found = [text for (text,) in one.execute(_BLOCKING, {"pid": pid}).fetchall()]
        if found:
            _log.warning(
                "%s: expected %s at once; found that the server waits for %s. It continues once they end",
                *(self._capture, what, "; for ".join(found)),
            )
        return bool(found)

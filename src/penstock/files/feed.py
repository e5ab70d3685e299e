"""Threads that send events to a log while a pipeline runs."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import Final

from penstock.errors import BrokerError, ProtocolError

__all__ = ["PATIENCE_S", "Feed"]

RETRY_S: Final = 0.5  # before the next try to reach the broker
PATIENCE_S: Final = 3.0  # with one address; a restarted broker may have another


class Feed(ABC):
    """A thread that feeds a log until it has no more or is stopped.

    It outlives a broker that is restarted: it finds its address again and continues.
    """

    def __init__(self) -> None:
        self.stopping = threading.Event()
        self.finished = threading.Event()
        self.error: Exception | None = None
        self.sent = 0
        self._thread = threading.Thread(target=self._main, name="penstock-feed", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self, wait_s: float = 5.0) -> None:
        """Asks the thread to end and waits for it."""
        self.stopping.set()
        if self._thread.is_alive():
            self._thread.join(wait_s)

    def _main(self) -> None:
        try:
            while not self.stopping.is_set() and not self.finished.is_set():
                with suppress(BrokerError, ProtocolError, OSError):
                    self._run()
                if not self.finished.is_set():
                    self.stopping.wait(RETRY_S)
        except Exception as error:  # noqa: BLE001 - the pipeline's host reports it
            self.error = error
        finally:
            self.finished.set()

    @abstractmethod
    def _run(self) -> None:
        """Feeds until there is no more (and sets `finished`), a stop, or the log's end."""

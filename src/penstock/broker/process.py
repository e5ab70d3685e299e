"""The broker as a child process: for pipelines that bring their own log, and for tests."""

from __future__ import annotations

import ctypes
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

from penstock.errors import SetupError

__all__ = ["BrokerProcess", "die_with_parent"]

START_S_MAX: Final = 120.0
"""How long a broker may take until it listens: recovery after a crash included, on a busy machine. One
that ends is noticed at once.
"""
STOP_S_MAX: Final = 10.0
"""How long a broker may take to stop; then it is killed, which loses nothing acknowledged."""
_PR_SET_PDEATHSIG: Final = 1


def die_with_parent(parent: int) -> None:
    """Makes the kernel end this process when its parent ends, however that comes (Linux only)."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:  # it has ended already
        os.kill(os.getpid(), signal.SIGTERM)


class BrokerProcess:
    """A broker in a child process.

    Args:
        data: the data directory.
        listen: `[PROTOCOL://]HOST:PORT[,…]`; port 0 picks a free one.
        die_with_parent: end the broker when this process ends, even by SIGKILL (Linux only). The
            kernel takes the thread that starts the broker for the parent, so start it from one that
            lives as long as the process.
        arguments: more arguments for `python -m penstock.broker`.
        stderr: where the broker's messages go; None: to this process's standard error.

    Example:
        >>> with BrokerProcess(data) as broker:    # doctest: +SKIP
        ...     broker.address
        '127.0.0.1:40123'
    """

    def __init__(
        self,
        data: Path | str,
        *,
        listen: str = "127.0.0.1:0",
        die_with_parent: bool = True,
        arguments: Sequence[str] = (),
        stderr: int | None = None,
    ) -> None:
        self.data = Path(data)
        self._listen = listen
        self._arguments = [
            *arguments,
            *(["--die-with-parent", str(os.getpid())] if die_with_parent else []),
        ]
        self._stderr = stderr
        self._child: subprocess.Popen[str] | None = None
        self._bound = ""
        self.address = ""
        self.addresses: list[str] = []

    @property
    def pid(self) -> int:
        """The child's process id."""
        assert self._child is not None
        return self._child.pid

    def is_running(self) -> bool:
        """Whether the child lives."""
        return self._child is not None and self._child.poll() is None

    def start(self) -> Self:
        """Starts the broker and waits until it listens. After a restart the address is the same.

        Raises:
            SetupError: it ended, or took longer than `START_S_MAX`.
        """
        assert not self.is_running()
        if self._child is not None:
            self._reap(self._child)
        command = [sys.executable, "-m", "penstock.broker", "--data", str(self.data)]
        command += ["--listen", self._bound or self._listen, *self._arguments]
        self._child = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            command,
            stdout=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            stderr=self._stderr,
            text=True,
            start_new_session=True,  # Ctrl-C is for the owner, which then stops the broker
        )
        lines = self._lines(self._child, self._listen.count(",") + 1)
        line = lines[-1]
        if not line.startswith("listening on "):
            self.kill()
            raise SetupError(
                f"expected the broker to listen within {START_S_MAX:.0f} s; found {line!r}; "
                "what it wrote to standard error says why"
            )
        bound = [line.removeprefix("listening on ").strip() for line in lines]
        self._bound = ",".join(
            f"{asked.rpartition('://')[0] or 'PLAINTEXT'}://{one.rpartition('://')[2]}"
            for asked, one in zip(self._listen.split(","), bound, strict=True)
        )
        self.addresses = [one.rpartition("://")[2] for one in bound]
        self.address = self.addresses[0]
        return self

    @staticmethod
    def _lines(child: subprocess.Popen[str], count: int) -> list[str]:
        """The first lines that it writes; fewer, and an empty one, where it ends or hangs."""
        assert child.stdout is not None
        deadline = time.monotonic() + START_S_MAX
        with selectors.DefaultSelector() as selector:
            selector.register(child.stdout, selectors.EVENT_READ)
            if not selector.select(max(deadline - time.monotonic(), 0)):
                return [""]
        lines = [child.stdout.readline()]  # all are written at once
        while lines[-1].startswith("listening on ") and len(lines) < count:
            lines.append(child.stdout.readline())
        return lines

    def stop(self) -> None:
        """Ends the broker in order; kills it if that takes longer than `STOP_S_MAX`."""
        child = self._child
        if child is None:
            return
        if child.poll() is None:
            child.send_signal(signal.SIGTERM)
            try:
                child.wait(STOP_S_MAX)
            except subprocess.TimeoutExpired:
                child.kill()
        self._reap(child)

    def kill(self) -> None:
        """Ends the broker at once, as a crash would."""
        if self._child is not None:
            self._child.kill()
            self._reap(self._child)

    def _reap(self, child: subprocess.Popen[str]) -> None:
        child.wait()
        if child.stdout is not None:
            child.stdout.close()
        self._child = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

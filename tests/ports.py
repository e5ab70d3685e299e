"""Ports for servers that are told one, and may be started again at it.

A port that the system gives for 0 is free only until somebody else asks: for a server of another test, or by
connecting somewhere. Between two starts of a server, or before its first one, that takes it away now and
then. The ports from here are below those that the system gives, where it leaves room there, and a process of
tests keeps them to itself.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import sys
from pathlib import Path
from typing import Final

__all__ = ["free_port"]

FIRST: Final = 10_000
SYSTEMS: Final = 32_768
"""From here on the system gives ports, unless it says otherwise."""
LEAST: Final = 8_192
"""How many ports there must be below the system's, for processes not to meet."""
STRETCH: Final = 256
"""Of ports, between those that processes of neighbouring ids begin with."""

_asked = itertools.count()


def _end() -> int:
    """The first port that the system gives."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        text = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text()
        return max(int(text.split()[0]), FIRST + LEAST)
    return SYSTEMS


def _claim(port: int) -> None:
    """Takes a port for as long as this process lives, among tests' processes; OSError: one has it."""
    if sys.platform == "linux":
        one = socket.socket(socket.AF_UNIX)
        try:
            one.bind(f"\0penstock-tests-{port}")
        except OSError:
            one.close()
            raise
        one.detach()  # it stays open


def free_port() -> int:
    """A port of the loopback interface that nothing listens on, and that nobody gets by chance."""
    count = _end() - FIRST
    for _ in range(count):
        port = FIRST + (os.getpid() * STRETCH + next(_asked)) % count
        with contextlib.suppress(OSError), socket.socket() as one:
            one.bind(("127.0.0.1", port))
            _claim(port)
            return port
    raise AssertionError(f"expected a free port from {FIRST} on; found none of {count}")

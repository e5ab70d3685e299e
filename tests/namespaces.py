"""Network namespaces: another machine, as far as the network goes. They need Linux, `ip` and root."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

__all__ = ["Machine", "other_machine"]
_numbers = itertools.count()


@dataclass(frozen=True)
class Machine:
    """A namespace, and this one's end of the cable to it.

    Attributes:
        here: this machine's address on the cable.
        there: the other's.
        within: runs a command there: what the command follows.
    """

    here: str
    there: str
    within: tuple[str, ...]


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


@contextlib.contextmanager
def other_machine() -> Iterator[Machine]:
    """A namespace that reaches this one, and nothing else. Skips the test where there can be none."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and the command ip")
    # The system takes a namespace away some time after it was deleted, so the next one has other names.
    number = f"{os.getpid()}-{next(_numbers)}"
    name, near, far = f"penstock-{number}", f"a{number}", f"b{number}"
    # Of the range for tests of networks (RFC 2544): four addresses for each.
    block = 4 * (hash(number) % (1 << 14))
    here, there = (f"198.18.{(block + n) >> 8}.{(block + n) & 255}" for n in (1, 2))
    try:
        _ip("netns", "add", name)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespace can be made: {error.stderr.strip()}")
    try:
        _ip("link", "add", near, "type", "veth", "peer", "name", far, "netns", name)
        _ip("addr", "add", f"{here}/30", "dev", near)
        _ip("link", "set", near, "up")
        for words in (("addr", "add", f"{there}/30", "dev", far), ("link", "set", far, "up")):
            _ip("-n", name, *words)
        _ip("-n", name, "link", "set", "lo", "up")
        yield Machine(here, there, ("ip", "netns", "exec", name))
    finally:
        with contextlib.suppress(subprocess.CalledProcessError):  # it was never made
            _ip("link", "del", near)
        _ip("netns", "del", name)

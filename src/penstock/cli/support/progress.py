"""Long work: its progress on standard error, and its end by Ctrl-C.

A person sees a bar or a counter; a file gets a line now and then.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

import click

from penstock.errors import SetupError

ONCE_S_MAX: Final = 30.0
"""How long a run with --once waits for a system that is away: longer than most take to start again."""
QUIET_S: Final = 1.0  # shorter work shows nothing
EVERY_S: Final = 0.2  # between two looks, on a terminal
LINE_EVERY_S: Final = 5.0  # between two lines, where there is no terminal


def show(text: str, *, nl: bool = True) -> None:
    """Writes on standard error. A pipe that nobody reads any more, or a full disk, doesn't end the work."""
    with contextlib.suppress(OSError):
        click.echo(text, nl=nl, err=True)


@contextlib.contextmanager
def counter(verb: str) -> Iterator[Callable[[int], None]]:
    """Shows how many records were `verb`, and how fast; call what it gives with the count."""
    terminal = sys.stderr.isatty()
    begun: float | None = None
    shown: float | None = None
    wrote = False

    def tick(count: int) -> None:
        nonlocal begun, shown, wrote
        now = time.monotonic()
        if begun is None or shown is None:  # connecting before the first one doesn't count
            begun = shown = now
        if now - begun < QUIET_S or now - shown < (EVERY_S if terminal else LINE_EVERY_S):
            return
        shown = now
        noun = "record" if count == 1 else "records"
        text = f"{verb} {count:,} {noun}, {count / (now - begun):,.0f}/s"
        show(f"\r{text}\x1b[K" if terminal else text, nl=not terminal)
        wrote = terminal

    try:
        yield tick
    finally:
        if wrote:
            show("\r\x1b[K", nl=False)


@contextlib.contextmanager
def steps(what: str, total: int, *, shown: bool = True) -> Iterator[Callable[[], None]]:
    """Shows how many of a known number of steps are done; call what it gives after each, from any thread.

    Args:
        what: is done, as the beginning of a sentence.
        total: steps.
        shown: false to show nothing.
    """
    terminal = sys.stderr.isatty()
    lock = threading.Lock()
    done = 0
    wrote_at = time.monotonic()

    def write() -> None:
        text = f"{what}: {done:,} of {total:,}"
        show(f"\r{text}\x1b[K" if terminal else text, nl=not terminal)

    def step() -> None:
        nonlocal done, wrote_at
        with lock:
            done += 1
            now = time.monotonic()
            if shown and (terminal or now - wrote_at >= LINE_EVERY_S):
                wrote_at = now
                write()

    if shown and terminal:
        write()
    try:
        yield step
    finally:
        if shown and terminal:
            show("\r\x1b[K", nl=False)


class Patience:
    """Ends a run with `--once` if the other side stays away: the one who waits for the run learns of it."""

    def __init__(self) -> None:
        self._since_s: float | None = None
        self._count = 0
        self.trouble = ""

    def is_over(self, phase: str, trouble: str, count: int) -> bool:
        """Whether the run has waited for too long.

        Args:
            phase: that the run is in: `waiting` where something is away.
            trouble: what it waits for.
            count: of what it has done: it has waited since this grew last.
        """
        if count != self._count:
            self._count, self._since_s = count, None
        if phase == "waiting":
            now_s = time.monotonic()
            self._since_s = now_s if self._since_s is None else self._since_s
            if now_s - self._since_s >= ONCE_S_MAX:
                self.trouble = trouble
        return bool(self.trouble)

    def check(self, what: str) -> None:
        """Says that the run ended too early, and why.

        Args:
            what: it was to do.

        Raises:
            SetupError: it has waited for too long.
        """
        if self.trouble:
            raise SetupError(
                f"expected to {what}; found for {ONCE_S_MAX:.0f} s: {self.trouble}. Run it again: it "
                "continues where it stopped. Without --once it waits for as long as it takes"
            )


@contextlib.contextmanager
def ended_by_signals(end: Callable[[], object]) -> Iterator[None]:
    """Has Ctrl-C and SIGTERM call `end`, which lets the work in flight complete; a second one interrupts.

    An exception that a signal raises is lost where Python calls back while it imports a module. The first
    signal raises none, so that it ends the work wherever it comes.
    """
    count = 0

    def handle(*_: object) -> None:
        nonlocal count
        count += 1
        if count > 1:
            raise KeyboardInterrupt
        end()

    before = {n: signal.signal(n, handle) for n in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

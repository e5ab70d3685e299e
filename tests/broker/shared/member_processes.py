"""Members of groups that are processes of their own, so that they can be killed."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.patience import PATIENCE_S, wait_until

MEMBER: Final = Path(__file__).parents[1] / "groups/group_member.py"


class Member:
    """A member's process, and what it has said."""

    def __init__(
        self,
        variant: tuple[str, str],
        address: str,
        group: str,
        topic: str,
        session_ms: int = 6_000,
        instance: str | None = None,
    ) -> None:
        library, strategy = variant
        arguments = [library, address, group, topic, strategy, *([instance] if instance else [])]
        self.process = subprocess.Popen(
            [sys.executable, str(MEMBER), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | {"SESSION_MS": str(session_ms)},
        )
        self.read: list[int] = []
        self.owned: set[int] = set()
        self.events: list[str] = []
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"Member(pid={self.process.pid}, owned={self.owned}, events={self.events})"

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            word, *numbers = line.split() or [""]
            if word.isdigit():
                self.read.append(int(word))
                continue
            self.events.append(line.strip())
            if word == "+":
                self.owned |= {int(one) for one in numbers}
            elif word in {"-", "lost"}:
                self.owned -= {int(one) for one in numbers}

    def end(self, *, kill: bool = False) -> None:
        """Leaves, or dies."""
        (self.process.kill if kill else self.process.terminate)()
        self.process.wait(PATIENCE_S)
        self._thread.join(5)
        if self.process.stdout is not None:
            self.process.stdout.close()


def until(what: str, is_true: Callable[[], bool], show: Callable[[], object]) -> None:
    """Waits until something holds."""
    wait_until(is_true, lambda: f"{what}, found {show()}")


def shared(members: list[Member], partitions: int) -> bool:
    """Whether the members have all partitions, each one some and none twice."""
    owned = [part for one in members for part in one.owned]
    return sorted(owned) == list(range(partitions)) and all(one.owned for one in members)

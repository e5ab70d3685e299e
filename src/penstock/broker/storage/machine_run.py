"""Whether the machine has run on since a data directory was last recovered.

    DATA/machine-run        which run of the machine a broker last had recovered the directory in

As long as that run continues, the system has kept all that was written, synced or not, whatever became of
the process. After another one what was not synced may be lost, in any order. The file is written once
all is recovered, so that a start that is cut short doesn't hide from the next one what it has to expect.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final

__all__ = ["FILE", "lost_power", "note_run"]

FILE: Final = "machine-run"
_RUN_ID: Final = Path("/proc/sys/kernel/random/boot_id")
"""Another one each time that the machine starts (Linux)."""


def _present() -> bytes:
    """An id of this run of the machine (boot); empty where there is none."""
    try:
        return _RUN_ID.read_bytes().strip()
    except OSError:
        return b""


def lost_power(data: Path) -> bool:
    """Whether the machine may have gone down since a broker last had recovered the directory."""
    present = _present()
    try:
        noted = (data / FILE).read_bytes().strip()
    except OSError:
        return True
    return not present or noted != present


def note_run(data: Path) -> None:
    """All that was found is recovered."""
    with contextlib.suppress(OSError):  # a full disk: the next start doubts more than it need
        (data / FILE).write_bytes(_present() + b"\n")

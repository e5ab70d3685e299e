"""Writes the fixture of a release: what its users have on the disk, for the releases after it to read.

    .venv/bin/python -m tests.compat.make 0.1.0            # all cases
    .venv/bin/python -m tests.compat.make 0.1.0 windows    # some, to look at

It is run once, when the release is made, with that release's code; see `CONTRIBUTING.md`.
"""

from __future__ import annotations

import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import orjson
from tests.compat.all_cases import CASES
from tests.compat.cases import FACTS, FILES, FIXTURES, Case, pack

import penstock
from penstock.engine import driver
from penstock.engine.upgrade import upgrade

OWNER: Final = "process 1 on localhost"
"""In records of owners: the same on every machine."""


def main(arguments: list[str]) -> None:
    """Writes the cases that are named; all, if none is."""
    if not arguments or arguments[0] != penstock.__version__:
        raise SystemExit(
            f"expected the release that this tree is, {penstock.__version__}; found {arguments}. "
            "A fixture is made with its release's own code"
        )
    release, *names = arguments
    unknown = set(names) - CASES.keys()
    if unknown:
        raise SystemExit(f"expected some of {sorted(CASES)}; found {sorted(unknown)}")
    socket.gethostname = lambda: "localhost"
    driver.this_process = upgrade.this_process = lambda: OWNER
    for case in [CASES[name] for name in names or CASES]:
        started = time.process_time()
        size = make(case, FIXTURES / release / f"{case.name}.tar.xz")
        print(f"{case.name:20} {size:10,} bytes  {time.process_time() - started:6.1f} s")


def make(case: Case, archive: Path) -> int:
    """Writes a case; returns the size of its archive."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / FILES).mkdir()
        facts = case.write(folder)
        text = orjson.dumps(facts, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS)
        (folder / FACTS).write_bytes(text + b"\n")
        pack(folder, archive)
    return archive.stat().st_size


if __name__ == "__main__":
    main(sys.argv[1:])

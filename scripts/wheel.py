"""Builds the wheel for this platform and this Python, with its kernels compiled.

    .venv/bin/python scripts/wheel.py dist

It fits the platforms that the installed llvmlite fits: kernels need it, and nothing else of the platform.
`pip wheel --no-deps .` builds the wheel for all platforms, whose kernels are compiled at the first start.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from importlib.metadata import distribution
from pathlib import Path

from penstock.cli.pipelines.compiling import ship

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    """Builds it."""
    target = sys.argv[1] if len(sys.argv) > 1 else "dist"
    with tempfile.TemporaryDirectory() as folder:
        kernels = Path(folder) / "compiled"
        ship(kernels)
        about = {"PENSTOCK_KERNELS": str(kernels), "PENSTOCK_WHEEL_TAG": tag()}
        command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", target, str(ROOT)]
        done = subprocess.run(command, env=os.environ | about, check=False)  # noqa: S603 - pip
        sys.exit(done.returncode)


def tag() -> str:
    """This Python, on the platforms that llvmlite's wheel is for."""
    text = distribution("llvmlite").read_text("WHEEL") or ""
    tags = [line.removeprefix("Tag: ") for line in text.splitlines() if line.startswith("Tag: ")]
    python, abi, _ = tags[0].split("-", 2)
    return f"{python}-{abi}-{'.'.join(one.split('-', 2)[2] for one in tags)}"


if __name__ == "__main__":
    main()

"""Builds the site of docs/: every warning, a dead link among them, is an error.

.venv/bin/pip install -e '.[docs]'         # once
.venv/bin/python scripts/site.py           # writes docs/_build/html
.venv/bin/python scripts/site.py FOLDER    # writes FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main() -> int:
    """Builds; the exit code is Sphinx's."""
    try:
        from sphinx.cmd.build import build_main
    except ImportError:
        sys.exit("expected Sphinx; found none. Install it: .venv/bin/pip install -e '.[docs]'")
    target = sys.argv[1] if len(sys.argv) > 1 else str(ROOT / "docs" / "_build" / "html")
    code = build_main(["-q", "-W", "--keep-going", "-E", "-b", "html", str(ROOT / "docs"), target])
    if code == 0:
        print(target)
    return code


if __name__ == "__main__":
    sys.exit(main())

"""Writes what is made from the program: parts of docs/, of docstrings, `--help` and declarations of kinds,
the stubs of packages whose names are declared by modules of theirs, and public names that have come.

.venv/bin/python scripts/reference.py             # writes them into the pages
.venv/bin/python scripts/reference.py --check     # says which pages are out of date
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
SINKS = ROOT / "src/penstock/sinks/__init__.pyi"
WHOLE = ROOT / "src/penstock/__init__.pyi"
sys.path[:0] = [str(DOCS / "_site"), str(ROOT)]


def outdated() -> dict[Path, str]:
    """The pages and stubs whose generated parts aren't what the program gives, and what they should be."""
    from generated import written
    from tests.test_public_names import LIST

    found = {page: page.read_text() for page in sorted(DOCS.rglob("*.md"))}
    made = {page: written(text) for page, text in found.items()}
    found[SINKS], made[SINKS] = SINKS.read_text() if SINKS.exists() else "", sinks_stub()
    found[WHOLE], made[WHOLE] = WHOLE.read_text() if WHOLE.exists() else "", whole_stub()
    found[LIST], made[LIST] = LIST.read_text(), names_listed(LIST.read_text())
    return {page: text for page, text in made.items() if text != found[page]}


def sinks_stub() -> str:
    """What type checkers are told of `penstock.sinks`: its own names, and the functions of targets."""
    from penstock.sinks import NAMES, TARGETS

    homes = [
        (f"penstock.sinks.{module}", name) for module, names in NAMES.items() for name in names
    ]
    homes += [(kind.make.__module__, kind.name) for kind in TARGETS.own()]
    return _stub(homes)


def whole_stub() -> str:
    """What type checkers are told of `penstock`."""
    import penstock

    homes = [(home, name) for name, home in penstock._HOMES.items()]  # noqa: SLF001 - our own
    return _stub(homes) + "\n__version__: str\n"


def _stub(homes: list[tuple[str, str]]) -> str:
    lines = [f"from {module} import {name} as {name}" for module, name in sorted(homes)]
    return "\n".join(["# Written by scripts/reference.py.", *lines, ""])


def names_listed(listed: str) -> str:
    """The list of public names with those that have come; a name that is gone stays, and fails its test."""
    from tests.test_public_names import public_names

    return "\n".join([*sorted({*listed.split(), *public_names()}), ""])


def main() -> int:
    """Writes or checks; the exit code is 1 where a page to check is out of date."""
    pages = outdated()
    for page, text in pages.items():
        print(page.relative_to(ROOT))
        if "--check" not in sys.argv[1:]:
            page.write_text(text)
    return 1 if pages and "--check" in sys.argv[1:] else 0


if __name__ == "__main__":
    sys.exit(main())

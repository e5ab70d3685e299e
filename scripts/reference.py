"""Writes the parts of docs/ that are made from the program: of docstrings, `--help` and settings.

.venv/bin/python scripts/reference.py             # writes them into the pages
.venv/bin/python scripts/reference.py --check     # says which pages are out of date
"""

from __future__ import annotations

import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1] / "docs"
sys.path.insert(0, str(DOCS / "_site"))


def outdated() -> dict[Path, str]:
    """The pages whose generated parts aren't what the program gives, and what they should be."""
    from generated import written

    found = {page: page.read_text() for page in sorted(DOCS.rglob("*.md"))}
    made = {page: written(text) for page, text in found.items()}
    return {page: text for page, text in made.items() if text != found[page]}


def main() -> int:
    """Writes or checks; the exit code is 1 where a page to check is out of date."""
    pages = outdated()
    for page, text in pages.items():
        print(page.relative_to(DOCS.parent))
        if "--check" not in sys.argv[1:]:
            page.write_text(text)
    return 1 if pages and "--check" in sys.argv[1:] else 0


if __name__ == "__main__":
    sys.exit(main())

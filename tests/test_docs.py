"""What the README shows works."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()


def test_the_readme_programs_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The README's pipeline is one, and its test passes."""
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    pipeline, test = blocks
    shop = types.ModuleType("shop")
    exec(compile(pipeline, "README pipeline", "exec"), shop.__dict__)
    monkeypatch.setitem(sys.modules, "shop", shop)
    space: dict[str, object] = {}
    exec(compile(test, "README test", "exec"), space)
    space["test_clicks_per_minute"]()  # type: ignore[operator]


@pytest.mark.parametrize("page", sorted(ROOT.glob("*.md")) + sorted(ROOT.glob("docs/**/*.md")))
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link in the documents points to a file."""
    for target in re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target

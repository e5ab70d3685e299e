"""What the README shows works."""

from __future__ import annotations

import re
import shlex
import sys
import types
from pathlib import Path

import click
import pytest

from penstock.cli import main

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


COMMANDS = re.findall(r"^ {4}(?:.*\\| )?penstock (\S.*)$", README, re.MULTILINE)


@pytest.mark.parametrize("line", COMMANDS)
def test_the_readme_commands_are_commands(line: str) -> None:
    """Each is one that there is, with the options and arguments that it takes; none is run here."""
    words = shlex.split(re.split(r"\s{3,}|\s+#", line)[0])
    command: click.Command = main
    while isinstance(command, click.Group):
        context = click.Context(command)
        found = command.get_command(context, words[0])
        assert found is not None, words
        command, words = found, words[1:]
    command.make_context(line, words)


def test_the_readme_replays_into_a_topic_that_it_makes() -> None:
    """The example is for a topic that isn't there yet."""
    [replay] = [line for line in COMMANDS if line.startswith("replay")]
    assert "--create" in replay


@pytest.mark.parametrize("page", sorted(ROOT.glob("*.md")) + sorted(ROOT.glob("docs/**/*.md")))
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link in the documents points to a file."""
    for target in re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target


GUIDE = (ROOT / "docs" / "pipelines.md").read_text()
EXAMPLES = [
    pytest.param(code, id=re.findall(r"^#+ (.*)$", GUIDE[: GUIDE.index(code)], re.MULTILINE)[-1])
    for code in re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
]


@pytest.mark.parametrize("code", EXAMPLES)
def test_the_guides_examples_run(
    code: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each is a program of its own, and what it asserts holds."""
    monkeypatch.chdir(tmp_path)
    assert "assert " in code
    exec(compile(code, "docs/pipelines.md", "exec"), {"__name__": "example"})

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from penstock.cli.access.acl import acl
from penstock.errors import UserError


def run(*arguments: str) -> str:
    """Runs `penstock acl` and gives back what it prints."""
    result = CliRunner().invoke(acl, arguments)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def test_rules_come_and_go(tmp_path: Path) -> None:
    """Rules are added, listed and removed; the first one says what it means."""
    data = ("--data", str(tmp_path))
    first = run("add", "User:ann", "--topic", "t", "--operation", "read", *data)
    assert "what no rule allows is refused" in first
    more = ("--operation", "all", "--prefix", "--host", "10.0.0.1", "--deny")
    assert "refused" not in run("add", "User:bob", "--group", "g-", *more, *data)
    assert run("list", *data).splitlines() == [
        "User:ann\t*\tallow read\ttopic t",
        "User:bob\t10.0.0.1\tdeny all\tgroup g-…",
    ]
    assert run("list", "User:bob", *data).count("\n") == 1
    assert run("list", "--topic", "t", *data).count("\n") == 1
    assert "removed 1 rule" in run("remove", "User:ann", *data)
    assert "removed 0 rules" in run("remove", "User:ann", *data)
    assert "removed 1 rule" in run("remove", "--all", *data)


@pytest.mark.parametrize(
    "arguments",
    [
        ("add", "User:a", "--topic", "t"),
        ("add", "User:a", "--operation", "read"),
        ("add", "a", "--topic", "t", "--operation", "read"),
        ("add", "User:a", "--topic", "t", "--operation", "fly"),
        ("add", "User:a", "--topic", "t", "--group", "g", "--operation", "read"),
        ("remove",),
    ],
)
def test_mistakes_are_reported(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """What makes no sense is refused with what was expected."""
    with pytest.raises(UserError, match="expected"):
        run(*arguments, "--data", str(tmp_path))

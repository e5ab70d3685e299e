from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from penstock.broker.security.users import Users
from penstock.cli.access.users import users
from penstock.errors import UserError


def run(*arguments: str, given: str = "", environment: str | None = None) -> str:
    """Runs `penstock users` and gives back what it prints."""
    result = CliRunner().invoke(
        users, arguments, input=given, env={"PENSTOCK_PASSWORD": environment}
    )
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def test_users_come_and_go(tmp_path: Path) -> None:
    """A user is added with a password from standard input or the environment, listed, removed."""
    data = ("--data", str(tmp_path))
    assert "added ann" in run("add", "ann", *data, given="first\n")
    assert Users(tmp_path).fits("ann", "first")
    assert "changed" in run("add", "ann", *data, environment="second")
    assert Users(tmp_path).fits("ann", "second")
    assert not Users(tmp_path).fits("ann", "first")
    assert run("list", *data) == "ann\tSCRAM-SHA-256, SCRAM-SHA-512\n"
    assert "removed" in run("remove", "ann", *data)
    assert run("list", *data) == ""
    for wrong in (("remove", "ann"), ("add", "")):
        with pytest.raises(UserError):
            run(*wrong, *data)
    with pytest.raises(UserError, match="PENSTOCK_PASSWORD"):
        run("add", "ann", *data)

"""Names that are wrong, and where the broker is named: any command answers alike."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.client import Client


@pytest.fixture
def clicks(broker: str) -> str:
    """A topic."""
    with Client(broker) as client:
        client.create_topic("named-clicks", exists_ok=True)
    return "named-clicks"


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["topics", "describe", "named-click"], "did you mean 'named-clicks'?"),
        (["consume", "named-click"], "did you mean 'named-clicks'?"),
        (["groups", "describe", "nope"], "expected a group "),
        (["quety", "shop"], "did you mean 'query'?"),
        (["topics", "crete", "x"], "did you mean 'create'?"),
        (["run", "shp.py"], "did you mean 'shop.py'?"),
        (["query", "shp"], "did you mean 'shop'?"),
        (["topics", "--broker", "shp"], "did you mean 'shop'?"),
    ],
)
def test_a_wrong_name_says_what_was_meant(
    penstock: Any, clicks: str, broker: str, tmp_path: Path, words: list[str], meant: str
) -> None:
    """Topics, groups, commands, programs and pipelines."""
    (tmp_path / "shop.py").write_text("")
    (tmp_path / "shop.penstock" / "state").mkdir(parents=True)
    done = penstock("--broker", broker, *words)
    assert done.code != 0
    assert meant in done.err


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize(
    "line",
    [
        "--broker ADDRESS topics describe named-clicks",
        "topics --broker ADDRESS describe named-clicks",
        "topics describe named-clicks --broker ADDRESS",
        "consume named-clicks --broker ADDRESS",
        "--broker ADDRESS consume named-clicks --from '2 hours ago'",
        "groups list --broker ADDRESS",
        "quotas list --broker ADDRESS",
        "queue list --broker ADDRESS",
        "dlq list --broker ADDRESS",
    ],
)
def test_the_broker_is_named_anywhere_in_the_line(
    penstock: Any, clicks: str, broker: str, line: str
) -> None:
    """Before the command, before its own command, or at the end."""
    words = [word.strip("'") for word in line.replace("2 hours ago", "2_hours_ago").split()]
    words = [broker if word == "ADDRESS" else word.replace("_hours_", " hours ") for word in words]
    done = penstock(*words)
    assert done.code == 0, done.err
    wrong = ["127.0.0.1:1" if word == broker else word for word in words]
    asked = subprocess.Popen(
        [sys.executable, "-m", "penstock.cli", *wrong], stderr=subprocess.PIPE, text=True
    )
    try:
        assert asked.stderr is not None
        assert "waiting for the broker" in asked.stderr.readline()
    finally:
        asked.kill()
        asked.communicate()


@pytest.mark.parametrize(
    "words",
    [
        ["consume", "named-clicks", "--from"],
        ["replay", "named-clicks", "--to-topic", "named-again", "--create", "--from"],
        ["replay", "named-clicks", "--to-topic", "named-again", "--create", "--to"],
        ["topics", "trim", "named-clicks", "--yes", "--before"],
        ["groups", "reset", "named-group", "--topic", "named-clicks", "--to-time"],
        ["dlq", "show", "named-letters", "--since"],
    ],
    ids=" ".join,
)
def test_times_are_said_or_refused(
    penstock: Any, clicks: str, broker: str, words: list[str]
) -> None:
    """Every option that takes a time reads the same forms, and names them where a text is none."""
    with Client(broker) as client:
        client.create_topic("named-letters", exists_ok=True)
    for form in ("2 hours ago", "now", "2026-11-21T09:00:00Z"):
        done = penstock(*words, form, "--broker", broker)
        assert done.code == 0 or "found none" in done.err, (form, done.err)  # no such records
    done = penstock(*words, "2 hours", "--broker", broker)
    assert done.code == 1
    assert "'2 hours ago'" in done.err
    assert "found '2 hours'" in done.err

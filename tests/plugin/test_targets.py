"""A target of another distribution, from Python, SQL and the command line, and a broken one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import penstock as ps
from penstock.client import Client, Producer
from penstock.errors import FlowError, SetupError, UserError
from penstock.sinks.testing import TargetContract

HERE = Path(__file__).parent


@pytest.mark.filterwarnings(
    "ignore:Exception ignored in.+_io.FileIO:pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.usefixtures("plugin")
class TestNotes(TargetContract):
    """The plugin's target keeps the contract, by the tests that its author has."""

    code = str(HERE / "src")

    @pytest.fixture(autouse=True)
    def place(self, tmp_path: Path) -> None:
        """A new file."""
        self.path = tmp_path / "users.notes"

    def make(self):
        return ps.sinks.from_address(str(self.path), "")

    def rows(self):
        return rows_of(self.path)


def rows_of(path: Path) -> dict[int, str]:
    rows = json.loads(path.read_text())["rows"].values() if path.exists() else ()
    return {row["id"]: row["name"] for row in rows}


def topic_with_rows(log: str, name: str) -> None:
    with Client(log) as client, Producer(log) as producer:
        client.create_topic(name, 1, {"retention.ms": "-1"})
        keys = pa.array([b"1", b"2", b"1"], pa.binary())
        values = pa.array([b'{"id":1,"name":"a"}', b'{"id":2,"name":"b"}', None], pa.binary())
        producer.send(name, 0, keys, values, np.zeros(3, np.int64))


@pytest.mark.usefixtures("plugin")
def test_the_function_of_a_plugin_is_found_by_its_name(tmp_path) -> None:
    """Where ours are, with its arguments; nothing else is there."""
    assert ps.sinks.notes(tmp_path / "users.notes", indent=2).name.startswith("notes ")
    with pytest.raises(AttributeError, match="no attribute 'nots'"):
        _ = ps.sinks.nots


@pytest.mark.usefixtures("plugin")
def test_the_command_line_writes_to_a_plugin(log, tmp_path) -> None:
    """By its address, with an option; and lists it with its distribution."""
    topic_with_rows(log, "notes-cli")
    path = tmp_path / "users.notes"
    command = [sys.executable, "-m", "penstock.cli", "sink"]
    arguments = ["notes-cli", f"{path}?indent=1", "--once", "--broker", log, "--key", "id"]
    arguments += ["--schema", "id BIGINT, name STRING"]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert rows_of(path) == {2: "b"}
    assert path.read_text().startswith('{\n "sinks"')
    listed = subprocess.check_output([*command, "targets", "--format", "json"], text=True)
    found = {row["name"]: row for row in map(json.loads, listed.splitlines())}
    assert found["notes"]["distribution"] == "penstock-notes 1.2"
    assert found["postgres"]["distribution"] == "penstock"


@pytest.mark.usefixtures("plugin")
def test_a_program_in_sql_writes_to_a_plugin(tmp_path) -> None:
    """A name that ends as the plugin's do is an address; without the plugin, it would be a topic."""
    app = ps.App("notes", directory=tmp_path)
    app.sql("CREATE TABLE t (id BIGINT, name STRING, PRIMARY KEY (id))")
    app.sql("CREATE SINK s INTO 'users.notes?indent=1' AS SELECT id, name FROM t")
    app.sql("CREATE SINK o INTO 'users.other' AS SELECT id, name FROM t")
    assert app.targets() == {"notes.s": ["notes.s: notes users.notes"]}
    assert "users.other" in app._outputs
    with pytest.raises(FlowError, match="expected indent=SPACES behind"):
        app.sql("CREATE SINK b INTO 'x.notes?indnt=1' AS SELECT id, name FROM t")


def test_our_own_targets_need_no_plugin(broken, tmp_path) -> None:
    """Nothing of other distributions is imported for them."""
    broken("penstock.targets", {"sheets": "broken_plugin:KIND"})
    assert ps.sinks.from_address(str(tmp_path / "a.sqlite"), "t")
    assert ps.sinks.from_address("postgresql://localhost/shop.sheets", "t")
    assert ps.sinks.sqlite(tmp_path / "a.sqlite", table="t")
    assert "broken_plugin" not in sys.modules


@pytest.mark.usefixtures("plugin")
def test_a_broken_plugin_is_named_with_its_distribution(broken, tmp_path) -> None:
    """By its own name, by an address that nothing knows, and in the list; other plugins work."""
    broken("penstock.targets", {"sheets": "broken_plugin:KIND", "wrong": "json:dumps"})
    reason = (
        r"'sheets' of the distribution penstock-broken 0.3 can't be loaded: ModuleNotFoundError"
    )
    assert ps.sinks.from_address(str(tmp_path / "a.notes"), "")
    for ask in (
        lambda: ps.sinks.sheets,
        lambda: ps.sinks.from_address("sheets://a", "t"),
        lambda: ps.sinks.is_address("a.sheets"),
    ):
        with pytest.raises((SetupError, UserError), match=reason):
            ask()
    _, found = ps.sinks.TARGETS.listed()
    assert [one.name for one in found] == ["sheets", "wrong"]
    assert "expected json:dumps to be a TargetKind called 'wrong'; found <function" in str(found[1])


@pytest.mark.usefixtures("plugin")
def test_two_plugins_of_one_name_are_refused(broken) -> None:
    """The message names both distributions."""
    broken("penstock.targets", {"notes": "penstock_notes.target:NOTES"}, "penstock-twin")
    with pytest.raises(SetupError, match=r"found penstock-notes 1.2 and penstock-twin 0.3"):
        _ = ps.sinks.notes

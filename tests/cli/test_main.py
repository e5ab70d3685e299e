"""The command line as such: help, errors, addresses, formats, queries, programs."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.patience import PATIENCE_S

import penstock as ps
from penstock.cli._address import DEFAULT, find_broker
from penstock.cli._main import _COMMANDS
from penstock.cli._tables import text_table, write_table
from penstock.cli.run import find_app
from penstock.demo.programs import load
from penstock.engine.store import Store
from penstock.errors import SetupError, UserError
from penstock.state import LocalFiles


def test_help_is_quick_and_imports_nothing_heavy() -> None:
    """`penstock --help` answers without Spark, Numba or Arrow."""
    code = (
        "import sys\nfrom penstock.cli import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "heavy = {'numba', 'pyarrow', 'pyspark', 'polars', 'duckdb'} & sys.modules.keys()\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "penstock demo machine" in done.stdout


@pytest.mark.parametrize("command", sorted(_COMMANDS))
def test_every_command_has_help(penstock: Any, command: str) -> None:
    """Help is a result: it is on standard output, with code 0."""
    result = penstock(command, "--help")
    assert result.code == 0
    assert "Usage: penstock" in result.out


def test_a_wrong_command_line_is_code_2(penstock: Any) -> None:
    """Usage errors are told apart from failures."""
    assert penstock("nope").code == 2
    assert penstock("topics", "create").code == 2
    assert penstock("query", "x", "SELECT 1", "--format", "xml").code == 2


def test_versions_are_printed(penstock: Any) -> None:
    """The versions of what matters, a line each."""
    assert "pyspark 4" in penstock("version").out


def test_a_closed_pipe_is_no_error(broker: str, tmp_path: Path) -> None:
    """`penstock consume … | head -1` ends quietly."""
    penstock_command = [sys.executable, "-m", "penstock.cli"]
    produce = [*penstock_command, "produce", "pipe", "--create", "--broker", broker]
    lines = b"".join(b"%d some line\n" % i for i in range(200_000))
    subprocess.run(produce, input=lines, check=True, capture_output=True)
    with subprocess.Popen(
        [*penstock_command, "consume", "pipe", "--broker", broker],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
    ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        assert child.stdout.readline() == b"0 some line\n"
        child.stdout.close()
        assert child.wait(PATIENCE_S) == 0
        assert child.stderr.read() == b""


class TestAddress:
    """Where the broker is found."""

    def test_what_is_said_counts_before_the_environment(self, tmp_path: Path) -> None:
        """--broker, then PENSTOCK_BROKER, then what runs here, then the usual."""
        env = {"PENSTOCK_BROKER": "kafka://h:2"}
        assert find_broker("a:1,b:2", env, tmp_path) == "a:1,b:2"
        assert find_broker(None, env, tmp_path) == "h:2"
        assert find_broker(None, {}, tmp_path) == DEFAULT

    def test_a_running_pipeline_is_found(self, tmp_path: Path, broker: str) -> None:
        """Its directory says where its broker is; one that ran here once doesn't count."""
        for name, address in (("a", broker), ("b", "127.0.0.1:1")):
            (tmp_path / f"{name}.penstock").mkdir()
            content = json.dumps({"address": address})
            (tmp_path / f"{name}.penstock" / "broker.json").write_text(content)
        assert find_broker(None, {}, tmp_path) == broker
        assert find_broker(str(tmp_path / "a.penstock"), {}, tmp_path) == broker
        assert find_broker(str(tmp_path / "a"), {}, tmp_path) == broker
        with pytest.raises(SetupError, match="doesn't answer"):
            find_broker(str(tmp_path / "b"), {}, tmp_path)

    @pytest.mark.parametrize("said", ["nonsense", "host:", "host:0", "host:99999", ":9"])
    def test_nonsense_is_refused(self, said: str) -> None:
        """The message says what an address looks like."""
        with pytest.raises(UserError, match="host:port"):
            find_broker(said, {})

    def test_a_broker_that_is_not_there_is_an_error(
        self, penstock: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """After a short wait the message names the address."""
        monkeypatch.setattr("penstock.cli._options.PATIENCE_S", 0.2)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{probe.getsockname()[1]}"
            result = penstock("topics", "--broker", address)
        assert result.code == 1
        assert address in result.err


class TestTables:
    """Results as text."""

    TABLE = pa.table(
        {
            "at": pa.array([0, None], pa.timestamp("us", "UTC")),
            "s": ["a,\n\x1b[31m", None],
            "x": [1.5, float("nan")],
            "n": [10**12, None],
        }
    )

    def test_json_is_a_line_for_each_row(self, capsys: pytest.CaptureFixture[str]) -> None:
        """Instants are ISO text, NULL and NaN are null."""
        write_table(self.TABLE, "json")
        rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert rows[0] == {"at": "1970-01-01T00:00:00Z", "s": "a,\n\x1b[31m", "x": 1.5, "n": 10**12}
        assert rows[1] == {"at": None, "s": None, "x": None, "n": None}

    def test_csv_is_quoted_where_needed(self, capsys: pytest.CaptureFixture[str]) -> None:
        """NULL is empty."""
        write_table(self.TABLE, "csv")
        out = capsys.readouterr().out
        assert out.startswith('at,s,x,n\n1970-01-01T00:00:00Z,"a,\n')
        assert out.endswith(",,nan,\n")

    def test_tables_align_and_hide_control_characters(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """A value can't colour or move the terminal, or hide the others by its length."""
        write_table(self.TABLE, "table")
        out = capsys.readouterr().out
        assert "\x1b" not in out
        assert len({len(line) for line in out.splitlines()[:2]}) == 1
        assert "NULL" in out
        assert len(text_table(["a"], [["x" * 500]]).splitlines()[2]) == 60


SHOP = """
import penstock as ps
app = ps.App("shop")
s = app.stream("sales", "item STRING, n BIGINT, at TIMESTAMP NOT NULL", time=ps.event_time("at"))
app.view("per_item", s.window(ps.tumbling("1 minute")).group_by("item").agg(n=ps.sum("n")))
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A pipeline's directory with committed views, made without a JVM."""
    program = tmp_path / "shop.py"
    program.write_text(SHOP)
    run = ps.testing.run(find_app(load(program), program))
    directory = tmp_path / "shop.penstock"
    run.store = Store(LocalFiles(directory / "state"))
    run.restart()
    run.send("sales", item="tea", n=2, at="12:00:00")
    run.send("sales", item="tea", n=3, at="12:00:30")
    run.send("sales", item="jam", n=1, at="12:01:00")
    run.settle()
    return directory


def test_views_are_queried_by_name_and_directory(penstock: Any, shop: Path) -> None:
    """SQL over the committed views, in the format asked for."""
    sql = "SELECT item, sum(n)::BIGINT AS n FROM per_item GROUP BY item ORDER BY item"
    assert penstock("query", "shop", sql, "--format", "csv").out == "item,n\njam,1\ntea,5\n"
    assert json.loads(penstock("query", shop, sql, "--format", "json").out.splitlines()[1]) == {
        "item": "tea",
        "n": 5,
    }
    listed = penstock("query", "shop")
    assert "per_item" in listed.out
    assert "window_start, window_end, item, n" in listed.out


def test_bad_queries_fail_with_a_message(penstock: Any, shop: Path) -> None:
    """No such app, no such view, more than a SELECT."""
    for arguments in (("nope", "SELECT 1"), ("shop", "SELECT * FROM x"), ("shop", "DROP TABLE x")):
        result = penstock("query", *arguments)
        assert (result.code, result.out) == (1, "")
        assert result.err.startswith("error: ")


def test_a_program_has_one_app(tmp_path: Path) -> None:
    """`app`, the only App, or what pipeline() gives; two without a name are a question."""
    for text, ok in (
        ("app = ps.App('a'); other = ps.App('b')", True),
        ("x = ps.App('a'); y = x", True),
        ("def pipeline(): return ps.App('a')", True),
        ("x = ps.App('a'); y = ps.App('b')", False),
        ("x = 1", False),
    ):
        path = tmp_path / "p.py"
        path.write_text(f"import penstock as ps\n{text}\n")
        if ok:
            assert find_app(load(path), path).name == "a"
        else:
            with pytest.raises(UserError, match=r"one ps\.App"):
                find_app(load(path), path)


def test_a_traceback_is_shown_only_when_asked(penstock: Any) -> None:
    """--debug is for whoever mends Penstock."""
    assert "Traceback" not in penstock("query", "nope", "SELECT 1").err
    assert "Traceback" in penstock("--debug", "query", "nope", "SELECT 1").err


def test_help_texts_keep_their_examples(penstock: Any) -> None:
    """Examples stay on lines of their own."""
    assert "\n    penstock topics create clicks" in penstock("topics", "--help").out

"""The command line as such: help, errors, addresses, formats, queries, programs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.patience import PATIENCE_S

import penstock as ps
from penstock.cli.entry import _COMMANDS
from penstock.cli.pipelines.run import find_app
from penstock.cli.support.programs import load
from penstock.cli.support.tables import text_table, write_table
from penstock.engine.store import Store
from penstock.errors import UserError
from penstock.state import LocalStateFiles

pytestmark = pytest.mark.interpreter


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
    lines = b"".join(b"%d some line\n" % i for i in range(40_000))  # more than pipes hold
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
    run.store = Store(LocalStateFiles(directory / "state"))
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


def test_values_that_fail_are_a_warning_on_standard_error(penstock: Any, tmp_path: Path) -> None:
    """Commands that read views warn once of what is NULL because it failed; their output is as ever."""
    app = ps.App("shop")
    app.table("t", "id BIGINT, s STRING", key="id")
    app.view("v", sql="SELECT id, s::INT AS n FROM t")
    run = ps.testing.run(app, shaken=False)
    run.store = Store(LocalStateFiles(tmp_path / "shop.penstock" / "state"))
    run.restart()
    for i, text in enumerate(("5", "abc", "abd")):
        run.send("t", id=i, s=text)
    run.settle()
    warning = 'warning: 2 values of n in the view v are NULL, because `CAST("s" AS INT)` failed. The first '
    count = "SELECT count(n) AS n FROM v"
    for command in (("query", "shop", count), ("sql", "shop", "-c", count, "-c", count)):
        found = penstock(*command)
        assert found.err.startswith(f"{warning}error: Conversion Error: ")
        assert found.err.count("\n") == 1
        assert "warning" not in found.out
    found = penstock("subscribe", "shop", "v", "--until", "1")
    assert found.err.startswith(warning)
    assert json.loads(found.out.splitlines()[0])["warnings"] == [
        found.err.strip().removeprefix("warning: ")
    ]
    assert not penstock("query", "shop").err


def test_bad_queries_fail_with_a_message(penstock: Any, shop: Path) -> None:
    """No such app, no such view, more than a SELECT."""
    for arguments in (("nope", "SELECT 1"), ("shop", "SELECT * FROM x"), ("shop", "DROP TABLE x")):
        result = penstock("query", *arguments)
        assert (result.code, result.out) == (1, "")
        assert result.err.startswith("error: ")


def test_an_unknown_view_is_reported_with_those_there_are(penstock: Any, shop: Path) -> None:
    """And the one that may be meant, not a table of DuckDB's own."""
    found = penstock("query", "shop", "SELECT * FROM per_itme").err
    assert found == (
        "error: expected one of the views per_item; found 'per_itme' (did you mean 'per_item'?)\n"
    )


def test_a_program_has_one_app(tmp_path: Path) -> None:
    """`app`, the only App, or what pipeline() gives; two without a name are a question."""
    for text, ok in (
        ("app = ps.App('a'); other = ps.App('b')", True),
        ("x = ps.App('a'); y = x", True),
        ("def pipeline(): return ps.App('a')", True),
        ("x = ps.App('a'); y = ps.App('b')", False),
        ("app = ps.App('a'); app.main()", True),
        ("x = 1", False),
    ):
        path = tmp_path / "p.py"
        path.write_text(f"import penstock as ps\n{text}\n")
        if ok:
            assert find_app(load(path), path).name == "a"
        else:
            with pytest.raises(UserError, match=r"one ps\.App"):
                find_app(load(path), path)


WRONG = """
import penstock as ps

def helper(app):
    return app.stream("sales", "item STRING").where("itme = 'tea'")

def broken():
    return {}["price"]

app = ps.App("shop")
"""


@pytest.mark.parametrize(
    ("last", "shown"),
    [
        ("broken()", ["line 8, in broken", 'return {}["price"]', "KeyError: 'price'", "line 11"]),
        ("helper(app)", ["found 'itme'", "did you mean 'item'", "p.py, line 5: return app.stream"]),
        ("import sys; sys.exit(3)", ["sys.exit(3)", "line 11", "__main__"]),
        ("import no_such_module", ["ModuleNotFoundError", "line 11"]),
        ("def (:", ["expected Python", "line 11", "def (:"]),
    ],
)
def test_an_error_of_the_program_shows_its_own_lines(
    penstock: Any, tmp_path: Path, last: str, shown: list[str]
) -> None:
    """None of ours, unless --debug asks for them."""
    (tmp_path / "p.py").write_text(WRONG.rstrip() + "\n" + last + "\n")
    result = penstock("run", "p.py")
    assert result.code == 1
    for text in shown:
        assert text in result.err
    assert "penstock/cli" not in result.err
    assert "importlib" not in result.err
    assert result.err.count("\n") < 9
    assert "penstock/cli" in penstock("--debug", "run", "p.py").err


def test_ctrl_c_is_code_130(penstock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As shells have it; click would say that the command failed."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("penstock.cli.log.topics.find_broker", interrupted)
    result = penstock("topics")
    assert (result.code, result.err) == (130, "")


def test_a_traceback_is_shown_only_when_asked(penstock: Any) -> None:
    """--debug is for whoever mends Penstock."""
    assert "Traceback" not in penstock("query", "nope", "SELECT 1").err
    assert "Traceback" in penstock("--debug", "query", "nope", "SELECT 1").err


def test_help_texts_keep_their_examples(penstock: Any) -> None:
    """Examples stay on lines of their own."""
    assert "\n    penstock topics create clicks" in penstock("topics", "--help").out


def test_views_are_listed_and_described_in_sql(penstock: Any, shop: Path) -> None:
    """SHOW TABLES and DESCRIBE, as in other SQL shells."""
    assert penstock("query", "shop", "SHOW TABLES;", "--format", "csv").out == (
        'view,columns\nper_item,"window_start, window_end, item, n"\n'
    )
    described = penstock("query", "shop", "describe PER_ITEM", "--format", "csv").out.splitlines()
    assert described == [
        *("column,type", "window_start,TIMESTAMP", "window_end,TIMESTAMP"),
        *("item,STRING", "n,BIGINT"),
    ]
    assert "did you mean 'per_item'?" in penstock("query", "shop", 'DESC "per_itm"').err


LEAVING = """
import atexit, sys
import py4j, penstock
from penstock.cli.support.errors import run_guarded
atexit.register(print, "registered")
try:
    run_guarded(lambda: sys.exit(3))
finally:
    print("finally")
"""


def test_a_process_that_had_spark_does_all_that_is_done_at_an_end() -> None:
    """`finally`, functions of `atexit`, and what is buffered; then it ends with the command's code."""
    done = subprocess.run(
        [sys.executable, "-c", LEAVING], stdout=subprocess.PIPE, text=True, check=False
    )
    assert (done.stdout, done.returncode) == ("finally\nregistered\n", 3)

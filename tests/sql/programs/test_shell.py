"""`penstock sql`: statements over lines, commands, completion; views and topics."""

from __future__ import annotations

import fcntl
import io
import itertools
import os
import pty
import select
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import orjson
import pyarrow as pa
import pytest
from click.testing import CliRunner
from tests.patience import PATIENCE_S
from tests.serve.committing import clicks, commit

from penstock.broker import BrokerProcess
from penstock.cli.entry import main
from penstock.cli.pipelines.sql import _converse
from penstock.cli.support.shell import Shell, TopicTables, ViewTables
from penstock.client import Client, Producer
from penstock.errors import QueryError, UserError
from penstock.serve import Views


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return commit(clicks(), tmp_path_factory.mktemp("shop.penstock"))


@pytest.fixture
def shell(directory: Path) -> Shell:
    ticks = itertools.count(0, 0.25)
    return Shell(ViewTables(Views(directory)), io.StringIO(), lambda: next(ticks))


def said(shell: Shell, *lines: str) -> str:
    """What a shell prints for some lines."""
    out = io.StringIO()
    shell._out = out
    for line in lines:
        shell.take(line)
    return out.getvalue()


def test_a_statement_ends_with_its_semicolon(shell: Shell) -> None:
    """It may have several lines; a semicolon within a text or a comment doesn't end it."""
    query = ["SELECT \"user\", ';' AS x -- a; b", "FROM per_user", "ORDER BY 1 LIMIT 1"]
    assert said(shell, *query) == ""
    assert shell.is_within
    lines = said(shell, ";").splitlines()
    assert lines[-2].split() == ["u0", ";"]
    assert lines[-1] == "(1 row)"
    assert not shell.is_within
    shell.take("SELECT")
    shell.drop()
    assert said(shell, r"\format csv", "SELECT 1 AS n;") == "n\n1\n"


def test_a_line_may_have_several_statements(shell: Shell, directory: Path) -> None:
    """With comments behind them; and a file that ends within one is an error, not nothing."""
    shell.take(r"\format csv")
    assert said(shell, "SELECT 1 AS n; SELECT 2 AS n; -- both") == "n\n1\nn\n2\n"
    done = CliRunner().invoke(main, ["sql", str(directory)], input="SELECT 'a\n")
    assert done.exit_code != 0
    assert "expected a SELECT" in done.output


def test_commands_describe_and_time(shell: Shell) -> None:
    """Views and their columns are listed; statements are timed; what isn't a command is said."""
    assert "per_user" in said(shell, r"\d")
    assert said(shell, r"\d") == said(shell, "show tables;")
    assert "BIGINT" in said(shell, r"\d per_user")
    assert said(shell, r"\timing", "SELECT 1 AS n;").endswith("Time: 250.0 ms\n")
    assert "Kept are versions 1" in said(shell, r"\version")
    assert r"\timing" in said(shell, r"\?")
    with pytest.raises(UserError, match=r"found '\\\\nothing'"):
        shell.take(r"\nothing")
    with pytest.raises(QueryError, match="per_usr"):
        shell.take(r"\d per_usr")
    shell.take(r"\q")
    assert shell.is_over


def test_names_and_keywords_are_completed(shell: Shell) -> None:
    """Views, columns, keywords in any case, and commands."""
    assert shell.completions("per") == ["per_user"]
    assert {"window_start", "window_end", "WHERE", "WITH", "WHEN"} == set(shell.completions("w"))
    assert r"\timing" in shell.completions("\\t")


def test_statements_come_from_arguments_and_from_a_file(directory: Path) -> None:
    """The last one needn't end with a semicolon; an error ends the command with 1."""
    runner = CliRunner()
    statement = "SELECT CAST(sum(n) AS BIGINT) AS n FROM per_user"
    for form in (["-c", r"\format csv", "-c", statement], []):
        given = None if form else f"\\format csv\n{statement}"
        done = runner.invoke(main, ["sql", str(directory), *form], input=given)
        assert done.output == "n\n20\n"
    assert runner.invoke(main, ["sql", str(directory), "-c", "SELECT x"]).exit_code != 0


def test_a_mistake_is_pointed_at(shell: Shell) -> None:
    """The line and a caret: of what can't be read, and of a column that there isn't."""
    for query, message in (
        ("SELECT n +* 3\nFROM per_user;", "LINE 1: SELECT n +* 3\n" + " " * 20 + "^"),
        ("SELECT n,\n\tmss FROM per_user;", "LINE 2: \tmss FROM per_user\n        \t^^^"),
        ("SELECT n\nFROM per_user GROUP;", "LINE 2: FROM per_user GROUP"),
        (f"SELECT {'n, ' * 90} n +) FROM per_user;", " n +) FROM per_user\n" + " " * 69 + "^"),
    ):
        with pytest.raises(QueryError) as error:
            said(shell, *query.splitlines())
        assert message in str(error.value)


def test_a_view_is_followed_until_ctrl_c(tmp_path: Path) -> None:
    """SUBSCRIBE prints each version as it is committed, in each format; Ctrl-C or UNTIL ends it."""
    run = clicks()
    directory = commit(run, tmp_path / "shop.penstock")
    views = Views(directory)
    first = views.version

    class Out(io.StringIO):
        """Whoever reads adds a click after the first version, and has enough after the second."""

        flushed = 0

        def flush(self) -> None:
            self.flushed += 1
            if self.flushed > 1:
                raise KeyboardInterrupt
            run.send("clicks", user="u9", ms=1.0, at="12:00:30")
            commit(run, directory)

    shell = Shell(ViewTables(views), Out())
    with pytest.raises(KeyboardInterrupt):
        shell.take("SUBSCRIBE per_user;")
    text = shell._out.getvalue()  # type: ignore[attr-defined]
    assert text.startswith(f"Version {first} (all rows)\nweight  window_start")
    assert f"Version {views.version} (since version {first})" in text
    assert text.splitlines()[-1].split()[0] == "1"
    newest = views.version
    said(shell, r"\format csv")
    lines = said(
        shell, f"SUBSCRIBE per_user FROM VERSION {first} UNTIL VERSION {newest};"
    ).splitlines()
    assert lines[0].startswith("version,weight,window_start")
    assert lines[1].startswith(f"{newest},1,")
    assert len(lines) == 2
    said(shell, r"\format json")
    [line] = said(shell, f"subscribe to per_user until version {newest};").splitlines()
    assert orjson.loads(line)["version"] == newest
    for wrong in ("SUBSCRIBE per_usr;", "SUBSCRIBE per_user, other;"):
        with pytest.raises(QueryError, match="expected"):
            shell.take(wrong)


class Terminal:
    """`penstock sql` at a pseudo-terminal."""

    def __init__(self, directory: Path, home: Path) -> None:
        self.master, slave = pty.openpty()
        environment = {
            **os.environ,
            "XDG_STATE_HOME": str(home),
            "TERM": "dumb",
            "INPUTRC": "/dev/null",
        }

        def own() -> None:
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        command = [sys.executable, "-m", "penstock.cli", "sql", str(directory)]
        self.process = subprocess.Popen(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            preexec_fn=own,
            env=environment,
        )
        os.close(slave)
        self.shown = ""

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.master)
        self.process.kill()
        self.process.wait()

    def until(self, text: str) -> str:
        """What is shown up to a text, which comes within the patience of tests."""
        deadline = time.monotonic() + PATIENCE_S
        while text not in self.shown:
            ready, _, _ = select.select(
                [self.master], [], [], max(0.0, deadline - time.monotonic())
            )
            assert ready, f"expected {text!r}; found {self.shown!r}"
            try:
                self.shown += os.read(self.master, 4096).decode()
            except OSError:
                pytest.fail(f"expected {text!r}; found its end behind {self.shown!r}")
        found, _, self.shown = self.shown.partition(text)
        return found

    def type(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def interrupt(self) -> None:
        """Ctrl-C, and Return: Python misses a signal that comes just before it waits for the next key."""
        self.type("\x03\n")

    def ended(self) -> int:
        """The exit code."""
        while True:
            ready, _, _ = select.select([self.master], [], [], PATIENCE_S)
            assert ready, f"expected the end; found {self.shown!r}"
            try:
                if not os.read(self.master, 4096):
                    break
            except OSError:  # nothing has the terminal open any more
                break
        return self.process.wait(PATIENCE_S)


@pytest.mark.slow
def test_the_terminal_is_for_people(directory: Path, tmp_path: Path) -> None:
    """Lines are edited, completed and found again; Ctrl-C drops a statement or a stream, Ctrl-D ends."""
    pytest.importorskip("readline")
    with Terminal(directory, tmp_path) as terminal:
        terminal.until("sql> ")
        terminal.type("SELECT sum(n) AS total\n")
        terminal.until("     > ")
        terminal.type("FROM per_u\t;\n")
        assert "20" in terminal.until("(1 row)")
        terminal.until("sql> ")
        terminal.type("\\d per_user\n")
        terminal.until("BIGINT")
        terminal.until("sql> ")
        terminal.type("SELECT (\n")
        terminal.until("     > ")
        terminal.interrupt()
        terminal.until("sql> ")
        terminal.type("SELECT nothing FROM per_user;\n")
        terminal.until("^^^^^^^")
        terminal.until("sql> ")
        terminal.type("SUBSCRIBE per_user;\n")
        terminal.until("u2")
        terminal.interrupt()
        terminal.until("sql> ")
        terminal.type("\x1b[A\x1b[A\n")  # the line before the last one
        terminal.until("^^^^^^^")
        terminal.until("sql> ")
        terminal.type("\x04")
        assert terminal.ended() == 0
    with Terminal(directory, tmp_path) as again:
        again.until("sql> ")
        again.type("\x12sum(n)\r")  # found in the lines of the first time
        again.until("     > ")
        again.interrupt()
        again.until("sql> ")
        again.type("\x04")
        assert again.ended() == 0


def test_ctrl_c_at_any_time_only_drops_a_statement(monkeypatch: pytest.MonkeyPatch) -> None:
    """In an answer, while an error or the answer to Ctrl-C itself is written, or at the prompt."""

    class Interrupted(Shell):
        """Whose statements and commands are interrupted."""

        def take(self, line: str) -> None:
            if line == "wrong":
                raise QueryError("expected another one")
            raise KeyboardInterrupt

        def drop(self) -> None:
            drops.append(line)

    drops: list[str] = []
    lines = iter(["running", "wrong", "at the prompt", ""])
    line = ""

    def typed(_: str) -> str:
        nonlocal line
        if not (line := next(lines)):
            raise EOFError
        if line == "at the prompt":
            raise KeyboardInterrupt
        return line

    def echo(*_: object, **__: object) -> None:
        """Each first echo of a line is interrupted."""
        if line and line not in echoed:
            echoed.append(line)
            raise KeyboardInterrupt

    echoed: list[str] = []
    monkeypatch.setattr("builtins.input", typed)
    monkeypatch.setattr("penstock.cli.pipelines.sql.click.echo", echo)
    _converse(Interrupted(TopicTables(""), io.StringIO()))
    assert drops == ["running", "wrong", "at the prompt"]
    assert echoed == ["running", "wrong", "at the prompt"]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[str]:
    with BrokerProcess(tmp_path / "log") as process:
        yield process.address


def test_topics_are_tables(broker: str) -> None:
    """Without a program, records are rows: where they are, when, key and value."""
    values = [orjson.dumps({"n": i}).decode() for i in range(5)]
    with Client(broker) as client, Producer(broker) as producer:
        client.create_topic("clicks", 1)
        producer.send("clicks", 0, None, pa.array(values), np.zeros(5, np.int64))
    tables = TopicTables(broker)
    assert tables.names() == ["clicks"]
    found = tables.sql(
        "SELECT \"offset\", key, CAST(value->>'n' AS INT) AS n FROM clicks ORDER BY 1"
    )
    assert found.to_pylist() == [{"offset": i, "key": None, "n": i} for i in range(5)]
    with pytest.raises(QueryError, match="expected a query over the topics clicks"):
        tables.sql("SELECT * FROM nothing")

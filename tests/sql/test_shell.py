"""`penstock sql`: statements over lines, commands, completion; views and topics."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import orjson
import pyarrow as pa
import pytest
from click.testing import CliRunner
from tests.serve.committing import clicks, commit

from penstock.broker import BrokerProcess
from penstock.cli._main import main
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

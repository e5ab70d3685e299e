"""What a command loads before it answers. A second of start-up is a second of each call in a script."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.serve.committing import clicks, commit
from tests.web.logs import Log, write_letters

from penstock.cli.entry import _COMMANDS

pytestmark = pytest.mark.interpreter

HEAVY = {
    "asyncio",
    "duckdb",
    "llvmlite",
    "numba",
    "numpy",
    "pandas",
    "polars",
    "pyarrow",
    "pyspark",
}
HEAVY |= {"opentelemetry", "rich", "sqlglot", "starlette", "uvicorn"}
SERVERS = {"broker"}  # it takes its options from the server, which loads what it runs on
RUN = """
import sys
from pathlib import Path
from penstock.cli import main
for words in {calls!r}:
    sys.argv = ["penstock", *words]
    try: main(words, prog_name="penstock")
    except SystemExit as done:
        assert not done.code, words
    found = sorted({heavy!r} & sys.modules.keys())
    assert not found, (words, found)
    assert len(sys.modules) <= {budget}, (words, len(sys.modules))
    if {alone!r} and sys.platform == "linux":
        threads = [file.read_text() for file in Path("/proc/self/task").glob("*/comm")]
        assert threads.count(Path("/proc/self/comm").read_text()) == 1, (words, threads)
"""

BUDGET = {"query": 455, "doctor": 515, "check": 640, "check in Python": 585}
"""Modules that a command may load: a tenth more than it does, as releases of libraries differ."""
COMPUTE = "pyarrow._compute"  # what `pyarrow.compute` wraps; that module itself is deferred
ENGINES = {
    "asyncio",
    "llvmlite",
    "numba",
    "opentelemetry",
    "pandas",
    "polars",
    "pyspark",
    "starlette",
    "uvicorn",
}


def run(
    calls: list[list[str]],
    heavy: set[str] = HEAVY,
    text: str = "",
    budget: int = sys.maxsize,
    *,
    alone: bool = False,
) -> str:
    """Runs commands one after another in a new process.

    Args:
        calls: the commands' words.
        heavy: modules that they must not load.
        text: what they read.
        budget: how many modules they may load: each takes its part of a millisecond or more.
        alone: whether they leave their process with one thread: NumPy would start some for linear algebra
            (Arrow's allocator has one of its own, which has another name).
    """
    code = RUN.format(calls=calls, heavy=heavy, budget=budget, alone=alone)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, input=text
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_the_package_loads_nothing_heavy() -> None:
    """`import penstock` alone defers Arrow, Numba, DuckDB and Spark."""
    code = f"import sys, penstock\nfound = {HEAVY!r} & sys.modules.keys()\nassert not found, found"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_help_loads_nothing_heavy() -> None:
    """Neither does the help of any command, or the version."""
    helps = [[name, "--help"] for name in sorted(_COMMANDS.keys() - SERVERS)]
    shown = run([["--help"], ["--version"], ["version"], *helps])
    assert "penstock demo machine" in shown
    assert "Usage: penstock query" in shown


def test_administration_loads_nothing_heavy(broker: str) -> None:
    """Commands that read no records talk to a broker without Arrow and NumPy."""
    topic = "start-up"
    shown = run(
        [
            ["topics", "--broker", broker, "create", topic, "--exists-ok"],
            ["topics", "--broker", broker],
            ["topics", "--broker", broker, "describe", topic, "--format", "json"],
            ["topics", "--broker", broker, "describe", topic, "--configs"],
            ["topics", "--broker", broker, "alter", topic, "--set", "retention.ms=100000000"],
            ["groups", "--broker", broker],
            ["quotas", "--broker", broker],
            ["queue", "--broker", broker, "list"],
            ["sink", "status", "--broker", broker],
        ]
    )
    assert topic in shown


@pytest.mark.slow
def test_views_are_read_without_pandas_and_engines(tmp_path: Path) -> None:
    """Rows need Arrow, SQL needs DuckDB; nothing needs a server, Spark, pandas, kernels or sqlglot."""
    shop = str(commit(clicks(20), tmp_path / "shop.penstock"))
    shown = run(
        [
            ["query", shop],
            ["query", shop, "DESCRIBE per_user"],
        ],
        ENGINES | {"duckdb", "rich", "sqlglot", COMPUTE},
        alone=True,
    )
    assert "per_user" in shown
    ask = ["query", shop, "SELECT sum(n) AS whole FROM per_user", "--format", "csv"]
    unneeded = {"crc32c", "penstock.core.sketches.functions", "penstock.expr.expression"}
    unneeded |= {"penstock.ops.aggregates.lists"}
    assert "whole\n20" in run(
        [ask], ENGINES | {"rich", "sqlglot"} | unneeded, budget=BUDGET["query"]
    )


def test_a_directory_is_examined_without_kernels(tmp_path: Path) -> None:
    """A small state is checked by NumPy alone; DuckDB and servers have nothing to do with it."""
    shop = str(commit(clicks(20), tmp_path / "shop.penstock"))
    heavy = ENGINES | {"crc32c", "duckdb", "rich", "sqlglot", COMPUTE}
    assert "sound" in run([["doctor", shop]], heavy, budget=BUDGET["doctor"], alone=True)


def test_numpy_is_loaded_without_threads() -> None:
    """A command has one thread after it has loaded NumPy, and passes no setting on to its processes."""
    code = """
import os, sys
from penstock.cli.loading import load_numpy
before = dict(os.environ)
load_numpy()
assert "numpy" in sys.modules
assert dict(os.environ) == before
if sys.platform == "linux":
    assert len(os.listdir("/proc/self/task")) == 1
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
def test_the_functions_of_arrow_are_there_when_one_is_used() -> None:
    """`pyarrow.compute` is deferred, not left out: each thread and form of import finds its functions."""
    code = """
import sys
from concurrent.futures import ThreadPoolExecutor
from penstock.cli.loading import load_arrow
load_arrow()
import pyarrow as pa
import pyarrow.compute as pc
assert "pyarrow._compute" not in sys.modules
with ThreadPoolExecutor(8) as threads:
    sums = list(threads.map(lambda n: pc.sum(pa.array([n, 1])).as_py(), range(64)))
assert sums == [n + 1 for n in range(64)]
import pyarrow.compute
assert pyarrow.compute.sum is pc.sum
assert not hasattr(pc, "no_such_function")
assert pa.array([1, None]).fill_null(0).to_pylist() == [1, 0]
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_is_committed_is_shown_without_arrow(tmp_path: Path) -> None:
    """A version is JSON: its status and its savepoints are read as such."""
    shop = str(commit(clicks(20), tmp_path / "shop.penstock"))
    assert "version" in run([["status", shop], ["savepoint", "list", shop]])


@pytest.mark.slow
def test_programs_are_checked_without_pandas(tmp_path: Path) -> None:
    """Nor kernels or Spark: DuckDB finds the types of conditions and of queries over no rows."""
    program = tmp_path / "shop.sql"
    program.write_text(
        "CREATE STREAM clicks (page STRING, ms DOUBLE);"
        "CREATE MATERIALIZED VIEW slow AS SELECT page, count(*) AS n FROM clicks "
        "WHERE ms > 100.5 AND page LIKE '/%' GROUP BY page;"
    )
    calls = [["check", str(program)], ["explain", str(program)]]
    heavy = ENGINES | {"psycopg", "crc32c", COMPUTE, "penstock.ops.aggregates.lists"}
    assert "slow" in run(calls, heavy, budget=BUDGET["check"])


@pytest.mark.slow
def test_programs_in_python_are_checked_without_sql(tmp_path: Path) -> None:
    """A program that has no expression loads neither DuckDB nor sqlglot."""
    program = tmp_path / "shop.py"
    program.write_text(
        "import penstock as ps\n"
        'app = ps.App("shop")\n'
        'clicks = app.stream("clicks", "page STRING, ms DOUBLE")\n'
        'app.view("slow", clicks.group_by("page").agg(n=ps.count(), most=ps.max("ms")))\n'
    )
    calls = [["check", str(program)], ["explain", str(program)]]
    heavy = ENGINES | {"duckdb", "sqlglot", "psycopg", "urllib.request", COMPUTE}
    heavy |= {"penstock.engine.driver"}
    assert "slow" in run(calls, heavy, budget=BUDGET["check in Python"], alone=True)


@pytest.mark.slow
def test_a_few_records_are_written_and_read_without_engines(broker: str) -> None:
    """Nor pandas or kernels, which are for many records."""
    at = ["--broker", broker]
    run([["produce", "light", "--create", *at]], ENGINES, text="one line\n")
    calls = [["consume", "light", "--max", "1", *at], ["dlq", "list", *at]]
    assert "one line" in run(calls, ENGINES | {COMPUTE})


@pytest.mark.slow
def test_a_few_letters_are_looked_at_without_kernels(broker: str) -> None:
    """Their reasons are headers, which are found by the loops in Python."""
    topic, at = write_letters(Log(broker), "few"), ["--broker", broker]
    calls = [["dlq", "list", *at], ["dlq", "show", topic, *at], ["consume", topic, *at]]
    assert "no such field: usr" in run(calls, ENGINES | {COMPUTE})

"""Queries in processes of their own: they end when their time or memory does."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import orjson
import psutil
import pytest
from tests.patience import PATIENCE_S, wait_until
from tests.serve.committing import clicks, commit

from penstock.app import facts
from penstock.errors import LimitError, PenstockError, QueryError
from penstock.serve import Queries, QueryLimits, Question, Views
from penstock.serve.listings import FACTS
from penstock.serve.plans import COLUMN
from penstock.serve.questions import answer
from penstock.serve.views import BATCH_ROWS

pytestmark = pytest.mark.slow

# It keeps nothing but a sum: a product would first run out of memory on a fast machine.
ENDLESS = "SELECT sum(hash(range)) FROM range(1000000000000)"
FEW = BATCH_ROWS - 1
"""Rows that come at once: to count them takes no time, which is limited."""
LIMITS = QueryLimits(seconds=PATIENCE_S, memory_bytes=512 << 20, rows=1_000)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return commit(clicks(), tmp_path_factory.mktemp("shop.penstock"))


@pytest.fixture(scope="module")
def shared(directory: Path) -> Iterator[Queries]:
    queries = Queries(directory, LIMITS)
    yield queries
    queries.close()
    assert processes() == []


@pytest.fixture
def queries(shared: Queries) -> Iterator[Queries]:
    """One that several tests share: to start its process takes seconds."""
    yield shared
    shared.limits = LIMITS


def processes() -> list[psutil.Process]:
    """The processes of queries that this one has started."""
    found = []
    for process in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):  # it is just ending
            if "penstock.serve.asked" in process.cmdline():
                found.append(process)
    return found


@pytest.mark.quick_cases(1)
def test_answers_are_those_of_the_views(queries: Queries, directory: Path) -> None:
    """A process gives what a reader in this process gives, types included."""
    sql = "SELECT *, now() > window_end AS over FROM per_user ORDER BY ALL"
    answer = queries.ask(sql)
    assert answer.table == Views(directory).sql(sql)
    assert answer.rows_total == answer.table.num_rows == 3


def test_views_are_dataframes(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of Arrow, pandas and Polars, of the newest version and of one; a library that is missing is named."""
    views = Views(directory)
    rows = views.table("per_user").to_pylist()
    assert views.polars("per_user").to_dicts() == rows
    assert views.pandas("per_user").to_dict("records") == rows
    assert views.snapshot().polars("per_user").height == len(rows) > 0
    with pytest.raises(QueryError, match="per_users"):
        views.pandas("per_users")
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(PenstockError, match="expected polars to be installed"):
        views.polars("per_user")


def test_a_long_answer_is_cut_and_counted(queries: Queries) -> None:
    """Rows beyond the limit are counted; where there is no end to them they are not."""
    answer = queries.ask(f"SELECT * FROM range({FEW})")
    assert (answer.table.num_rows, answer.rows_total) == (1_000, FEW)
    answer = queries.ask("SELECT * FROM range(1000000000000)")
    assert (answer.table.num_rows, answer.rows_total) == (1_000, None)


@pytest.mark.quick_cases(1)
def test_mistakes_are_reported_and_cost_no_process(queries: Queries) -> None:
    """A query that is refused leaves its process to the next one."""
    queries.ask("SELECT 1")
    before = processes()
    for sql in ("SELEC", "SELECT nope FROM per_user", "DROP TABLE x", "SELECT 1; SELECT 2"):
        with pytest.raises(QueryError, match="expected"):
            queries.ask(sql)
    with pytest.raises(QueryError, match="Conversion"):
        queries.ask("SELECT (range || 'x')::INT FROM range(100000)")
    with pytest.raises(QueryError, match=r"(?i)permission|disabled"):
        queries.ask("SELECT * FROM read_text('/etc/passwd')")
    assert processes() == before


def test_a_query_without_end_is_ended(queries: Queries) -> None:
    """After its time its process is gone, and the next query is answered."""
    queries.limits = replace(LIMITS, seconds=0.5)
    for _ in range(3):
        with pytest.raises(LimitError, match=r"within 0.5 s.*ended it"):
            queries.ask(ENDLESS)
        assert processes() == []
    queries.limits = LIMITS
    assert queries.ask("SELECT 1 AS x").table["x"].to_pylist() == [1]


def test_a_query_that_nobody_waits_for_is_ended(queries: Queries) -> None:
    """Whoever asked has gone: so does the process."""
    queries.ask("SELECT 1")
    gone = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(queries.ask, ENDLESS, gone.is_set)
        wait_until(lambda: [p for p in processes() if p.cpu_percent(0.05) > 0], "a query at work")
        gone.set()
        with pytest.raises(PenstockError, match="waits for the answer"):
            asked.result(PATIENCE_S)
    assert processes() == []


# Wide values: the memory is used up by little work, long before the time is, on a slow machine too.
WIDE = "(SELECT repeat('x', 20000) || range AS x FROM range(100000000))"
DUCKDB_REFUSES = (f"SELECT count(DISTINCT x) FROM {WIDE}", f"SELECT * FROM {WIDE} ORDER BY x DESC")
SYSTEM_REFUSES = "SELECT length(repeat('x', 4000000000))"
limited = pytest.mark.skipif(sys.platform != "linux", reason="the system has no such limit")


@pytest.mark.parametrize("sql", [*DUCKDB_REFUSES, pytest.param(SYSTEM_REFUSES, marks=limited)])
def test_memory_is_limited(queries: Queries, sql: str) -> None:
    """What needs more memory is refused, be it DuckDB's own or what its functions take beside it."""
    with pytest.raises(LimitError, match="memory"):
        queries.ask(sql)
    assert queries.ask("SELECT 1 AS x").rows_total == 1


@limited
def test_what_refused_queries_took_is_given_back(queries: Queries) -> None:
    """However much others have asked for, a process refuses no query that needs little."""
    queries.ask("SELECT 1")
    [process] = processes()
    at_rest = process.memory_info().data
    for sql in (*DUCKDB_REFUSES, SYSTEM_REFUSES):
        with pytest.raises(LimitError, match="memory"):
            queries.ask(sql)
        assert queries.ask(f"SELECT * FROM range({FEW})").rows_total == FEW
        assert processes() == [process]
        assert process.memory_info().data < at_rest + LIMITS.memory_bytes // 4


@limited
def test_a_process_that_keeps_memory_is_replaced(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the allocator keeps what a query took, the next one has a process of its own."""
    monkeypatch.setenv("DUCKDB_JE_MALLOC_CONF", "retain:true")
    others = processes()
    queries = Queries(directory, LIMITS)
    try:
        for sql in DUCKDB_REFUSES:
            with pytest.raises(LimitError, match="memory"):
                queries.ask(sql)
            assert processes() == others
            assert queries.ask(f"SELECT * FROM range({FEW})").rows_total == FEW
    finally:
        queries.close()


def test_an_answer_has_a_size(queries: Queries) -> None:
    """Few rows may be many bytes: more than a page can show."""
    with pytest.raises(LimitError, match="ANSWER_BYTES_MAX"):
        queries.ask("SELECT repeat('x', 400000) FROM range(100)")


def test_a_process_that_dies_is_replaced(queries: Queries) -> None:
    """Killed at rest, another one answers; killed at work, the query says so."""
    queries.ask("SELECT 1")
    [process] = processes()
    process.kill()
    process.wait(PATIENCE_S)
    assert queries.ask("SELECT 2 AS x").table["x"].to_pylist() == [2]
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(queries.ask, ENDLESS)
        wait_until(lambda: [p for p in processes() if p.cpu_percent(0.05) > 0], "a query at work")
        processes()[0].kill()
        with pytest.raises(LimitError, match="signal 9"):
            asked.result(PATIENCE_S)


def test_too_many_queries_wait_and_are_reported(directory: Path) -> None:
    """The one that finds all processes busy gets its turn, or an error after its time; close ends all."""
    limits = replace(LIMITS, at_once=1)
    queries = Queries(directory, limits)
    try:
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(queries.ask, ENDLESS)
            wait_until(processes, "a query")
            queries.limits = replace(limits, seconds=0.1)
            with pytest.raises(LimitError, match="one of 1 queries"):
                queries.ask("SELECT 1")
            queries.close()
            with pytest.raises(LimitError, match="ended"):
                asked.result(PATIENCE_S)
    finally:
        queries.close()
    assert processes() == []


def test_a_plan_has_what_the_running_pipeline_did(tmp_path: Path) -> None:
    """ANALYZE adds the figures that the pipeline's process writes down, where there is one."""
    directory = commit(clicks(3), tmp_path / "shop.penstock")
    views = Views(directory)
    node, _ = views.snapshot().kept_by("per_user")
    question = Question("SELECT n FROM per_user", 100, explain="analyze")

    def plan() -> list[str]:
        lines: list[str] = answer(views, question, 1 << 28).table[COLUMN].to_pylist()
        return lines

    assert not any("since the pipeline's start" in line for line in plan())
    assert facts.FILE == FACTS
    done = {"rows_in": 1_204, "rows_out": 12, "seconds": 0.31}
    (directory / FACTS).write_bytes(orjson.dumps({"nodes": {node: done}}))
    [line] = [line for line in plan() if "since the pipeline's start" in line]
    assert line.strip() == (
        "since the pipeline's start: 1,204 rows in, 12 rows out, 0.310 s of processor time "
        "(100.0% of the pipeline's)"
    )
    sinks = {"users": {"phase": "waiting", "at_ms": 0, "topic": "shop.users", "target": "x",
             "breaker": "open", "lag": 3, "behind_ms": 1_500, "upserts": 1, "deletes": 0, "dead": 2,
             "retries": 4, "last_error": "refused"}}  # fmt: skip
    (directory / FACTS).write_bytes(orjson.dumps({"nodes": {}, "sinks": sinks}))
    [row] = answer(views, Question("show sinks;", 100), 1 << 28).table.to_pylist()
    assert (row["sink"], row["state"], row["behind_s"], row["dead_letters"]) == (
        "users",
        "silent",
        1.5,
        2,
    )


def test_a_query_that_nests_too_deeply_is_refused(queries: Queries) -> None:
    """Beyond Python's limit of nested calls, where Python reads it, the error says so."""
    levels = sys.getrecursionlimit()
    deep = f"SELECT {'(' * levels}1{' + 1)' * levels} FROM pg_class"
    with pytest.raises(QueryError, match="expected a query that nests less deeply"):
        queries.ask(Question(deep, 10, dialect="postgres"))

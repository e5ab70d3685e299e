"""pgbench writes, everything follows, and SIGKILL hits whatever takes part: at the end all is equal.

pgbench's transactions change an account, a teller and a branch by the same amount, and append to a history.
So the sums of all four are equal at each version of a view that has whole transactions.
MariaDB has no pgbench: clients of our own run the same transaction there.
`./test --soak chain` kills a hundred times (PENSTOCK_CHAIN_KILLS=…), and prints each as it happens;
PENSTOCK_KILL_SEED=… repeats a run.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from tests.chain.programs import CHECKED, TABLES
from tests.chain.sources import ACCOUNTS, Source, maria_source, postgres_source
from tests.databases import Postgres, postgres
from tests.effort import rounds
from tests.engine.kills.harness import Pipeline, ended
from tests.patience import wait_until
from tests.redis_server import RedisServer, redis_server

from penstock.broker.process import BrokerProcess
from penstock.errors import QueryError
from penstock.serve import Views

KILLS = rounds("PENSTOCK_CHAIN_KILLS", quick=2, full=3)
SEED = int(os.environ.get("PENSTOCK_KILL_SEED") or random.randrange(2**32))
PATIENCE_S = 600.0
PROGRAMS = Path(__file__).with_name("programs.py")
VICTIMS = ("capture", "driver", "lane", "jvm", "broker", "sinks", "second", "cache")
"""Besides those of the source."""

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(3_000 + 120 * KILLS)]


class Program:
    """One of the chain's processes."""

    def __init__(self, name: str, folder: Path, address: str) -> None:
        self._command = [sys.executable, str(PROGRAMS), name, str(folder), address]
        self.log = folder / f"{name}.stderr"
        self.start()

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self._command, stderr=log, start_new_session=True)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def check(self) -> None:
        """Fails where it has ended."""
        assert self.process.poll() is None, f"{self._command[2]}: {self.log.read_text()[-3_000:]}"


class Balances(Pipeline):
    """The pipeline.

    Attributes:
        feeds: what it waits for, and must not have ended.
    """

    feeds: tuple[Program, ...] = ()

    def wait_for(self, ends: Any = None) -> None:
        """Waits for a version beyond the newest one there is, or the next one's end."""
        before = self.version()
        wait_until(lambda: self.version() > before, self.last_output, patience_s=PATIENCE_S)

    def version(self) -> int:
        """The newest committed one; 0 where there is none."""
        assert self.process.poll() is None, self.last_output()
        for one in self.feeds:
            one.check()
        with contextlib.suppress(QueryError):
            return Views(Path(self.state) / "balances.penstock").version
        return 0

    def last_output(self) -> str:
        """What it said last."""
        return f"a version of the view; {self.log.read_text()[-3_000:]}"


class Chain:
    """Everything that takes part."""

    def __init__(self, folder: Path, source: Source, second: Postgres, cache: RedisServer) -> None:
        self.folder, self.source, self.second, self.cache = folder, source, second, cache
        self.chance, self.counts = random.Random(SEED), Counter[str]()
        urls = {"source": source.url, "second": second.url(), "cache": cache.url}
        (folder / "chain.json").write_text(json.dumps(urls))
        self.broker = BrokerProcess(folder / "log").start()
        self.capture = Program("capture", folder, self.broker.address)
        self.sinks = Program("sinks", folder, self.broker.address)
        self.pipeline = Balances("balances", folder, self.broker.address, program=PROGRAMS)
        self.pipeline.feeds = (self.capture,)

    def kill(self, victim: str) -> None:
        """Kills one of those who take part, and starts it again where nobody else does."""
        self.counts[victim] += 1
        match victim:
            case "capture" | "sinks":
                program = self.capture if victim == "capture" else self.sinks
                program.check()
                program.kill()
                program.start()
            case "driver":
                self.pipeline.kill()
                self.pipeline.start()
                self.pipeline.wait_for()
            case "lane":
                self.pipeline.kill_worker(self.chance)
            case "jvm":
                self.pipeline.kill_jvm()
                self.pipeline.wait_for()
            case "broker" | "second" | "cache":
                server = {"broker": self.broker, "second": self.second}.get(victim, self.cache)
                server.kill()
                server.start()
            case _:
                self.source.kill(victim, self.chance)

    def stop(self) -> None:
        """Ends the processes."""
        for program in (self.capture, self.sinks):
            program.kill()
        self.broker.stop()

    # -- what there is ------------------------------------------------------------------------------

    def followers(self) -> dict[str, tuple[str, Callable[[], list[Any]]]]:
        """The derived tables: the table that each equals, and its rows."""
        found: dict[str, tuple[str, Callable[[], list[Any]]]] = {}
        for table in TABLES:
            found[f"second {table}"] = (
                table,
                lambda table=table: self.rows(self.second, table, table),
            )
        return {
            **found,
            "cache": ("accounts", self.cached),
            "index": ("accounts", self.indexed),
            "lake tellers": ("tellers", lambda: self.lake("tellers")),
            "lake history": ("history", lambda: self.lake("history")),
        }

    def rows(self, server: Source | Postgres, table: str, name: str) -> list[Any]:
        """A table's columns in a database, where it has some name, in an order of its own."""
        return sorted(
            tuple(map(str, row)) for row in server.rows(f"SELECT {COLUMNS[table]} FROM {name}")
        )

    def stored(self, table: str) -> list[Any]:
        """A table of the source."""
        return self.rows(self.source, table, f"pgbench_{table}")

    def cached(self) -> list[Any]:
        """The accounts in Redis."""
        keys = list(self.cache.client.scan_iter("account:*", count=1_000))
        with self.cache.client.pipeline() as pipe:
            for key in keys:
                pipe.hmget(key, *COLUMNS["accounts"].split(", "))
            return sorted(map(tuple, pipe.execute()))

    def indexed(self) -> list[Any]:
        """The accounts in the index."""
        import tantivy

        searcher = tantivy.Index.open(str(self.folder / "index.tantivy")).searcher()
        hits = searcher.search(tantivy.Query.all_query(), 10 * ACCOUNTS).hits
        documents = [searcher.doc(place).to_dict() for _, place in hits]
        names = COLUMNS["accounts"].split(", ")
        return sorted(tuple(str(one[name][0]) for name in names) for one in documents)

    def lake(self, table: str) -> list[Any]:
        """A table of the warehouse."""
        from pyiceberg.catalog import load_catalog

        folder = self.folder / "lake.iceberg"
        uri = f"sqlite:///{folder / 'catalog.db'}"
        with contextlib.closing(load_catalog("penstock", type="sql", uri=uri)) as catalog:
            found = catalog.load_table(f"bench.{table}").scan().to_arrow().to_pylist()
        names = COLUMNS[table].split(", ")
        return sorted(tuple(str(row[name]) for name in names) for row in found)

    def difference(self) -> str:
        """Which derived tables differ from the source's, and by how much; empty where none does."""
        for program in (self.capture, self.sinks):
            program.check()
        differences = []
        try:
            source = {table: self.stored(table) for table in TABLES}
        except self.source.away as error:  # it recovers
            return f"source: {error}"
        for name, (table, read) in self.followers().items():
            try:
                found = Counter(read())
            except Exception as error:  # it isn't there yet
                differences.append(f"{name}: {error}")
                continue
            missing, wrong = Counter(source[table]) - found, found - Counter(source[table])
            if missing or wrong:
                differences.append(
                    f"{name}: {missing.total()} missing {list(missing)[:2]}, "
                    f"{wrong.total()} wrong {list(wrong)[:2]}"
                )
        totals = {table: sum(int(row[-1]) for row in rows) for table, rows in source.items()}
        views = Views(self.folder / "balances.penstock")
        for name, read in {
            "view": lambda: views.sql("SELECT what, total FROM balances").to_pylist(),
            "second balances": lambda: [
                {"what": what, "total": total}
                for what, total in self.second.rows("SELECT what, total FROM balances")
            ],
        }.items():
            try:
                found = {row["what"]: row["total"] for row in read()}
            except Exception as error:
                found = error
            if found != totals:
                differences.append(f"{name}: {found} for {totals}")
        return "\n".join(differences)


COLUMNS = {
    "accounts": "aid, bid, abalance",
    "tellers": "tid, bid, tbalance",
    "branches": "bid, bbalance",
    "history": "tid, bid, aid, delta",
}
"""What is compared; a table's balance, or delta, comes last."""


@contextlib.contextmanager
def chain(folder: Path, source_of: Callable[[], AbstractContextManager[Source]]) -> Iterator[Chain]:
    """Everything, for a while."""
    with source_of() as source, postgres(16) as second, redis_server() as cache:
        one = Chain(folder, source, second, cache)
        try:
            with ended(one.pipeline):
                yield one
        finally:
            one.stop()


@pytest.mark.parametrize("source", [postgres_source, maria_source], ids=["postgres", "mariadb"])
def test_everything_equals_the_source_after_kills(
    tmp_path: Path, source: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    """Second database, cache, index and warehouse have the source's rows; each version whole transactions."""
    began = time.monotonic()

    def say(text: str) -> None:
        with capfd.disabled():
            print(f"{time.monotonic() - began:>6.0f} s  {text}", flush=True)

    for module in ("pyiceberg", "tantivy"):
        pytest.importorskip(module)
    with chain(tmp_path, source) as one:
        end = threading.Event()
        bench = threading.Thread(target=one.source.work, args=(end,))
        bench.start()
        try:
            one.pipeline.wait_for()
            victims = VICTIMS + one.source.victims
            turns = itertools.chain.from_iterable(
                one.chance.sample(victims, len(victims)) for _ in itertools.count()
            )
            say(f"PENSTOCK_CHAIN_KILLS={KILLS} PENSTOCK_KILL_SEED={SEED}: everything runs")
            for number, victim in enumerate(itertools.islice(turns, KILLS), 1):
                time.sleep(one.chance.uniform(0.0, 1.0))  # when it is killed is the input
                one.kill(victim)
                say(f"kill {number:>3} of {KILLS}: {victim}")
        finally:
            end.set()
            bench.join()
        summary = (
            f"PENSTOCK_CHAIN_KILLS={KILLS} PENSTOCK_KILL_SEED={SEED}, kills {dict(one.counts)}"
        )
        say(f"waiting until all is equal; {summary}")
        wait_until(
            lambda: not one.difference(),
            lambda: f"no differences; {summary}\n{one.difference()}",
            patience_s=PATIENCE_S,
        )
        transactions, newest = len(one.stored("history")), one.pipeline.version()
        assert transactions > KILLS
        lines = (tmp_path / CHECKED).read_text().splitlines()
    seen = [json.loads(line) for line in lines if line.endswith("}]")]
    halves = [line for line in seen if len(set(line[1].values())) > 1]
    assert not halves, (
        f"{len(halves)} of {len(seen)} versions have half a transaction: {halves[:3]}"
    )
    looked_at = len({version for version, _ in seen})
    say(
        f"equal: {transactions:,} transactions; {looked_at:,} of {newest:,} versions were looked at"
    )
    assert looked_at > newest // 2  # a kill comes between the commit and the look now and then

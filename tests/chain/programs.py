"""The processes of the chain: `python programs.py NAME DIRECTORY ADDRESS …` runs one of them.

    capture NAME DIRECTORY ADDRESS             pgbench's tables into topics
    balances NAME DIRECTORY ADDRESS            a view over these topics, checked at each version
    sinks NAME DIRECTORY ADDRESS               all that follows

DIRECTORY has `chain.json`, with the addresses of the servers.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

import penstock as ps
from penstock.engine.driver import Progress
from penstock.errors import QueryError
from penstock.serve import Views

TABLES = {
    "accounts": ("aid INT NOT NULL, bid INT, abalance INT, filler STRING", "aid"),
    "tellers": ("tid INT NOT NULL, bid INT, tbalance INT, filler STRING", "tid"),
    "branches": ("bid INT NOT NULL, bbalance INT, filler STRING", "bid"),
    "history": ("tid INT, bid INT, aid INT, delta INT, mtime STRING, filler STRING", ()),
}
"""pgbench's tables: columns and key. The history has none: each of its rows is appended once."""
TOTALS = "what STRING NOT NULL, total BIGINT, rows BIGINT"
CHECKED = "checked.jsonl"
"""The versions that were looked at, and what they said."""


def topic(table: str) -> str:
    """The topic of a table."""
    return f"bench.public.pgbench_{table}"


def capture(name: str, directory: Path, address: str) -> None:
    """Captures the database."""
    url = addresses(directory)["source"]
    ps.capture.Capture(
        url, ["public.*"], to="bench", name=name, log=address, format="flat", values="readable"
    ).run()


def balances(name: str, directory: Path, address: str) -> None:
    """Sums of balances, which each transaction of pgbench keeps equal. Each version is looked at."""
    state = directory / f"{name}.penstock"
    app = ps.App(name, directory=state, log=f"kafka://{address}", transactions=True)
    parts = []
    for table in ("accounts", "tellers", "branches"):
        column = f"{table[0]}balance"
        schema, key = TABLES[table]
        app.named[table] = app.table(topic(table), schema, key=key)
        parts.append(f"SELECT '{table}' AS what, {column}::BIGINT AS balance FROM {table}")
    app.named["history"] = app.stream(topic("history"), TABLES["history"][0])
    parts.append("SELECT 'history' AS what, delta::BIGINT AS balance FROM history")
    total = "SELECT what, sum(balance)::BIGINT AS total, count(*) AS rows"
    query = f"{total} FROM ({' UNION ALL '.join(parts)}) GROUP BY what"
    app.view("balances", sql=query).to(f"{name}.balances")
    views: list[Views] = []

    with (directory / CHECKED).open("a", buffering=1) as file:

        def look(progress: Progress) -> None:
            views[:] = views or [Views(state)]
            try:
                rows = views[0].snapshot(progress.version).sql("SELECT what, total FROM balances")
            except QueryError:  # it isn't kept any more
                return
            totals = {row["what"]: row["total"] for row in rows.to_pylist()}
            file.write(json.dumps([progress.version, totals]) + "\n")

        app.run(on_progress=look)


def sinks(name: str, directory: Path, address: str) -> None:
    """Keeps a second database, a cache, an index and a warehouse equal."""
    urls = addresses(directory)

    def follow(target: Any, table: str, own: str) -> ps.sinks.Sink:
        schema, key = TABLES[table]
        return ps.sinks.Sink(target, topic(table), schema, key=key, log=address, name=own)

    lake = directory / "lake.iceberg"
    every = [
        follow(ps.sinks.postgres(urls["second"], table=table), table, f"second-{table}")
        for table in TABLES
    ]
    every += [
        follow(ps.sinks.redis(urls["cache"], table="account:{aid}"), "accounts", "cache"),
        follow(ps.sinks.tantivy(directory / "index.tantivy"), "accounts", "index"),
        follow(ps.sinks.iceberg(lake, table="bench.tellers", pace_s=0.5), "tellers", "lake-tellers"),
        follow(ps.sinks.iceberg(lake, table="bench.history", pace_s=0.5), "history", "lake-history"),
        ps.sinks.Sink(
            ps.sinks.postgres(urls["second"], table="balances"), "balances.balances", TOTALS, key="what",
            log=address, name="second-balances",
        ),
    ]  # fmt: skip

    def run(sink: ps.sinks.Sink) -> None:
        try:
            sink.run()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)  # one that ends has failed

    threads = [threading.Thread(target=run, args=(one,)) for one in every]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def addresses(directory: Path) -> dict[str, str]:
    """Where the servers are."""
    found: dict[str, str] = json.loads((directory / "chain.json").read_bytes())
    return found


if __name__ == "__main__":
    {"capture": capture, "balances": balances, "sinks": sinks}[sys.argv[1]](
        sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    )

"""What do a capture's formats cost: changes a second as JSON, Avro, JSON Schema and Protobuf?

    python benchmarks/capture_formats.py [--changes N] [--databases postgresql,mariadb] [--rounds R]
                                         [--formats …] [--smoke] [--json]

A server, a broker and a registry. Captures begin, one for each format, and stop. Then changes are committed
while nothing captures: of PostgreSQL pgbench's TPC-B, three updates and one insert a transaction; of MariaDB
updates of many rows a transaction, whose former rows are in the records as well. Each capture drains them:
the changes per second of processor time, of this process alone, and by the clock. Processor time is what
other programs on the machine change least. Formats are drained in turn, R times, and the best is shown, with
its ratio to JSON's.
"""

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))

from tests.databases import postgres
from tests.mariadb import mariadb

from common.load_tools import say
from penstock.broker.process import BrokerProcess
from penstock.capture import Capture
from penstock.core.kernels import load_all
from penstock.registry import RegistryServer

FORMATS = ("debezium", "avro", "json-schema", "protobuf")
PATIENCE_S = 600.0
ROWS_MAX = 10_000  # of a table of MariaDB's, and changes of a transaction


class Postgresql:
    """pgbench's tables, and its transactions."""

    tables = ("public.pgbench_*",)

    def __init__(self, server: Any) -> None:
        self.server, self.url = server, server.url()
        self._pgbench("-i", "-q", "-s", "1")

    def _pgbench(self, *arguments: str) -> None:
        if self.server.pgbench(*arguments).wait(PATIENCE_S):
            raise RuntimeError(f"pgbench {' '.join(arguments)} failed")

    def change(self, changes: int) -> int:
        """Commits about so many changes; how many."""
        transactions = max(1, changes // 16)
        self._pgbench("-n", "-c", "4", "-t", str(transactions))
        return 16 * transactions

    def end(self) -> int:
        """A position that a capture gets to once it has all that was committed."""
        self.server.execute("SELECT pg_log_standby_snapshot()")
        return int(self.server.rows("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn")[0][0])


class Mariadb:
    """A table of orders, with times, a decimal and a text."""

    tables = ("orders",)

    def __init__(self, server: Any) -> None:
        server.rows("CREATE DATABASE bench CHARACTER SET utf8mb4")
        self.server, self.url = server, server.url("bench")
        self._rows(
            "CREATE TABLE orders (id bigint PRIMARY KEY, buyer int NOT NULL, amount decimal(12, 2), "
            "note varchar(100), is_paid boolean NOT NULL, at datetime(6), seen timestamp NULL)"
        )
        self._rows(
            "INSERT INTO orders SELECT seq, seq % 97, seq / 100, CONCAT('note ', seq), seq % 2, "
            f"'2026-01-02 03:04:05.678901', '2026-01-02 03:04:05' FROM seq_1_to_{ROWS_MAX}"
        )

    def _rows(self, query: str) -> Any:
        return self.server.rows(query, "bench")

    def change(self, changes: int) -> int:
        """Commits so many changes."""
        left = changes
        while left:
            now = min(left, ROWS_MAX)
            self._rows(
                f"UPDATE orders SET amount = amount + 1, buyer = buyer + 1 WHERE id <= {now}"
            )
            left -= now
        return changes

    def end(self) -> int:
        """A position that a capture gets to once it has all that was committed."""
        from penstock.capture.databases.mysql.binlog import place

        [(file, position, *_)] = self._rows("SHOW MASTER STATUS")
        return place(file, int(position))


@contextlib.contextmanager
def started(database: str) -> Iterator[Any]:
    """A server with its tables."""
    if database == "postgresql":
        with postgres(shared_buffers="128MB", max_wal_size="4GB") as server:
            yield Postgresql(server)
        return
    settings = {"server-id": "7", "log-bin": "mysql-bin", "binlog-format": "ROW"}
    with mariadb(**settings, binlog_row_metadata="FULL") as server:
        yield Mariadb(server)


def measure(
    databases: list[str], formats: list[str], changes: int, rounds: int
) -> dict[str, dict[str, float]]:
    """By database and format, the figures."""
    found: dict[str, dict[str, float]] = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        BrokerProcess(Path(folder) / "log") as broker,
        contextlib.closing(RegistryServer(broker.address, port=0)) as registry,
    ):
        for database in databases:
            with started(database) as source:

                def capture(
                    format_: str, until: int, source: Any = source, database: str = database
                ) -> None:
                    more = {} if format_ == "debezium" else {"registry": registry.url}
                    settings = {"to": f"{database}-{format_}", "log": broker.address, **more}
                    one = Capture(source.url, source.tables, format=format_, **settings)
                    one.run(until=lambda done: done.position >= until)

                for format_ in formats:
                    say(f"{database}: {format_} begins")
                    capture(format_, source.end())
                load_all()
                for _ in range(rounds):
                    count = source.change(changes)
                    end = source.end()
                    for format_ in formats:
                        wall, used = time.perf_counter(), time.process_time()
                        capture(format_, end)
                        used, wall = time.process_time() - used, time.perf_counter() - wall
                        one = found.setdefault(f"{database}, {format_}", {"cpu": 0.0, "wall": 0.0})
                        one["cpu"] = max(one["cpu"], count / used)
                        one["wall"] = max(one["wall"], count / wall)
                        say(
                            f"{database}: {format_}: {count / used:,.0f} changes a processor second"
                        )
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--changes", type=int, default=60_000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--databases", default="postgresql,mariadb")
    parser.add_argument("--formats", default=",".join(FORMATS))
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.smoke:
        options.changes, options.rounds, options.databases = 400, 1, "postgresql"
    databases, formats = options.databases.split(","), options.formats.split(",")
    found = measure(databases, formats, options.changes, options.rounds)
    if options.json:
        flat = {
            f"{name}, {what}": one for name, each in found.items() for what, one in each.items()
        }
        print(json.dumps({"figures": flat, "cores": os.cpu_count()}))
        return 0
    for name, one in found.items():
        base = found.get(f"{name.split(',')[0]}, debezium", one)
        ratio = one["cpu"] / base["cpu"]
        print(f"{name:26} {one['cpu']:10,.0f}/cpu s {one['wall']:10,.0f}/s  {ratio:5.2f} of JSON's")
    return 0


if __name__ == "__main__":
    sys.exit(main())

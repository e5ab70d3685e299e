"""Why there is capture: two systems that clients write one after the other stay different."""

from __future__ import annotations

from pathlib import Path

from tests.databases import Postgres, psycopg

from penstock.capture import Capture
from penstock.sinks import Sink, postgres


def test_dual_writes_leave_two_systems_different_and_capture_does_not(
    server: Postgres, log: str, tmp_path: Path
) -> None:
    """Two clients set x in both systems, the second between the first one's writes. Each system did what it
    was told, and they differ for good. A copy that follows the first system's commits equals it.
    """
    for name in ("leader", "copy"):
        server.execute(f"CREATE DATABASE {name}")
        server.execute("CREATE TABLE t (id text PRIMARY KEY, value int)", name)
        server.execute("INSERT INTO t VALUES ('x', 0)", name)
    update = "UPDATE t SET value = %s WHERE id = 'x'"
    with (
        psycopg.connect(server.url("leader"), autocommit=True) as leader,
        psycopg.connect(server.url("copy"), autocommit=True) as copy,
    ):
        leader.execute(update, (1,))  # the first client
        leader.execute(update, (2,))  # the second one is quicker
        copy.execute(update, (2,))
        copy.execute(update, (1,))  # and the first one goes on
    of_leader = server.rows("SELECT value FROM t", "leader")
    assert of_leader != server.rows("SELECT value FROM t", "copy")

    capture = Capture(
        server.url("leader"), {"public.t": "dual"}, name="dual", log=log, format="flat"
    )
    capture.run(until=lambda done: done.position > 0)
    sink = Sink(
        postgres(server.url("copy"), table="t"), "dual", "id STRING, value INT", key="id", log=log
    )
    sink.run(until=lambda done: done.lag == 0)
    assert server.rows("SELECT value FROM t", "copy") == of_leader == [(2,)]

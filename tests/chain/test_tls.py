"""Captures and sinks verify the servers of databases, as their addresses ask for."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme
from tests.databases import _AS, PROGRAMS, postgres

import penstock as ps
from penstock.errors import SetupError

COLUMNS = {"schema": "id INT NOT NULL, city STRING", "key": "id"}


@dataclass(frozen=True)
class Secured:
    """A server whose certificate is for 127.0.0.1.

    Attributes:
        name: of its kind.
        execute: runs a command.
        rows: of a query.
        address: of a host, and the file of an authority.
        table: as patterns name it.
    """

    name: str
    execute: Callable[[str], object]
    rows: Callable[[str], list[tuple[object, ...]]]
    address: Callable[[str, Path], str]
    table: str


@pytest.fixture(scope="module")
def authorities(tmp_path_factory) -> tuple[trustme.CA, Path, Path]:
    """An authority, the file of its certificate, and that of another one's."""
    folder, one, other = tmp_path_factory.mktemp("authorities"), trustme.CA(), trustme.CA()
    one.cert_pem.write_to_path(str(folder / "ca.pem"))
    other.cert_pem.write_to_path(str(folder / "other.pem"))
    return one, folder / "ca.pem", folder / "other.pem"


@pytest.fixture(scope="module", params=["postgres", "mariadb"])
def secured(request, authorities, tmp_path_factory) -> Iterator[Secured]:
    """A server with TLS."""
    made = authorities[0].issue_cert("127.0.0.1")
    if request.param == "postgres":
        of_system = [v for v, at in PROGRAMS.items() if at.is_relative_to("/usr/lib/postgresql")]
        if not of_system:
            pytest.skip("the wheel's PostgreSQL has no TLS, and the system's isn't installed")
        with postgres(of_system[0]) as server:
            files = [server.folder / "tls.pem", server.folder / "tls.key"]
            made.cert_chain_pems[0].write_to_path(str(files[0]))
            made.private_key_pem.write_to_path(str(files[1]))
            for one in files:
                one.chmod(0o600)
                if _AS:
                    shutil.chown(one, _AS["user"])
            for name, value in (("ssl_cert_file", files[0]), ("ssl_key_file", files[1])):
                server.execute(f"ALTER SYSTEM SET {name} = '{value}'")
            server.execute("ALTER SYSTEM SET ssl = on")
            server.execute("SELECT pg_reload_conf()")

            def address(host: str, authority: Path) -> str:
                return (
                    f"postgresql://postgres@{host}:{server.port}/postgres?sslmode=verify-full"
                    f"&sslrootcert={authority}"
                )

            yield Secured("postgres", server.execute, server.rows, address, "public.users")
        return
    from tests.mariadb import mariadb

    folder = tmp_path_factory.mktemp("tls")
    made.cert_chain_pems[0].write_to_path(str(folder / "tls.pem"))
    made.private_key_pem.write_to_path(str(folder / "tls.key"))
    settings = {"server-id": "8", "log-bin": "mysql-bin", "binlog-format": "ROW"}
    settings |= {"ssl-cert": str(folder / "tls.pem"), "ssl-key": str(folder / "tls.key")}
    with mariadb(**settings, binlog_row_metadata="FULL") as server:
        server.rows("CREATE DATABASE shop")

        def asked(query: str) -> list[tuple[object, ...]]:
            return server.rows(query, "shop")

        def at(host: str, authority: Path) -> str:
            return f"mysql://root@{host}:{server.port}/shop?ssl_ca={authority}"

        yield Secured("mariadb", asked, asked, at, "users")


def test_a_capture_and_a_sink_talk_to_a_server_that_they_have_verified(
    secured, authorities, log
) -> None:
    """The connection is encrypted, and the rows get through."""
    url = secured.address("127.0.0.1", authorities[1])
    secured.execute("CREATE TABLE users (id int PRIMARY KEY, city varchar(20))")
    secured.execute("INSERT INTO users VALUES (1, 'Ulm')")
    topic = f"{secured.name}-users"
    capture = ps.capture.Capture(
        url, {secured.table: topic}, log=log, name=secured.name, format="flat"
    )
    capture.run(until=lambda done: done.snapshot_rows == 1 and done.phase == "streaming")
    target = getattr(ps.sinks, secured.name.replace("mariadb", "mysql"))(url, table="copies")
    sink = ps.sinks.Sink(target, topic, **COLUMNS, log=log, name=f"{secured.name}-sink")
    sink.run(until=lambda done: done.lag == 0)
    assert [*secured.rows("SELECT id, city FROM copies")] == [(1, "Ulm")]


@pytest.mark.parametrize(
    ("host", "authority", "advice"),
    [
        ("127.0.0.1", 2, "name the file with the authority"),
        ("localhost", 1, "connect to one that it names"),
        ("127.0.0.1", None, "Name the file with the certificate of the server's authority"),
    ],
)
def test_a_server_that_is_not_the_one_is_refused_for_good(
    secured, authorities, log, tmp_path, host, authority, advice
) -> None:
    """Another authority, another host, no file: the error says what to do, and nothing is tried again."""
    file = tmp_path / "missing.pem" if authority is None else authorities[authority]
    url = secured.address(host, file)
    capture = ps.capture.Capture(url, {secured.table: "t"}, log=log, name="refused")
    with pytest.raises(SetupError, match=advice):
        capture.run()
    target = getattr(ps.sinks, secured.name.replace("mariadb", "mysql"))(url, table="copies")
    with pytest.raises(SetupError, match=advice):
        target.connect()

"""The server on a real socket."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme
from cryptography.hazmat.primitives import serialization
from tests.patience import PATIENCE_S, wait_until
from tests.ports import free_port

from penstock.errors import SetupError, UserError
from penstock.web import Server

pytestmark = pytest.mark.interpreter


def test_events_tell_of_each_version_and_end_when_the_server_stops(views: Any, shared: Any) -> None:
    """An open page hears of a new version at once, and a stop doesn't wait for it."""
    board = {"app": "t", "version": 1, "state": {"name": "live"}}
    server = Server(views, lambda *, history=False: dict(board), port=free_port())
    seen: list[int] = []
    ended = threading.Event()

    def listen() -> None:
        # A stream that the server cuts off may end without its last chunk.
        with (
            contextlib.suppress(httpx.RemoteProtocolError),
            httpx.stream("GET", f"{server.url}/api/events", timeout=PATIENCE_S) as answer,
        ):
            lines = (line for line in answer.iter_lines() if line.startswith("data: {"))
            for event in map(json.loads, (line[6:] for line in lines)):
                seen.extend([event["version"]] if event else [])
        ended.set()

    threading.Thread(target=listen, daemon=True).start()
    wait_until(lambda: seen == [1], lambda: f"version 1, found {seen}")
    board["version"] = 2
    wait_until(lambda: 2 in seen, lambda: f"version 2, found {seen}")
    assert seen[:2] == [1, 2]
    server.close()
    assert ended.wait(PATIENCE_S)


def test_a_taken_port_is_an_error_that_says_what_to_do(views: Any, shared: Any) -> None:
    """A port that was asked for is never silently another one."""
    server = Server(views, shared.status, port=free_port())
    try:
        with pytest.raises(SetupError, match="--port"):
            Server(views, shared.status, port=server.port)
    finally:
        server.close()


def test_a_port_that_somebody_else_is_about_to_use_is_taken(
    views: Any, shared: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bound by two before either listens, it is one's alone: nobody shows somebody else's page."""
    port = free_port()
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bind = socket.socket.bind

        def and_the_other_listens(own: socket.socket, address: Any) -> None:
            bind(own, address)
            other.listen()

        other.bind(("127.0.0.1", port))
        monkeypatch.setattr(socket.socket, "bind", and_the_other_listens)
        with pytest.raises(SetupError, match=f"port {port}.*in use"):
            Server(views, shared.status, port=port)


def test_the_usual_port_gives_way_to_the_next(views: Any, shared: Any) -> None:
    """Two pipelines on one machine each have a page."""
    first, second = Server(views, shared.status), Server(views, shared.status)
    try:
        assert first.port != second.port
        assert httpx.get(f"{second.url}/api/status").json()["version"] == 7
    finally:
        first.close()
        second.close()


PASSWORD = "a long enough one: ä"


def test_beyond_this_machine_a_password_is_needed(views: Any, shared: Any) -> None:
    """None, and one that is short, are refused before a socket is opened."""
    with pytest.raises(UserError, match="PENSTOCK_UI_PASSWORD"):
        Server(views, shared.status, host="0.0.0.0", port=free_port())
    with pytest.raises(UserError, match="at least 12 characters"):
        Server(views, shared.status, port=free_port(), password="short")


@pytest.mark.parametrize("secure", [False, True])
def test_a_password_opens_every_part_of_the_page(
    views: Any, shared: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, secure: bool
) -> None:
    """Nothing is answered without it, under any name; with it, any name of the machine is."""
    monkeypatch.setattr("penstock.web.guard.WRONG_S", 0.0)
    authority, tls = trustme.CA(), None
    if secure:
        made = authority.issue_cert("127.0.0.1")
        made.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "page.pem"))
        tls = (tmp_path / "page.pem", tmp_path / "page.pem")
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    verify = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    server = Server(
        views, shared.status, host="0.0.0.0", port=free_port(), password=PASSWORD, tls=tls
    )
    assert server.url.startswith("https:" if secure else "http:")
    url = server.url.replace("0.0.0.0", "127.0.0.1")
    try:
        with httpx.Client(base_url=url, verify=verify, timeout=PATIENCE_S) as client:
            for path in (
                "/",
                "/api/views",
                "/static/app.js",
                "/metrics",
                "/api/query?sql=SELECT 1",
            ):
                found = client.get(path)
                assert found.status_code == 401
                assert "Basic" in found.headers["www-authenticate"]
                assert client.get(path, auth=("ann", "another one")).status_code == 401
                known = httpx.BasicAuth("ann", PASSWORD.encode())  # type: ignore[arg-type]
                assert client.get(path, auth=known).status_code == 200
                host = {"host": "page.example"}
                assert client.get(path, auth=known, headers=host).status_code == 200
            for odd in ("Basic", "Basic ?", "Bearer x", "Basic YQ==", b"Basic \xe9"):
                assert client.get("/", headers={"authorization": odd}).status_code == 401
            foreign = {"sec-fetch-site": "cross-site"}
            assert client.get("/api/views", auth=known, headers=foreign).status_code == 403
    finally:
        server.close()


def test_a_certificate_that_is_none_is_explained(views: Any, shared: Any, tmp_path: Path) -> None:
    """Before a socket is opened."""
    (tmp_path / "x.pem").write_text("nothing")
    made = trustme.CA().issue_cert("127.0.0.1")
    key = serialization.load_pem_private_key(made.private_key_pem.bytes(), None)
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    encrypted = key.private_bytes(pem, form, serialization.BestAvailableEncryption(b"secret"))
    (tmp_path / "encrypted.pem").write_bytes(encrypted + made.cert_chain_pems[0].bytes())
    for file, found in (
        ("x.pem", ""),
        ("missing.pem", "No such file"),
        ("encrypted.pem", "the key is encrypted"),
    ):
        tls = (tmp_path / file, tmp_path / file)
        message = f"expected a certificate and its unencrypted key .*{found}"
        with pytest.raises(SetupError, match=message):
            Server(views, shared.status, port=free_port(), tls=tls)

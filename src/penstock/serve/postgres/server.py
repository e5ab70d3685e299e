"""The endpoint for PostgreSQL's clients: sockets and threads around sessions.

A connection has a thread. Its queries run in the processes of `Queries`, so none of them can hold the
pipeline or another client for longer than the limits say. Loopback needs no password; an address that
other machines reach does (SCRAM-SHA-256). With a certificate, all clients must use TLS.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import secrets
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Final

from penstock.errors import ProtocolError, SetupError
from penstock.serve.answers import Answer
from penstock.serve.following import Subscription, follow
from penstock.serve.postgres import messages
from penstock.serve.postgres.messages import Reader, message
from penstock.serve.postgres.session import Session
from penstock.serve.queries import Queries, QueryLimits
from penstock.serve.questions import Question
from penstock.serve.views import Views
from penstock.wire.scram import Credential, ScramError, ServerExchange

__all__ = ["PASSWORD_VARIABLE", "PostgresServer"]

PASSWORD_VARIABLE: Final = "PENSTOCK_POSTGRES_PASSWORD"  # noqa: S105 - its name
CONNECTIONS_MAX: Final = 64  # each has a thread; pools of clients are smaller
STARTUP_BYTES_MAX: Final = 10_000  # PostgreSQL's own limit
MESSAGE_BYTES_MAX: Final = 16 << 20  # of a client's: a query with its parameters
STARTING_MAX: Final = 64  # connections in addition to them, which are yet to log in, or only cancel
LOG_IN_S_MAX: Final = 60.0  # PostgreSQL's authentication_timeout
ACCEPT_PAUSE_S: Final = (
    0.1  # after a connection that the system couldn't give, for lack of files say
)
KEEPALIVE_S: Final = 60  # of silence, after which a client is asked whether it is there
FAILURE_DELAY_S: Final = 0.5  # how long the answer to a wrong password is held back
QUERY_SECONDS_MAX: Final = 30.0
QUERIES_AT_ONCE: Final = 4
SESSIONS_BYTES_MAX: Final = 1 << 30
"""Of what all sessions keep: answers that clients are yet to read, cursors, texts of statements. Answers that
come just now are not counted: as many as queries at once."""
CHANGES_BYTES_MAX: Final = 256 << 20
"""Of the rows that a subscription sends for one version."""
BACKLOG: Final = 64
MECHANISM: Final = "SCRAM-SHA-256"
LOG: Final = logging.getLogger("penstock.postgres")
_HUNG_UP: Final = getattr(select, "POLLRDHUP", 0)  # Linux has it
_TERMINATE: Final = b"X"
_LENGTH: Final = struct.Struct("!i")


class PostgresServer:
    """Serves a pipeline's views until `close`.

    Args:
        where: as for `Views`.
        host: an address of this machine.
        port: 0 takes a free one.
        password: that clients need, of any user name; None: they need none, on loopback only.
        queries: what answers; by default processes of its own.
        tls: files of the certificate, with those that it follows from, and of its key (PEM); None: without
            TLS.
        answered: takes each answer, in the thread of its connection.

    Raises:
        SetupError: the port is taken, other machines would reach it without a password, or a file of `tls`
            can't be used.
    """

    def __init__(
        self,
        where: str | Path,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        password: str | None = None,
        queries: Queries | None = None,
        tls: tuple[str | Path, str | Path] | None = None,
        answered: Callable[[Answer], None] = lambda _: None,
    ) -> None:
        if not password and not _is_loopback(host):
            raise SetupError(
                f"expected a password for {host}, which other machines reach; found none. Set "
                f"{PASSWORD_VARIABLE}, or serve 127.0.0.1"
            )
        self._where, self._answered = where, answered
        self.tls = None if tls is None else _tls(*tls)
        limits = QueryLimits(seconds=QUERY_SECONDS_MAX, at_once=QUERIES_AT_ONCE)
        self._own = None if queries is not None else Queries(where, limits)
        self._queries = queries or self._own
        self._credential = (
            Credential.from_password(MECHANISM, password, secrets.token_bytes(16))
            if password
            else None
        )
        self._views: Views | None = None
        self._lock = threading.Lock()
        self._open: set[_Connection] = set()
        self._connections: dict[int, _Connection] = {}  # of these, the ones that were admitted
        self._held: dict[_Connection, int] = {}  # bytes
        self._closing = threading.Event()
        self._socket = _listening(host, port)
        self.port = int(self._socket.getsockname()[1])
        shown = f"[{host}]" if ":" in host else host
        self.url = f"postgresql://penstock@{shown}:{self.port}/penstock"
        self.url += "" if tls is None else "?sslmode=require"
        threading.Thread(target=self._accept, name="penstock-postgres", daemon=True).start()

    def close(self) -> None:
        """Ends all sessions, and the queries that run."""
        self._closing.set()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        with self._lock:
            connections = list(self._open)
        for one in connections:
            one.close()
        if self._own is not None:
            self._own.close()

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                client, _ = self._socket.accept()
            except OSError as error:
                if not self._closing.is_set():
                    LOG.warning("expected to accept a client; found: %s", error)
                    self._closing.wait(ACCEPT_PAUSE_S)
                continue
            try:
                self._begin(client)
            except (OSError, RuntimeError) as error:  # the client has gone, or there is no thread
                LOG.warning("expected to serve a client; found: %s", error)
                client.close()

    def _begin(self, client: socket.socket) -> None:
        """Serves a client in a thread of its own."""
        connection = _Connection(self, client)
        with self._lock:
            if self._closing.is_set() or len(self._open) >= CONNECTIONS_MAX + STARTING_MAX:
                connection.release()
                return
            self._open.add(connection)
        thread = threading.Thread(target=connection.serve, name="penstock-postgres", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            self.leave(connection)
            raise

    def views(self) -> Views:
        """The pipeline's views.

        Raises:
            QueryError: there are none yet.
        """
        with self._lock:
            if self._views is None:
                self._views = Views(self._where)
            return self._views

    def ask(self, question: Question, gone: Callable[[], bool]) -> Answer:
        """Answers a question; see `Queries.ask`."""
        assert self._queries is not None
        found = self._queries.ask(question, gone)
        self._answered(found)
        return found

    def follow(self, what: Subscription, gone: Callable[[], bool]) -> Iterator[Answer]:
        """A view's changes, until the client has gone or the endpoint is closed."""

        def changed(known: int | None) -> Answer:
            question = Question(
                what.view, 0, kind="changes", since=known, bytes_max=CHANGES_BYTES_MAX
            )
            return self.ask(question, gone)

        return follow(self.views(), what, changed, lambda: gone() or self._closing.is_set())

    def admit(self, connection: _Connection) -> int | None:
        """Takes a connection in: its number for clients that cancel; None where there are too many."""
        with self._lock:
            if len(self._connections) >= CONNECTIONS_MAX or self._closing.is_set():
                return None
            number = next(n for n in range(1, CONNECTIONS_MAX + 2) if n not in self._connections)
            self._connections[number] = connection
            return number

    def hold(self, connection: _Connection, size: int) -> bool:
        """Takes note of the bytes that a session keeps; False, and no note, if it is too much for all.

        Fewer than before are never too much.
        """
        with self._lock:
            before = self._held.get(connection, 0)
            total = sum(self._held.values()) - before + size
            if size > before and total > SESSIONS_BYTES_MAX:
                return False
            self._held[connection] = size
            return True

    def leave(self, connection: _Connection, number: int | None = None) -> None:
        """Closes a connection's socket, and forgets it."""
        connection.release()
        with self._lock:
            self._open.discard(connection)
            self._held.pop(connection, None)
            if number is not None:
                del self._connections[number]

    def cancel(self, number: int, key: int) -> None:
        """Cancels what a connection's client waits for, if it knows the key."""
        with self._lock:
            connection = self._connections.get(number)
        if connection is not None and secrets.compare_digest(str(connection.key), str(key)):
            connection.cancelled.set()

    def exchange(self) -> ServerExchange | None:
        """A new log-in; None where none is needed."""
        credential = self._credential
        if credential is None:
            return None
        nonce = secrets.token_urlsafe(18)
        return ServerExchange(MECHANISM, lambda _: credential, nonce, nameless=True)


class _Connection:
    """One client's."""

    def __init__(self, server: PostgresServer, client: socket.socket) -> None:
        self._server, self._client = server, client
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if hasattr(socket, "TCP_KEEPIDLE"):
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_S)
        self._file: BinaryIO | None = None  # after the log-in
        self._deadline: float | None = time.monotonic() + LOG_IN_S_MAX
        self.key = secrets.randbits(31)
        self.cancelled = threading.Event()

    def close(self) -> None:
        """Ends the conversation; a thread that reads or sends then finds its end."""
        with contextlib.suppress(OSError):
            self._client.shutdown(socket.SHUT_RDWR)

    def release(self) -> None:
        """Gives the socket back."""
        if self._file is not None:
            self._file.close()
        self._client.close()

    def serve(self) -> None:
        number = None
        try:
            parameters = self._startup()
            if parameters is None:
                return
            number = self._server.admit(self)
            if number is None:
                reason = f"expected at most {CONNECTIONS_MAX} connections; found that many"
                self._send(messages.error("53300", reason, "FATAL"))
                return
            if self._log_in():
                self._deadline = None
                self._client.settimeout(None)
                self._file = self._client.makefile("rb")
                self._converse(number, parameters)
        except ProtocolError as error:
            with contextlib.suppress(OSError):
                self._send(messages.error("08P01", str(error), "FATAL"))
        except (OSError, EOFError):
            pass  # the client has gone
        finally:
            self._server.leave(self, number)

    def _startup(self) -> dict[str, str] | None:
        """What the client says about itself; None where it only cancels."""
        while True:
            size = _LENGTH.unpack(self._take(4))[0]
            if not 8 <= size <= STARTUP_BYTES_MAX:
                raise ProtocolError(f"expected a startup message; found a length of {size} bytes")
            reader = Reader(self._take(size - 4))
            code = reader.number(4)
            if code in (messages.SSL, messages.GSS):
                tls = self._server.tls
                if code == messages.GSS or tls is None or isinstance(self._client, ssl.SSLSocket):
                    self._send(b"N")
                    continue
                self._send(b"S")
                self._client.settimeout(self._left_s())
                # What was sent ahead is read as a part of the handshake, and fails it.
                self._client = tls.wrap_socket(self._client, server_side=True)
                continue
            if code == messages.CANCEL:
                self._server.cancel(reader.number(4), reader.number(4))
                return None
            if self._server.tls is not None and not isinstance(self._client, ssl.SSLSocket):
                raise ProtocolError("expected TLS; found a client without it. Set sslmode=require")
            if code >> 16 != 3:
                raise ProtocolError(
                    f"expected version 3 of the protocol; found {code >> 16}.{code & 0xFFFF}"
                )
            parameters: dict[str, str] = {}
            while name := reader.text():
                parameters[name] = reader.text()
            options = [name for name in parameters if name.startswith("_pq_.")]
            if code > messages.VERSION or options:
                names = b"".join(messages.text(name) for name in options)
                self._send(
                    message(b"v", struct.pack("!ii", messages.VERSION, len(options)) + names)
                )
            return parameters

    def _log_in(self) -> bool:
        exchange = self._server.exchange()
        if exchange is None:
            self._send(message(b"R", _LENGTH.pack(0)))
            return True
        try:
            self._send(message(b"R", _LENGTH.pack(10) + MECHANISM.encode() + b"\0\0"))
            reader = Reader(self._password())
            mechanism = reader.text()
            if mechanism != MECHANISM:
                raise ScramError(f"expected {MECHANISM}; found {mechanism!r}")
            answer = exchange.step(reader.take(reader.number(4)))
            self._send(message(b"R", _LENGTH.pack(11) + answer))
            answer = exchange.step(self._password())
        except ScramError:
            time.sleep(FAILURE_DELAY_S)
            reason = "expected the endpoint's password; found another"
            self._send(messages.error("28P01", reason, "FATAL"))
            return False
        self._send(message(b"R", _LENGTH.pack(12) + answer) + message(b"R", _LENGTH.pack(0)))
        return True

    def _password(self) -> bytes:
        kind, body = self._message(STARTUP_BYTES_MAX)
        if kind != b"p":
            raise ProtocolError(f"expected a password message; found {kind!r}")
        return body

    def _converse(self, number: int, parameters: dict[str, str]) -> None:
        server = self._server
        session: Session

        def gone() -> bool:
            return self._gone() or session.is_late()

        session = Session(
            lambda question: server.ask(question, gone),
            lambda: server.views().version,
            lambda token, seconds: server.views().wait_for(token, seconds, gone),
            self.cancelled.is_set,
            parameters,
            lambda size: server.hold(self, size),
            follow=lambda what: server.follow(what, gone),
        )
        key = message(b"K", struct.pack("!ii", number, self.key))
        self._send(session.greeting() + key + session.ready())
        while True:
            kind, body = self._message(MESSAGE_BYTES_MAX)
            if kind == _TERMINATE:
                return
            self.cancelled.clear()
            for part in session.take(kind, body):
                self._send(part)

    def _gone(self) -> bool:
        """Whether nobody waits for the answer any more."""
        if self.cancelled.is_set():
            return True
        poll = select.poll()
        poll.register(self._client, select.POLLIN | _HUNG_UP)
        found = poll.poll(0)
        if not found:
            return False
        if found[0][1] & (_HUNG_UP | select.POLLHUP | select.POLLERR):
            return True
        if isinstance(self._client, ssl.SSLSocket):  # what it sent can't be looked at
            return False
        try:  # libpq says that it ends before it closes
            return self._client.recv(1, socket.MSG_PEEK) in (b"", _TERMINATE)
        except OSError:
            return True

    def _message(self, bytes_max: int) -> tuple[bytes, bytes]:
        kind = self._take(1)
        size = _LENGTH.unpack(self._take(4))[0]
        if not 4 <= size <= bytes_max:
            raise ProtocolError(f"expected a message of at most {bytes_max} bytes; found {size}")
        return kind, self._take(size - 4)

    def _take(self, size: int) -> bytes:
        """So many bytes; before the log-in only until its time is over, however slowly they come."""
        if self._file is not None:
            data = self._file.read(size)
        else:
            data = b""
            while len(data) < size:
                self._client.settimeout(self._left_s())
                if not (part := self._client.recv(size - len(data))):
                    break
                data += part
        if len(data) != size:
            raise EOFError
        return data

    def _left_s(self) -> float:
        """Seconds until the log-in's time is over."""
        assert self._deadline is not None
        return max(0.001, self._deadline - time.monotonic())

    def _send(self, data: bytes) -> None:
        self._client.sendall(data)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _tls(certificate: str | Path, key: str | Path) -> ssl.SSLContext:
    from penstock.broker.security.tls import no_password

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key, password=no_password)
    except (OSError, ValueError) as error:
        raise SetupError(
            f"expected a certificate in {str(certificate)!r} and its unencrypted key in {str(key)!r}, both "
            f"PEM; found: {error}"
        ) from None
    return context


def _listening(host: str, port: int) -> socket.socket:
    one = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        one.bind((host, port))
        one.listen(BACKLOG)
    except OSError as error:
        one.close()
        raise SetupError(
            f"expected to serve PostgreSQL's clients on {host}, port {port}; found: {error.strerror}. "
            "Choose another port"
        ) from None
    return one

"""A session of PostgreSQL's protocol, message by message: which version it reads, and what it answers."""

from __future__ import annotations

import struct
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import LimitError
from penstock.expr.duck import connection
from penstock.serve import Answer, Question
from penstock.serve.catalogs.types import encode_column, literal, type_named, type_of
from penstock.serve.postgres.session import Session


class Versions:
    """Views whose version changes with each question that was not of a version."""

    def __init__(self) -> None:
        self.version, self.asked, self.waited = 1, [], []  # type: ignore[var-annotated]

    def ask(self, question: Question) -> Answer:
        self.asked.append(question.version)
        version = question.version or self.version
        self.version += 1
        return Answer(pa.table({"n": list(range(5))}), 5, (), ("BIGINT",), version)

    def wait(self, token: str, seconds: float) -> int:
        self.waited.append((token, seconds))
        if token == "clicks-0:99":
            raise LimitError("expected a version that has read clicks-0:99 within 1 s")
        return 7


@pytest.fixture
def versions() -> Versions:
    return Versions()


@pytest.fixture
def session(versions: Versions) -> Session:
    return Session(versions.ask, lambda: versions.version, versions.wait, lambda: False, {})


def query(session: Session, text: str) -> list[tuple[bytes, bytes]]:
    """The messages that answer a simple query."""
    return parted(b"".join(session.take(b"Q", text.encode() + b"\0")))


def parted(data: bytes) -> list[tuple[bytes, bytes]]:
    found, at = [], 0
    while at < len(data):
        size = struct.unpack_from("!i", data, at + 1)[0]
        found.append((data[at : at + 1], data[at + 5 : at + 1 + size]))
        at += 1 + size
    return found


def kinds(answers: list[tuple[bytes, bytes]]) -> bytes:
    return b"".join(kind for kind, _ in answers)


def test_each_statement_reads_the_newest_version(session: Session, versions: Versions) -> None:
    """In a transaction too, as READ COMMITTED says; REPEATABLE READ reads one version to its end."""
    for text in ("SELECT 1", "BEGIN", "SELECT 1", "SELECT 2", "COMMIT"):
        query(session, text)
    assert versions.asked == [None, None, None]
    versions.asked.clear()
    for begin in (
        "BEGIN ISOLATION LEVEL REPEATABLE READ",
        "START TRANSACTION READ ONLY, ISOLATION LEVEL SERIALIZABLE",
    ):
        newest = versions.version
        for text in (begin, "SELECT 1", "SELECT 2", "COMMIT", "SELECT 3"):
            query(session, text)
        assert versions.asked == [newest, newest, None]
        versions.asked.clear()
    query(session, "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    newest = versions.version
    for text in ("BEGIN", "SELECT 1", "SELECT 2", "ROLLBACK"):
        query(session, text)
    assert versions.asked == [newest, newest]


def test_a_write_is_waited_for(session: Session, versions: Versions) -> None:
    """SET penstock.after holds each statement; one that waits in vain is an error, and can be repeated."""
    query(session, "SET penstock.after = 'clicks-0:41'; SET penstock.wait = '1500ms'")
    assert kinds(query(session, "SELECT 1")) == b"TDDDDDCZ"
    assert versions.waited == [("clicks-0:41", 1.5)]
    query(session, "SET penstock.after = 'clicks-0:99'")
    answers = query(session, "SELECT 1")
    assert kinds(answers) == b"EZ"
    assert b"C57014\0" in answers[0][1]
    query(session, "RESET penstock.after")
    assert kinds(query(session, "SELECT 1")) == b"TDDDDDCZ"
    assert kinds(query(session, "SET penstock.wait = 'soon'")) == b"EZ"


def test_a_failed_transaction_ends_with_a_rollback(session: Session) -> None:
    """Until then statements are refused, and ReadyForQuery says so."""
    assert query(session, "BEGIN")[-1] == (b"Z", b"T")
    assert query(session, "DROP TABLE x")[-1] == (b"Z", b"E")
    refused = query(session, "SELECT 1")
    assert b"C25P02\0" in refused[0][1]
    answers = query(session, "COMMIT")
    assert answers[0] == (b"C", b"ROLLBACK\0")
    assert answers[-1] == (b"Z", b"I")


def test_a_portal_gives_so_many_rows_at_a_time(session: Session) -> None:
    """Execute with a limit suspends the portal, and the next one goes on; an error skips up to Sync."""

    def send(kind: bytes, body: bytes) -> list[tuple[bytes, bytes]]:
        return parted(b"".join(session.take(kind, body)))

    assert kinds(send(b"P", b"\0SELECT 1\0\0\0")) == b"1"
    assert kinds(send(b"B", b"p\0\0" + bytes(6))) == b"2"
    assert kinds(send(b"D", b"Pp\0")) == b"T"
    assert kinds(send(b"E", b"p\0" + struct.pack("!i", 3))) == b"DDDs"
    answers = send(b"E", b"p\0" + struct.pack("!i", 3))
    assert kinds(answers) == b"DDC"
    assert answers[-1][1] == b"SELECT 5\0"
    assert kinds(send(b"E", b"nothing\0" + bytes(4))) == b"E"
    assert send(b"P", b"\0SELECT 1\0\0\0") == []
    assert kinds(send(b"S", b"")) == b"Z"
    assert kinds(send(b"P", b"\0SELECT 1\0\0\0")) == b"1"


def test_settings_are_shown_and_reset(session: Session) -> None:
    """What drivers set and ask when they connect; the server's own can't be set."""
    assert b"read committed" in query(session, "SHOW TRANSACTION ISOLATION LEVEL")[1][1]
    query(
        session, "SET application_name TO 'report'; SET TIME ZONE 'UTC'; SET extra_float_digits = 3"
    )
    assert b"report" in query(session, "SHOW application_name")[1][1]
    query(session, "DISCARD ALL; RESET ALL")
    assert b"report" not in query(session, "SHOW application_name")[1][1]
    for wrong in ("SET server_version = '9'", "SHOW nothing", "SET client_encoding = 'LATIN1'"):
        assert kinds(query(session, wrong)) == b"EZ"


@given(
    st.one_of(
        st.decimals(
            allow_nan=False, allow_infinity=False, min_value=-(10**20), max_value=10**20, places=7
        ),
        st.integers(-(2**63), 2**63 - 1),
        st.booleans(),
        st.binary(max_size=20),
        st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20),
        st.dates(),
        st.datetimes(),
        st.timezones()
        .flatmap(lambda zone: st.datetimes(timezones=st.just(zone)))
        .filter(lambda at: 2 <= at.year <= 9998),
        st.uuids(),
        st.lists(st.integers(-5, 5) | st.none(), min_size=1, max_size=4).filter(
            lambda x: any(v is not None for v in x)
        ),
        st.lists(st.text("ab ,{}\"\\'", max_size=4), min_size=1, max_size=3),
    )
)
def test_a_value_comes_back_as_it_went(value: object) -> None:
    """What is encoded for a client, in text or binary, is the same value as a parameter of a query."""
    con = connection()
    relation = con.sql("SELECT $1 AS x", params=[value])
    column, duck = relation.to_arrow_table()["x"], str(relation.types[0])
    kind, is_array = type_named(column.type, duck)
    oid = kind.array if is_array else kind.oid
    for form in (0, 1):
        [data] = encode_column(column, form, duck)
        assert data is not None
        again = f"SELECT ({literal(data, oid, form)}) IS NOT DISTINCT FROM $1"
        assert con.sql(again, params=[value]).fetchall() == [(True,)], (data, form)


def test_numbers_have_their_digits() -> None:
    """Numeric in binary is digits of base 10000; these are PostgreSQL's own bytes."""
    golden = {
        "0.00": "0000000000000002",
        "1.25": "0002000000000002000109c4",
        "-12345678.9": "0003000140000001" + "04d2162e2328",
        "0.0001": "0001ffff000000040001",
    }
    for text, hexed in golden.items():
        [data] = encode_column(pa.chunked_array([pa.array([Decimal(text)])]), 1)
        assert data is not None
        assert data.hex() == hexed
    assert type_of(pa.decimal128(9, 2))[0].oid == 1700

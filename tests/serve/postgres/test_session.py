"""A session of PostgreSQL's protocol, message by message: which version it reads, and what it answers."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from decimal import Decimal
from functools import partial

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import LimitError, PenstockError, QueryError
from penstock.expr.duck import connection
from penstock.serve import Answer, Failure, Question
from penstock.serve.catalogs.catalog import is_about
from penstock.serve.catalogs.types import encode_column, literal, type_named, type_of
from penstock.serve.following import Subscription
from penstock.serve.postgres.commands import split, words_of
from penstock.serve.postgres.session import STATEMENTS_MAX, Session
from penstock.serve.texts.words import substituted

TOLD = {"application_name": "first"}


class Versions:
    """Views whose version changes with each question that was not of a version."""

    def __init__(self) -> None:
        self.version, self.asked, self.waited = 1, [], []  # type: ignore[var-annotated]
        self.type = "BIGINT"

    def ask(self, question: Question) -> Answer:
        self.asked.append(question.version)
        version = question.version or self.version
        self.version += 1
        if question.query == "SELECT fails":
            raise OverflowError("date value out of range")
        return Answer(pa.table({"n": list(range(5))}), 5, (), (self.type,), version)

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
    return Session(versions.ask, lambda: versions.version, versions.wait, lambda: False, TOLD)


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


def sent(session: Session, kind: bytes, body: bytes) -> list[tuple[bytes, bytes]]:
    """The messages that answer one message."""
    return parted(b"".join(session.take(kind, body)))


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


def test_a_copy_is_written_as_it_is_asked_for() -> None:
    """Text, CSV and binary, with what must be quoted or escaped; the tag has the number of rows."""
    table = pa.table({"a": ["x,1", None, "", 'q"\t\\'], "n": pa.array([1, 2, None, 4], pa.int64())})
    asked: list[str] = []

    def ask(question: Question) -> Answer:
        asked.append(question.query)
        return Answer(table, 4, (), ("VARCHAR", "BIGINT"), 1)

    session = Session(ask, lambda: 1, lambda *_: 1, lambda: False, TOLD)
    expected = {
        "COPY (SELECT a, n FROM v WHERE a <> ')') TO STDOUT": (
            b"x,1\t1\n", b"\\N\t2\n", b"\t\\N\n", b'q"\\t\\\\\t4\n',
        ),
        "copy v (a, n) to stdout with (format csv, header)": (
            b"a,n\n", b'"x,1",1\n', b",2\n", b'"",\n', b'"q""\t\\",4\n',
        ),
        "COPY v TO STDOUT CSV DELIMITER ';' NULL 'NULL' QUOTE '!'": (
            b"x,1;1\n", b"NULL;2\n", b";NULL\n", b'q"\t\\;4\n',
        ),
    }  # fmt: skip
    for text, lines in expected.items():
        answers = query(session, text)
        assert kinds(answers) == b"H" + b"d" * len(lines) + b"cCZ"
        assert tuple(body for kind, body in answers if kind == b"d") == lines
        assert answers[-2] == (b"C", b"COPY 4\0")
    assert asked == ["SELECT a, n FROM v WHERE a <> ')'", "SELECT a, n FROM v", "SELECT * FROM v"]
    answers = query(session, "COPY v TO STDOUT BINARY")
    assert b"".join(body for kind, body in answers if kind == b"d") == b"".join(
        (
            b"PGCOPY\n\xff\r\n\0" + bytes(8),
            b"\0\2\0\0\0\3x,1\0\0\0\10\0\0\0\0\0\0\0\1",
            b"\0\2\xff\xff\xff\xff\0\0\0\10\0\0\0\0\0\0\0\2",
            b"\0\2\0\0\0\0\xff\xff\xff\xff",
            b'\0\2\0\0\0\4q"\t\\\0\0\0\10\0\0\0\0\0\0\0\4',
            b"\xff\xff",
        )
    )
    for text, code in (
        ("COPY v FROM STDIN", b"25006"),
        ("COPY v TO '/tmp/x'", b"0A000"),
        ("COPY (SELECT 1 TO STDOUT", b"42601"),
        ("COPY v TO STDOUT (FORMAT parquet)", b"22023"),
        ("COPY v TO STDOUT (DELIMITER 'xx')", b"22023"),
    ):
        assert b"C" + code + b"\0" in query(session, text)[0][1], text


def changed(version: int, since: int | None, rows: list[tuple[int, int]]) -> Answer:
    """What a version changes: n and weight."""
    table = pa.table({"n": [n for n, _ in rows], "weight": [w for _, w in rows]})
    return Answer(table, len(rows), (), (), version, since)


FAILED = Failure("v", "values", 2, "Conversion Error", "s::INT", "n")
WARNING = b"N", b"SWARNING\0VWARNING\0C01000\0M" + FAILED.text.encode() + b"\0\0"


def failing() -> Session:
    """A session over a view in which values fail."""

    def ask(question: Question) -> Answer:
        rows = pa.table({"n": [1, 2]})
        if question.kind == "columns":
            return Answer(rows.slice(0, 0), None, (), ("INTEGER",), 3)
        return Answer(rows, 2, (), ("INTEGER",), 3, None, {"v": (FAILED,)})

    def follow(what: Subscription) -> Iterator[Answer]:
        for version in (3, 4):
            rows = pa.table({"n": [1], "weight": [version]})
            yield Answer(
                rows, 1, (), (), version, version - 1 if version > 3 else None, {"v": (FAILED,)}
            )

    never = partial(bool, 0)
    return Session(ask, lambda: 3, lambda *_: 3, never, TOLD, follow=follow)


def test_values_that_fail_are_a_warning_before_the_rows() -> None:
    """Each statement that reads a view warns of what failed in it, in all ways to ask."""
    session = failing()
    answers = query(session, "SELECT n FROM v")
    assert (kinds(answers), answers[0]) == (b"NTDDCZ", WARNING)
    assert kinds(query(session, "COPY v TO STDOUT"))[:2] == b"NH"
    assert kinds(query(session, "DECLARE c CURSOR FOR SELECT n FROM v")) == b"NCZ"
    assert kinds(query(session, "FETCH ALL FROM c")) == b"TDDCZ"
    sent(session, b"P", b"\0SELECT n FROM v\0\0\0")
    sent(session, b"B", b"\0\0\0\0\0\0\0\0")
    assert kinds(sent(session, b"E", b"\0\0\0\0\0")) == b"NDDC"


def test_a_subscription_warns_once() -> None:
    """A view's changes warn of a failure when it is first seen, and not with each version."""
    assert kinds(query(failing(), "COPY (SUBSCRIBE v UNTIL VERSION 4) TO STDOUT")) == b"HNddcCZ"


def test_a_client_that_wants_no_warnings_gets_none() -> None:
    """`client_min_messages` is heard."""
    session = failing()
    query(session, "SET client_min_messages = error")
    assert kinds(query(session, "SELECT n FROM v")) == b"TDDCZ"
    query(session, "SET client_min_messages = notice")
    assert kinds(query(session, "SELECT n FROM v")) == b"NTDDCZ"


def test_a_view_is_followed_by_a_copy() -> None:
    """Each version's rows have its number and their weights; PROGRESS ends it; what is lost is an error."""
    script: list[Answer] = []
    followed: list[Subscription] = []
    held: list[int] = []

    def follow(what: Subscription) -> Iterator[Answer]:
        followed.append(what)
        yield from script

    def ask(question: Question) -> Answer:
        if "nothing" in question.query:
            raise QueryError("expected one of the views v; found 'nothing'")
        assert question.kind == "columns"
        return Answer(pa.table({"n": pa.array([], pa.int64())}), 0, (), ("BIGINT",), 1)

    def hold(size: int) -> bool:
        held.append(size)
        return size < 1_000

    session = Session(ask, lambda: 1, lambda *_: 1, lambda: False, TOLD, hold, follow=follow)

    def said(text: str) -> tuple[bytes, list[bytes]]:
        answers = query(session, text)
        return kinds(answers), [body for kind, body in answers if kind in b"dCE"]

    script[:] = changed(3, None, [(7, 1), (8, 2)]), changed(5, 3, [(7, -1)])
    assert said("COPY (SUBSCRIBE v UNTIL VERSION 5) TO STDOUT") == (
        b"HdddcCZ",
        [b"3\t1\t7\n", b"3\t2\t8\n", b"5\t-1\t7\n", b"COPY 3\0"],
    )
    script[:] = [changed(5, 3, [(7, -1)])]
    _, lines = said(
        'copy (subscribe to "V""w" with (progress) from version 3 until version 4) to stdout csv header'
    )
    assert lines[:-1] == [b"version,progressed,weight,n\n", b"5,f,-1,7\n", b"5,t,,\n"]
    assert followed == [Subscription("v", None, 5), Subscription('V"w', 3, 4, progress=True)]
    assert held[-1] < max(held)
    script[:] = changed(3, None, [(7, 1)]), changed(2, None, [(6, 1)])
    assert said("COPY (SUBSCRIBE v) TO STDOUT")[0] == b"HdEZ"
    for text, code in (
        ("COPY (SUBSCRIBE v FROM VERSION 3) TO STDOUT", b"C72000"),  # 3 isn't kept
        ("COPY (SUBSCRIBE nothing) TO STDOUT", b"C42P01"),
        ("COPY (SUBSCRIBE v, w) TO STDOUT", b"C42601"),
        ("SUBSCRIBE v", b"C0A000"),
    ):
        assert code in said(text)[1][-1]
    script[:] = [changed(3, None, [(one, 1) for one in range(1_000)])]
    assert b"C53200" in said("COPY (SUBSCRIBE v) TO STDOUT")[1][-1]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("EXPLAIN SELECT 1", "plan"),
        ("/* why */ explain analyze verbose SELECT 1", "analyze"),
        ("EXPLAIN (ANALYZE, COSTS off) SELECT 1", "analyze"),
        ("EXPLAIN (ANALYZE false) SELECT 1", "plan"),
    ],
)
def test_explain_asks_for_a_plan(text: str, kind: str) -> None:
    """With and without parentheses; the query is asked without it."""
    asked: list[Question] = []

    def ask(question: Question) -> Answer:
        asked.append(question)
        return Answer(pa.table({"QUERY PLAN": ["one"]}), 1, (), ("VARCHAR",), 1)

    session = Session(ask, lambda: 1, lambda *_: 1, lambda: False, TOLD)
    answers = query(session, text)
    assert kinds(answers) == b"TDCZ"
    assert answers[-2] == (b"C", b"EXPLAIN\0")
    assert [(one.explain, one.query) for one in asked] == [(kind, "SELECT 1")]
    assert b"C0A000\0" in query(session, "EXPLAIN (FORMAT json) SELECT 1")[0][1]


def test_a_statement_takes_no_longer_than_it_may(versions: Versions) -> None:
    """`statement_timeout` is of each statement; what takes longer is error 57014, the next begins anew."""
    now = [0.0]

    def ask(question: Question) -> Answer:
        now[0] += 2.0
        if session.is_late():
            raise PenstockError("expected a client that waits for the answer; found none")
        return versions.ask(question)

    session = Session(ask, lambda: 1, versions.wait, lambda: False, TOLD, now=lambda: now[0])
    for timeout, answers in (("0", b"TDDDDDCZ"), ("'3s'", b"TDDDDDCZ"), ("1500", b"EZ")):
        query(session, f"SET statement_timeout = {timeout}")
        for _ in range(2):
            found = query(session, "SELECT 1")
            assert kinds(found) == answers
    assert b"C57014\0" in found[0][1]
    assert b"C22023\0" in query(session, "SET statement_timeout = 'soon'")[0][1]


def test_all_sessions_share_their_memory(versions: Versions) -> None:
    """An answer for which there is no room is refused; what is given back is there for others."""
    free = [60]
    held = {"one": 0, "other": 0}

    def hold(name: str, size: int) -> bool:
        if size > held[name] and sum(held.values()) - held[name] + size > free[0]:
            return False
        held[name] = size
        return True

    one, other = (
        Session(versions.ask, lambda: 1, versions.wait, lambda: False, TOLD, partial(hold, name))
        for name in held
    )
    free[0] = 1 << 20
    query(other, "SHOW server_version")
    query(one, "BEGIN; DECLARE kept CURSOR FOR SELECT 1")
    free[0] = sum(held.values()) + 30  # an answer has 40 bytes
    assert b"C53200\0" in query(other, "SELECT 1")[0][1]
    query(one, "COMMIT")
    assert kinds(query(other, "SELECT 1")) == b"TDDDDDCZ"
    assert sum(held.values()) < free[0]


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
    send = partial(sent, session)
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
    query(session, "SET penstock.after = 'clicks-0:41'; DISCARD PLANS")
    assert b"report" in query(session, "SHOW application_name")[1][1]
    for again in ("DISCARD ALL", "RESET ALL"):
        query(session, f"{again}; SET x.y = 'z'")
        assert b"first" in query(session, "SHOW application_name")[1][1]
        assert b"clicks" not in query(session, "SHOW penstock.after")[1][1]
    for wrong in ("SET server_version = '9'", "SHOW nothing", "SET client_encoding = 'LATIN1'"):
        assert kinds(query(session, wrong)) == b"EZ"


def test_any_mistake_ends_a_statement_and_not_the_session(session: Session) -> None:
    """What nobody foresaw is an error of the statement; the next one is answered."""
    for text in ("SELECT fails", "DECLARE c CURSOR FOR FETCH c", "DECLARE c CURSOR FOR BEGIN"):
        assert kinds(query(session, text)) == b"EZ"
    send = partial(sent, session)
    assert kinds(send(b"P", b"s\0SELECT $1\0\0\0")) == b"1"
    numeric = b"\0s\0\0\0\0\1" + struct.pack("!i", 3) + b"one\0\0"
    assert kinds(send(b"P", b"s\0SELECT $1\0\0\1" + struct.pack("!i", 1700))) == b"1"
    assert b"C22P02\0" in send(b"B", numeric)[0][1]
    assert kinds(send(b"S", b"")) == b"Z"
    loop = b"\0FETCH 1 FROM p\0\0\0"
    assert kinds(send(b"P", loop) + send(b"B", b"p\0\0" + bytes(6))) == b"12"
    assert b"C34000\0" in send(b"E", b"p\0" + bytes(4))[0][1]
    send(b"S", b"")
    assert kinds(query(session, "SELECT 1")) == b"TDDDDDCZ"


def test_cursors_read_on_and_are_named_as_names_are(session: Session) -> None:
    """Names without quotes are in small letters; what doesn't read on is refused; counts may be large."""
    query(session, "BEGIN; DECLARE Mine CURSOR FOR SELECT 1")
    assert kinds(query(session, "FETCH 2 FROM mine")) == b"TDDCZ"
    assert kinds(query(session, f"FETCH {10**30} FROM MINE")) == b"TDDDCZ"
    for wrong in ("FETCH BACKWARD 1 FROM mine", "FETCH -1 FROM mine", "FETCH LAST FROM mine"):
        assert b"C55000\0" in query(session, wrong)[0][1]
        query(session, "ROLLBACK; BEGIN; DECLARE mine CURSOR FOR SELECT 1")
    assert b"C25P01\0" in query(session, "COMMIT; ROLLBACK TO SAVEPOINT x")[1][1]
    assert query(session, "SELECT 1")[-1] == (b"Z", b"I")
    assert kinds(query(session, "BEGIN READ WRITE")) == b"EZ"
    assert query(session, "SELECT 1")[-1] == (b"Z", b"I")


def test_a_session_keeps_so_much(session: Session) -> None:
    """Cursors and settings are limited in number; a new one takes the place of one of its name."""
    send = partial(sent, session)
    query(session, "BEGIN")
    send(b"P", b"\0SELECT 1\0\0\0")
    for i in range(STATEMENTS_MAX):
        assert kinds(send(b"B", b"%d\0\0" % i + bytes(6))) == b"2"
    assert kinds(send(b"B", b"7\0\0" + bytes(6))) == b"2"
    assert b"C53400\0" in send(b"B", b"more\0\0" + bytes(6))[0][1]
    send(b"S", b"")
    many = "; ".join(f"SET a.b{i} = 'x'" for i in range(STATEMENTS_MAX))
    assert b"C53400\0" in query(session, f"ROLLBACK; {many}")[-2][1]
    assert kinds(query(session, "RESET ALL; SHOW a.b1")) == b"CEZ"


def test_other_columns_than_described_are_an_error(session: Session, versions: Versions) -> None:
    """A driver that keeps a statement's columns prepares it again, by PostgreSQL's own code and routine."""
    send = partial(sent, session)
    send(b"P", b"s\0SELECT 1\0\0\0")
    assert kinds(send(b"D", b"Ss\0")) == b"tT"
    for _ in range(2):
        send(b"B", b"\0s\0" + bytes(6))
        assert kinds(send(b"E", b"\0" + bytes(4))) == b"DDDDDC"
    versions.type = "HUGEINT"
    send(b"B", b"\0s\0" + bytes(6))
    [(kind, error)] = send(b"E", b"\0" + bytes(4))
    assert kind == b"E"
    assert b"C0A000\0" in error
    assert b"RRevalidateCachedQuery\0" in error


def test_isolation_is_taken_however_it_is_written(session: Session, versions: Versions) -> None:
    """As a setting, in capital letters too; what is no level is refused, and changes nothing."""
    query(session, "SET default_transaction_isolation TO 'REPEATABLE READ'")
    newest = versions.version
    for text in ("BEGIN", "SELECT 1", "SELECT 2", "COMMIT"):
        query(session, text)
    assert versions.asked == [newest, newest]
    for wrong in ("default_transaction_isolation = 'some'", "penstock.wait = 'soon'"):
        assert kinds(query(session, f"SET {wrong}")) == b"EZ"
    assert b"repeatable read" in query(session, "SHOW default_transaction_isolation")[1][1]
    assert query(session, "SHOW penstock.wait")[1][1].endswith(b"\x0210")


def test_statements_are_parted_where_they_end() -> None:
    """Strings, names and comments have semicolons of their own; what isn't closed has the rest."""
    whole = (
        "SELECT 'a;b'",
        "SELECT E'it\\'s; x'",
        'SELECT ";"',
        "SELECT $$;$$",
        "SELECT $a$;$$;$a$",
        "SELECT $1, $2",
        "SELECT 1 /* ; */",
        "SELECT 'a;",
        "SELECT $a$;",
        "SELECT 1 /* ;",
    )
    for one in whole:
        assert split(one) == [one]
        assert split(f"; {one}\n; --;\n")[0].strip().startswith(one)
    assert words_of("SET x = 'a -- b' -- c")[-1] == "'a -- b'"
    assert split("-- a\n/* b */ ; /* c") == []
    long = "".join(f"$a{i}$ /* ' " for i in range(100_000))
    assert split(long) == [long]  # in a moment, although nothing is closed


@given(
    st.one_of(
        st.decimals(
            allow_nan=False, allow_infinity=False, min_value=-(10**30), max_value=10**30, places=7
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


def test_numbers_as_parameters_keep_their_value() -> None:
    """Beside a minus, with more digits than a decimal has, and what is no number: none becomes another."""
    con = connection()
    assert con.sql(substituted("SELECT 10 -$1", [literal(b"-5", 1700, 0)])).fetchall() == [(15,)]
    assert con.sql(substituted("SELECT 1 -$1", [literal(b"-.5", 1700, 0)])).fetchall() == [(1.5,)]
    for whole in (b"7", b"-7e3", b"0e2", b"9" * 38):
        [kind] = con.sql(f"SELECT {literal(whole, 1700, 0)}").types
        assert str(kind).startswith("DECIMAL"), whole
    assert con.sql(f"SELECT {literal(b'1e300', 1700, 0)}").fetchall() == [(1e300,)]
    for sign, value in ((0xD000, float("inf")), (0xF000, -float("inf"))):
        data = struct.pack("!hhHh", 0, 0, sign, 0)
        assert con.sql(f"SELECT {literal(data, 1700, 1)}").fetchall() == [(value,)]
    assert len(literal(b"1e999999999", 1700, 0)) < 100
    for wrong, form in ((b"one", 0), (struct.pack("!hhHhh", 1, 0, 0, 0, -1), 1)):
        with pytest.raises(ValueError, match="expected a"):
            literal(wrong, 1700, form)


def test_times_beyond_pythons_are_written() -> None:
    """Dates and timestamps of any year, and infinity, in text and binary, as PostgreSQL writes them."""
    con = connection()
    texts = {
        "DATE '20000-01-01'": b"20000-01-01",
        "DATE '0044-03-15 (BC)'": b"0044-03-15 BC",
        "DATE 'infinity'": b"infinity",
        "DATE '-infinity'": b"-infinity",
        "TIMESTAMP '0999-01-01 00:00:00.5'": b"0999-01-01 00:00:00.5",
        "TIMESTAMP '20000-01-01'": b"20000-01-01 00:00:00",
        "TIMESTAMPTZ '0044-03-15 (BC) 01:00:00+00'": b"0044-03-15 01:00:00+00 BC",
        "TIMESTAMPTZ '-infinity'": b"-infinity",
        "0.1::FLOAT": b"0.1",
    }
    for sql, text in texts.items():
        relation = con.sql(f"SELECT {sql} AS x")
        column, duck = relation.to_arrow_table()["x"], str(relation.types[0])
        oid = type_named(column.type, duck)[0].oid
        assert encode_column(column, 0, duck) == [text]
        for form in (0, 1):
            [data] = encode_column(column, form, duck)
            assert data is not None
            again = f"SELECT ({literal(data, oid, form)}) = {sql}"
            assert con.sql(again).fetchall() == [(True,)], (sql, form)
    nanos = con.sql("SELECT TIMESTAMP_NS '2020-01-01 00:00:00.123456789' AS x").to_arrow_table()
    assert encode_column(nanos["x"], 0) == [b"2020-01-01 00:00:00.123456"]


def test_nested_values_are_json() -> None:
    """Maps are objects, empty ones too; numbers are numbers, and times are text."""
    texts = {
        "MAP{}": "{}",
        "MAP{'a': [1, 2]}": '{"a":[1,2]}',
        "[MAP{1: 2.50}]": '[{"1":2.50}]',
        "{'a': DATE '2026-01-02', 'b': NULL, 'c': {'d': 'x'::BLOB}}": (
            '{"a":"2026-01-02","b":null,"c":{"d":"78"}}'
        ),
        "[{'a': 1, 'b': [true]}]": '[{"a":1,"b":[true]}]',
        "[[INTERVAL 1 DAY]]": "[[[0,1,0]]]",
    }
    for sql, text in texts.items():
        relation = connection().sql(f"SELECT {sql} AS x")
        column, duck = relation.to_arrow_table()["x"], str(relation.types[0])
        for form in (0, 1):
            assert encode_column(column, form, duck) == [text.encode()], sql


def test_functions_that_duckdb_has_say_nothing_of_catalogs() -> None:
    """`age` of a time is DuckDB's, a text is a value; functions of PostgreSQL's are of its catalogs."""
    assert not is_about("SELECT age(at) FROM per_user")
    assert not is_about("SELECT [1] FROM per_user WHERE \"user\" = 'it''s pg_class'")
    assert is_about("SELECT 'x' FROM \"pg_catalog\".pg_class")
    assert is_about("SELECT quote_ident(x) FROM per_user")

"""Captures are looked after from the command line; what a server lacks is said with the SQL for it."""

from __future__ import annotations

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import psycopg
import pytest
from click.testing import CliRunner
from tests.capture.sources import PostgresSource
from tests.databases import PROGRAMS, postgres
from tests.patience import PATIENCE_S, wait_until
from tests.ports import free_port

from penstock.capture import Capture, control, drop, setup, status
from penstock.capture import capture as capture_module
from penstock.capture.databases.postgres import POSTGRES, stream
from penstock.capture.databases.postgres import database as database_module
from penstock.capture.databases.postgres.database import own_name
from penstock.capture.databases.postgres.server import Server
from penstock.capture.databases.postgres.server import waits as waits_module
from penstock.capture.overview import names
from penstock.capture.progress import last_value, state_topic
from penstock.cli import main
from penstock.cli.support import progress
from penstock.client import Client
from penstock.errors import SetupError, UserError


def command(*arguments: str) -> str:
    """Runs a command; what it prints."""
    done = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_a_server_without_logical_replication_is_reported_what_to_do(source) -> None:
    """The message has the setting."""
    with postgres(wal_level="replica") as server:
        source.server, source.database = server, "postgres"
        server.execute("CREATE TABLE t (id int PRIMARY KEY)")
        with pytest.raises(SetupError, match="ALTER SYSTEM SET wal_level = logical"):
            source.run()
        server.execute("SELECT 1")


@pytest.mark.parametrize("code", [b"58P01", b"ZZ999", None])
def test_why_a_server_has_ended_a_connection_is_asked_once(code) -> None:
    """Codes may be those of later servers; one that waits for our end has no error to tell, ever."""
    ended = SimpleNamespace(
        status=psycopg.pq.ExecStatus.FATAL_ERROR if code else psycopg.pq.ExecStatus.COPY_IN,
        error_field=lambda _: code,
        get_error_message=lambda _: "the log was removed",
    )
    found = Server("postgresql://db").why(SimpleNamespace(get_result=lambda: ended))
    assert str(found) == ("the log was removed" if code else "None")
    assert getattr(found, "sqlstate", None) in (code and code.decode(), None)


@pytest.mark.slow
def test_what_a_role_lacks_is_shown_as_sql(source) -> None:
    """Each message's SQL lets it get to the next one, and at last to the rows."""
    source.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    role = f"role_{source.database}"
    source.execute(f"CREATE ROLE {role} LOGIN")
    url = source.server.url(source.database, role)
    from penstock.capture import Capture

    capture = Capture(url, ["t"], to=source.name, log=source.log)
    for lacking in ("ALTER ROLE", "GRANT USAGE", "CREATE PUBLICATION"):
        with pytest.raises(SetupError, match=lacking) as raised:
            capture.run()
        source.execute(lacking + str(raised.value).partition(lacking)[2])
    capture.run(until=lambda done: done.snapshot_rows == 1 and done.position > 0)
    assert len(source.records(f"{source.name}.public.t")) == 1
    drop(source.name, source.log, url=url)  # the publication isn't its own, and stays
    assert source.rows("SELECT 1 FROM pg_publication") == [(1,)]
    with Client(source.log) as client:
        assert state_topic(source.name) not in client.topics()


def test_a_slot_that_somebody_else_uses_is_left_to_them(source, monkeypatch) -> None:
    """A new capture ends no connection that isn't of this capture."""
    monkeypatch.setattr(database_module, "TAKEOVER_S", 0.2)
    source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    slot = f"penstock_{source.name}"
    user = f"SELECT active_pid FROM pg_replication_slots WHERE slot_name = '{slot}' AND active"
    with source.running() as capture:
        streams = lambda: capture.done.phase == "streaming" and source.rows(user)  # noqa: E731
        source.follows(capture, streams)
        before = source.rows(user)
        with pytest.raises(SetupError, match=r"found it in use.*name another slot"):
            source.capture(name=f"{source.name}b", slot=slot).run()
        assert source.rows(user) == before


def test_a_capture_that_was_killed_while_it_created_its_slot_begins_again(source) -> None:
    """The server waits for open transactions then, and doesn't notice that its client is gone."""
    source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    create = f"SELECT pg_create_logical_replication_slot('penstock_{source.name}', 'pgoutput')"
    ended: list[BaseException] = []
    with psycopg.connect(source.url) as open_, psycopg.connect(source.url, autocommit=True) as one:
        open_.execute("INSERT INTO t VALUES (1)")

        def create_it() -> None:
            try:
                one.execute(create)
            except psycopg.OperationalError as error:
                ended.append(error)

        thread = threading.Thread(target=create_it)
        thread.start()
        wait_until(lambda: source.rows("SELECT 1 FROM pg_replication_slots WHERE active"))
        with source.running("t") as capture:
            source.follows(capture, lambda: ended)
            open_.commit()
            source.follows(capture, lambda: capture.done.snapshot_rows == 1)
            source.follows(capture, lambda: capture.done.phase == "streaming")
        thread.join()


@pytest.mark.slow
def test_what_the_server_refuses_for_good_ends_the_capture(source, monkeypatch) -> None:
    """A publication that is dropped meanwhile, which newer servers don't say: its changes were lost."""
    source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    capture = source.capture("t")
    ended: list[BaseException] = []

    def run() -> None:
        try:
            capture.run()
        except SetupError as error:
            ended.append(error)

    monkeypatch.setattr(stream, "STATUS_S", 0.1)
    thread = threading.Thread(target=run)
    thread.start()
    wait_until(lambda: capture.done.phase == "streaming")
    source.execute(f"DROP PUBLICATION penstock_{source.name}")
    source.execute("INSERT INTO t VALUES (1)")
    wait_until(lambda: ended)
    thread.join()
    assert "capture drop" in str(ended[0])
    with pytest.raises(SetupError, match="Changes between were lost"):
        source.run("t")


@pytest.mark.parametrize(
    ("state", "is_refused"),
    [("42501", True), ("42704", True), ("55000", True), ("53400", True), ("57P01", False)],
)
def test_errors_pass_or_do_not(state, is_refused) -> None:
    """A server that is shut down comes back; a privilege that is missing doesn't."""
    error = psycopg.errors.lookup(state)("refused")
    advice = POSTGRES.refuses(error, "shop")
    assert bool(advice) is is_refused
    assert "NAME" not in advice
    assert "{" not in advice
    assert is_refused or POSTGRES.passes(error)


def test_setups_of_other_databases_are_printed() -> None:
    """MySQL's with its settings; SQLite needs nothing."""
    printed = setup("mysql://ann:secret7@db/shop", ["users", "other.*"], "shop")
    assert "binlog_row_image = FULL" in printed
    assert "GRANT SELECT ON `shop`.* TO 'ann'@'%';" in printed
    assert "GRANT SELECT ON `other`.* TO 'ann'@'%';" in printed
    assert "secret7" not in printed
    assert "needs nothing" in setup("sqlite:///shop.db", ["users"], "shop")


def test_captures_with_similar_names_have_slots_of_their_own() -> None:
    """Their names differ in what a slot's name can't have."""
    names_ = ["shop", "shop_a", "shop.a", "shop-a", "a" * 50, "a" * 49 + ".", "a" * 49 + "-"]
    own = [own_name(one) for one in names_]
    assert len({*own}) == len(own)
    assert all(re.fullmatch(r"[a-z0-9_]{1,63}", one) for one in own)


def test_options_that_do_not_fit_are_refused(source) -> None:
    """Rows alone have no place for transactions; compacted topics need keys."""
    source.execute("CREATE TABLE t (v int); INSERT INTO t VALUES (1)")
    with pytest.raises(UserError, match="expected format='debezium' with transactions=True"):
        source.capture(format="flat", transactions=True)
    with pytest.raises(SetupError, match="expected records with keys"):
        source.run(compact=True)


@pytest.mark.slow
def test_a_slot_that_is_gone_is_an_error_and_not_a_gap(source) -> None:
    """Changes would be missing, so it stops; dropped and begun anew, it reads the tables again."""
    source.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    source.run()
    slot = f"penstock_{source.name}"
    active = f"SELECT 1 FROM pg_replication_slots WHERE slot_name = '{slot}' AND active"
    wait_until(lambda: not source.rows(active))  # the server notices that its client is gone
    source.execute(f"SELECT pg_drop_replication_slot('{slot}')")
    source.execute("INSERT INTO t VALUES (2)")
    with pytest.raises(SetupError, match="Changes between were lost"):
        source.run()
    drop(source.name, source.log)
    source.run()
    keys = [key["id"] for key, _ in source.records(f"{source.name}.public.t")]
    assert keys == [1, 1, 2]


def test_tables_that_come_later_are_read_and_then_followed(source) -> None:
    """A table that is created, or created again, between two runs is read by the next one.

    Keys of the one before that are gone are deleted.
    """
    source.execute("CREATE TABLE a (id int PRIMARY KEY); INSERT INTO a VALUES (1)")
    source.run()
    source.execute("CREATE TABLE b (id int PRIMARY KEY); INSERT INTO b VALUES (10); TABLE a")
    source.execute("INSERT INTO a VALUES (2)")
    source.run()
    source.execute("INSERT INTO b VALUES (11)")
    source.execute("DROP TABLE a; CREATE TABLE a (id int PRIMARY KEY); INSERT INTO a VALUES (3)")
    source.run()

    def keys(table: str) -> list[int]:
        return [key["id"] for key, _ in source.records(f"{source.name}.public.{table}")]

    assert (keys("a"), keys("b")) == ([1, 2, 3, 1, 2], [10, 11])
    assert [value for _, value in source.records(f"{source.name}.public.a")][3:] == [None, None]


def test_it_pauses_goes_on_and_is_dropped(source) -> None:
    """`pause` holds it within its look, `status` says so, `resume` lets it catch up."""
    source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    topic, name = f"{source.name}.public.t", source.name
    with source.running() as capture:
        source.follows(capture, lambda: capture.done.phase == "streaming")
        assert status(name, source.log).state == "running"
        command("capture", "pause", name, "--broker", source.log)
        source.follows(capture, lambda: capture.done.phase == "paused")
        source.execute("INSERT INTO t VALUES (1)")
        found = status(name, source.log)
        assert (found.state, found.tables) == ("paused", {"public.t": topic})
        assert found.lag_bytes
        assert source.records(topic) == []
        control(name, "resume", source.log)
        source.follows(capture, lambda: len(source.records(topic)) == 1)
    printed = command("capture", "status", name, "--format", "csv", "--broker", source.log)
    assert printed.splitlines()[1].startswith(f"{name},stopped,")
    command("capture", "drop", name, "--broker", source.log)
    assert source.rows("SELECT 1 FROM pg_publication") == []
    with pytest.raises(UserError, match=r"of the captures|found no captures"):
        status(name, source.log)


@pytest.mark.quick_cases(1)
def test_a_process_whose_capture_is_dropped_ends(any_source) -> None:
    """Also while it is paused: it would begin again otherwise, with a slot that nobody wants."""
    source, name = any_source, any_source.name
    source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    capture = source.capture()
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(capture.run)
        try:
            wait_until(lambda: capture.done.phase == "streaming" or run.done())
            control(name, "pause", source.log)
            wait_until(lambda: capture.done.phase == "paused" or run.done())
            assert "was dropped" in command("capture", "drop", name, "--broker", source.log)
            with pytest.raises(
                SetupError, match="its position is gone from the log: it was dropped"
            ):
                run.result(PATIENCE_S)
        finally:
            capture.stop()
    with pytest.raises(UserError, match=r"of the captures|found no captures"):
        status(name, source.log)


@pytest.mark.slow
def test_a_capture_that_is_dropped_before_its_snapshot_is_complete_leaves_no_slot(source) -> None:
    """The server would keep its log for the slot until its disk is full."""
    source.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    slots = f"SELECT slot_name FROM pg_replication_slots WHERE database = '{source.database}'"
    with psycopg.connect(source.url) as other:
        other.execute("LOCK TABLE t")
        with source.running():
            wait_until(lambda: source.rows(slots), "the slot")
            printed = command("capture", "status", source.name, "--broker", source.log)
    assert f"127.0.0.1:{source.server.port}" in printed
    assert "its snapshot isn't complete" in printed
    drop(source.name, source.log)
    assert source.rows(f"{slots} UNION SELECT pubname FROM pg_publication") == []
    assert source.run().snapshot_rows == 1


@pytest.mark.slow
def test_a_database_that_does_not_answer_is_reported_when_a_capture_is_dropped(source) -> None:
    """With what to do: also where the database never comes back."""
    source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    source.run()
    away = f"postgresql://postgres:secret7@127.0.0.1:{free_port()}/x"
    arguments = ["capture", "drop", source.name, "--url", away, "--broker", source.log]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 1
    assert "to let go of what it keeps for the capture" in done.output
    assert f"penstock topics delete {source.name}.capture" in done.output
    assert "secret7" not in done.output
    drop(source.name, source.log)


def test_topics_of_others_are_no_captures(source) -> None:
    """A name may end as that of a capture's topic does."""
    with Client(source.log) as client:
        client.create_topic("screen.capture", exists_ok=True)
        assert "screen" not in names(client)


def test_tables_whose_topics_would_have_one_name_have_topics_of_their_own(any_source) -> None:
    """Kafka's names have no letters beyond ASCII; a topic stays, also when the other table is gone."""
    source = any_source
    source.execute(
        'CREATE TABLE "用户" (id int PRIMARY KEY); CREATE TABLE "订单" (id int PRIMARY KEY)'
    )
    source.execute('INSERT INTO "用户" VALUES (1); INSERT INTO "订单" VALUES (1), (2)')
    source.run()
    topics = {
        t.rpartition(".")[2]: one for t, one in status(source.name, source.log).tables.items()
    }
    counts = {table: len(source.records(topic)) for table, topic in topics.items()}
    assert counts == {"用户": 1, "订单": 2}
    source.execute('DROP TABLE "订单"; INSERT INTO "用户" VALUES (3)')
    source.run()
    assert len(source.records(topics["用户"])) == 2


def test_a_capture_with_once_ends_where_the_database_stays_away(log, monkeypatch) -> None:
    """With what it waited for; a database that comes back in time would have been captured."""
    monkeypatch.setattr(progress, "ONCE_S_MAX", 0.0)
    url = f"postgresql://postgres@127.0.0.1:{free_port()}/none"
    words = ["capture", url, "--tables", "public.*", "--to", "away", "--once", "--broker", log]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 1
    assert "expected to capture all changes; found for 0 s: " in done.output


def test_the_command_captures_and_shows_no_password(source) -> None:
    """`penstock capture URL` runs a capture; neither its output nor what it keeps has the password."""
    source.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1), (2)")
    url = source.url.replace("postgres@", "postgres:secret7@")
    output = command(
        *("capture", url, "--tables", "public.t", "--to", source.name, "--once"),
        *("--broker", source.log, "--format", "flat"),
    )
    assert [value for _, value in source.records(f"{source.name}.public.t")] == [
        {"id": 1},
        {"id": 2},
    ]
    output += command("capture", "status", "--broker", source.log)
    with Client(source.log) as client:
        kept = last_value(client, source.log, state_topic(source.name))
    assert kept is not None
    assert "secret7" not in output + kept.decode()


@pytest.mark.slow
def test_a_capture_lets_go_before_the_database_s_disk_is_full(source, monkeypatch, caplog) -> None:
    """It warns from half of the bound on; beyond it the slot is dropped, whatever the log is kept for."""
    monkeypatch.setattr(capture_module, "LAG_LOOK_S", 0.0)
    monkeypatch.setattr(capture_module, "LOOK_S", 0.05)
    source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    source.run("t")
    control(source.name, "pause", source.log)
    write = "SELECT pg_logical_emit_message(true, 'x', repeat('x', {}))"
    source.execute(write.format(700_000))
    slots = f"SELECT 1 FROM pg_replication_slots WHERE slot_name = 'penstock_{source.name}'"

    def warned(done: object) -> bool:
        return "the database keeps" in caplog.text

    source.capture("t", max_lag=1_000_000).run(until=warned)
    assert source.rows(slots)
    control(source.name, "resume", source.log)
    with psycopg.connect(source.url) as open_:
        open_.execute("INSERT INTO t VALUES (1)")  # the server keeps its log from here on, at least
        for _ in range(2):  # each is a record, whose size has a bound
            source.execute(write.format(700_000))
        source.run("t")
        with pytest.raises(SetupError, match="at most 1,000,000 bytes of its log"):
            source.capture("t", max_lag=1_000_000).run()
    assert not source.rows(slots)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("tables", [["public.t", "o d.x"], ["public.*"]])
def test_the_sql_that_is_printed_is_enough(source, tables) -> None:
    """A role with what it grants, and nothing else, captures; the publication is there already."""
    source.execute(
        'CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1); CREATE SCHEMA "o d"'
    )
    source.execute('CREATE TABLE "o d".x (id int PRIMARY KEY); INSERT INTO "o d".x VALUES (1)')
    url = source.url.replace("postgres@", f"ann.{source.name}:secret7@")
    some = [argument for one in tables for argument in ("--tables", one)]
    printed = command("capture", url, *some, "--to", source.name, "--print-setup")
    assert "secret7" not in printed
    for line in printed.splitlines():
        if not line.startswith(("--", "ALTER SYSTEM")):
            source.execute(line)
    source.execute(f"REVOKE CREATE ON DATABASE {source.database} FROM PUBLIC")
    end = source.end()
    one = Capture(url, tables, to=source.name, log=source.log)
    assert one.run(until=lambda done: done.position >= end).snapshot_rows == len(tables)
    drop(source.name, source.log, url=url)


@pytest.mark.slow
def test_an_older_server_is_captured_too(source) -> None:
    """The oldest one at hand as 18; only newer servers have slots for standbys."""
    failover = (
        f"SELECT failover FROM pg_replication_slots WHERE slot_name = 'penstock_{source.name}'"
    )
    source.execute("CREATE TABLE t (id int PRIMARY KEY, v int)")
    source.run("t")
    assert source.rows(failover) == [(True,)]
    drop(source.name, source.log)
    with postgres(min(PROGRAMS)) as server:
        source.server, source.database = server, "postgres"
        server.execute("CREATE TABLE t (id int PRIMARY KEY, v int); INSERT INTO t VALUES (1, 1)")
        source.run("t")
        server.execute("INSERT INTO t VALUES (2, 2); UPDATE t SET v = 3 WHERE id = 1")
        source.run("t")
        found = source.table(f"{source.name}.public.t", "id")
        assert {(one["id"], one["v"]) for one in found.values()} == {(1, 3), (2, 2)}


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("waits", ["prepared", "open", "locked"])
def test_what_a_capture_waits_for_is_said_and_it_can_be_stopped(
    log, monkeypatch, caplog, waits
) -> None:
    """Open transactions when it creates its slot, locks when it publishes or reads tables."""
    monkeypatch.setattr(waits_module, "SAY_S", 0.2)
    with postgres(max_prepared_transactions="5") as server:
        source = PostgresSource(log, f"waits{waits}", server, "postgres")
        source.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE u (id int)")
        if waits == "locked":  # else it is the slot that waits
            source.execute("SELECT pg_create_logical_replication_slot('mine', 'pgoutput')")
        with psycopg.connect(source.url, application_name="blocker") as one:
            one.execute("LOCK TABLE t" if waits == "locked" else "INSERT INTO u VALUES (1)")
            if waits == "prepared":
                one.execute("PREPARE TRANSACTION 'left over'")
            warning = (
                "prepared transaction 'left over'" if waits == "prepared" else "(blocker, in a"
            )
            for _ in range(2):
                with source.running("t", slot="mine") as capture:
                    source.follows(capture, lambda: warning in caplog.text)
                caplog.clear()
            one.rollback()
        if waits == "prepared":
            source.execute("ROLLBACK PREPARED 'left over'")
        source.execute("INSERT INTO t VALUES (1)")
        source.run("t", slot="mine")
        assert source.rows("SELECT count(*) FROM pg_replication_slots") == [(1,)]

"""What a server's settings and its replication say: nothing of it ends a capture or is left out."""

from __future__ import annotations

from penstock.capture.databases.postgres.server import Server

ORIGIN = (
    "SELECT pg_replication_origin_session_setup('the \"other\" one');\n"
    "BEGIN;\nSELECT pg_replication_origin_xact_setup('0/1234', now())"
)


def test_records_have_the_origin_of_their_transaction(source) -> None:
    """A transaction that was replicated says from where, as Debezium's records do; the next one doesn't. Of
    one that is sent before it has committed, the server doesn't know the position yet.
    """
    source.execute("CREATE TABLE t (id int PRIMARY KEY, v int)")
    source.execute("SELECT pg_replication_origin_create('the \"other\" one')")
    source.execute(f"ALTER DATABASE {source.database} SET logical_decoding_work_mem = '64kB'")
    source.run()
    plain = ";\n".join(f"INSERT INTO t VALUES ({i}, 1)" for i in range(40))
    many = "INSERT INTO t SELECT i, 3 FROM generate_series(1000, 2999) i"
    source.steps(f"{ORIGIN};\n{plain};\nDELETE FROM t WHERE id = 7;\nCOMMIT")
    source.steps(plain.replace(", 1)", ", 2)").replace("(", "(100 + "))
    source.steps(f"{ORIGIN};\n{many};\nSELECT pg_logical_emit_message(true, 'a', 'b');\nCOMMIT")
    source.run()
    values = [value for _, value in source.records(source.topic("t")) if value]
    values += [value for _, value in source.records(f"{source.name}.message")]
    assert len(values) == 41 + 40 + 2000 + 1
    name = 'the "other" one'
    expected = {1: (name, 0x1234), None: (name, 0x1234), 2: (None, None), 3: (name, None)}
    for value in values:
        row = value["after"] or {"v": None} if "after" in value else {"v": 3}
        assert (value["source"]["origin"], value["source"]["origin_lsn"]) == expected[row["v"]]


def test_a_database_whose_transactions_are_read_only_is_captured(source) -> None:
    """A default of the database: the capture makes its publication all the same."""
    source.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    source.execute(f"ALTER DATABASE {source.database} SET default_transaction_read_only = on")
    source.run()
    assert set(source.table(source.topic("t"), "id")) == {(1,)}


def test_defaults_are_asked_of_all_columns_at_once(source) -> None:
    """Constants, and nothing of other defaults or of generated columns."""
    columns = ", ".join(f"c{i} int NOT NULL DEFAULT {i}" for i in range(300))
    source.execute(
        f"CREATE TABLE t (id serial PRIMARY KEY, {columns}, t text DEFAULT 'it''s', n timestamptz DEFAULT "
        "now(), g int GENERATED ALWAYS AS (c1 + c2) STORED)"
    )
    server = Server(source.url)
    try:
        facts = server.facts(server.oid(("public", "t")))
    finally:
        server.close()
    constants = {f"c{i}": b"%d" % i for i in range(300)}
    assert facts.defaults == {**constants, "t": b"it's"}

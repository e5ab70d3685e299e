"""Wrong uses: each ends with a message that says what was expected, and with an exit code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

HEAD = """import penstock as ps
app = ps.App("shop")
clicks = app.stream("clicks", "user STRING, ms DOUBLE, at TIMESTAMP", time=ps.event_time("at"))
"""

PROGRAMS = {
    "a column that doesn't exist": (
        'app.view("v", clicks.group_by("usr").agg(n=ps.count()))',
        "did you mean 'user'?",
    ),
    "an expression that doesn't parse": ('clicks.where("ms >").to("slow")', "expected "),
    "an unknown function": ('clicks.select(x="rounded(ms)").to("x")', "expected "),
    "a function that changes": ('clicks.select(x="random()").to("x")', "found random"),
    "a duration that is none": (
        'app.view("v", clicks.window(ps.tumbling("1 minuet")).agg(n=ps.count()))',
        "1 minuet",
    ),
    "two views of one name": (
        'v = clicks.group_by("user").agg(n=ps.count()); app.view("v", v); app.view("v", v.select("n"))',
        "'v'",
    ),
    "an unknown type": ('app.stream("x", "a STRIN")', "STRIN"),
    "an aggregate without a name": (
        'app.view("v", clicks.group_by("user").agg(ps.count()))',
        "found AggregateCall",
    ),
    "a type error of the program's own": ("clicks + 1", "TypeError"),
    "a syntax error": ("app.view(", "expected Python"),
    "a program that ends itself": ("raise SystemExit(3)", "sys.exit(3)"),
    "SQL that doesn't parse": ('app.view("v", sql="SELEC 1")', "expected "),
    "a table that SQL doesn't know": ('app.view("v", sql="SELECT * FROM nope")', "nope"),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_wrong_program_is_refused_with_its_line(penstock: Any, tmp_path: Path, name: str) -> None:
    """Before anything starts, with the line of the program and no line of Penstock's."""
    line, message = PROGRAMS[name]
    (tmp_path / "wrong.py").write_text(f"{HEAD}\n\n{line}\n")
    done = penstock("explain", "wrong.py")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("error: ")
    assert "expected " in done.err
    assert message in done.err
    assert "wrong.py" in done.err
    assert "line 6" in done.err
    assert "penstock/flow" not in done.err


@pytest.mark.quick_cases(26)
@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["run", "nope.py"], 1, "expected a program"),
        (
            ["run"],
            2,
            "'FILE'; in this folder: empty.py, ok.py, wrong.sql. For example: penstock run empty.py",
        ),
        (["sink", "run"], 2, "For example: penstock sink users postgresql://"),
        (["query"], 2, "'APP'; in this folder: begun. For example: penstock query begun"),
        (["topics", "create"], 2, "For example: penstock topics create clicks --partitions 4"),
        (["run", "shop.txt"], 1, "expected a program in Python or SQL"),
        (["query", "nope", "SELECT 1"], 1, "expected "),
        (["query", "x", "SELECT 1", "--format", "xml"], 2, "'xml' is not one of"),
        (["ui", "nope"], 1, "expected "),
        (["status", "nope"], 1, "expected "),
        (["savepoint", "list", "nope"], 1, "expected "),
        (["doctor", "nope"], 1, "expected "),
        (["consume", "x", "--broker", "nowhere"], 1, "expected "),
        (["topics", "list", "--broker", "127.0.0.1:99999"], 1, "expected "),
        (["replay", "x", "--from", "yesterdya", "--to-topic", "y"], 1, "expected "),
        (["capture", "run", "mongodb://x", "--tables", "a", "--to", "b"], 1, "expected "),
        (["sink", "t", "target.txt", "--table", "t", "--schema", "a INT"], 1, "expected a target"),
        (["ingest", "*.csv"], 2, "Missing option"),
        (["ingest", "nope*.csv", "--topic", "t"], 1, "expected files that match 'nope*.csv'"),
        (
            ["run", "ok.py", "--from", "nope"],
            1,
            "the savepoint 'nope'; found no savepoints. Create one",
        ),
        (["query", "begun", "SELECT 1"], 1, "found no state in 'begun.penstock'. Run the pipeline"),
        (["new", "shop/../x"], 1, "expected "),
        (["--nope"], 2, "No such option"),
        (["qury"], 2, "did you mean 'query'?"),
        (["topics", "create", "a/b"], 1, "found 'a/b'"),
        (["topics", "create", "wrong", "--partitions", "0"], 2, "x>=1"),
        (["produce", "wrong", "--acks", "2"], 2, "'2' is not one of 'all', '1'"),
        (["consume", "wrong", "--partition", "-1"], 2, "-1 is not in the range"),
        (["consume", "wrong", "--format", "xml"], 2, "'xml' is not one of"),
        (["groups", "reset", "wrong"], 1, "expected one of --to-earliest, --to-latest"),
        (["groups", "reset", "wrong", "--to-earliest"], 1, "--topic NAME"),
        (["dlq", "replay", "wrong"], 1, "expected which letters are meant"),
        (["replay", "wrong"], 1, "penstock replay TOPIC --to-topic OTHER"),
        (["users", "add"], 2, "Missing argument 'NAME'"),
        (["users", "add", "ann"], 1, "expected a password in PENSTOCK_PASSWORD"),
        (["acl", "add"], 2, "Missing argument 'PRINCIPAL'"),
        (["quotas", "set"], 1, "expected a limit: --produce, --consume or --request"),
        (["quotas", "set", "--user", "ann", "--produce", "fast"], 2, "'fast' is not a valid"),
        (["capture", "run", "postgresql://x/y", "--tables", "a"], 2, "Missing option '--to'"),
        (["capture", "shop.db", "--tables", "t", "--to", "s"], 1, "found 'shop.db'"),
        (["capture", "drop", "nope"], 1, "found no captures. Start one"),
        (["sink", "run", "t", "x.sqlite"], 2, "Missing option '--schema'"),
        (["sink", "run", "t", "x.sqlite", "--table", "t", "--schema", "a IN"], 1, "found 'IN'"),
        (["sink", "puase", "users.users"], 2, "did you mean 'pause'?"),
        (["sink", "pause", "nope"], 1, "found no sinks. Start one"),
        (
            ["check", "wrog.sql"],
            2,
            "(did you mean 'wrong.sql'?). In its folder: empty.py, ok.py, test",
        ),
        (["check", "nope.sql"], 2, "File 'nope.sql' does not exist. In its folder: "),
        (["explain", "okk.py"], 2, "File 'okk.py' does not exist (did you mean 'ok.py'?)"),
        (["check", "wrong.sql"], 1, "expected "),
        (["check", "empty.py"], 1, "expected one ps.App in empty.py"),
        (["test", "nope.yaml"], 2, "Path 'nope.yaml' does not exist. In its folder: empty.py"),
        (["test", "empty.py"], 1, "expected "),
        (["sql", "nope"], 1, "expected an app's name"),
        (["subscribe", "nope", "v"], 1, "expected an app's name"),
        (["savepoint", "create", "nope"], 1, "expected an app's name"),
        (["savepoint", "drop", "nope", "x"], 1, "expected an app's name"),
        (["explain", "empty.py"], 1, "expected one ps.App in empty.py"),
        (["explain", "empty.py", "--svg"], 2, "requires an argument"),
        (["dev", "nope.py"], 1, "expected a program such as shop.py"),
        (["new", "9lives"], 1, "that begins with a letter; found '9lives'"),
        (["demo", "weblog", "nope.gz"], 1, "expected a readable log file"),
        (["demo", "nope"], 2, "No such command 'nope'"),
        (["run", "ok.py", "--metrics", "9645"], 1, "expected HOST:PORT"),
        (["run", "ok.py", "--postgres-tls", "a.pem", "a.key"], 1, "expected --postgres HOST:PORT"),
        (["run", "ok.py", "--listen", "0.0.0.0:9092"], 1, "expected a loopback address"),
        (["run", "ok.py", "--shards", "0"], 2, "0 is not in the range"),
        (["run", "ok.py", "--ingest", "nope"], 1, "expected --ingest TOPIC=FILES"),
        (
            ["ingest", "*.csv", "-t", "t", "--lateness", "1 hour"],
            1,
            "--time COLUMN with --lateness",
        ),
        (["doctor", "empty.py"], 1, "expected "),
        (["prepare", "x"], 2, "unexpected extra argument"),
        (["status", "shop", "--broker", "127.0.0.1:1"], 1, "expected APP, a pipeline, or --broker"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_wrong_command_says_what_was_expected(
    penstock: Any, broker: str, tmp_path: Path, words: list[str], code: int, message: str
) -> None:
    """Code 2 where the command line is wrong, 1 where it is right and can't be done."""
    (tmp_path / "empty.py").write_text("")
    (tmp_path / "ok.py").write_text("import penstock as ps\napp = ps.App('ok')\n")
    (tmp_path / "test_ok.py").write_text("")
    (tmp_path / "begun.penstock").mkdir()
    (tmp_path / "wrong.sql").write_text("CREATE STREAM x (a INT;")
    named = "--broker" in words or words[0].startswith("-")
    done = penstock(*([] if named else ["--broker", broker]), *words)
    assert done.code == code, done.err
    assert message in done.err
    assert "Traceback" not in done.err
    assert "the page is at" not in done.err, "there is none when the command ends"


def test_programs_that_are_checked_together_agree_on_keys(penstock: Any, tmp_path: Path) -> None:
    """A table has the key that another program writes its topic with."""
    (tmp_path / "a.sql").write_text(
        "SET name = 'a'; CREATE STREAM s (id BIGINT, status STRING); "
        "CREATE SINK w INTO found AS SELECT id, status, count(*) AS n FROM s GROUP BY id, status;"
    )
    (tmp_path / "b.sql").write_text(
        "SET name = 'b'; CREATE TABLE found (id BIGINT PRIMARY KEY, status STRING, n BIGINT);\n"
        "CREATE MATERIALIZED VIEW v AS SELECT count(*) AS n FROM found;"
    )
    done = penstock("check", "a.sql", "b.sql")
    assert done.code == 1
    assert "the key of its topic, id, status, which a.sql writes; found id" in done.err
    assert "a.sql: no errors" in done.out


def test_files_for_a_topic_that_nobody_reads_are_refused(penstock: Any, tmp_path: Path) -> None:
    """Before anything starts; a declaration that nothing reads isn't enough."""
    view = 'app.view("n", clicks.group_by("user").agg(n=ps.count())); app.stream("unread", "a INT")'
    (tmp_path / "shop.py").write_text(f"{HEAD}\n{view}\n")
    for topic, meant in (("click", " (did you mean 'clicks'?)"), ("unread", "")):
        done = penstock("run", "shop.py", "--ingest", f"{topic}=x.jsonl")
        expected = "expected --ingest into a topic that the program reads (clicks); found "
        assert f"{expected}{topic!r}{meant}. For another one: penstock ingest" in done.err
        assert done.code == 1
        assert not (tmp_path / "shop.penstock").exists()

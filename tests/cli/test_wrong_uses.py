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


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["run", "nope.py"], 1, "expected a program"),
        (["run"], 2, "Missing argument"),
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
        (["new", "shop/../x"], 1, "expected "),
        (["--nope"], 2, "No such option"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_wrong_command_says_what_was_expected(
    penstock: Any, broker: str, words: list[str], code: int, message: str
) -> None:
    """Code 2 where the command line is wrong, 1 where it is right and can't be done."""
    needs = {"replay", "capture", "sink", "ingest"}
    done = penstock(*words, *(["--broker", broker] if words[0] in needs else []))
    assert done.code == code, done.err
    assert message in done.err
    assert "Traceback" not in done.err

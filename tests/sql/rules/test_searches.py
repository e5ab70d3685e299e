"""`matches(…)`: stored searches as a condition of a join."""

from __future__ import annotations

import pytest

import penstock as ps
from penstock.errors import SchemaError

DOCUMENTS = [
    (1, "Red", "a blue sea", "ann"),
    (2, "Green", "a red sea", "bob"),
    (3, None, "nothing", None),
]
SEARCHES = [("x", "red", "ann"), ("y", "+sea -blue", "bob"), ("z", "author:bob", "eve")]


def app_of(*queries: str) -> ps.App:
    """A program of views v0, v1, … over documents and searches."""
    app = ps.App("p")
    app.table("docs", "id BIGINT NOT NULL, title STRING, body STRING, author STRING", key="id")
    app.table("asked", "name STRING NOT NULL, search STRING, who STRING", key="name")
    for i, query in enumerate(queries):
        app.view(f"v{i}", sql=query)
    return app


def run_of(*queries: str) -> ps.testing.Run:
    """The same with some documents and searches."""
    run = ps.testing.run(app_of(*queries))
    for row in DOCUMENTS:
        run.send("docs", **dict(zip(("id", "title", "body", "author"), row, strict=True)))
    for search in SEARCHES:
        run.send("asked", **dict(zip(("name", "search", "who"), search, strict=True)))
    return run


@pytest.mark.parametrize(
    ("query", "rows"),
    [
        (
            "SELECT d.id, q.name FROM docs d JOIN asked q ON matches(q.search, d.title, d.body)",
            [(1, "x"), (2, "x"), (2, "y"), (2, "z")],
        ),
        (
            "SELECT d.id, name FROM asked, docs d WHERE d.id > 1 AND MATCHES(search, body)",
            [(2, "x"), (2, "y"), (2, "z")],
        ),
        (
            "SELECT d.id, q.name FROM docs d JOIN asked q ON matches(q.search, d.title) AND q.who = d.author",
            [(1, "x")],
        ),
        (
            (
                "SELECT a.name, b.name AS other FROM docs d, asked a, asked b "
                "WHERE matches(a.search, d.title) AND matches(b.search, d.body) AND a.name <> b.name"
            ),
            [("z", "x"), ("z", "y")],
        ),
        (
            (
                "SELECT q.name, count(*) AS n FROM (SELECT id, title || ' ' || body AS text FROM docs) d "
                "JOIN asked q ON matches(q.search, d.text) GROUP BY q.name"
            ),
            [("x", 2), ("y", 1)],
        ),
        (
            "SELECT id FROM docs d WHERE NOT EXISTS (FROM asked q WHERE matches(q.search, d.title))",
            [(2,), (3,)],
        ),
        (
            "SELECT d.id, q.name FROM docs d JOIN asked q ON matches('+a +' || q.search, lower(d.body))",
            [(2, "x"), (2, "z")],
        ),
        (
            (
                "SELECT d.id FROM docs d JOIN asked q ON matches(q.search, d.body, operator := 'AND', "
                "analyzer := 'english') WHERE q.name = 'y'"
            ),
            [(2,)],
        ),
    ],
)
def test_documents_meet_searches(query: str, rows: list[tuple[object, ...]]) -> None:
    """Beside other conditions and joins; searches may name columns that the query doesn't read."""
    run = run_of(query)
    assert sorted(tuple(row.values()) for row in run.view("v0").rows()) == rows


def test_matches_follow_both_sides() -> None:
    """Documents and searches that change and go."""
    run = run_of("SELECT d.id, q.name FROM docs d JOIN asked q ON matches(q.search, d.title)")
    run.send("docs", id=1, title="blue")
    run.send("asked", name="y", search="blue green")
    run.send_raw("asked", None, key="z")
    found = [tuple(row.values()) for row in run.view("v0").rows()]
    assert sorted(found) == [(1, "y"), (2, "y")]


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELECT d.id FROM docs d LEFT JOIN asked q ON matches(q.search, d.title)", "of its own"),
        ("SELECT matches(q.search, d.title) AS x FROM docs d, asked q", "of its own"),
        ("SELECT d.id FROM docs d, asked q WHERE NOT matches(q.search, d.title)", "of its own"),
        (
            "SELECT d.id FROM docs d, asked q WHERE matches(q.search, d.title) OR d.id = 1",
            "of its own",
        ),
        ("SELECT d.id FROM docs d WHERE matches('red', d.title)", "of its own"),
        ("SELECT d.id FROM docs d WHERE matches(d.title, d.body)", "of its own"),
        (
            "SELECT d.id FROM docs d, asked q WHERE matches(q.search)",
            "texts that it is looked for in",
        ),
        ("SELECT d.id FROM docs d, asked q WHERE matches(q.search, d.id)", "found 'id', int64"),
        (
            "SELECT d.id FROM docs d, asked q WHERE matches(q.search, d.title, language := 'x')",
            "analyzer",
        ),
    ],
)
def test_other_places_are_refused(query: str, message: str) -> None:
    """When the program is read, with line and column."""
    with pytest.raises(SchemaError, match=message) as raised:
        app_of(query)
    assert "line 1, column" in str(raised.value)

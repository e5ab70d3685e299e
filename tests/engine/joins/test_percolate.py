"""Stored searches, from records to topics and views."""

from __future__ import annotations

import json
from typing import Any

import pytest

import penstock as ps
from penstock.errors import FlowError, SchemaError

ARTICLES = "id BIGINT NOT NULL, title STRING, body STRING, at TIMESTAMP"
SEARCHES = "who STRING NOT NULL, q STRING"


def searches(app: ps.App) -> Any:
    """The table of searches."""
    return app.table("searches", SEARCHES, key="who")


def told(run: Any, topic: str = "told") -> list[Any]:
    """Who was told of what, in order."""
    rows = [json.loads(record.value) for record in run.topic(topic)]
    return sorted((row["id"], row["who"]) for row in rows)


def test_each_document_of_a_stream_meets_the_searches_of_its_time() -> None:
    """Once: searches that come, change or go later change nothing of it, and neither does a restart."""
    app = ps.App("p")
    articles = app.stream("articles", ARTICLES, time=ps.event_time("at"), key="id", partitions=3)
    found = articles.percolate(searches(app), query="q", text=("title", "body"))
    found.select("id", "who").to("told")
    run = ps.testing.run(app)
    run.send("searches", who="ann", q="+harbour +storm")
    run.send("searches", who="bob", q="harbour -storm")
    run.send("articles", id=1, title="Storm", body="in the harbour", at="12:00:00")
    run.settle()
    run.restart()
    run.send("searches", who="ann", q="nowhere")
    run.send("searches", who="eve", q="storm")
    run.send_raw("searches", None, key="bob")
    run.settle()
    run.restart()
    run.send("articles", id=2, title=None, body="A HARBOUR, a storm", at="12:00:00")
    assert told(run) == [(1, "ann"), (2, "eve")]


def test_matches_of_a_table_are_taken_back() -> None:
    """By an edited document and by a withdrawn search, in views and in what is computed of them."""
    app = ps.App("p")
    articles = app.table("articles", ARTICLES, key="id", partitions=3)
    found = articles.percolate(searches(app), query="q", text="body", score="score", terms="terms")
    app.view("found", found.select("id", "who", "terms"))
    app.view("counts", found.group_by("who").agg(n=ps.count(), best=ps.max("score")))
    found.select("id", "who", "terms").to("told")
    run = ps.testing.run(app)
    run.send("searches", who="ann", q="red")
    run.send("searches", who="bob", q="red blue")
    for key, body in enumerate(["red", "blue red", "green"]):
        run.send("articles", id=key, body=body)
    assert [(row["id"], row["who"], row["terms"]) for row in run.view("found").rows()] == [
        (0, "ann", ["red"]),
        (0, "bob", ["red"]),
        (1, "ann", ["red"]),
        (1, "bob", ["blue", "red"]),
    ]
    assert [row["n"] for row in run.view("counts").rows()] == [2, 2]
    run.restart()
    run.send("articles", id=1, body="blue")
    run.send("searches", who="ann", q="green")
    assert [(row["id"], row["who"]) for row in run.view("found").rows()] == [
        (0, "bob"),
        (1, "bob"),
        (2, "ann"),
    ]
    assert [(row["who"], row["n"]) for row in run.view("counts").rows()] == [("ann", 1), ("bob", 2)]
    run.send_raw("searches", None, key="bob")
    run.send_raw("articles", None, key="2")
    assert run.view("found").rows() == run.view("counts").rows() == []
    newest = {record.key: record.value for record in run.topic("told")}
    assert set(newest.values()) == {None}


def test_highlights_are_places_in_the_text() -> None:
    """Of a stream's documents and of a table's: which column, and the characters."""
    app = ps.App("p")
    articles = app.table("articles", ARTICLES, key="id")
    found = articles.percolate(
        searches(app), query="q", text=("title", "body"), highlights="places"
    )
    app.view("found", found.select("title", "body", "places"))
    news = app.stream("news", ARTICLES, time=ps.event_time("at"))
    of_news = news.percolate(searches(app), query="q", text="body", highlights="places")
    of_news.select("id", "places").to("told")
    run = ps.testing.run(app)
    run.send("searches", who="ann", q="+stürm* house")
    for topic in ("articles", "news"):
        run.send(topic, id=1, title="House", body="Der Stürmer", at="12:00:00")
    [row] = run.view("found").rows()
    words = [row[one["field"]][one["start"] : one["end"]] for one in row["places"]]
    assert sorted(words) == ["House", "Stürmer"]
    [record] = run.topic("told")
    assert json.loads(record.value)["places"] == [
        {"field": "body", "value": 0, "start": 4, "end": 11}
    ]


def test_a_search_that_cant_be_read_is_a_dead_letter() -> None:
    """Once, with the place of the mistake; the others match, and so does it once it is mended."""
    app = ps.App("p")
    articles = app.stream("articles", ARTICLES, time=ps.event_time("at"))
    articles.percolate(searches(app), query="q", text="title").select("id", "who").to("told")
    run = ps.testing.run(app)
    run.send("searches", who="ann", q="red AND (blue OR")
    run.send("searches", who="bob", q="red")
    run.send("searches", who="eve", q=None)
    run.send("articles", id=1, title="red blue", at="12:00:00")
    [letter] = run.dead_letters()
    assert json.loads(letter.value)["who"] == "ann"
    assert "q: expected" in letter.headers["penstock.reason"]
    assert "at character" in letter.headers["penstock.reason"]
    run.send("searches", who="ann", q="red AND (blue OR green)")
    run.send("articles", id=2, title="red blue", at="12:00:00")
    assert told(run) == [(1, "bob"), (2, "ann"), (2, "bob")]
    assert len(run.dead_letters()) == 1


def test_documents_may_be_what_is_computed() -> None:
    """Windows, closed windows and matches are documents, too; searches may name their numbers."""
    app = ps.App("p")
    articles = app.stream("articles", ARTICLES, time=ps.event_time("at"))
    table = searches(app)
    windows = articles.window(ps.tumbling("1 minute")).group_by("title").agg(n=ps.count())
    app.view("open", windows.percolate(table, query="q", text="title").select("n", "who"))
    windows.closed().percolate(table, query="q", text="title").select("n", "who").to("closed")
    twice = table.select(other="who", second="q")
    found = windows.percolate(table, query="q", text="title")
    both = found.percolate(twice, query="second", text="title").where("who <> other")
    app.view("both", both.select("n", "who", "other"))
    run = ps.testing.run(app)
    run.send("searches", who="ann", q="+storm +n:>1")
    run.send("searches", who="bob", q="storm")
    for minute in (0, 0, 1):
        run.send("articles", id=1, title="Storm", at=f"12:0{minute}:00")
    assert sorted(tuple(row.values()) for row in run.view("open").rows()) == [
        *[(1, "bob"), (2, "ann"), (2, "bob")]
    ]
    closed = [json.loads(record.value) for record in run.topic("closed")]
    assert sorted((row["n"], row["who"]) for row in closed) == [(2, "ann"), (2, "bob")]
    assert sorted(tuple(row.values()) for row in run.view("both").rows()) == [
        *[(2, "ann", "bob"), (2, "bob", "ann")]
    ]
    late = articles.window(ps.tumbling("1 minute"), late="correct", keep="1 hour")
    with pytest.raises(FlowError, match="late rows correct"):
        late.group_by("title").agg(n=ps.count()).closed().percolate(table, query="q", text="title")


def test_what_cant_be_searched_is_refused() -> None:
    """When the program is read, with what was expected."""
    app = ps.App("p")
    articles, table = app.stream("articles", ARTICLES), searches(app)
    with pytest.raises(FlowError, match="texts to search"):
        articles.percolate(table, query="q", text="id")
    with pytest.raises(SchemaError, match="nothing"):
        articles.percolate(table, query="q", text="nothing")
    with pytest.raises(FlowError, match="columns that searches read"):
        articles.percolate(table, query="q", text=())
    with pytest.raises(FlowError, match="a table of searches"):
        articles.percolate(articles, query="title", text="title")  # type: ignore[arg-type]
    with pytest.raises(FlowError, match="names that differ"):
        articles.percolate(table.select("q", id="who"), query="q", text="title")
    with pytest.raises(FlowError, match="a name that no column has"):
        articles.percolate(table, query="q", text="title", score="body")
    with pytest.raises(SchemaError, match="expected a language"):
        articles.percolate(table, query="q", text="title", analyzer="klingon")

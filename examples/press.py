"""Searches that people saved: each is told of new articles that one of his searches matches, once.

    penstock run examples/press.py
    echo '{"person":"ann","name":"floods","search":"+title:rhine flood*"}' | penstock produce searches
    echo '{"article":"a1","title":"The Rhine","text":"Flooded again","at":"2026-11-21T09:00:00Z"}' |
        penstock produce articles
    penstock consume told
    penstock query press "SELECT person, name, articles FROM hits ORDER BY articles DESC"

With the sampled edits of Wikipedia as articles:

    zcat wikipedia_edits.jsonl.gz | python examples/press.py - | penstock produce articles

A search is in Lucene's syntax. It counts for the articles that arrive while it is saved. An article that
arrives again, as it was edited, isn't told again to a person within a week.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

import orjson

import penstock as ps

AGAIN = "7 days"
"""After which a person is told of the same article again."""


def pipeline(directory: str = "press.penstock", log: str | None = None) -> ps.App:
    """Who is told of which article to a topic; and how many articles each search has found, by day."""
    app = ps.App("press", directory=directory, log=log)
    searches = app.table(
        "searches",
        "person STRING NOT NULL, name STRING NOT NULL, search STRING NOT NULL",
        key=("person", "name"),
    )
    articles = app.stream(
        "articles",
        "article STRING NOT NULL, title STRING, text STRING, author STRING, length BIGINT, "
        "at TIMESTAMP NOT NULL",
        time=ps.event_time("at", lateness="5 minutes"),
    )
    found = articles.percolate(
        searches, query="search", text=("title", "text"), analyzer="english", terms="terms"
    )
    told = found.deduplicate("person", "article", within=AGAIN)
    told.select("person", "article", "title", "name", "terms", "at").to("told")
    hits = found.window(ps.tumbling("1 day")).group_by("person", "name")
    app.view("hits", hits.agg(articles=ps.count_distinct("article"), last=ps.max("at")))
    return app


def records(lines: Iterable[bytes]) -> Iterator[dict[str, object]]:
    """Edits of Wikipedia as articles: a page, and what its author says of the edit."""
    for line in lines:
        edit = orjson.loads(line)
        yield {
            "article": f"{edit['channel'].strip('#')}/{edit['page']}",
            "title": edit["page"],
            "text": edit["comment"],
            "author": edit["user"],
            "length": edit["added"],
            "at": edit["time"],
        }


if __name__ == "__main__":
    if sys.argv[1:] == ["-"]:
        for record in records(sys.stdin.buffer):
            sys.stdout.buffer.write(orjson.dumps(record) + b"\n")
    else:
        pipeline().main()

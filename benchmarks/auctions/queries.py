"""Nexmark's queries as Penstock's pipelines in Python and in SQL, next to `duckdb.sql` over all events.

What the SQL gives, the pipeline must give. Where Nexmark leaves open which row counts (of two bids at one
price and instant), the columns that are open aren't compared.

q12's windows are by the clock on the wall, so no two runs share them: each bidder's sum over all windows is
compared. In SQL alone: q6 (an average over the last rows of a table, as a window function), and q10, whose
rows go to a topic, with the columns by which a sink would make directories of files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import penstock as ps
from auctions.generator import SCHEMAS

__all__ = ["LANGUAGES", "QUERIES", "Query", "pipeline"]

LATENESS = "4 seconds"
TEN_S = "10 seconds"
SIDE = "side"
"""The topic of q13's other side: a number for each of SIDE_ROWS auctions."""
SIDE_ROWS = 10_000


@dataclass(frozen=True)
class Query:
    """One of Nexmark's queries.

    Attributes:
        build: gives its result from the sources, or is the query in SQL.
        truth: the same as DuckDB's SQL over all events.
        topics: that it reads.
        view: whether the result is a view; otherwise it is a topic.
        compared: SQL over the rows `found`, for a result of which only this is the same in all runs.
        by_the_clock: whether events happen when they are processed.
    """

    name: str
    build: Callable[[Sources], ps.Stream | ps.Table] | str
    truth: str
    topics: tuple[str, ...]
    view: bool
    compared: str = "FROM found"
    by_the_clock: bool = False


class Sources:
    """Nexmark's topics as streams and tables of an app."""

    def __init__(self, app: ps.App) -> None:
        self._app = app

    def stream(self, topic: str, time: object = None) -> ps.Stream:
        return self._app.stream(topic, SCHEMAS[topic], time=time or _time())

    def table(self, topic: str) -> ps.Table:
        return self._app.table(topic, SCHEMAS[topic], key="id", time=_time())

    def side(self) -> ps.Table:
        return self._app.table(SIDE, "key BIGINT NOT NULL, value STRING", key="key")

    @property
    def bids(self) -> ps.Stream:
        return self.stream("bid")


def _time() -> object:
    return ps.event_time("dateTime", lateness=LATENESS)


def pipeline(
    query: Query,
    directory: str | Path | None = None,
    *,
    topic: str = "result",
    **settings: object,
) -> ps.App:
    """A program that computes the query: the view `result`, or a topic."""
    where = {} if directory is None else {"directory": str(directory)}
    app = ps.App(f"nexmark_{query.name}", **where, **settings)
    if isinstance(query.build, str):
        app.sql("".join(_created(topic, by_the_clock=query.by_the_clock) for topic in query.topics))
        if query.view:
            app.view("result", sql=query.build)
        else:
            app.sql(f"CREATE SINK result INTO '{topic}' AS {query.build}")
        return app
    result = query.build(Sources(app))
    if query.view:
        app.view("result", result)
    else:
        result.to(topic)
    return app


def _created(topic: str, *, by_the_clock: bool) -> str:
    """A topic's stream or table in SQL."""
    if topic == SIDE:
        return f"CREATE TABLE {SIDE} (key BIGINT PRIMARY KEY, value STRING);"
    if by_the_clock:
        return f"CREATE STREAM {topic} ({SCHEMAS[topic]}) WITH (time = 'processing');"
    mark = f"WATERMARK FOR dateTime AS dateTime - INTERVAL {LATENESS}"
    return f"CREATE STREAM {topic} ({SCHEMAS[topic]}, {mark});"


def _winning(sources: Sources) -> ps.Stream:
    """Bids beside their auction, if it was open."""
    auctions = sources.table("auction").select("id", "expires", "category", "seller")
    bids = sources.bids.select("auction", "bidder", "price", "dateTime")
    valid = bids.enrich(auctions, on={"auction": "id"}, as_of="event time")
    return valid.where("dateTime <= expires")


def q0(s: Sources) -> ps.Stream:
    """Every bid."""
    return s.bids.select("auction", "bidder", "price", "dateTime", "extra")


def q1(s: Sources) -> ps.Stream:
    """Every bid, in another currency."""
    return s.bids.select("auction", "bidder", "dateTime", "extra", price="0.908 * price")


def q2(s: Sources) -> ps.Stream:
    """Bids on some auctions."""
    return s.bids.where("auction % 123 = 0").select("auction", "price")


def q3(s: Sources) -> ps.Table:
    """Who sells in some states and one category."""
    sellers = s.table("person").where("state IN ('OR', 'ID', 'CA')")
    auctions = s.table("auction").where("category = 10").select("seller", auction="id")
    joined = auctions.join(sellers.select("id", "name", "city", "state"), on={"seller": "id"})
    return joined.select("name", "city", "state", "auction")


def q4(s: Sources) -> ps.Table:
    """The average of the winning bids, by category."""
    final = _winning(s).group_by("auction", "category").agg(final=ps.max("price"))
    return final.group_by("category").agg(average=ps.avg("final"))


def q5(s: Sources) -> ps.Table:
    """The auctions with most bids in the last ten seconds, every two."""
    hopping = s.bids.window(ps.hopping(TEN_S, every="2 seconds"))
    counts = hopping.group_by("auction").agg(num=ps.count())
    most = counts.group_by("window_start").agg(most=ps.max("num"))
    hot = counts.join(most, on={"window_start": "window_start", "num": "most"})
    return hot.select("window_start", "auction", "num")


def q7(s: Sources) -> ps.Stream:
    """The highest bids of each ten seconds."""
    highest = s.bids.window(ps.tumbling(TEN_S)).agg(most=ps.max("price")).closed()
    highest = highest.select("most", "window_start", "window_end")
    bids = s.bids.select("auction", "price", "bidder", "dateTime")
    found = bids.join(highest, on={"price": "most"}, within=("0 s", TEN_S))
    return found.where("dateTime >= window_start AND dateTime < window_end").select(
        "auction", "price", "bidder", "dateTime"
    )


def q8(s: Sources) -> ps.Table:
    """Who came and opened an auction within the same ten seconds."""
    people = s.stream("person").window(ps.tumbling(TEN_S)).group_by("id", "name").agg(n=ps.count())
    sellers = s.stream("auction").window(ps.tumbling(TEN_S)).group_by("seller").agg(m=ps.count())
    sellers = sellers.select("seller", start="window_start")
    joined = people.join(sellers, on={"id": "seller", "window_start": "start"})
    return joined.select("id", "name", "window_start")


def q9(s: Sources) -> ps.Table:
    """The winning bid of each auction."""
    best = _winning(s).top(1, by=("price DESC", "dateTime", "bidder"), per="auction")
    return best.select("auction", "price", "dateTime")


def q11(s: Sources) -> ps.Table:
    """How many bids in each of a bidder's sessions."""
    return s.bids.window(ps.session(TEN_S)).group_by("bidder").agg(n=ps.count())


def q12(s: Sources) -> ps.Table:
    """How many bids each bidder makes in ten seconds of the clock on the wall."""
    bids = s.stream("bid", ps.processing_time())
    return bids.window(ps.tumbling(TEN_S)).group_by("bidder").agg(n=ps.count())


def q13(s: Sources) -> ps.Table | ps.Stream:
    """Every bid, beside a row of a table that doesn't change."""
    bids = s.bids.select("auction", "bidder", "price", "dateTime", key=f"auction % {SIDE_ROWS}")
    return bids.enrich(s.side(), on="key").select("auction", "bidder", "price", "dateTime", "value")


def q14(s: Sources) -> ps.Stream:
    """Bids of some prices, by the time of day, and a count of letters."""
    bids = s.bids.select("auction", "bidder", "dateTime", "extra", price="0.908 * price")
    kind = (
        "CASE WHEN hour(dateTime) BETWEEN 8 AND 18 THEN 'dayTime' "
        "WHEN hour(dateTime) <= 6 OR hour(dateTime) >= 20 THEN 'nightTime' ELSE 'otherTime' END"
    )
    return bids.where("price > 1000000 AND price < 50000000").select(
        "auction",
        "bidder",
        "price",
        "dateTime",
        kind=kind,
        letters="length(extra) - length(replace(extra, 'c', ''))",
    )


RANKS = {"rank1": "price < 10000", "rank2": "price >= 10000 AND price < 1000000"}
RANKS |= {"rank3": "price >= 1000000"}
DAY = "strftime(dateTime, '%Y-%m-%d')"


def _by_day(s: Sources, *columns: str) -> ps.Stream:
    return s.bids.select("auction", "bidder", "price", *columns, day=DAY)


def _counted() -> dict[str, object]:
    counts = {"bids": ps.count()}
    counts |= {f"{name}_bids": ps.count(where=where) for name, where in RANKS.items()}
    for column in ("bidder", "auction"):
        counts[f"{column}s"] = ps.count_distinct(column)
        for name, where in RANKS.items():
            counts[f"{name}_{column}s"] = ps.count_distinct(column, where=where)
    return counts


def q15(s: Sources) -> ps.Table:
    """How many bids, bidders and auctions a day, by price."""
    return _by_day(s).group_by("day").agg(**_counted())


def q16(s: Sources) -> ps.Table:
    """The same by channel."""
    return _by_day(s, "channel").group_by("channel", "day").agg(**_counted())


def q17(s: Sources) -> ps.Table:
    """What an auction's bids were on a day."""
    ranks = {f"{name}_bids": ps.count(where=where) for name, where in RANKS.items()}
    return (
        _by_day(s)
        .group_by("auction", "day")
        .agg(
            bids=ps.count(),
            **ranks,
            least=ps.min("price"),
            most=ps.max("price"),
            average=ps.avg("price"),
            total=ps.sum("price"),
        )
    )


def q18(s: Sources) -> ps.Table:
    """The last bid of each bidder on each auction."""
    bids = s.bids.select("auction", "bidder", "price", "dateTime")
    last = bids.top(1, by=("dateTime DESC", "price DESC"), per=("bidder", "auction"))
    return last.select("bidder", "auction", "dateTime")


def q19(s: Sources) -> ps.Table:
    """The ten highest bids of each auction."""
    bids = s.bids.select("auction", "bidder", "price", "dateTime")
    best = bids.top(10, by=("price DESC", "dateTime", "bidder"), per="auction")
    return best.select("auction", "price")


def q20(s: Sources) -> ps.Stream:
    """Bids beside their auction, of one category."""
    auctions = s.stream("auction").where("category = 10")
    auctions = auctions.select("id", "itemName", "initialBid", "seller", opened="dateTime")
    bids = s.bids.select("auction", "bidder", "price", "dateTime")
    # A bid is made while its auction is open, or a moment before it is known.
    return bids.join(auctions, on={"auction": "id"}, within="1 minute")


def q21(s: Sources) -> ps.Stream:
    """Bids with the number of their channel."""
    number = (
        "CASE lower(channel) WHEN 'apple' THEN '0' WHEN 'google' THEN '1' WHEN 'facebook' THEN '2' "
        "WHEN 'baidu' THEN '3' ELSE nullif(regexp_extract(url, '(&|^)channel_id=([^&]*)', 2), '') END"
    )
    bids = s.bids.select("auction", "bidder", "price", "channel", channel_id=number)
    return bids.where("channel_id IS NOT NULL")


def q22(s: Sources) -> ps.Stream:
    """Bids with the folders of their URL."""
    folders = {f"dir{i}": f"split_part(url, '/', {i + 3})" for i in (1, 2, 3)}
    return s.bids.select("auction", "bidder", "price", "channel", **folders)


def _texts(file: str) -> dict[str, str]:
    """The queries of a file by name."""
    text = Path(__file__).with_name(file).read_text(encoding="utf-8")
    parts = re.split(r"^-- (q\d+)$", text, flags=re.MULTILINE)
    return {name: query.strip(" ;\n") for name, query in zip(parts[1::2], parts[2::2], strict=True)}


_SUMS = "SELECT bidder, sum(n) AS n FROM found GROUP BY bidder"
_CLOCK: dict[str, dict[str, Any]] = {"q12": {"by_the_clock": True, "compared": _SUMS}}


def _queries() -> Iterator[Query]:
    truths = _texts("duckdb.sql")
    reads = {q3: "person auction", q4: "auction bid", q8: "person auction", q9: "auction bid"}
    reads |= {q13: "bid side", q20: "auction bid"}
    streams = {q0, q1, q2, q7, q13, q14, q20, q21, q22}
    for build in (
        *(q0, q1, q2, q3, q4, q5, q7, q8, q9, q11, q12),
        *(q13, q14, q15, q16, q17, q18, q19, q20, q21, q22),
    ):
        topics = tuple(reads.get(build, "bid").split())
        name = build.__name__
        yield Query(
            name, build, truths[name], topics, view=build not in streams, **_CLOCK.get(name, {})
        )


def _sql_queries() -> Iterator[Query]:
    truths, reads = _texts("duckdb.sql"), {name: query.topics for name, query in QUERIES.items()}
    streams = {"q0", "q1", "q2", "q10", "q14", "q21", "q22"}
    for name, text in _texts("penstock.sql").items():
        topics = reads.get(name, ("bid",) if name in streams else ("auction", "bid"))
        yield Query(
            name, text, truths[name], topics, view=name not in streams, **_CLOCK.get(name, {})
        )


QUERIES = {query.name: query for query in _queries()}
FLINKS = frozenset(_texts("flink.sql"))
"""The queries that Flink has."""
LANGUAGES = {"python": QUERIES, "sql": {query.name: query for query in _sql_queries()}}

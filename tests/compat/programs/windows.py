"""Windows of all kinds. Frozen from the release of the first fixture that has it; see `CONTRIBUTING.md`."""

from __future__ import annotations

from tests.compat.programs.feeds import EVENTS, PARTITIONS

import penstock as ps


def source(app: ps.App, **more: str) -> ps.Stream:
    """The stream of events."""
    return app.stream(
        "events",
        EVENTS,
        time=ps.event_time("at", lateness="30 seconds"),
        partitions=PARTITIONS,
        **more,  # type: ignore[arg-type]
    )


def windows() -> ps.App:
    """Tumbling, hopping, by the calendar, kept and corrected; of windows again; closed and compared."""
    app = ps.App("windows")
    events = source(app)
    calls = {"n": ps.count(), "total": ps.sum("v"), "most": ps.max("v"), "avg": ps.avg("x")}
    minutes = events.window(ps.tumbling("1 minute"), keep="5 minutes").group_by("user").agg(**calls)
    app.view("minutes", minutes)
    minutes.to("minutes-closed", partitions=2)
    minutes.to("minutes-changes", emit="changes")
    app.view(
        "hops",
        events.window(ps.hopping("2 minutes", every="30 seconds")).group_by("kind").agg(**calls),
    )
    app.view("days", events.window(ps.tumbling("1 day", zone="Europe/Berlin")).agg(**calls))
    corrected = events.window(ps.tumbling("40 seconds"), keep="10 minutes", late="correct")
    corrected_table = corrected.group_by("kind").agg(n=ps.count(), some=ps.collect("v", limit=4))
    app.view("corrected", corrected_table)
    corrected_table.to("corrected-closed")
    wide = minutes.window(ps.tumbling("5 minutes")).agg(most=ps.max("n"), all=ps.sum("n"))
    app.view("wide", wide)
    minutes.compared("2 minutes").to("compared")
    closed = minutes.closed().select("user", "n", "window_start")
    app.view("busy", closed.group_by("user").agg(windows=ps.count(), most=ps.max("n")))
    return app


def rolling() -> ps.App:
    """Sessions, dropped and corrected; sliding windows; windows of a number of rows."""
    app = ps.App("rolling")
    events = source(app)
    calls = {"n": ps.count(), "total": ps.sum("v"), "first": ps.first("kind"), "last": ps.last("v")}
    sessions = events.window(ps.session("25 seconds")).group_by("user").agg(**calls)
    app.view("sessions", sessions)
    sessions.to("sessions-closed")
    revised = events.window(ps.session("15 seconds"), keep="5 minutes", late="correct")
    app.view("revised", revised.group_by("user", "kind").agg(**calls))
    listed = events.window(ps.session("20 seconds")).group_by("kind")
    app.view("listed", listed.agg(n=ps.count_distinct("user"), q=ps.quantile("v", 0.5)))
    sliding = events.window(ps.sliding("1 minute")).group_by("user")
    sliding.agg(n=ps.count(), total=ps.sum("v"), q=ps.quantile("v", 0.9)).to("slid")
    counted = events.window(ps.count_window(5, every=2)).group_by("kind")
    counted.agg(total=ps.sum("v"), low=ps.min("price")).to("counted")
    return app


def producers() -> ps.App:
    """Watermarks of producers, of markers, of the records' timestamps, and of the clock."""
    app = ps.App("producers")
    events = app.stream(
        "events",
        EVENTS,
        time=ps.event_time("at", lateness="10 seconds", producer="kind", expected=["click", "buy"]),
        partitions=PARTITIONS,
    )
    marked = app.stream("marked", EVENTS, time=ps.event_time("at", punctuated="kind = 'buy'"))
    sent = app.stream("sent", EVENTS, time=ps.event_time(lateness="5 seconds"))
    clocked = app.stream("clocked", EVENTS, time=ps.processing_time())
    for name, one in {"events": events, "marked": marked, "sent": sent, "clocked": clocked}.items():
        table = (
            one.window(ps.tumbling("30 seconds")).group_by("user").agg(n=ps.count(), v=ps.sum("v"))
        )
        app.view(f"of_{name}", table)
        table.to(f"closed-{name}")
    return app

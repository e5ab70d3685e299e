"""Errors while a pipeline runs name the line of the program that built what failed."""

from __future__ import annotations

import sys
import threading

import pyarrow as pa
import pytest

import penstock as ps
from penstock.errors import FlowError


def here() -> int:
    """The caller's line."""
    return sys._getframe(1).f_lineno


def test_a_topic_that_was_created_again_has_the_line_of_its_stream() -> None:
    """Messages name file and line."""
    app = ps.App("shop")
    clicks, line = app.stream("clicks", "user STRING"), here()
    app.view("n", clicks.group_by("user").agg(n=ps.count()))
    title = app.graph().topic_title("clicks")
    assert title == f"the topic 'clicks' ({__file__}, line {line})"
    assert app.graph().topic_title("nope") == "the topic 'nope'"


def test_a_function_that_cannot_travel_has_the_line_that_uses_it() -> None:
    """It is found before anything runs."""
    app, lock = ps.App("shop"), threading.Lock()

    def locked(rows: pa.Table) -> pa.Table:
        with lock:
            return rows

    clicks = app.stream("clicks", "user STRING")
    once, line = clicks.map_batches(locked, "user STRING"), here()
    app.view("n", once.group_by("user").agg(n=ps.count()))
    with pytest.raises(FlowError) as failure:
        ps.testing.run(app)
    assert f"locked' ({__file__}, line {line})" in str(failure.value)


def test_a_function_that_fails_in_a_library_has_its_own_line() -> None:
    """Not the library's: nobody can change that."""
    app = ps.App("shop")

    def wrong(rows: pa.Table) -> pa.Table:
        return rows.select(["nope"])

    app.stream("clicks", "user STRING").map_batches(wrong, "user STRING").to("out")
    run = ps.testing.run(app)
    run.send("clicks", user="ann")
    line = wrong.__code__.co_firstlineno + 1
    with pytest.raises(FlowError, match=rf"test_places\.py, line {line}"):
        run.settle()


def test_the_line_is_no_part_of_a_nodes_meaning() -> None:
    """A program whose lines have moved is the same program."""
    app = ps.App("shop")
    clicks = app.stream("clicks", "user STRING")
    app.view("n", clicks.group_by("user").agg(n=ps.count()))
    first = app.graph()
    app = ps.App("shop")
    app.view("n", app.stream("clicks", "user STRING").group_by("user").agg(n=ps.count()))
    other = app.graph()
    assert [n.identity for n in first.nodes] == [n.identity for n in other.nodes]
    assert [n.built_at for n in first.nodes] != [n.built_at for n in other.nodes]

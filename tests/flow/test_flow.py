"""Programs describe graphs; what makes no sense is refused where it is written."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import penstock as ps
from penstock.errors import FlowError, SchemaError, UserError
from penstock.flow import Stream

SCHEMA = "user STRING NOT NULL, v BIGINT, tags ARRAY<STRING>, at TIMESTAMP"


def clicks(app: ps.App | None = None) -> Stream:
    """A stream to build on."""
    return (app or ps.App("p")).stream("clicks", SCHEMA, time=ps.event_time("at"))


def per_user(stream: Stream) -> ps.Table:
    """A table to build on."""
    return stream.window(ps.tumbling("1 minute")).group_by("user").agg(n=ps.count())


MISTAKES: list[tuple[Callable[[], object], type[UserError], str]] = [
    (lambda: ps.App("no spaces"), FlowError, "a name of letters"),
    (lambda: ps.App("p", spark="spark://h:7077"), FlowError, "state="),
    (lambda: ps.App("p").stream("a b", SCHEMA), FlowError, "a topic name"),
    (lambda: ps.App("p").stream("a", "user STRNG"), SchemaError, "a type among"),
    (lambda: ps.App("p").stream("a", SCHEMA, time=ps.event_time("v")), FlowError, "TIMESTAMP"),
    (lambda: ps.App("p").stream("a", SCHEMA, time=ps.event_time("x")), SchemaError, "'x'"),
    (lambda: ps.App("p").stream("a", SCHEMA, key="tags"), FlowError, "single values"),
    (lambda: ps.App("p").stream("a", SCHEMA, partitions=0), FlowError, "partitions"),
    (lambda: ps.event_time("at", lateness="soon"), UserError, "a duration such as"),
    (lambda: ps.tumbling("0 seconds"), FlowError, "longer than nothing"),
    (lambda: ps.hopping("1 minute", every="2 minutes"), FlowError, "no gap"),
    (lambda: clicks().where("v >"), SchemaError, "a SQL expression"),
    (lambda: clicks().where("v + 1"), SchemaError, "a condition"),
    (lambda: clicks().where("w > 1"), SchemaError, "'w'"),
    (lambda: clicks().where("v > (SELECT 1)"), SchemaError, "one row"),
    (lambda: clicks().select(n="count(*)"), SchemaError, "group_by"),
    (lambda: clicks().select(n="no_such_function(v)"), SchemaError, "no_such_function"),
    (lambda: clicks().window("1 minute"), FlowError, "ps.tumbling"),  # type: ignore[arg-type]
    (lambda: clicks().group_by("tags"), FlowError, "the array"),
    (lambda: clicks().group_by("user", "user"), FlowError, "once"),
    (lambda: clicks().group_by("user").agg(), FlowError, "at least one aggregate"),
    (lambda: clicks().group_by("user").agg(n=1), FlowError, "ps.count()"),  # type: ignore[arg-type]
    (lambda: clicks().group_by("user").agg(n=ps.sum("user")), FlowError, "numbers"),
    (lambda: clicks().group_by("user").agg(user=ps.count()), FlowError, "names that differ"),
    (lambda: ps.App("p").view("v", clicks()), FlowError, "Aggregate the stream"),  # type: ignore[arg-type]
    (lambda: ps.App("p").graph(), FlowError, "at least one view"),
    (lambda: clicks().group_by("user").agg(n=ps.count()).to("out"), FlowError, "windows"),
]


@pytest.mark.parametrize(("mistake", "error", "text"), MISTAKES)
def test_mistakes_are_refused(
    mistake: Callable[[], object], error: type[UserError], text: str
) -> None:
    """A mistake raises the right error, which says what was expected and found."""
    with pytest.raises(error, match="expected") as caught:
        mistake()
    assert text in str(caught.value)


def test_one_name_one_thing() -> None:
    """Two views or writers of one name, and two readings of one topic that differ, are refused."""
    app = ps.App("p")
    stream = clicks(app)
    app.view("v", per_user(stream))
    with pytest.raises(FlowError, match="'v' twice"):
        app.view("v", per_user(stream))
    stream.to("out")
    with pytest.raises(FlowError, match="one writer"):
        stream.to("out")
    with pytest.raises(FlowError, match="two that differ"):
        app.stream("clicks", "user STRING")


def test_no_cycles() -> None:
    """A topic that a program reads can't be one that it writes."""
    app = ps.App("p")
    clicks(app).to("clicks")
    with pytest.raises(FlowError, match="cycles"):
        app.graph()


def test_schemas_follow_the_operators() -> None:
    """Columns have the types that the operators give them."""
    table = (
        clicks()
        .select("user", "at", half="v / 2", late="at > TIMESTAMP '2026-01-01'")
        .where("half > 1")
        .window(ps.tumbling("1 minute"))
        .group_by("user")
        .agg(n=ps.count(), mean=ps.avg("half"), top=ps.max("at"))
    )
    assert table.schema.text == (
        "window_start TIMESTAMP NOT NULL, window_end TIMESTAMP NOT NULL, user STRING, "
        "n BIGINT NOT NULL, mean DOUBLE, top TIMESTAMP"
    )


def test_identity_is_meaning() -> None:
    """A table keeps its state's name when the program is reordered, and loses it when it changes."""

    def identities(*, condition: str, first: bool) -> list[str]:
        app = ps.App("p")
        stream = clicks(app)
        if first:
            app.view("other", stream.group_by("user").agg(n=ps.count()))
        app.view("v", per_user(stream.where(condition)))
        return [a.identity for a in app.graph().aggregations()]

    [one] = identities(condition="v > 1", first=False)
    assert one in identities(condition="v > 1", first=True)
    assert one not in identities(condition="v > 2", first=True)

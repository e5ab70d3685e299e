"""Programs describe graphs; what makes no sense is refused where it is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import penstock as ps
from penstock.errors import FlowError, SchemaError, UserError
from penstock.flow import Stream
from penstock.testing import Run

SCHEMA = "user STRING NOT NULL, v BIGINT, tags ARRAY<STRING>, at TIMESTAMP"


def clicks(app: ps.App | None = None) -> Stream:
    """A stream to build on."""
    return (app or ps.App("p")).stream("clicks", SCHEMA, time=ps.event_time("at"))


def per_user(stream: Stream) -> ps.Table:
    """A table to build on."""
    return stream.window(ps.tumbling("1 minute")).group_by("user").agg(n=ps.count())


def test_collections_and_programs_show_their_columns() -> None:
    """In a REPL: names and types, the key of a table's rows, and all that a program declares."""
    app = ps.App("p")
    stream = clicks(app)
    app.table("users", "id BIGINT NOT NULL, name STRING", key="id")
    app.view("per_user", stream.group_by("user").agg(n=ps.count()))
    stream.select(user="user").to("names")
    columns = "user STRING NOT NULL, v BIGINT, tags ARRAY<STRING>, at TIMESTAMP"
    assert repr(stream) == f"Stream({columns})"
    assert repr(app.named["per_user"]) == "Table(user STRING NOT NULL, n BIGINT NOT NULL; key user)"
    assert repr(app).splitlines() == [
        "App('p')",
        f"  stream clicks ({columns})",
        "  table users (id BIGINT NOT NULL, name STRING; key id)",
        "  view per_user (user STRING NOT NULL, n BIGINT NOT NULL; key user)",
        "  output names (user STRING NOT NULL)",
    ]
    wide = app.stream("wide", ", ".join(f"c{i} INT" for i in range(200)))
    assert repr(wide).endswith("c29 INT, … 170 more)")


def near(on: Any = "user", within: Any = "1 hour", how: Any = "inner", **renamed: str) -> Stream:
    """A join of two streams of one app."""
    stream = clicks(ps.App("p"))
    right = stream.select("user", **(renamed or {"w": "v"}))
    return stream.join(right, on=on, within=within, how=how)


def join(on: Any, how: Any = "inner") -> ps.Table:
    """A join of two tables of one app."""
    app = ps.App("p")
    right = clicks(app).group_by("user").agg(n=ps.max("v"))
    return clicks(app).group_by("user").agg(n=ps.count()).join(right, on=on, how=how)


MISTAKES: list[tuple[Callable[[], object], type[UserError], str]] = [
    (lambda: ps.App("no spaces"), FlowError, "a name of letters"),
    (lambda: ps.App("p", spark="spark://h:7077"), FlowError, "state="),
    (lambda: ps.App("p").stream("a b", SCHEMA), FlowError, "a topic name"),
    (lambda: ps.App("p").stream("a", "user STRNG"), SchemaError, "(did you mean 'STRING'?)"),
    (lambda: ps.App("p").stream("a", SCHEMA, time=ps.event_time("v")), FlowError, "TIMESTAMP"),
    (lambda: ps.App("p").stream("a", SCHEMA, time=ps.event_time("x")), SchemaError, "'x'"),
    (lambda: ps.App("p").stream("a", SCHEMA, key="tags"), FlowError, "single values"),
    (lambda: ps.App("p").stream("a", SCHEMA, partitions=0), FlowError, "partitions"),
    (lambda: ps.event_time("at", lateness="soon"), UserError, "a duration such as"),
    (lambda: ps.tumbling("0 seconds"), FlowError, "longer than nothing"),
    (lambda: ps.hopping("1 minute", every="2 minutes"), FlowError, "no gap"),
    (lambda: ps.tumbling("1 day", zone="Europe/Berln"), FlowError, "did you mean 'Europe/Berlin'"),
    (
        lambda: ps.tumbling("6 hours", zone="Europe/Berlin"),
        FlowError,
        "days, weeks, months or years",
    ),
    (lambda: ps.tumbling("0 months"), FlowError, "longer than nothing"),
    (lambda: ps.tumbling("1 day", offset="1 month"), FlowError, "an offset of days or less"),
    (lambda: ps.hopping("1 month", every="1 day"), FlowError, "both in months"),
    (lambda: ps.hopping("5 months", every="2 months"), FlowError, "a multiple of every="),
    (lambda: ps.tumbling("11000 days", zone="UTC"), FlowError, "at most 10000 steps"),
    (lambda: per_user(clicks()).compared("90 seconds"), FlowError, "between windows (1 minute)"),
    (lambda: per_user(clicks()).compared("1 month"), FlowError, "between windows (1 minute)"),
    (lambda: per_user(clicks()).select("n").compared("1 minute"), FlowError, "Keep window_start"),
    (lambda: per_user(clicks()).compared("4000 days"), FlowError, "a distance of less than"),
    (
        lambda: clicks().window(ps.session("1 minute")).agg(n=ps.count()).compared("1 day"),
        FlowError,
        "found sessions",
    ),
    (
        lambda: clicks().group_by("user").agg(n=ps.count()).compared("1 day"),
        FlowError,
        "with windows",
    ),
    (lambda: ps.approx_quantile("v", 95), FlowError, "ps.approx_quantile('ms', 0.95)"),
    (
        lambda: per_user(clicks()).group_by("n").agg(u=ps.approx_count_distinct("user")),
        FlowError,
        "Use count_distinct",
    ),
    (
        lambda: clicks().group_by("user").agg(q=ps.approx_quantile("user", 0.5)),
        FlowError,
        "numbers",
    ),
    (
        lambda: per_user(clicks()).to("t", every="1 second"),
        FlowError,
        "emit='upserts' or 'changes'",
    ),
    (
        lambda: per_user(clicks()).to("t", emit="upserts", every="0 s"),
        FlowError,
        "longer than nothing",
    ),
    (lambda: ps.sliding("0 seconds"), FlowError, "longer than nothing"),
    (lambda: ps.count_window(0), FlowError, "1 to 100000 rows of a window"),
    (lambda: ps.count_window(5, every=6), FlowError, "1 to 5 rows from one window"),
    (lambda: clicks().window(ps.sliding("1 minute"), keep="1 day"), FlowError, "without keep="),  # type: ignore[call-overload]
    (
        lambda: clicks().window(ps.sliding("1 minute")).agg(v=ps.count()),
        FlowError,
        "no other column",
    ),
    (lambda: clicks().window(ps.count_window(2)).agg(window_end=ps.count()), FlowError, "no other"),
    (lambda: clicks().window(ps.sliding("1 minute")).agg(), FlowError, "at least one aggregate"),
    (lambda: per_user(clicks()).window(ps.sliding("1 minute")), FlowError, "a stream"),  # type: ignore[arg-type]
    (lambda: clicks().where("v >"), SchemaError, "a SQL expression"),
    (lambda: clicks().where("v + 1"), SchemaError, "a condition"),
    (lambda: clicks().where("w > 1"), SchemaError, "'w'"),
    (lambda: clicks().where("v > (SELECT 1)"), SchemaError, "one row"),
    (lambda: clicks().select(n="count(*)"), SchemaError, "group_by"),
    (lambda: clicks().select(n="no_such_function(v)"), SchemaError, "no_such_function"),
    (lambda: clicks().window("1 minute"), FlowError, "ps.tumbling"),  # type: ignore[arg-type]
    (lambda: clicks().group_by("user", "user"), FlowError, "once"),
    (lambda: clicks().group_by("user").agg(), FlowError, "at least one aggregate"),
    (lambda: clicks().group_by("user").agg(n=1), FlowError, "ps.count()"),  # type: ignore[arg-type]
    (lambda: clicks().group_by("user").agg(n=ps.sum("user")), FlowError, "numbers"),
    (lambda: clicks().group_by("user").agg(user=ps.count()), FlowError, "names that differ"),
    (lambda: ps.App("p").view("v", clicks()), FlowError, "Aggregate the stream"),  # type: ignore[arg-type]
    (lambda: ps.App("p").graph(), FlowError, "at least one view"),
    (
        lambda: clicks().group_by("user").agg(n=ps.count()).to("out", emit="closed"),
        FlowError,
        "a table with windows",
    ),
    (
        lambda: clicks().window(ps.tumbling("1 minute"), late="correct"),
        FlowError,
        "how long windows are corrected",
    ),
    (lambda: per_user(clicks()).join(per_user(clicks()), on="user"), FlowError, "in the app"),
    (lambda: join(on="usr"), SchemaError, "did you mean 'user'"),
    (lambda: join(on=()), FlowError, "columns to join on"),
    (lambda: join(on={"user": "n"}), FlowError, "of one type"),
    (lambda: join(on="user"), FlowError, "n twice. Rename before: select(…, right_n='n')"),
    (lambda: join(on="user", how="outer"), FlowError, "full"),
    (lambda: near(within=5), FlowError, "Add the unit: '5 seconds'"),
    (lambda: near(within=("1 s", "2 s", "3 s")), FlowError, "or as two"),
    (lambda: near(within="4000 days"), FlowError, "at most 3660 days"),
    (lambda: near(how="outer"), FlowError, "full"),
    (lambda: near(on={"user": "w"}), FlowError, "of one type"),
    (lambda: near(v="v", at="at"), FlowError, "v, at twice. Rename before"),
    (
        lambda: clicks().join(per_user(clicks()), on="user", within="1 s"),
        FlowError,
        "a stream to join with",
    ),
    (lambda: clicks().join(clicks(), on="user", within="1 s"), FlowError, "in the app"),
    (lambda: clicks().top(0, by="v"), FlowError, "1 to 100000"),
    (lambda: clicks().top(1, by="w DESC"), SchemaError, "'w'"),
    (lambda: clicks().top(1, by=()), FlowError, "an order"),
    (lambda: clicks().top(1, by="tags"), FlowError, "the array"),
    (lambda: clicks().unnest("v"), FlowError, "an array to unnest"),
    (lambda: clicks().deduplicate(), FlowError, "the array"),
    (lambda: clicks().deduplicate("user", within="0 seconds"), FlowError, "longer than nothing"),
    (lambda: clicks().union(clicks()), FlowError, "streams of the app"),
]


SHOWN = "user STRING NOT NULL"
WRONG_TYPES: list[tuple[Callable[[], object], str]] = [
    (lambda: ps.App(5), "a name of letters"),
    (lambda: ps.App("p", log=9092), "log='kafka://127.0.0.1:9092'"),
    (lambda: ps.App("p", listen=9092), "listen='127.0.0.1:9092'"),
    (lambda: ps.App("p", spark=1, state="s"), "spark='spark://master:7077'"),
    (lambda: ps.App("p", state=1), "state='s3://bucket/shop'"),
    (lambda: ps.App("p", directory=5), "directory as a path"),
    (lambda: ps.App("p", cores="2"), "1 to 256 cores; found '2'"),
    (lambda: ps.App("p", cores=0), "1 to 256 cores; found 0"),
    (lambda: ps.App("p", cores=1.5), "cores; found 1.5"),
    (lambda: ps.App("p", batch_rows="x"), "batch_rows; found 'x'"),
    (lambda: ps.App("p").run("5"), "seconds as a number"),
    (lambda: ps.App("p").run(until=True), "until as a function"),
    (lambda: ps.App("p").stream(5, SCHEMA), "a topic name"),
    (lambda: ps.App("p").stream("a", {"user": "STRING", "at": "TIMESTAMP"}), '"user STRING, at TIMESTAMP"'),
    (lambda: ps.App("p").stream("a", ["user"]), "as text, such as 'user STRING NOT NULL"),
    (lambda: ps.App("p").stream("a", None), "a schema as text"),
    (lambda: ps.App("p").stream("a", SCHEMA, time="at"), "ps.event_time('at'"),
    (lambda: ps.App("p").stream("a", SCHEMA, time=ps.tumbling("1 minute")), "ps.event_time('at'"),
    (lambda: ps.App("p").stream("a", SCHEMA, key=["user"]), "key='user'"),
    (lambda: ps.App("p").stream("a", SCHEMA, key="usr"), "(did you mean 'user'?)"),
    (lambda: ps.App("p").stream("a", SCHEMA, partitions="2"), "partitions; found '2'"),
    (lambda: ps.App("p").stream("a", SCHEMA, partitions=True), "partitions; found True"),
    (lambda: ps.App("p").stream("a", SCHEMA, retention=7), "'7 seconds'"),
    (lambda: ps.App("p").view(5, per_user(clicks())), "a name of letters"),
    (lambda: ps.App("p").view("v", None), "a table for the view"),
    (lambda: ps.event_time(5), "ps.event_time('at')"),
    (lambda: ps.event_time("at", lateness=30), "lateness as a duration, such as '30 seconds'"),
    (lambda: ps.event_time("at", lateness=30), "Add the unit: '30 seconds'"),
    (lambda: ps.event_time("at", lateness="soon"), "lateness: expected a duration"),
    (lambda: ps.event_time("at", idle=None), "idle as a duration"),
    (lambda: ps.tumbling(60), "'60 seconds'"),
    (lambda: ps.hopping("5 minutes", every=60), "every as a duration"),
    (lambda: ps.tumbling("1 hour", offset=30), "offset as a duration"),
    (lambda: clicks().window(ps.tumbling("1 minute"), keep=7), "keep as a duration"),
    (lambda: clicks().window("1 minute"), "window(ps.tumbling('1 minute'))"),
    (lambda: clicks().window(60), "ps.tumbling(…)"),
    (lambda: clicks().where(5), "a condition as text"),
    (lambda: clicks().where(lambda row: True), "a condition as text"),
    (lambda: clicks().where("usr = 'ann'"), "(did you mean 'user'?)"),
    (lambda: clicks().select(5), "select('user')"),
    (lambda: clicks().select(["user", "v"]), "select('user', 'v')"),
    (lambda: clicks().select("v + 1"), "select(name='v + 1')"),
    (lambda: clicks().select(w=5), "the column 'w' as text"),
    (lambda: clicks().select("usr"), "(did you mean 'user'?)"),
    (lambda: clicks().group_by(["user", "v"]), "group_by('user', 'v')"),
    (lambda: clicks().group_by(5), "group_by('user')"),
    (lambda: clicks().group_by("User_"), "(did you mean 'user'?)"),
    (lambda: clicks().group_by("user").agg(ps.count()), "n=ps.count()"),
    (lambda: clicks().window(ps.tumbling("1 minute")).agg(ps.count()), "n=ps.count()"),
    (lambda: clicks().group_by("user").agg(n=sum), "ps.count()"),
    (lambda: clicks().group_by("user").agg(n=ps.sum("vv")), "(did you mean 'v'?)"),
    (lambda: ps.sum(5), "ps.sum('amount')"),
    (lambda: ps.sum(None), "ps.sum('amount')"),
    (lambda: ps.count(5), "ps.count('amount')"),
    (lambda: ps.count(where=True), "where='amount > 0'"),
    (lambda: clicks().to(5), "a topic name"),
    (lambda: clicks().to("out", partitions="2"), "partitions; found '2'"),
    (lambda: clicks().to("out", retention=7), "'7 seconds'"),
    (lambda: clicks().map_batches("f", SHOWN), "as a function"),
    (lambda: clicks().map_batches(lambda rows: rows, {"user": "STRING"}), '"user STRING"'),
    (lambda: ps.testing.run("p"), "ps.testing.run(app)"),
    (lambda: ps.testing.run(None), "ps.testing.run(app)"),
    (lambda: in_test(cores="2"), "cores; found '2'"),
    (lambda: in_test(now=5), "now as text"),
    (lambda: in_test().send("clickz", user="ann"), "(clicks); found 'clickz' (did you mean 'clicks'?)"),
    (lambda: in_test().send(5, user="ann"), "one of the streams"),
    (lambda: in_test().send("clicks", usr="ann"), "(did you mean 'user'?)"),
    (lambda: in_test().send("clicks", user=object()), "that JSON can say"),
    (lambda: in_test().send("clicks", user="ann", partition=3), "0 to 0 as a partition of 'clicks'"),
    (lambda: in_test().send_raw("nope", b"{}"), "one of the topics"),
    (lambda: in_test().send_raw("clicks", {"user": 1}), "the value as bytes or text"),
    (lambda: in_test().view("vv"), "(v); found 'vv' (did you mean 'v'?)"),
    (lambda: in_test().topic("nope"), "one of the topics (clicks, p.dead-letters)"),
    (lambda: in_test().advance(60), "'60 seconds'"),
]  # fmt: skip


def in_test(**settings: Any) -> Run:
    """A pipeline in a test."""
    app = ps.App("p")
    app.view("v", per_user(clicks(app)))
    return ps.testing.run(app, **settings)


@pytest.mark.quick_cases(30)
@pytest.mark.parametrize(("mistake", "text"), WRONG_TYPES, ids=[text for _, text in WRONG_TYPES])
def test_wrong_types_and_names_are_reported_with_what_to_write(
    mistake: Callable[[], object], text: str
) -> None:
    """Whatever is passed: an error of ours, at that line, that shows the right one."""
    with pytest.raises(UserError, match="expected") as caught:
        mistake()
    assert text in str(caught.value)


@pytest.mark.quick_cases(25)
@pytest.mark.parametrize(("mistake", "error", "text"), MISTAKES)
def test_mistakes_are_refused(
    mistake: Callable[[], object], error: type[UserError], text: str
) -> None:
    """A mistake raises the right error, which says what was expected and found."""
    with pytest.raises(error, match="expected") as caught:
        mistake()
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("text", "found", "advice"),
    [
        ("random() < 0.1", "random()", "hash("),
        ("uuid() IS NULL", "uuid()", "hash("),
        ("gen_random_uuid() IS NULL", "gen_random_uuid()", "hash("),
        ("at < now()", "now()", "TIMESTAMP column"),
        ("at < get_current_timestamp()", "get_current_timestamp()", "TIMESTAMP column"),
        ("at < current_timestamp", "CURRENT_TIMESTAMP", "TIMESTAMP column"),
        ("at::DATE = CURRENT_DATE", "CURRENT_DATE", "TIMESTAMP column"),
        ("at::TIME < LOCALTIME", "LOCALTIME", "TIMESTAMP column"),
        ("at < localtimestamp", "LOCALTIMESTAMP", "TIMESTAMP column"),
        ("age(at::TIMESTAMP) > INTERVAL 1 DAY", "age()", "TIMESTAMP column"),
        ("at > ago(INTERVAL 1 DAY)", "ago()", "TIMESTAMP column"),
        ("nextval('s') > 1", "nextval()", "own columns"),
        ("current_setting('TimeZone') = 'UTC'", "current_setting()", "own columns"),
        ("system.main.random() < 0.1", "random()", "hash("),
        ("len(list_transform(tags, lambda t: random())) > 1", "random()", "hash("),
        ("len([uuid() FOR t IN tags]) > 1", "uuid()", "hash("),
        ("CASE WHEN v > 1 THEN coalesce(random(), 1) END > 0", "random()", "hash("),
        ("favg(v) > 1", "the aggregate favg()", "group_by"),
        ("weighted_avg(v, 1) > 1", "the aggregate weighted_avg()", "group_by"),
        ("unnest(tags) = 'a'", "unnest()", "Stream.unnest"),
        ("len(tags) + unlist([v]) > 1", "unlist()", "UNNEST(array)"),
        ("generate_subscripts(tags, 1) > 1", "unnest(generate_series(1, ", "Stream.unnest"),
        ("regexp_split_to_table(user, '/') = 'a'", "unnest(string_split_regex(", "Stream.unnest"),
        ("v IN (SELECT random())", "SELECT", "group_by"),
        ("EXISTS (SELECT now())", "SELECT", "group_by"),
    ],
)
def test_an_expression_is_a_function_of_its_row(text: str, found: str, advice: str) -> None:
    """What a repeated batch computes differently, or makes rows, is refused, with what to use instead."""
    with pytest.raises(SchemaError, match="expected an expression") as caught:
        clicks().where(text)
    assert found in str(caught.value)
    assert advice in str(caught.value)


def test_names_of_volatile_functions_may_be_columns_and_words() -> None:
    """Only calls are refused; so is not what fails, or needs the session's time zone, which is UTC."""
    stream = ps.App("p").stream("t", "now STRING, random BIGINT, at TIMESTAMP")
    for text in (
        "now = 'now()'",
        "random > 1",
        "age(at, TIMESTAMPTZ '2026-01-01') > INTERVAL 1 DAY",
        "CASE WHEN random < 0 THEN error('negative') ELSE random > 1 END",
        "at AT TIME ZONE 'Europe/Berlin' > '2026-01-01'",
        "date_trunc('day', at) = TIMESTAMPTZ '2026-01-01'",
        "list_sum(list_transform([1, 2], lambda x: x + random)) > 1",
        "split_part(now, '/', 1) = 'x'",
    ):
        stream.where(text)


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
    for changed in ({"schema": f"{SCHEMA}, w INT"}, {"key": "user"}, {"partitions": 2}):
        said: dict[str, Any] = {"schema": SCHEMA, "time": ps.event_time("at"), **changed}
        with pytest.raises(FlowError, match="two that differ"):
            app.stream("clicks", **said)


def test_a_table_of_another_app_is_refused() -> None:
    """Its sources would be missing."""
    with pytest.raises(FlowError, match=r"app 'p'; found one of 'q'.*table\.to"):
        ps.App("p").view("v", per_user(clicks(ps.App("q"))))


def test_no_cycles() -> None:
    """A topic that a program reads can't be one that it writes."""
    app = ps.App("p")
    clicks(app).to("clicks")
    with pytest.raises(
        FlowError, match=r"found 'clicks' read and written \(.*test_flow.py, line \d+\)"
    ):
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
        "window_start TIMESTAMP NOT NULL, window_end TIMESTAMP NOT NULL, user STRING NOT NULL, "
        "n BIGINT NOT NULL, mean DOUBLE, top TIMESTAMP"
    )


@pytest.mark.parametrize(
    ("how", "schema"),
    [
        ("inner", "user STRING NOT NULL, v BIGINT NOT NULL, w BIGINT NOT NULL, at TIMESTAMP"),
        ("left", "user STRING NOT NULL, v BIGINT NOT NULL, w BIGINT, at TIMESTAMP"),
        ("right", "user STRING, v BIGINT, w BIGINT NOT NULL, at TIMESTAMP"),
        ("full", "user STRING, v BIGINT, w BIGINT, at TIMESTAMP"),
        ("semi", "user STRING NOT NULL, v BIGINT NOT NULL"),
        ("anti", "user STRING NOT NULL, v BIGINT NOT NULL"),
    ],
)
def test_columns_of_the_side_that_may_be_missing_are_nullable(how: Any, schema: str) -> None:
    """A key column is there once, under left's name, and is right's where left has no row."""
    app = ps.App("p")
    time = ps.event_time("at")
    left = app.stream("l", "user STRING NOT NULL, v BIGINT NOT NULL, at TIMESTAMP", time=time)
    right = app.stream("r", "who STRING, w BIGINT NOT NULL, at TIMESTAMP", time=time)
    joined = left.select("user", "v").join(right, on={"user": "who"}, within="1 s", how=how)
    assert joined.schema.text == schema


def test_identity_is_meaning() -> None:
    """A table keeps its state's name when the program is reordered, and loses it when it changes."""

    def identities(*, condition: str, first: bool) -> list[str]:
        app = ps.App("p")
        stream = clicks(app)
        if first:
            app.view("other", stream.group_by("user").agg(n=ps.count()))
        app.view("v", per_user(stream.where(condition)))
        return [a.identity for a in app.graph().stateful()]

    [one] = identities(condition="v > 1", first=False)
    assert one in identities(condition="v > 1", first=True)
    assert one not in identities(condition="v > 2", first=True)

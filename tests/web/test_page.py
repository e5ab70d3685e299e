"""The page in a real browser, over views that are just tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
import trustme
from tests.patience import PATIENCE_S, wait_until
from tests.serve.committing import clicks, commit
from tests.serve.test_queries import ENDLESS, processes
from tests.web.browsing import WIDTHS, chromium, visit
from tests.web.pipelines import NOW, SINKS, WELL, Pipeline, Progress, S

from penstock.cli.support.host import LateViews
from penstock.serve import Failure, Queries, QueryLimits
from penstock.web import Server

pytestmark = pytest.mark.slow

TARGET = "postgresql://ann@db/shop users"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.fixture
def served(views: Any, shared: SimpleNamespace) -> Iterator[SimpleNamespace]:
    """A server over the usual views."""
    server = Server(views, shared.status)
    yield SimpleNamespace(url=server.url, views=views)
    server.close()


FOCUSED = """() => {
  const at = document.activeElement;
  if (!at || at === document.body) return null;
  const style = getComputedStyle(at);
  const label = at.labels && at.labels.length ? at.labels[0].firstChild.textContent : "";
  return {
    id: at.id,
    name: at.getAttribute("aria-label") || at.ariaLabel || label || at.textContent || at.title ||
      (document.getElementById(at.getAttribute("aria-labelledby")) || {}).textContent || "",
    outlined: style.outlineStyle !== "none" || style.boxShadow !== "none",
  };
}"""  # what has the focus: its name for a screen reader, and whether it shows that it has it


def ask(page: Any, sql: str) -> list[list[str]]:
    """Answers of the SQL box, the head first. An error fails the test, with its text."""
    page.fill("#sql", sql)
    page.get_by_role("button", name="Run").click()
    page.wait_for_selector("#answer table, #answer .error")
    assert page.locator("#answer .error").all_inner_texts() == []
    return [row.split("\t") for row in page.inner_text("#answer table").split("\n") if row.strip()]


@pytest.mark.parametrize("width", WIDTHS)
def test_a_table_stays_in_its_card_and_can_be_left(
    browser: Any, served: Any, shared: Any, width: int
) -> None:
    """A wide table scrolls in its card; the page doesn't, and the button is where it was."""
    wide = {f"a_rather_long_measure_{i}": 1_000_000.5 + i for i in range(12)}
    served.views.tables = {"wide": shared.windows([(m, *wide.values()) for m in range(9)], *wide)}
    with visit(browser, served.url, width=width) as page:
        page.click(".card button")
        page.wait_for_selector(".card table")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        button, card = page.locator(".card button"), page.locator(".card")
        right = button.bounding_box()["x"] + button.bounding_box()["width"]
        assert right <= card.bounding_box()["x"] + card.bounding_box()["width"] <= width
        button.click()
        page.wait_for_selector(".card .chart svg")


@pytest.mark.quick_cases(1)
def test_answers_are_exact(browser: Any, served: Any) -> None:
    """The box shows every digit of every number; NaN isn't NULL."""
    with visit(browser, served.url) as page:
        head, row = ask(
            page,
            "SELECT 1234567.89::DOUBLE AS a, 9007199254740993 AS b, 12345678901234567890.12::DECIMAL(22, 2)"
            " AS c, 123456789012345678901234567890::HUGEINT AS d, 'NaN'::DOUBLE AS e, NULL::INT AS f,"
            " 0.1::FLOAT AS g, [9007199254740993] AS h, 25000 AS i",
        )
    assert head == list("abcdefghi")
    assert row == [
        "1234567.89", "9007199254740993", "12345678901234567890.12", "123456789012345678901234567890",
        "NaN", "NULL", "0.1", "[9007199254740993]", "25000",
    ]  # fmt: skip


def test_tables_of_views_are_exact(browser: Any, served: Any, shared: Any) -> None:
    """A view's table has the same digits as its query."""
    served.views.tables = {"v": shared.windows([(0, 1234567.89, Decimal("0.10"))], "x", "y")}
    with visit(browser, served.url) as page:
        page.click(".card button")
        page.wait_for_selector(".card table")
        cells = page.locator(".card td").all_inner_texts()
    assert cells == ["1970-01-01 00:00:00", "1970-01-01 00:01:00", "1234567.89", "0.10"]


def test_a_view_and_an_answer_warn_of_values_that_failed(browser: Any, served: Any) -> None:
    """A warning stands above the rows that it is about, and goes when nothing fails any more."""
    failed = Failure("load", "values", 2, "Conversion Error", "s::INT", "load")
    served.views.failures = {"load": (failed,)}
    with visit(browser, served.url) as page:
        page.wait_for_selector(".card .warning")
        assert page.locator(".card .warning").all_inner_texts() == [failed.text]
        ask(page, "SELECT count(*) AS n FROM load")
        assert page.locator("#answer .warning").all_inner_texts() == [failed.text]
        served.views.failures = {}
        page.reload()
        page.wait_for_selector(".card .chart svg")
        assert page.locator(".warning").all_inner_texts() == []


def test_times_are_utc_and_say_so(browser: Any, served: Any) -> None:
    """Wherever the browser is, page and SQL tell the same time, and which."""
    with visit(browser, served.url, timezone_id="Asia/Tokyo") as page:
        head, row = ask(
            page,
            "SELECT min(window_start) AS w, min(window_start)::TEXT AS t,"
            " '2026-01-02 03:04:05.123456'::TIMESTAMP AS naive FROM total",
        )
        assert head == ["w UTC", "t", "naive"]
        assert row == [
            "1970-01-01 00:00:00",
            "1970-01-01 00:00:00+00",
            "2026-01-02 03:04:05.123456",
        ]
        page.click(".card button")
        page.wait_for_selector(".card table")
        assert page.locator(".card th").all_inner_texts()[:2] == [
            "window_start UTC",
            "window_end UTC",
        ]
        assert page.locator(".card td").first.inner_text() == "1970-01-01 00:02:00"
        page.click(".card button")
        page.locator(".card").first.locator("text.axis").first.wait_for(state="attached")
        labels = page.locator(".card").first.locator("text.axis").all_text_contents()
        assert "00:00" in labels
        page.locator(".card .chart").first.hover()
        assert "UTC" in page.locator(".card .tip b").first.inner_text()
        assert "All times are UTC" in page.inner_text("main")


def lines(page: Any) -> list[int]:
    """How many points each line of the first chart joins."""
    paths = page.locator(".card .chart").first.locator("svg path").all()
    return sorted(path.get_attribute("d").count("L") + 1 for path in paths)


def test_a_chart_leaves_gaps_where_windows_are_empty(
    browser: Any, served: Any, shared: Any
) -> None:
    """Points of windows that aren't neighbours are not joined, however many are missing."""
    minutes = [0, 1, 10, 20, 21, 22, 40, 50, 60]
    served.views.tables = {"n": shared.windows([(m, m) for m in minutes], "n")}
    with visit(browser, served.url) as page:
        page.wait_for_selector(".card .chart svg")
        assert lines(page) == [2, 3]
        assert page.locator(".card .chart circle").count() == 4


def test_a_sparse_view_is_points(browser: Any, served: Any, shared: Any) -> None:
    """Where no two windows are neighbours there is no line at all."""
    served.views.tables = {"n": shared.windows([(10 * m, m) for m in range(5)], "n")}
    with visit(browser, served.url) as page:
        page.wait_for_selector(".card .chart svg")
        assert lines(page) == []
        assert page.locator(".card .chart circle").count() == 5


def test_the_box_begins_with_a_query_that_works(browser: Any, served: Any) -> None:
    """A view without windows is not ordered by them."""
    served.views.tables = {"plain": pa.table({"a": ["x"]})}
    with visit(browser, served.url) as page:
        page.wait_for_selector(".card")
        page.get_by_role("button", name="Run").click()
        page.wait_for_selector("#answer td")
        assert page.locator("#answer td").all_inner_texts() == ["x"]


class Held:
    """Holds up what a page asks for at one address until it is let go."""

    def __init__(self, page: Any, address: str) -> None:
        self._page, self._address = page, address
        self._held: list[Any] | None = []
        page.route(address, lambda route: self._asked(route))

    def _asked(self, route: Any) -> None:
        if self._held is None:
            route.continue_()
        else:
            self._held.append(route)

    def wait(self) -> None:
        """Until the page has asked."""
        wait_until(lambda: self._page.wait_for_timeout(20) or self._held, self._address)

    def let_go(self) -> None:
        """Lets what was asked for come, until the page has had the time to show it."""
        held, self._held = self._held or [], None
        for route in held:
            with self._page.expect_response(route.request.url) as answer:
                route.continue_()
            answer.value.finished()
        self._page.wait_for_timeout(100)


def test_a_query_that_somebody_writes_is_left_alone(browser: Any, served: Any) -> None:
    """The first views come while the cursor is in the box, which is empty still: it stays so."""
    with visit(browser, "about:blank") as page:
        views = Held(page, "**/api/views")
        page.goto(served.url)
        views.wait()
        page.focus("#sql")
        views.let_go()
        page.wait_for_selector(".card")
        assert page.input_value("#sql") == ""


def test_an_answer_that_comes_too_late_is_not_shown(browser: Any, served: Any) -> None:
    """The table has been asked for, and is there, when the chart's points come at last."""
    with visit(browser, "about:blank") as page:
        points = Held(page, "**/api/views/load/series?*")
        page.goto(served.url)
        points.wait()
        page.locator(".card button").first.click()
        page.wait_for_selector(".card table")
        points.let_go()
        assert page.locator(".card").first.locator("table").count() == 1


@pytest.fixture
def real(tmp_path: Path, shared: SimpleNamespace) -> Iterator[SimpleNamespace]:
    """A server over what a pipeline has committed, as `penstock ui` has it."""
    directory = commit(clicks(), tmp_path / "shop.penstock")
    views = LateViews(directory)
    views._queries = Queries(directory, QueryLimits(seconds=PATIENCE_S))  # cancelled before
    server = Server(views, shared.status)
    yield SimpleNamespace(url=server.url, views=views)
    server.close()
    views.close()


def test_queries_are_cancelled_and_hold_up_nothing(browser: Any, real: Any) -> None:
    """Queries without end run beside the page; the button ends the process of its own."""
    with visit(browser, real.url) as first, visit(browser, real.url) as second:
        for page in (first, second):
            page.fill("#sql", ENDLESS)
            page.get_by_role("button", name="Run").click()
        wait_until(lambda: len(processes()) == 2, "two queries")
        first.click(".card button")
        first.wait_for_selector(".card td")
        first.get_by_role("button", name="Cancel").click()
        first.wait_for_selector("#answer :text('cancelled')")
        second.close()  # its query has nobody who waits
        wait_until(lambda: processes() == [], "no query")
        first.fill("#sql", "SELECT sum(n) AS n FROM per_user")
        first.get_by_role("button", name="Run").click()
        first.wait_for_selector("#answer td")
        assert first.inner_text("#answer td") == "20"


@pytest.mark.parametrize("width", WIDTHS)
def test_the_state_is_reported_with_what_to_do(browser: Any, views: Any, width: int) -> None:
    """A state that isn't well says since when, why and what to do, on any screen; one that is, nothing."""
    pipeline = Pipeline(version=7, rows=100)
    server = Server(views, pipeline.board.status)
    try:
        with visit(browser, server.url, width=width) as page:
            page.wait_for_selector("#dot.good")
            assert page.inner_text("#state") == "live"
            assert page.inner_text("#version") == "· version 7"
            assert not page.is_visible("#health")
            ago = NOW - 100 * S
            assert not page.is_visible("#sinks")
            late = {"clicks": 25_000}
            pipeline.facts = replace(WELL, looked_us=ago, lag=late, behind_us=ago, sinks=SINKS)
            page.wait_for_selector("#health.bad")
            health = page.inner_text("#health")
            assert health.startswith("stalled since 2025-12-31 23:58:20 UTC (1 min 4")
            assert "25,000 records wait in the log" in health
            assert "Committed data is safe" in health
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert "25,000" in page.inner_text("#topics")
            users, orders = page.locator("#sinks tr").all_inner_texts()[1:]
            assert [one.strip() for one in users.split("\t")[:4]] == [
                "users",
                "following",
                "closed",
                TARGET,
            ]
            assert "open\t" in orders
            assert "\t1,200\t40 s\t94%\t" in orders
            assert "orders: waiting since 2025-12-31 23:59:20" in page.inner_text("#sinks-trouble")
            assert page.title().startswith("stalled")
            server.close()
            page.wait_for_selector("#health :text('no answer')")
            assert "Committed data is safe" not in page.inner_text("#health")
    finally:
        server.close()


def test_late_and_unusable_records_are_distinguished(browser: Any, views: Any) -> None:
    """Both are in all, as of the version shown; the topic where they lie is named."""
    pipeline = Pipeline(version=7, rows=1_000, late=40, dead=45)
    server = Server(views, pipeline.board.status)
    try:
        with visit(browser, server.url) as page:
            page.wait_for_selector("#dot.good")
            tiles = dict(tile.split("\n")[:2] for tile in page.locator(".tile").all_inner_texts())
            assert tiles["late events, total"] == "40"
            assert tiles["unusable records, total"] == "6"
            assert "as of version 7" in page.inner_text("#counted")
            assert "shop.dead-letters" in page.inner_text("#counted")
            assert "partition 1 since 2025-12-31 23:58:30" in page.inner_text("#topics")
            pipeline.board.add(Progress(200.0, {"plan": 0.01, "fetch": 0.02, "commit": 0.02}))
            page.wait_for_selector("#split .stack")
            assert "waiting, and handing over 160 ms" in page.inner_text("#split")
            assert "total 200 ms" in page.inner_text("#split")
    finally:
        server.close()


def test_what_is_looked_at_is_in_the_address(browser: Any, served: Any, shared: Any) -> None:
    """One view as a table, a stretch of time and a query: a link leads there, and so does coming back."""
    served.views.tables["second"] = shared.windows([(m, 1_500 * m) for m in range(9)], "wait_ms")
    with visit(browser, served.url) as page:
        page.get_by_role("link", name="second", exact=True).click()
        page.wait_for_selector("#all-views:visible")
        page.select_option("#windows", "15 minutes")
        page.wait_for_selector(".card:visible .chart svg")
        wait_until(lambda: page.locator(".card:visible").count() == 1, "the view alone")
        assert "10 s" in page.locator(".card:visible .axis").all_text_contents()
        page.locator(".card:visible").get_by_role("button", name="table").click()
        page.wait_for_selector(".card:visible table")
        ask(page, "SELECT 7 AS seven")
        with visit(browser, page.url) as other:
            other.wait_for_selector(".card:visible table")
            assert other.locator(".card:visible").count() == 1
            assert other.input_value("#windows") == "15 minutes"
            assert other.input_value("#sql") == "SELECT 7 AS seven"
        page.get_by_role("link", name="all views").click()
        wait_until(lambda: page.locator(".card:visible").count() == 3, "all views")


def test_charts_show_the_time_between_two_instants(browser: Any, served: Any, shared: Any) -> None:
    """They are UTC and in the address; another choice forgets them."""
    served.views.tables = {"n": shared.windows([(m, m) for m in range(9)], "n")}
    with visit(browser, served.url, timezone_id="Asia/Tokyo") as page:
        page.select_option("#windows", "between two times")
        page.get_by_label("from").fill("1970-01-01T00:02")
        page.get_by_label("to", exact=True).fill("1970-01-01T00:06")
        wait_until(lambda: lines(page) == [4], lambda: str(lines(page)))
        assert "from=1970-01-01T00%3A02" in page.url
        with visit(browser, page.url) as other:
            wait_until(lambda: lines(other) == [4], lambda: str(lines(other)))
            assert other.get_by_label("to", exact=True).input_value().startswith("1970-01-01T00:06")
        page.get_by_label("from").fill("1980-01-01T00:00")
        page.wait_for_selector(".card :text('No windows in this time')")
        page.select_option("#windows", "240 windows")
        wait_until(lambda: lines(page) == [9], lambda: str(lines(page)))
        assert "from=" not in page.url
        assert not page.is_visible("#between")


def test_the_page_is_used_by_keyboard_alone(browser: Any, served: Any) -> None:
    """Whatever has the focus shows it and has a name; a query is typed and run without a mouse."""
    with visit(browser, served.url) as page:
        page.wait_for_selector(".card .chart svg")
        names = []
        for _ in range(60):
            page.keyboard.press("Tab")
            at = page.evaluate(FOCUSED)
            if at is None:
                break
            assert at["outlined"], at
            assert at["name"], at
            names.append(at["name"])
            if at["id"] == "sql":
                break
        assert {"show", "measure", "table"} <= {name.strip() for name in names}, names
        page.keyboard.press("Control+A")
        page.keyboard.type("SELECT 7 AS seven")
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        page.wait_for_selector("#answer td")
        assert page.inner_text("#answer td") == "7"


@pytest.mark.parametrize("secure", [False, True])
def test_a_password_opens_the_page_in_a_browser(
    browser: Any, views: Any, shared: Any, tmp_path: Path, secure: bool
) -> None:
    """The browser asks for it; its scripts, styles and events then come with it, over TLS too."""
    tls = None
    if secure:
        made = trustme.CA().issue_cert("127.0.0.1")
        made.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "page.pem"))
        tls = (tmp_path / "page.pem", tmp_path / "page.pem")
    server = Server(views, shared.status, password="a long enough one", tls=tls)
    known = {"username": "any", "password": "a long enough one"}
    try:
        shut = browser.new_context(ignore_https_errors=True)
        page = shut.new_page()
        with pytest.raises(Exception, match="ERR_INVALID_AUTH_CREDENTIALS"):
            page.goto(server.url)  # nobody is there to be asked
        shut.close()
        with visit(browser, server.url, http_credentials=known, ignore_https_errors=True) as page:
            page.wait_for_selector(".card .chart svg")
            page.wait_for_selector("#dot.good")
            assert page.url.startswith("https:" if secure else "http:")
    finally:
        server.close()


def test_a_view_is_saved_from_its_card(browser: Any, served: Any) -> None:
    """As a file with its rows."""
    with visit(browser, served.url) as page:
        card = page.locator(".card", has_text="total")
        with page.expect_download() as waited:
            card.get_by_role("link", name="CSV").click()
        assert waited.value.suggested_filename == "total.csv"
        assert Path(waited.value.path()).read_text().count("\n") == 4


MEASURES = {  # a column of a view, what it has, and how that is shown
    "wait_us": (1_500, "1.5 ms"),
    "wait_ms": (1_500, "1.5 s"),
    "took_s": (90, "1.5 min"),
    "age_seconds": (5_400, "1.5 h"),
    "idle_minutes": (2_160, "1.5 d"),
    "size_bytes": (1_500_000, "1.5 MB"),
    "change_bytes": (-1_500_000, "-1.5 MB"),
    "ms": (1_500, "1.5 s"),
    "cpu_percent": (12.5, "12.5%"),
    "full_pct": (-50, "-50%"),
    "items": (1_500, "1,500"),  # no unit: the name only ends like one
}


def test_charts_show_the_unit_that_a_measures_name_ends_in(
    browser: Any, served: Any, shared: Any
) -> None:
    """On the axis, in the tip and for screen readers."""
    rows = [(m, *(value for value, _ in MEASURES.values())) for m in range(3)]
    served.views.tables = {"measured": shared.windows(rows, *MEASURES)}
    served.views.key_names = {"measured": []}
    with visit(browser, served.url) as page:
        for name, (_, shown) in MEASURES.items():
            page.get_by_label("measure").select_option(name)
            title = page.locator(".chart svg title", has_text=f"{name} by window: ")
            title.wait_for(state="attached")
            assert title.text_content() == f"{name} by window: {name} {shown}"
            labels = page.locator(".chart svg text.axis[text-anchor=end]").all_text_contents()
            marks = [one for one in labels if ":" not in one and one not in {"0", "0%", "0 B"}]
            unit = shown.lstrip("-0123456789.,")
            assert marks, labels
            assert all(bool(one.strip("-0123456789.,")) == bool(unit) for one in marks), labels
            page.locator(".chart").hover()
            tip = page.locator(".tip div", has_text=f"{name}{shown}")
            tip.first.wait_for()
            page.mouse.move(0, 0)  # a chart under the pointer stays as it is
            page.locator(".tip").wait_for(state="hidden")


def test_figures_of_the_pipeline_have_units(browser: Any, views: Any) -> None:
    """Rates, durations, instants and parts of a whole say in what they are, or their heads do."""
    pipeline = Pipeline(version=7, rows=100, watermark_us=NOW - 89 * S)
    pipeline.board.status()
    pipeline.read(12_000)
    assert pipeline.facts is not None
    pipeline.facts = replace(pipeline.facts, sinks=SINKS)
    server = Server(views, pipeline.board.status)
    try:
        with visit(browser, server.url) as page:
            page.wait_for_selector("#dot.good")
            tiles = dict(tile.split("\n")[:2] for tile in page.locator(".tile").all_inner_texts())
            topic = named_cells(page, "#topics", 1)
            sink = named_cells(page, "#sinks", 2)
    finally:
        server.close()
    assert tiles["events per second"] == "12 k"
    assert tiles["lag (waiting records)"] == "500"
    assert tiles["watermark delay"] == "1.5 min"
    assert tiles["time of the last batch"] == "20 ms"
    assert (topic["topic"], topic["events/s"], topic["delay"]) == ("clicks", "12 k", "1.5 min")
    assert topic["watermark UTC"] == "2025-12-31 23:58:31"
    assert (sink["sink"], sink["behind"], sink["in the target"]) == ("orders", "40 s", "94%")


def named_cells(page: Any, table: str, row: int) -> dict[str, str]:
    """The cells of a table's row by their heads."""
    rows = page.locator(f"{table} tr")
    heads = rows.first.locator("th").all_inner_texts()
    return dict(zip(heads, rows.nth(row).locator("td").all_inner_texts(), strict=True))

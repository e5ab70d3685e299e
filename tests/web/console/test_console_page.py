"""The console in a real browser, over a real broker: every page of it, in any light and width."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pytest
from tests.patience import wait_until
from tests.web.browsing import WIDTHS, chromium, visit
from tests.web.logs import Log, filled_log, write_connections, write_letters
from tests.web.pipelines import Pipeline

import penstock as ps
from penstock.broker.process import BrokerProcess
from penstock.client import Client, Producer
from penstock.engine.savepoints import create_savepoint
from penstock.errors import SetupError
from penstock.web import Console, Server
from penstock.web.console import versions_of

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Log]:
    """A broker with something of everything."""
    with filled_log(tmp_path_factory.mktemp("console")) as found:
        write_letters(found, "orders")
        write_connections(found)
        yield found


@pytest.fixture(scope="module")
def browser(log: Log) -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def served(log: Log) -> Iterator[SimpleNamespace]:
    """A page of the log alone, which may change it; and one that is read-only."""
    servers = [
        Server(
            None,
            lambda **_: {},
            console=Console(lambda: log.address, has_pipeline=False, allow_changes=allow_changes),
        )
        for allow_changes in (True, False)
    ]
    yield SimpleNamespace(url=servers[0].url, read_only=servers[1].url)
    for server in servers:
        server.close()


def records(page: Any, count: int) -> None:
    """Waits until so many records are shown. (The page's policy forbids Playwright's functions in texts.)"""
    shown = page.locator("button.open")
    wait_until(lambda: page.wait_for_timeout(20) or shown.count() == count, f"{count} records")


def draw(page: Any, path: Path) -> None:
    """Takes a picture of what is on the page, without the empty rest of the window."""
    size = page.viewport_size
    end = page.evaluate("document.querySelector('main').getBoundingClientRect().bottom") + MARGIN_PX
    page.screenshot(
        path=str(path),
        clip={"x": 0, "y": 0, "width": size["width"], "height": min(end, size["height"])},
    )


MARGIN_PX = 16
FIRST_US = 1_767_225_600_000_000  # 2026-01-01T00:00:00Z
PAGES = {
    "topics": "#/topics",
    "topic": "#/topics/clicks",
    "odd": "#/topics/odd?from=oldest",
    "groups": "#/groups",
    "group": "#/groups/audit",
    "connections": "#/connections",
    "reasons": "#/letters",
    "letters": "#/letters/orders.dead-letters",
}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_every_page_fits_and_asks_nobody_else(
    browser: Any, served: Any, width: int, scheme: str
) -> None:
    """No error in the console, no request to third parties, nothing wider than the window.

    With PENSTOCK_SCREENSHOTS=DIR the pages are drawn there.
    """
    folder = os.environ.get("PENSTOCK_SCREENSHOTS")
    with visit(browser, "about:blank", width=width, color_scheme=scheme) as page:
        said: list[str] = []
        asked: list[str] = []
        page.on("console", lambda message: said.append(message.text))
        page.on("request", lambda request: asked.append(request.url))
        for name, fragment in PAGES.items():
            page.goto(f"{served.url}/{fragment}")
            page.wait_for_selector(f"#console[data-page='{fragment}']:not([aria-busy])")
            page.wait_for_selector("#console:not(:has([aria-busy])) :is(table, article)")
            if name == "group":
                page.wait_for_selector("#console .chart svg")
            assert page.evaluate("document.documentElement.scrollWidth") <= width, name
            assert page.locator("nav a[aria-current]").count() == 1
            if folder:
                draw(page, Path(folder) / f"{name}-{scheme}-{width}.png")
        assert said == []
        assert {urlsplit(url).netloc for url in asked} == {urlsplit(served.url).netloc}


def test_a_record_is_found_and_opened(browser: Any, served: Any) -> None:
    """From the list to the topic, by search to a record, and all that it has; the address leads there."""
    with visit(browser, served.url) as page:
        page.get_by_role("link", name="clicks", exact=True).click()
        page.wait_for_selector(".records td")
        page.fill("input[type=search]", "k77")
        page.get_by_role("button", name="Show", exact=True).click()
        records(page, 1)
        heads = page.locator(".records th").all_inner_texts()
        assert heads == ["time UTC", "partition", "offset", "key", "value"]
        page.locator("button.open").click()
        page.wait_for_selector(".whole pre")
        assert '"id": 77' in page.inner_text(".whole")
        assert "t77" in page.inner_text(".whole")
        assert page.url.endswith("#/topics/clicks?search=k77")
        page.reload()
        records(page, 1)


def test_a_long_list_keeps_its_place(browser: Any, served: Any, log: Log) -> None:
    """It is drawn anew, and is where it was: scrolled, found and sorted; the address has what was found."""
    with Client(log.address) as client:
        for n in range(60):
            client.create_topic(f"many-{n:02}", exists_ok=True)
    with visit(browser, f"{served.url}/#/topics") as page:
        page.wait_for_selector("text=many-59")
        place = "document.querySelector('#console .scroll').scrollTop"
        page.evaluate(f"{place} = 400")
        with Client(log.address) as client:
            client.create_topic("many-60")
        page.wait_for_selector("text=many-60")
        assert page.evaluate(place) == 400
        page.get_by_role("searchbox", name="find topics").fill("many-5")
        names = page.locator("#console td a")
        wait_until(lambda: page.wait_for_timeout(20) or names.count() == 10, "ten topics")
        assert "10 of " in page.inner_text("#console .hint")
        page.get_by_role("searchbox", name="find topics").fill("nothing has this")
        page.wait_for_selector("#console .empty")
        page.get_by_role("searchbox", name="find topics").fill("")
        page.get_by_role("link", name="records", exact=True).click()
        page.wait_for_selector("th[aria-sort=descending]")
        assert names.first.inner_text() == "clicks"
        assert page.url.endswith("#/topics?sort=-records")
        page.goto(f"{served.url}/#/topics?find=many-1&sort=-name")
        wait_until(lambda: page.wait_for_timeout(20) or names.count() == 10, "ten topics")
        assert names.first.inner_text() == "many-19"


def test_nothing_in_a_value_is_hidden(browser: Any, served: Any, log: Log) -> None:
    """Control characters and those that turn a text around are signs; an empty value isn't a missing one."""
    values = [b"a\x00b", "pay\u202eeno".encode(), b"", None, b"line one\nline two"]
    with Client(log.address) as client, Producer(log.address, acks="all") as producer:
        client.create_topic("hostile", 1, {"retention.ms": "-1"})
        times = np.full(len(values), FIRST_US // 1_000, np.int64)
        producer.send("hostile", 0, None, pa.array(values, pa.binary()), times)
    with visit(browser, f"{served.url}/#/topics/hostile?from=oldest") as page:
        records(page, len(values))
        cells = page.locator(".records td:nth-child(5)").all_inner_texts()
        assert cells == ["a⟨U+0000⟩b", "pay⟨U+202E⟩eno", "(empty)", "null", "line one↵line two"]
        assert page.locator("button.open").first.inner_text() == "2026-01-01 00:00:00"
        page.locator("button.open").last.click()
        assert page.inner_text(".whole pre") == "line one\nline two"


def test_a_telephone_shows_values_without_scrolling(browser: Any, served: Any) -> None:
    """Key and value of a record are within the window; so is the name of the page that one is on."""
    with visit(browser, f"{served.url}/#/topics/clicks", width=390) as page:
        records(page, 50)
        boxes = page.locator(".records tr:not([hidden]) td:nth-child(5)")
        assert boxes.count() == 50
        assert not page.is_visible(".records th")
        assert all(
            (box := one.bounding_box()) and box["x"] + box["width"] <= 390 for one in boxes.all()
        )
        page.goto(f"{served.url}/#/letters")
        page.wait_for_selector("nav a[aria-current] >> text=Dead letters")
        box = page.locator("nav a[aria-current]").bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 390


def test_a_topic_names_the_groups_that_read_it(browser: Any, served: Any) -> None:
    """Each leads to its lag."""
    with visit(browser, f"{served.url}/#/topics/clicks") as page:
        page.get_by_role("table", name="Groups").get_by_role("link", name="audit").click()
        page.wait_for_selector("text=time left")


def test_a_groups_lag_is_a_chart(browser: Any, served: Any, log: Log) -> None:
    """In records, by topic, over the chosen time, which is in the address; new looks appear by themselves."""
    with visit(browser, f"{served.url}/#/groups/audit?range=6+hours") as page:
        chart = page.locator("#console .chart svg")
        chart.wait_for()
        assert page.get_by_label("time that the chart shows").input_value() == "6 hours"
        assert "records that wait, by topic: the most in each minute" in page.inner_text("#console")
        assert re.search(r"clicks 50$", chart.locator("title").text_content() or "")
        assert page.locator("#console .chart .axis").count() > 2
        page.get_by_label("time that the chart shows").select_option("15 minutes")
        page.get_by_text("the most in each 10 seconds").wait_for()
        assert page.url.endswith("?range=15+minutes")
        with Client(log.address) as client:
            client.commit("audit", {("clicks", 1): 60, ("empty", 0): 0})
        page.locator("#console .legend li", has_text="empty").wait_for()
        page.reload()
        page.get_by_text("the most in each 10 seconds").wait_for()


def test_a_group_without_a_history_says_so(browser: Any, log: Log) -> None:
    """The page's server has just started: it says how it will know more."""
    console = Console(lambda: log.address, has_pipeline=False)
    console.start = lambda: None  # type: ignore[method-assign]
    server = Server(None, lambda **_: {}, console=console)
    try:
        with visit(browser, f"{server.url}/#/groups/audit") as page:
            page.get_by_text("No lag has been seen yet.").wait_for()
    finally:
        server.close()


def test_sizes_of_topics_have_units(browser: Any, served: Any) -> None:
    """A topic's bytes and its partitions', also where there are none."""
    with visit(browser, served.url) as page:
        sizes = page.get_by_role("table", name="Topics").locator("tr:has(td) td:last-child")
        sizes.first.wait_for()
        named = dict(zip(
            page.get_by_role("table", name="Topics").locator("tr td:first-child").all_inner_texts(),
            sizes.all_inner_texts(), strict=True,
        ))  # fmt: skip
        assert named["empty"] == "0 B"
        assert re.fullmatch(r"30(\.\d)? KB", named["odd"])
        page.goto(f"{served.url}/#/topics/clicks")
        parts = page.get_by_role("table", name="Partitions").locator("td:last-child")
        parts.first.wait_for()
        assert [bool(re.fullmatch(r"[\d.]+ KB", one)) for one in parts.all_inner_texts()] == [
            True
        ] * 2


def test_pages_of_records_follow(browser: Any, served: Any) -> None:
    """More records come below those that are there; any offset is a beginning."""
    with visit(browser, f"{served.url}/#/topics/clicks") as page:
        page.wait_for_selector(".records td")
        assert page.locator("button.open").count() == 50
        page.get_by_role("button", name="show more").click()
        records(page, 100)
        page.select_option("select[name=from]", "offset")
        page.fill("input[name=at]", "55")
        page.get_by_role("button", name="Show", exact=True).click()
        records(page, 10)
        assert page.get_by_role("button", name="show more").count() == 0


def test_bytes_of_others_are_text(browser: Any, served: Any) -> None:
    """Markup in a record is shown, not taken; long numbers keep their digits; tombstones say so."""
    with visit(browser, f"{served.url}/#/topics/odd?from=oldest") as page:
        page.wait_for_selector(".records td")
        assert page.locator(".records b").count() == 0
        text = page.inner_text(".records")
        for part in ("ff 00", "null", "<b>bold</b>", "12345678901234567890"):
            assert part in text
        page.locator("button.open").nth(2).click()
        assert "of 30 KB in all" in page.inner_text(".whole")


def test_connections_say_what_to_do(browser: Any, served: Any) -> None:
    """A failed sink and a paused capture: since when, why, what helps; and links to their topics."""
    with visit(browser, f"{served.url}/#/connections") as page:
        failed = page.locator(".troubles li", has_text="clicks.archive: failed since")
        assert "the table has no column ms" in failed.inner_text()
        assert "start the sink again" in failed.inner_text()
        paused = page.get_by_role("list", name="states of captures")
        assert "penstock capture resume shop" in paused.inner_text()
        page.get_by_role("table", name="Sinks").get_by_role(
            "link", name="clicks", exact=True
        ).first.click()
        page.wait_for_selector(".records td")
        assert page.url.endswith("#/topics/clicks")


def test_letters_are_a_workflow(browser: Any, served: Any, log: Log) -> None:
    """By reason; one is repaired, all are replayed, the late one is dropped; what is done is said."""
    write_letters(log, "worked")
    with visit(browser, f"{served.url}/#/letters") as page:
        row = page.locator("tr", has_text="worked.dead-letters").filter(has_text="no such field")
        row.get_by_role("link").click()
        page.get_by_role("button", name="Repair…").first.click()
        page.fill("article textarea", '{"user": 1}')
        page.get_by_role("button", name="Keep").click()
        page.wait_for_selector("[role=status]:text('repaired 1 letter')")
        page.get_by_role("button", name="Replay…").click()
        dialog = page.get_by_role("dialog", name="Replay 2 letters?")
        assert "All 2 letters with the reason “no such field: usr” are sent to worked again" in (
            dialog.inner_text()
        )
        dialog.get_by_role("button", name="Replay 2 letters").click()
        page.wait_for_selector("[role=status]:text('replayed 2 letters')")
        page.goto(f"{served.url}/#/letters")
        late = page.locator("tr", has_text="worked.dead-letters").filter(has_text="late:")
        late.get_by_role("link").click()
        page.wait_for_selector("article :text('will be late again')")
        page.get_by_role("button", name="Replay…").click()
        dialog = page.get_by_role("dialog", name="Replay 1 letter?")
        assert "1 letter of those on this page will be late again" in dialog.inner_text()
        dialog.get_by_role("button", name="Cancel").click()
        page.get_by_role("button", name="Drop…").click()
        dialog = page.get_by_role("dialog", name="Drop 1 letter?")
        assert "can't be undone" in dialog.inner_text()
        dialog.get_by_label("Reason").fill("counted by hand")
        dialog.get_by_role("button", name="Drop 1 letter").click()
        page.wait_for_selector("[role=status]:text('dropped 1 letter')")
        page.goto(f"{served.url}/#/letters")
        page.wait_for_selector("tr:has-text('worked.dead-letters'):has-text('dropped')")


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1400, "light")])
def test_a_change_of_letters_is_asked_for_in_a_dialog(
    browser: Any, served: Any, log: Log, width: int, scheme: str
) -> None:
    """By keyboard: Tab stays in it, Escape cancels, and the focus is where it was; then on what was done."""
    topic = write_letters(log, f"asked{width}")
    reason = "reason=no such field: usr"
    with visit(
        browser, f"{served.url}/#/letters/{topic}?{reason}", width=width, color_scheme=scheme
    ) as page:
        dialog = page.get_by_role("dialog")
        page.get_by_role("checkbox", name="letter 0/1").check()
        page.get_by_text("1 letter selected.").wait_for()
        page.get_by_role("button", name="Drop…").press("Enter")
        dialog.wait_for()
        assert page.evaluate("document.querySelector('dialog').getAttribute('aria-labelledby')")
        assert "Letter 0/1 is closed." in dialog.inner_text()
        if folder := os.environ.get("PENSTOCK_SCREENSHOTS"):
            page.screenshot(path=str(Path(folder) / f"dialog-{scheme}-{width}.png"))
        box = dialog.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
        inside = (
            "(at => at === document.body || at.closest('dialog') !== null)(document.activeElement)"
        )
        for _ in range(8):
            page.keyboard.press("Tab")
            assert page.evaluate(inside)
        page.keyboard.press("Escape")
        dialog.wait_for(state="detached")
        assert page.evaluate("document.activeElement.textContent") == "Drop…"
        assert page.get_by_role("checkbox", name="letter 0/1").is_checked()
        page.keyboard.press("Enter")
        page.keyboard.type("by hand")
        page.keyboard.press("Enter")
        page.wait_for_selector("[role=status]:text('dropped 1 letter')")
        assert page.evaluate("document.activeElement.getAttribute('role')") == "status"
        page.get_by_text("because: by hand").wait_for()
        assert page.get_by_role("checkbox").count() == 1


def test_a_change_that_fails_says_why_in_its_dialog(browser: Any, served: Any, log: Log) -> None:
    """The dialog stays, with the server's reason, and can be tried again or left."""
    topic = write_letters(log, "failing")
    with visit(browser, f"{served.url}/#/letters/{topic}") as page:
        assert page.get_by_role("button", name="Replay…").is_disabled()
        page.get_by_text("Select letters first.").wait_for()
        page.get_by_role("checkbox", name="letter 0/0").check()
        page.route(
            "**/replay",
            lambda route: route.fulfill(status=503, json={"error": "the broker is away"}),
        )
        page.get_by_role("button", name="Replay…").click()
        dialog = page.get_by_role("dialog", name="Replay 1 letter?")
        dialog.get_by_role("button", name="Replay 1 letter").click()
        assert dialog.get_by_role("alert").inner_text() == "the broker is away"
        page.unroute("**/replay")
        dialog.get_by_role("button", name="Replay 1 letter").click()
        page.wait_for_selector("[role=status]:text('replayed 1 letter')")


def test_a_read_only_page_has_no_buttons_that_change(browser: Any, served: Any) -> None:
    """It says how changes are made instead."""
    with visit(browser, f"{served.read_only}/#/letters/orders.dead-letters") as page:
        page.wait_for_selector("article")
        for name in ("Repair…", "Replay…", "Drop…"):
            assert page.get_by_role("button", name=name).count() == 0
        assert "--allow-changes" in page.inner_text("#console")


def test_a_log_that_is_stopped_says_how_to_start_it(browser: Any) -> None:
    """The page is there, with the reason; it tries again when it is asked to."""

    def stopped() -> str:
        raise SetupError(
            "expected the broker of shop to run; found it stopped. Start it: penstock …"
        )

    server = Server(None, lambda **_: {}, console=Console(stopped, has_pipeline=False))
    try:
        with visit(browser, server.url) as page:
            page.wait_for_selector("#console .error")
            assert "found it stopped. Start it: penstock …" in page.inner_text("#console")
            assert page.inner_text("#state") == "no broker"
            again = page.get_by_role("button", name="Try again")
            assert again.bounding_box()["width"] < 200
            again.click()
            page.wait_for_selector("#console .error")
    finally:
        server.close()


def test_an_empty_log_says_how_to_send_the_first_event(browser: Any, tmp_path: Path) -> None:
    """The command on the page works as it is; groups, connections and letters say what fills them."""
    with BrokerProcess(tmp_path / "log") as broker:
        server = Server(
            None, lambda **_: {}, console=Console(lambda: broker.address, has_pipeline=False)
        )
        try:
            with visit(browser, f"{server.url}/#/topics") as page:
                command = page.locator("#console .empty code").inner_text()
                assert "penstock produce" in command
                for place, commands in (("groups", 1), ("connections", 3)):
                    page.goto(f"{server.url}/#/{place}")
                    page.wait_for_selector(f"#console[data-page='#/{place}']:not([aria-busy])")
                    shown = page.locator("#console .empty code").all_inner_texts()
                    assert len(shown) == commands
                    assert all(one.startswith("penstock ") for one in shown)
                page.goto(f"{server.url}/#/letters")
                page.wait_for_selector("#console[data-page='#/letters']:not([aria-busy]) .empty")
                path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
                subprocess.run(
                    ["bash", "-c", command],
                    env={**os.environ, "PATH": path, "PENSTOCK_BROKER": broker.address},
                    cwd=tmp_path,
                    check=True,
                )
                page.goto(f"{server.url}/#/topics")
                page.get_by_role("link", name="clicks").wait_for()
        finally:
            server.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_versions_and_savepoints_are_shown(
    browser: Any, log: Log, views: Any, shared: SimpleNamespace, width: int, scheme: str
) -> None:
    """What is kept, the newest version first; drawn in PENSTOCK_SCREENSHOTS like the other pages."""
    app = ps.App("shop")
    clicks = app.stream("clicks", "user STRING, ms DOUBLE")
    app.view("per_user", clicks.group_by("user").agg(n=ps.count(), slowest=ps.max("ms")))
    run = ps.testing.run(app)
    for ms in range(5):
        run.send("clicks", user="ann", ms=float(ms))
        run.settle()
        if ms == 2:
            pinned = create_savepoint(run.store, "before-upgrade", FIRST_US + 2_000_000)
    newest = run.store.newest_version()
    for number in run.store.kept(newest):  # a second apart, so that each picture is the same
        content = run.store.version(number)
        run.store.files.delete(f"versions/{number:020d}.json")
        run.store.commit(replace(content, wall_us=FIRST_US + number * 1_000_000))
    console = Console(lambda: log.address, versions=lambda: versions_of(run.store))
    server = Server(views, shared.status, console=console)
    try:
        with visit(browser, server.url, width=width, color_scheme=scheme) as page:
            page.get_by_role("link", name="Versions", exact=True).click()
            page.wait_for_selector("#console[data-page='#/versions']:not([aria-busy]) table")
            savepoints = page.get_by_role("table", name="Savepoints").inner_text()
            assert "before-upgrade" in savepoints
            assert f"\t{pinned.version}\t" in savepoints
            assert re.search(r"\t[\d.]+ (B|KB)\t", savepoints)
            rows = page.get_by_role("table", name="Versions").locator("tr:has(td)")
            assert rows.count() == len(run.store.kept(newest))
            assert rows.first.inner_text().startswith(str(newest))
            assert "per_user" in rows.first.inner_text()
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            if folder := os.environ.get("PENSTOCK_SCREENSHOTS"):
                draw(page, Path(folder) / f"versions-{scheme}-{width}.png")
    finally:
        server.close()


def test_a_pipelines_topics_lead_to_their_records(
    browser: Any, log: Log, views: Any, shared: SimpleNamespace
) -> None:
    """From the pipeline to what lies in its topics, and back to the charts."""
    server = Server(views, shared.status, console=Console(lambda: log.address))
    try:
        with visit(browser, server.url) as page:
            page.wait_for_selector(".card .chart svg")
            page.locator("#topics").get_by_role("link", name="clicks").click()
            page.wait_for_selector(".records td")
            assert page.url.endswith("#/topics/clicks")
            assert not page.is_visible("#pipeline")
            page.get_by_role("link", name="Pipeline").click()
            page.wait_for_selector("#pipeline .card .chart svg")
            assert not page.is_visible("#console")
    finally:
        server.close()


def test_counts_of_dead_letters_lead_to_them(browser: Any, log: Log, views: Any) -> None:
    """From the tile and from the topic's row, by click or keyboard."""
    pipeline = Pipeline(version=7, rows=1_000, late=40, dead=45)
    server = Server(views, pipeline.board.status, console=Console(lambda: log.address))
    try:
        with visit(browser, server.url) as page:
            for place in (".tile", "#topics"):
                page.locator(f"{place} a[href='#/letters']").first.press("Enter")
                page.wait_for_selector("#console td.reason")
                page.get_by_role("link", name="Pipeline").click()
                page.wait_for_selector("#pipeline:not([hidden])")
    finally:
        server.close()


def test_views_are_asked_for_where_they_are_shown(browser: Any, log: Log, views: Any) -> None:
    """Not while another page is; trouble with them is reported on theirs alone."""
    pipeline = Pipeline(version=7, rows=1_000)
    server = Server(views, pipeline.board.status, console=Console(lambda: log.address))
    try:
        with visit(browser, f"{server.url}/#/topics") as page:
            asked: list[str] = []
            page.on("request", lambda one: asked.append(urlsplit(one.url).path))
            page.route(
                "**/api/views",
                lambda route: route.fulfill(status=503, json={"error": "unreadable"}),
            )
            page.get_by_role("link", name="clicks", exact=True).click()
            records(page, 50)
            assert "/api/views" not in asked
            page.get_by_role("link", name="Pipeline").click()
            page.get_by_text("The views can't be read: unreadable").wait_for()
            page.get_by_role("link", name="Topics").click()
            page.get_by_text("The views can't be read: unreadable").wait_for(state="hidden")
            page.unroute("**/api/views")
            page.get_by_role("link", name="Pipeline").click()
            page.wait_for_selector("#pipeline .card .chart svg")
            assert not page.is_visible("#notice")
    finally:
        server.close()


def test_a_pipeline_without_records_says_how_to_send_some(browser: Any, views: Any) -> None:
    """In place of its views, with the name of a topic that it reads."""
    views.tables = {}
    pipeline = Pipeline(version=7, rows=0)
    server = Server(views, pipeline.board.status)
    try:
        with visit(browser, server.url) as page:
            [topic, *_] = pipeline.board.status(history=False)["sources"]
            page.locator("#empty code", has_text=f"penstock produce {topic}").wait_for()
    finally:
        server.close()

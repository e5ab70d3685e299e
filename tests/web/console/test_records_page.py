"""A topic's records in a real browser: as they arrive, and with a column for each field."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.patience import wait_until
from tests.web.browsing import chromium, visit

from penstock.broker.process import BrokerProcess
from penstock.client import Client, Producer
from penstock.web import Console, Server

pytestmark = pytest.mark.slow

NOW_MS = 1_767_225_600_000  # 2026-01-01T00:00:00Z
VALUES = [
    {"user": "bob", "ms": 9, "address": {"city": "Bern"}},
    {"user": "ann", "ms": 10.5, "address": {"city": "Aarau"}, "id": 12345678901234567890},
    {"user": "cy", "address": None, "tags": ["a", 1]},
    {"user": "", "ms": -2, "address": {"city": "Chur"}},
]
MISSING = "\N{EN DASH}"
ROWS = "table[aria-label='Records by field'] tr.record"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """A page of a log with visits, whose values have fields."""
    with BrokerProcess(tmp_path_factory.mktemp("records")) as broker:
        with Client(broker.address) as client:
            for name in ("visits", "flood", "quiet"):
                client.create_topic(name, 1, {"retention.ms": "-1"})
        send(broker.address, "visits", [json.dumps(one) for one in VALUES])
        server = Server(
            None, lambda **_: {}, console=Console(lambda: broker.address, has_pipeline=False)
        )
        yield SimpleNamespace(url=server.url, address=broker.address)
        server.close()


@pytest.fixture(scope="module")
def browser(served: Any) -> Iterator[Any]:
    with chromium() as found:
        yield found


def send(address: str, topic: str, values: list[str]) -> None:
    """Records a second apart."""
    body = pa.array([one.encode() for one in values], pa.binary())
    times = np.array([NOW_MS + 1_000 * i for i in range(len(values))], np.int64)
    with Producer(address, acks="all") as producer:
        producer.send(topic, 0, None, body, times)


def column(page: Any, number: int) -> list[str]:
    """The texts of a column of the table by field; 0 is the time."""
    texts: list[str] = page.locator(f"{ROWS} td:nth-child({number + 1})").all_inner_texts()
    return texts


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1400, "light")])
def test_fields_are_columns_that_sort(browser: Any, served: Any, width: int, scheme: str) -> None:
    """Fields are chosen and sorted; the address has both, and leads there; long numbers keep their digits."""
    with visit(
        browser, f"{served.url}/#/topics/visits?from=oldest", width=width, color_scheme=scheme
    ) as page:
        page.get_by_text("show fields as columns").click()
        for name in ("user", "ms", "address.city", "id"):
            page.get_by_role("checkbox", name=name, exact=True).check()
        wait_until(lambda: page.wait_for_timeout(20) or len(column(page, 7)) == 4, "four columns")
        assert column(page, 4) == ["bob", "ann", "cy", "(empty)"]
        assert column(page, 5) == ["9", "10.5", MISSING, "-2"]
        assert column(page, 6) == ["Bern", "Aarau", MISSING, "Chur"]
        assert column(page, 7)[1] == "12345678901234567890"
        page.get_by_role("link", name="ms", exact=True).click()
        assert column(page, 5) == ["-2", "9", "10.5", MISSING]
        page.get_by_role("link", name="ms", exact=True).press("Enter")
        assert column(page, 5) == ["10.5", "9", "-2", MISSING]
        assert page.locator("th[aria-sort=descending]").inner_text().startswith("ms")
        page.reload()
        page.wait_for_selector(ROWS)
        assert column(page, 5) == ["10.5", "9", "-2", MISSING]
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.locator("button.open").first.click()
        assert '"Aarau"' in page.inner_text(".whole")
        if folder := os.environ.get("PENSTOCK_SCREENSHOTS"):
            page.screenshot(path=str(Path(folder) / f"columns-{scheme}-{width}.png"))
        page.get_by_text("columns: 4 of").click()
        page.get_by_role("button", name="whole values").click()
        page.wait_for_selector("table[aria-label=Records]")
        assert page.url.endswith("#/topics/visits?from=oldest")


def test_a_cell_is_copied_by_mouse_and_keyboard(browser: Any, served: Any) -> None:
    """All of its text, as it was sent; the page says what was copied."""
    place = f"{served.url}/#/topics/visits?from=oldest&columns=user,id"
    with visit(browser, place, permissions=["clipboard-read", "clipboard-write"]) as page:
        page.wait_for_selector(ROWS)
        held = "navigator.clipboard.readText()"
        page.locator(ROWS).nth(1).locator("td").nth(5).hover()
        page.get_by_role("button", name="copy", exact=True).click()
        page.get_by_text("copied 12345678901234567890").wait_for()
        assert page.evaluate(held) == "12345678901234567890"
        cells = page.locator(f"{ROWS} td[tabindex='0']")
        assert cells.count() == 1
        cells.focus()  # the one that was copied
        for key in ("ArrowLeft", "ArrowUp", "ArrowUp", "Enter"):
            page.keyboard.press(key)
        page.get_by_text("copied bob").wait_for()
        assert page.evaluate(held) == "bob"


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (1400, "dark")])
def test_new_records_appear_until_they_are_paused(
    browser: Any, served: Any, width: int, scheme: str
) -> None:
    """A topic without records says how to send one; each appears once, on top; an opened one pauses."""
    topic = f"live-{width}"
    with Client(served.address) as client:
        client.create_topic(topic, 1, {"retention.ms": "-1"})
    with visit(
        browser, f"{served.url}/#/topics/{topic}?from=live", width=width, color_scheme=scheme
    ) as page:
        assert "penstock produce" in page.locator(".records .empty code").inner_text()
        lines = page.locator("table[aria-label=Records] tr.record td:nth-child(5)")

        def shown(*values: str) -> None:
            wait_until(
                lambda: page.wait_for_timeout(20) or lines.all_inner_texts() == list(values),
                f"{values} to be shown",
            )

        send(served.address, topic, ["one", "two"])
        shown("two", "one")
        send(served.address, topic, ["three"])
        shown("three", "two", "one")
        page.locator("button.open").nth(1).click()
        page.get_by_text("paused", exact=True).wait_for()
        send(served.address, topic, ["four"])
        page.wait_for_timeout(1_500)  # longer than two looks at the topic are apart
        shown("three", "two", "one")
        if folder := os.environ.get("PENSTOCK_SCREENSHOTS"):
            page.screenshot(path=str(Path(folder) / f"live-{scheme}-{width}.png"))
        page.get_by_role("button", name="Continue").click()
        shown("four", "three", "two", "one")
        assert page.locator(".whole").is_visible()
        assert page.url.endswith("?from=live")


def test_a_flood_of_records_leaves_the_page_usable(browser: Any, served: Any) -> None:
    """However many arrive, the list holds at most 500, a look brings at most 50, and the rest is counted."""
    sizes: list[int] = []
    stop = threading.Event()

    def flood() -> None:
        body = pa.array([b'{"user": "ann", "ms": 12}'] * 20_000, pa.binary())
        times = np.full(20_000, NOW_MS, np.int64)
        with Producer(served.address, acks="all") as producer:
            while not stop.wait(0.1):
                producer.send("flood", 0, None, body, times)

    def count(answer: Any) -> None:
        if "/tail" in answer.url:
            sizes.append(len(answer.json()["records"]))

    writer = threading.Thread(target=flood)
    with visit(browser, f"{served.url}/#/topics/flood?from=live&columns=user") as page:
        page.on("response", count)
        page.wait_for_selector(".records .empty")
        writer.start()
        try:
            for _ in range(12):
                before = len(sizes)
                wait_until(lambda n=before: page.wait_for_timeout(20) or len(sizes) > n, "a look")
            assert "not shown: they came faster than 50 a second" in page.inner_text(".records")
            assert "records/s arrive" in page.inner_text(".records")
            assert 0 < page.locator("tr.record").count() <= 500
            assert max(sizes) == 50
            page.get_by_role("button", name="Pause").click()
            page.get_by_role("link", name="offset", exact=True).click()
            offsets = [int(one) for one in column(page, 2)]
            assert offsets == sorted(offsets)
            assert len(set(offsets)) == len(offsets)
        finally:
            stop.set()
            writer.join()


def test_a_tail_whose_broker_is_away_says_so_and_continues(browser: Any, served: Any) -> None:
    """The records stay; the reason is shown; the next look that works goes on."""
    with visit(browser, f"{served.url}/#/topics/quiet?from=live") as page:
        page.wait_for_selector(".records .empty")
        page.route(
            "**/tail?*",
            lambda route: route.fulfill(
                status=503, json={"error": "expected the broker; found none"}
            ),
        )
        page.get_by_text("expected the broker; found none").wait_for()
        page.unroute("**/tail?*")
        send(served.address, "quiet", ["back"])
        page.locator("tr.record", has_text="back").wait_for()
        assert page.get_by_text("expected the broker; found none").count() == 0

"""The page's colours in a real browser: as the system says, or as chosen; never one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from tests.web.browsing import chromium, visit

from penstock.web import Server

pytestmark = pytest.mark.slow

DARK, LIGHT = "rgb(15, 20, 26)", "rgb(246, 247, 249)"
BACK = "getComputedStyle(document.body).backgroundColor"
FRAMES = """
window.seen = [];
const look = () => {
  if (document.body) window.seen.push(getComputedStyle(document.body).backgroundColor);
  if (window.seen.length < 30) requestAnimationFrame(look);
};
requestAnimationFrame(look);
"""  # the background of each frame from the first that has a body


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.fixture
def url(views: Any, shared: SimpleNamespace) -> Iterator[str]:
    """Of a page over the usual views."""
    server = Server(views, shared.status)
    yield server.url
    server.close()


@pytest.mark.parametrize(("system", "back"), [("light", LIGHT), ("dark", DARK)])
def test_the_system_decides_at_first(browser: Any, url: str, system: str, back: str) -> None:
    """Also while the page is open: it follows a system that changes in the evening."""
    with visit(browser, url, color_scheme=system) as page:
        assert page.get_by_label("colors").input_value() == ""
        assert page.evaluate(BACK) == back
        other = "light" if system == "dark" else "dark"
        page.emulate_media(color_scheme=other)
        assert page.evaluate(BACK) == (LIGHT if system == "dark" else DARK)


@pytest.mark.parametrize(
    ("system", "chosen", "back"), [("light", "dark", DARK), ("dark", "light", LIGHT)]
)
def test_a_choice_is_kept_and_nothing_flashes(
    browser: Any, url: str, system: str, chosen: str, back: str
) -> None:
    """It holds against the system, in other tabs too, and from the first frame of the next visit."""
    with visit(browser, url, color_scheme=system) as page:
        other = page.context.new_page()
        other.goto(url)
        page.get_by_label("colors").select_option(chosen)
        assert page.evaluate(BACK) == back
        other.locator(f"html[style*='color-scheme: {chosen}']").wait_for(state="attached")
        assert other.get_by_label("colors").input_value() == chosen
        page.add_init_script(FRAMES)
        page.reload()
        page.wait_for_selector(".card .chart svg")
        frames = page.evaluate("window.seen")
        assert frames
        assert set(frames) == {back}
        assert page.get_by_label("colors").input_value() == chosen
        page.get_by_label("colors").select_option("")
        page.reload()
        assert page.evaluate(BACK) == (LIGHT if system == "light" else DARK)


def test_the_switch_fits_on_a_telephone(browser: Any, url: str) -> None:
    """The head stays within the window, with the pipeline's name and state readable."""
    with visit(browser, url, width=390) as page:
        page.wait_for_selector(".card .chart svg")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        for name in ("#app", "#state", "#theme"):
            box = page.locator(name).bounding_box()
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= 390
            assert box["width"] > 20

"""A real browser for the page's tests: Debian's or any other installed Chromium, driven by Playwright."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

NAMES: Final = ("chromium", "chromium-browser", "google-chrome")
OPTIONS: Final = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update",
)  # fmt: skip
WIDTHS: Final = (390, 1400, 1920)  # a telephone, a laptop, a large screen


@contextmanager
def chromium() -> Iterator[Browser]:
    """The installed Chromium, until the block ends; nothing is ever downloaded.

    Playwright holds the thread's event loop meanwhile: in the block, nothing may call `asyncio.run`.
    """
    driver = pytest.importorskip(
        "playwright.sync_api", reason="expected Playwright (requirements-test.lock); found none"
    )
    path = os.environ.get("PENSTOCK_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip(
            "expected Chromium; found none. apt-get install chromium, or PENSTOCK_CHROMIUM=…"
        )
    with driver.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(OPTIONS))
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def visit(browser: Browser, url: str, *, width: int = 1400, **options: Any) -> Iterator[Page]:
    """A page in a window so wide. Errors of its scripts and requests to other hosts fail the test.

    Args:
        browser: from `chromium`.
        url: of the page.
        width: of the window in pixels.
        options: Playwright's, such as `color_scheme` and `timezone_id`.
    """
    context = browser.new_context(viewport={"width": width, "height": 1000}, **options)
    errors: list[str] = []
    try:
        page = context.new_page()
        page.set_default_timeout(120_000)  # see tests/patience.py
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda said: errors.append(said.text) if _is_fault(said) else None)
        page.on("request", lambda asked: errors.append(asked.url) if _is_foreign(asked) else None)
        page.goto(url)
        yield page
        assert not errors, errors
    finally:
        context.close()


def _is_fault(said: Any) -> bool:
    """Whether a message of the console is an error; an answer that isn't 200 is one that tests want."""
    return said.type == "error" and not said.text.startswith("Failed to load resource")


def _is_foreign(asked: Any) -> bool:
    """Whether the page asks anybody but this machine."""
    url = urlsplit(asked.url)
    return url.scheme in {"http", "https", "ws", "wss"} and url.hostname != "127.0.0.1"

"""Takes the README's picture: its pipeline's page, over two hours of made-up clicks.

    .venv/bin/python scripts/picture.py        # writes docs/images/page.png

Needs an installed Chromium (or its path in PENSTOCK_CHROMIUM).
"""

from __future__ import annotations

import json
import math
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parents[1]
PENSTOCK = [sys.executable, "-m", "penstock.cli"]
MINUTES = 120
WAIT_S = 180
NAMES = ("chromium", "chromium-browser", "google-chrome")


def click(chance: random.Random, at: datetime) -> bytes:
    """A click at a time, as a line of JSON."""
    url = chance.choices(["/", "/shoes", "/hats", "/basket"], [5, 3, 2, 1])[0]
    ms = round(chance.lognormvariate(3, 0.5), 1)
    user = f"user-{chance.randrange(500)}"
    return json.dumps({"user": user, "url": url, "ms": ms, "at": at.isoformat()}).encode() + b"\n"


def history(chance: random.Random) -> Iterator[bytes]:
    """Clicks of the last two hours, in the order of their times."""
    begin = datetime.now(UTC).replace(second=0, microsecond=0) - timedelta(minutes=MINUTES)
    for minute in range(MINUTES):
        wave = 1 + 0.5 * math.sin(minute / 15)
        for second in sorted(chance.uniform(0, 60) for _ in range(int(600 * wave))):
            yield click(chance, begin + timedelta(minutes=minute, seconds=second))


def wait_for_views(url: str) -> None:
    """Returns when the page's pipeline has committed the clicks."""
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end:
        try:
            with urllib.request.urlopen(f"{url}/api/status", timeout=5) as answer:  # noqa: S310
                status = json.load(answer)
        except (urllib.error.URLError, ConnectionError):
            status = {}
        if status.get("rows"):
            return
        time.sleep(0.5)
    raise SystemExit(f"expected the views within {WAIT_S} s; found none")


def take(url: str, target: Path, feed: Callable[[], None]) -> None:
    """Writes a picture of the page after half a minute with events."""
    path = os.environ.get("PENSTOCK_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        raise SystemExit("expected Chromium; found none. apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 1050})
        page.goto(url)
        page.wait_for_selector(".card .chart svg", timeout=WAIT_S * 1000)
        for _ in range(60):
            feed()
            page.wait_for_timeout(500)
        page.screenshot(path=target)
        browser.close()


def main() -> None:
    """Runs the README's pipeline, feeds it, and takes the picture."""
    [program, *_] = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    target = ROOT / "docs" / "images" / "page.png"
    target.parent.mkdir(exist_ok=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "shop.py").write_text(program)
        command = [*PENSTOCK, "run", "shop.py", "--port", str(port)]
        run = subprocess.Popen(command, cwd=folder)  # noqa: S603
        try:
            url = f"http://127.0.0.1:{port}"
            end = time.monotonic() + WAIT_S
            while not Path(folder, "shop.penstock", "broker.json").exists():
                if time.monotonic() > end or run.poll() is not None:
                    raise SystemExit("expected the pipeline to start; it didn't (see above)")
                time.sleep(0.2)
            chance = random.Random(7)  # noqa: S311
            command = [*PENSTOCK, "produce", "clicks", "--create"]
            with subprocess.Popen(command, cwd=folder, stdin=subprocess.PIPE) as produce:  # noqa: S603
                lines = produce.stdin
                assert lines is not None
                lines.writelines(history(chance))
                lines.flush()
                wait_for_views(url)

                def feed() -> None:
                    lines.writelines(click(chance, datetime.now(UTC)) for _ in range(5))
                    lines.flush()

                take(url, target, feed)
        finally:
            run.terminate()
            run.wait(60)
    print(target)


if __name__ == "__main__":
    main()

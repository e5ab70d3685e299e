"""A pipeline in a real notebook's kernel: it runs beside the cells, which show its views and stop it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.patience import PATIENCE_S, wait_until

ROOT = Path(__file__).parents[2]
START = """
import threading
import penstock as ps

app = ps.App("shop")
clicks = app.stream("clicks", "user STRING, at TIMESTAMP", time=ps.event_time("at"))
app.view("per_user", clicks.group_by("user").agg(n=ps.count()))
per_minute = clicks.window(ps.tumbling("1 minute")).group_by("user")
app.view("per_minute", per_minute.agg(n=ps.count()))
started = threading.Event()
pipeline = threading.Thread(target=app.run, kwargs={"on_start": lambda _: started.set()})
pipeline.start()
assert started.wait(300)
"""
SEND = """
import json
from penstock.client import Producer
import numpy as np
import pyarrow as pa

def send(*users, minute=0):
    at = f"2026-01-01T12:{minute:02}:00Z"
    values = [json.dumps({"user": one, "at": at}).encode() for one in users]
    with Producer(app.address) as producer:
        producer.send("clicks", 0, None, pa.array(values), np.zeros(len(values), np.int64))

send("ann", "bob", "ann")
"""
SHOWN = """
import time
views = ps.serve.Views("shop")
end = time.monotonic() + 300
while not views.version or sum(views.table("per_user")["n"].to_pylist()) < 3:
    assert time.monotonic() < end
    time.sleep(0.05)
views
"""
LIVE = """
live = ps.serve.Live(views, "SELECT sum(n) AS clicks FROM per_user", every_s=0.1)
live
"""
CHART = """
chart = ps.serve.Live(views, "per_minute", every_s=0.1)
chart
"""
STOP = """
live.stop()
chart.stop()
app.stop()
pipeline.join(300)
assert not pipeline.is_alive()
"""


class Kernel:
    """A kernel's process, and what its cells show."""

    def __init__(self, folder: Path) -> None:
        jupyter = pytest.importorskip(
            "jupyter_client", reason="expected ipykernel (requirements-test.lock); found none"
        )
        manager = jupyter.KernelManager()
        manager.start_kernel(cwd=str(folder))
        self._manager, self._client = manager, manager.client()
        self._updates = list[str]()  # that came while another cell ran
        self._client.start_channels()
        self._client.wait_for_ready(timeout=PATIENCE_S)

    def run(self, code: str) -> tuple[list[str], list[str]]:
        """Runs a cell; the HTML and the texts that it shows."""
        html, texts = list[str](), list[str]()

        def take(message: dict[str, Any]) -> None:
            kind, content = message["msg_type"], message["content"]
            if kind == "update_display_data":
                self._updates.append(content["data"]["text/html"])
            elif kind in {"display_data", "execute_result"}:
                html.append(content["data"].get("text/html", ""))
                texts.append(content["data"].get("text/plain", ""))

        reply = self._client.execute_interactive(
            code, timeout=3 * PATIENCE_S, output_hook=take, allow_stdin=False
        )
        assert reply["content"]["status"] == "ok", reply["content"].get("traceback")
        return html, texts

    def updated(self) -> str:
        """The HTML of the next update of a cell that is there already."""
        if self._updates:
            return self._updates.pop(0)
        while True:
            message = self._client.get_iopub_msg(timeout=PATIENCE_S)
            if message["msg_type"] == "update_display_data":
                found: str = message["content"]["data"]["text/html"]
                return found

    def end(self) -> None:
        """Ends the process."""
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)
        self._manager.cleanup_resources()


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[Kernel]:
    found = Kernel(tmp_path)
    yield found
    found.end()


def points(html: str) -> list[int]:
    """How many windows each line of a chart joins."""
    return [len(one.split()) for one in re.findall(r'<polyline points="([^"]+)"', html)]


@pytest.mark.slow
@pytest.mark.spark
def test_a_pipeline_runs_beside_the_cells(kernel: Kernel, tmp_path: Path) -> None:
    """Started in a cell, it answers the next ones, live tables and charts; another cell stops it."""
    kernel.run(START)
    kernel.run(SEND)
    [shown], _ = kernel.run(SHOWN)
    assert "<b>per_user</b> 2 rows" in shown
    [live], _ = kernel.run(LIVE)
    assert ">3<" in live
    kernel.run("send('eve')")
    wait_until(lambda: ">4<" in kernel.updated(), "the update")
    [drawn], _ = kernel.run(CHART)
    assert "<b>per_minute</b>" in drawn
    assert points(drawn) == [], "one window is no line"
    for minute in (1, 2):
        kernel.run(f"send('ann', minute={minute})")
        wait_until(lambda: points(kernel.updated()) == [minute + 1], "the longer line")  # noqa: B023
    kernel.run(STOP)
    assert (tmp_path / "shop.penstock" / "state").is_dir()


@pytest.mark.slow
def test_the_notebook_of_the_documents_runs_in_a_kernel(kernel: Kernel) -> None:
    """Cell by cell; views are tables."""
    cells = json.loads((ROOT / "docs" / "notebook.ipynb").read_text())["cells"]
    shown = [kernel.run("".join(one["source"])) for one in cells if one["cell_type"] == "code"]
    tables = [text for html, _ in shown for text in html if text]
    assert ["<b>per_minute</b> 2 rows" in tables[0], "<b>per_user</b>" in tables[-1]] == [True] * 2
    assert any("eve" in text for _, texts in shown for text in texts)

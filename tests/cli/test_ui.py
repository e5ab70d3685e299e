"""`penstock ui`: the page of a pipeline or a broker, whether it runs or not."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.patience import PATIENCE_S
from tests.serve.committing import clicks, commit

from penstock.broker.process import BrokerProcess
from penstock.client import Client


@contextmanager
def ui(folder: Path, *words: str) -> Iterator[httpx.Client]:
    """The page that a command serves, until the block ends; the command then ends well."""
    command = [sys.executable, "-m", "penstock.cli", "ui", *words]
    child = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True)
    try:
        assert child.stderr is not None
        line = child.stderr.readline()
        found = re.search(r"http://\S+?(?=;)", line)
        assert found is not None, line + child.stderr.read()
        with httpx.Client(base_url=found[0], timeout=PATIENCE_S) as client:
            yield client
    finally:
        child.terminate()
        code = child.wait(PATIENCE_S)
        child.stderr.close()
    assert code == 0


def topics(page: httpx.Client) -> list[str]:
    """The names of the topics that a page shows."""
    answer = page.get("/api/topics")
    assert answer.status_code == 200, answer.text
    return [one["name"] for one in answer.json()["topics"]]


def test_a_brokers_log_is_shown(tmp_path: Path, broker: str) -> None:
    """By its address, without a pipeline; changes only if they are allowed."""
    with Client(broker) as client:
        client.create_topic("shown-by-ui", exists_ok=True)
    with ui(tmp_path, broker, "--allow-changes") as page:
        about = page.get("/api/console").json()
        assert (about["pipeline"], about["allow_changes"], about["log"]) == (False, True, broker)
        assert "shown-by-ui" in topics(page)
        assert page.get("/").status_code == 200


@pytest.mark.slow
def test_a_stopped_log_is_explained_or_served(tmp_path: Path) -> None:
    """A directory whose broker is stopped says how to start it; --serve-log does, for as long."""
    with BrokerProcess(tmp_path / "penstock-log") as process, Client(process.address) as client:
        client.create_topic("kept")
    with ui(tmp_path, "penstock-log", "--serve-log") as page:
        assert topics(page) == ["kept"]
    with BrokerProcess(tmp_path / "penstock-log") as process, Client(process.address) as client:
        assert list(client.topics()) == ["kept"], "the log is free again"


def test_a_stopped_pipeline_is_shown(tmp_path: Path) -> None:
    """Its views and versions are there; of its log the page says that it is stopped."""
    commit(clicks(), tmp_path / "shop.penstock")
    (tmp_path / "shop.penstock" / "log").mkdir()
    with ui(tmp_path, "shop") as page:
        about: dict[str, Any] = page.get("/api/console").json()
        assert (about["pipeline"], about["log"], about["allow_changes"]) == (True, None, False)
        assert "found it stopped. Start it" in about["error"]
        assert "penstock ui shop --serve-log" in about["error"]
        assert page.get("/api/views").json()["views"] != []
        versions = page.get("/api/versions").json()["versions"]
        assert versions[0]["version"] == max(one["version"] for one in versions)
        assert versions[0]["views"] == [
            one["name"] for one in page.get("/api/views").json()["views"]
        ]


@pytest.mark.slow
def test_the_only_pipeline_of_a_folder_needs_no_name(tmp_path: Path) -> None:
    """Whether it runs or not."""
    commit(clicks(), tmp_path / "shop.penstock")
    with ui(tmp_path) as page:
        assert page.get("/api/console").json()["pipeline"]
        assert page.get("/api/views").json()["views"] != []


def test_nothing_to_show_is_said_at_once(penstock: Any) -> None:
    """A name that is neither a pipeline's nor a broker's."""
    done = penstock("ui", "nope")
    assert done.code == 1
    assert "or a broker as host:port; found neither for 'nope'" in done.err
    Path("shop.penstock").mkdir()
    assert "(did you mean 'shop'?). Known here: shop" in penstock("ui", "shp").err

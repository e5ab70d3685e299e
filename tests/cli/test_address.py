"""Where commands find the broker, and what they say where it doesn't run."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.process import BrokerProcess
from penstock.cli.support import address as module
from penstock.cli.support.address import find_broker
from penstock.errors import SetupError, UserError


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A folder with a pipeline whose log is being served, and where."""
    folder = tmp_path_factory.mktemp("shop")
    with BrokerProcess(folder / "shop.penstock" / "log") as process:
        stop(folder, "shop", process.address)  # so it was noted when it was last started
        yield folder, process.address


def stop(folder: Path, name: str, address: str, command: str | None = "penstock run p.py") -> Path:
    """A pipeline's directory as a run leaves it behind."""
    directory = folder / f"{name}.penstock"
    (directory / "log").mkdir(parents=True, exist_ok=True)
    content = json.dumps({"address": address, "pid": 1, "command": command})
    (directory / "broker.json").write_text(content)
    return directory


def test_what_is_said_counts_before_the_environment(tmp_path: Path) -> None:
    """--broker, then PENSTOCK_BROKER."""
    env = {"PENSTOCK_BROKER": "kafka://h:2"}
    assert find_broker("a:1,b:2", env, tmp_path) == "a:1,b:2"
    assert find_broker(None, env, tmp_path) == "h:2"


def test_the_usual_broker_is_the_last_resort(
    tmp_path: Path, broker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is taken where nothing else is known; where it isn't there, that is told at once."""
    monkeypatch.setattr(module, "DEFAULT", broker)
    assert find_broker(None, {}, tmp_path) == broker
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        monkeypatch.setattr(module, "DEFAULT", f"127.0.0.1:{probe.getsockname()[1]}")
        with pytest.raises(SetupError, match="penstock broker"):
            find_broker(None, {}, tmp_path)


def test_the_pipeline_that_runs_here_is_found(shop: tuple[Path, str], tmp_path: Path) -> None:
    """By its folder, its directory, its name and its log's directory; one that is stopped doesn't count."""
    folder, address = shop
    stop(folder, "old", "127.0.0.1:1")
    for said in (None, folder / "shop.penstock", folder / "shop", folder / "shop.penstock" / "log"):
        assert find_broker(said and str(said), {}, folder) == address


def test_a_stopped_pipeline_is_never_mistaken(tmp_path: Path, broker: str) -> None:
    """Although another broker listens where its own did, it is found to be stopped, and how to start it."""
    directory = stop(tmp_path, "shop", broker)
    for said in (None, str(directory), str(tmp_path / "shop")):
        with pytest.raises(SetupError) as caught:
            find_broker(said, {}, tmp_path)
        for part in (
            "shop",
            "stopped",
            "penstock run p.py",
            f"penstock broker --data {directory}/log",
        ):
            assert part in str(caught.value)
    stop(tmp_path, "other", broker, None)
    with pytest.raises(SetupError, match="other, shop, all stopped"):
        find_broker(None, {}, tmp_path)


def test_a_command_beside_a_stopped_pipeline_fails_at_once(
    penstock: Any, tmp_path: Path, broker: str
) -> None:
    """It neither waits nor writes to the broker that has the address now."""
    stop(tmp_path, "shop", broker)
    for arguments in (
        ("topics",),
        ("produce", "clicks", "--create"),
        ("consume", "clicks"),
        ("dlq", "list"),
        ("groups", "list"),
        ("replay", "clicks", "--to-topic", "again"),
        ("queue", "list"),
        ("quotas", "list"),
    ):
        result = penstock(*arguments, stdin=b"x\n")
        assert result.code == 1
        assert result.err.startswith("error: expected the broker of shop to run; found it stopped")
        assert result.err.count("\n") == 1
    topics = penstock("topics", "--broker", broker).out
    assert "clicks" not in [line.split()[0] for line in topics.splitlines()]


def test_two_that_run_are_a_question(shop: tuple[Path, str]) -> None:
    """The message names them."""
    folder, _ = shop
    with BrokerProcess(folder / "penstock-log"), pytest.raises(SetupError, match=r"shop.*--broker"):
        find_broker(None, {}, folder)


def test_a_broker_alone_is_found_in_its_folder(tmp_path: Path) -> None:
    """`penstock broker` keeps its data here: it is meant, and when it is stopped, that is told."""
    with BrokerProcess(tmp_path / "penstock-log") as process:
        assert find_broker(None, {}, tmp_path) == process.address
    with pytest.raises(SetupError, match=r"stopped.*penstock broker --data"):
        find_broker(None, {}, tmp_path)


def test_a_log_elsewhere_is_the_pipelines(tmp_path: Path) -> None:
    """A pipeline over a Kafka cluster leaves behind where that is."""
    directory = stop(tmp_path, "shop", "kafka1:9092")
    (directory / "broker.json").write_text(json.dumps({"address": "kafka1:9092", "command": None}))
    assert find_broker(None, {}, tmp_path) == "kafka1:9092"


@pytest.mark.parametrize("said", ["nonsense", "host:", "host:0", "host:99999", ":9"])
def test_nonsense_is_refused(said: str) -> None:
    """The message says what an address looks like."""
    with pytest.raises(UserError, match="host:port"):
        find_broker(said, {})


def test_a_folder_that_is_no_pipelines_is_refused(tmp_path: Path) -> None:
    """A directory is named where a pipeline's is expected."""
    (tmp_path / "empty").mkdir()
    with pytest.raises(SetupError, match="found neither"):
        find_broker(str(tmp_path / "empty"), {})


def test_a_broker_that_is_not_there_is_an_error(
    penstock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a short wait the message names the address."""
    monkeypatch.setattr("penstock.cli.support.options.PATIENCE_S", 0.2)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
        result = penstock("topics", "--broker", address)
    assert result.code == 1
    assert address in result.err

"""A pipeline as a service: metrics, health, a log of JSON lines, and the examples of units and containers."""

from __future__ import annotations

import configparser
import contextlib
import json
import logging
import os
import re
import shlex
import shutil
import signal
import socket
import socketserver
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import httpx
import numpy as np
import pyarrow as pa
import pytest
from tests.namespaces import Machine, other_machine
from tests.patience import PATIENCE_S, wait_until
from tests.web.pipelines import NOW, WELL, Pipeline, S

import penstock as ps
from penstock.cli import main
from penstock.cli.support.journal import Journal
from penstock.client import Client, Producer
from penstock.errors import BrokerError, PenstockError, SetupError
from penstock.web import MetricsServer

DEPLOY = Path(__file__).parents[2] / "examples" / "deploy"
UNITS = sorted(DEPLOY.glob("*.service"))
SPARK_PATIENCE_S = 600.0


def check(words: list[str]) -> None:
    """Whether a command line is one of ours; it isn't run."""
    command: click.Command = main
    while isinstance(command, click.Group):
        found = command.get_command(click.Context(command), words[0])
        assert found is not None, words
        command, words = found, words[1:]
    command.make_context("penstock", words)


@pytest.mark.parametrize("unit", UNITS, ids=lambda one: one.name)
def test_units_start_commands_that_there_are(unit: Path) -> None:
    """With options that they take; a service that fails is started again."""
    parser = configparser.ConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(unit.read_text())
    program, *words = shlex.split(parser["Service"]["ExecStart"])
    assert Path(program).name == "penstock"
    check(words)
    assert parser["Service"]["Restart"] == "on-failure"


@pytest.mark.parametrize("unit", UNITS, ids=lambda one: one.name)
def test_units_are_systemds(unit: Path) -> None:
    """As systemd itself reads them, but for programs and users that aren't here."""
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("expected systemd-analyze; found none")
    done = subprocess.run(
        [analyze, "verify", str(unit)], capture_output=True, text=True, check=False
    )
    if "Failed to" in done.stderr and unit.name not in done.stderr:
        pytest.skip(f"expected systemd-analyze to work here; found {done.stderr!r}")
    faults = [
        line
        for line in done.stderr.splitlines()
        if unit.name in line and "not executable" not in line and "not found" not in line
    ]
    assert faults == []


def of_container(instruction: str) -> list[str]:
    """The command of an instruction of the container file."""
    text = (DEPLOY / "Containerfile").read_text()
    [found] = re.findall(rf"^{instruction} .*?(\[.*\])$", text, re.MULTILINE)
    words: list[str] = json.loads(found)
    return words


def test_the_container_runs_a_command_that_there_is() -> None:
    """Its state is in a volume, it isn't root, and the port that it exposes is that of the metrics."""
    text = (DEPLOY / "Containerfile").read_text()
    program, *words = of_container("ENTRYPOINT")
    assert program == "penstock"
    check(words)
    assert "VOLUME /data" in text
    assert re.search(r"^USER [1-9]\d*$", text, re.MULTILINE)
    [port] = re.findall(r"^EXPOSE (\d+)$", text, re.MULTILINE)
    assert f"0.0.0.0:{port}" in words
    assert f":{port}/health" in of_container("HEALTHCHECK")[2]


def test_the_container_is_built_from_a_checkout() -> None:
    """It copies all that the package's build reads, under the same names, and nothing that isn't here."""
    root = DEPLOY.parents[1]
    text = (DEPLOY / "Containerfile").read_text()
    copied = set()
    for line in re.findall(r"^COPY (.*) /opt/penstock/(\S*)$", text, re.MULTILINE):
        for source in line[0].split():
            path = root / source
            assert path.exists(), source
            assert line[1] == (source if path.is_dir() else "")
            copied.add(source.rstrip("/"))
    project = tomllib.loads((root / "pyproject.toml").read_text())
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    read = {"pyproject.toml", project["project"]["readme"], *project["project"]["license-files"]}
    read |= {Path(one).parts[0] for one in (*wheel["packages"], *wheel["force-include"])}
    if "custom" in wheel["hooks"]:
        read.add("hatch_build.py")
    assert copied == read
    assert "pip install --no-cache-dir /opt/penstock " in text


@pytest.fixture
def metrics() -> Any:
    """Metrics of a pipeline whose state a test may change."""
    pipeline = Pipeline(version=7, rows=100)
    server = MetricsServer(pipeline.board.status, "127.0.0.1", 0)
    with httpx.Client(base_url=server.url, timeout=PATIENCE_S) as client:
        yield pipeline, client
    server.close()


def test_metrics_and_health_are_served_without_a_page(metrics: Any) -> None:
    """And nothing else is; on loopback only under names of this machine."""
    _, client = metrics
    assert "penstock_pipeline_state" in client.get("/metrics").text
    health = client.get("/health")
    assert (health.status_code, health.json()["name"]) == (200, "live")
    assert client.get("/api/status").status_code == 404
    assert client.get("/metrics", headers={"Host": "evil.example"}).status_code == 403


def test_health_is_bad_with_a_reason(metrics: Any) -> None:
    """Whoever restarts services asks for it."""
    pipeline, client = metrics
    ago = NOW - 100 * S
    pipeline.facts = replace(WELL, looked_us=ago, lag={"clicks": 25_000}, behind_us=ago)
    health = client.get("/health")
    assert health.status_code == 503
    assert health.json()["name"] == "stalled"
    assert "25,000 records" in health.json()["reason"]


def test_a_port_that_is_taken_is_an_error(metrics: Any) -> None:
    """The address is named."""
    _, client = metrics
    port = client.base_url.port
    with pytest.raises(SetupError, match=str(port)):
        MetricsServer(Pipeline(version=1, rows=1).board.status, "127.0.0.1", port)


def test_states_are_logged_when_they_change(caplog: pytest.LogCaptureFixture) -> None:
    """Once each, with the reason; figures in between."""
    status: dict[str, Any] = {
        "state": {"name": "live", "level": "good", "reason": "", "advice": ""},
        "version": 7,
        "rows_per_s": 1.0,
        "lag": 0,
        "late_rows": 0,
        "unusable_rows": 0,
    }
    log = logging.getLogger("penstock.test-journal")
    caplog.set_level(logging.INFO, log.name)
    journal = Journal(lambda: status, log, every_s=1.0)
    try:
        wait_until(lambda: any("version 7" in m for m in caplog.messages), "figures")
        bad = {"name": "stalled", "level": "bad", "reason": "No batch for 9 s.", "advice": "Look."}
        status["state"] = bad
        wait_until(lambda: any("stalled" in m for m in caplog.messages), "the new state")
    finally:
        journal.close()
    assert caplog.messages.count("live") == 1
    assert caplog.messages.count("stalled: No batch for 9 s. Look.") == 1
    [record] = [one for one in caplog.records if "stalled" in one.message]
    assert record.levelno == logging.ERROR


PROGRAM = """
import penstock as ps

app = ps.App("served")
sales = app.stream("sales", "item STRING")
app.view("n", sales.group_by("item").agg(n=ps.count()))
"""


@pytest.mark.slow
@pytest.mark.spark
def test_a_pipeline_runs_as_a_service(tmp_path: Path) -> None:
    """By the container's command: each line of its log is JSON; metrics, health and the container's
    health check answer; SIGTERM ends it well.
    """
    (tmp_path / "served.py").write_text(PROGRAM)
    _, *words = of_container("ENTRYPOINT")
    here = {"/srv/shop.py": "served.py", "0.0.0.0:9645": "127.0.0.1:0"}
    command = [sys.executable, "-m", "penstock.cli", *(here.get(word, word) for word in words)]
    assert set(here) <= set(words)
    stderr = tmp_path / "stderr"
    with stderr.open("wb") as file:
        child = subprocess.Popen(command, cwd=tmp_path, stderr=file, stdout=subprocess.DEVNULL)
    try:
        wait_until(
            lambda: '"waiting for events' in stderr.read_text(),
            stderr.read_text,
            patience_s=SPARK_PATIENCE_S,
        )
        [url] = re.findall(r"metrics are at (http\S+)/metrics", stderr.read_text())
        assert httpx.get(f"{url}/health", timeout=PATIENCE_S).status_code == 200
        _, *checks = of_container("HEALTHCHECK")
        checks[-1] = checks[-1].replace("http://127.0.0.1:9645", url)
        assert url in checks[-1]
        subprocess.run([sys.executable, *checks], check=True, timeout=PATIENCE_S)
        assert 'app="served"' in httpx.get(f"{url}/metrics", timeout=PATIENCE_S).text
    finally:
        child.terminate()
        code = child.wait(SPARK_PATIENCE_S)
    assert code == 0
    lines = [json.loads(line) for line in stderr.read_text().splitlines()]
    assert all({"time", "level", "logger", "message"} <= line.keys() for line in lines)
    assert lines[-1]["message"].startswith("stopped")


def composed() -> dict[str, Any]:
    """The services of the compose file."""
    yaml = pytest.importorskip("yaml")
    services: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    return services


def test_composed_services_run_commands_that_there_are() -> None:
    """Each is the container's image; what it publishes is for this machine alone."""
    services = composed()
    assert list(services) == ["broker", "pipeline", "page"]
    for one in services.values():
        program, *words = one.get("entrypoint") or of_container("ENTRYPOINT")
        assert program == "penstock"
        check(words)
        build = one["build"]
        assert (DEPLOY / build["context"] / build["dockerfile"]).samefile(DEPLOY / "Containerfile")
        assert (DEPLOY / build["context"] / build["args"]["PROGRAM"]).exists()
        assert all(port.startswith("127.0.0.1:") for port in one["ports"])
        assert all(volume.endswith(":/data") for volume in one["volumes"])


@contextlib.contextmanager
def published(there: str, port: int) -> Iterator[int]:
    """A port of this machine that leads to one of another, as engines publish those of containers."""

    class Forward(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(OSError), socket.create_connection((there, port)) as far:
                back = threading.Thread(target=pump, args=(far, self.request), daemon=True)
                back.start()
                pump(self.request, far)
                back.join(PATIENCE_S)

    def pump(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads, block_on_close = True, False

    with Server(("127.0.0.1", 0), Forward) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


class Containers:
    """Commands of the image, in a network namespace instead of containers of their own."""

    def __init__(self, other: Machine, data: Path) -> None:
        self.other, self.data = other, data
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self, words: list[str], **environment: str) -> subprocess.Popen[bytes]:
        """Begins `penstock WORDS`, with the image's folders as they are here."""
        folders = {"/srv/shop.py": str(DEPLOY / "shop.py"), "/data": str(self.data)}
        for word, folder in folders.items():
            words = [one.replace(word, folder) for one in words]
        command = [*self.other.within, sys.executable, "-m", "penstock.cli", *words]
        with (self.data / f"{len(self.running)}.txt").open("wb") as output:
            one = subprocess.Popen(
                command,
                cwd=self.data,
                env=os.environ | environment,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self.running.append(one)
        return one

    def said(self) -> str:
        """What they have said."""
        return "\n".join(one.read_text() for one in sorted(self.data.glob("*.txt")))

    def stop(self) -> None:
        """Ends them as an engine does."""
        for one in reversed(self.running):
            one.terminate()
        for one in self.running:
            assert one.wait(SPARK_PATIENCE_S) in (0, -signal.SIGTERM), self.said()


@pytest.fixture
def containers(tmp_path: Path) -> Iterator[Containers]:
    """Those of a test, ended with it."""
    with other_machine() as other:
        one = Containers(other, tmp_path)
        yield one
        for child in one.running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def clicks_of(port: int, containers: Containers) -> None:
    """Sends clicks from outside, and waits until the pipeline has them in its view."""
    address = f"127.0.0.1:{port}"

    def has_topic() -> bool:
        with contextlib.suppress(BrokerError, OSError), Client(address, patience_s=1.0) as client:
            return "clicks" in client.topics()
        assert all(one.poll() is None for one in containers.running), containers.said()
        return False

    wait_until(has_topic, containers.said, patience_s=SPARK_PATIENCE_S)
    with Producer(address) as producer:
        values = pa.array([b'{"user": "ann", "at": "2026-01-05T12:00:01Z"}'] * 3)
        producer.send("clicks", 0, None, values, np.full(3, 1_767_614_401_000, np.int64))

    def counted() -> bool:
        assert all(one.poll() is None for one in containers.running), containers.said()
        with contextlib.suppress(PenstockError):
            rows = ps.serve.Views(containers.data / "shop.penstock").table("per_minute")
            return bool(rows["clicks"].to_pylist() == [3])
        return False

    wait_until(counted, containers.said, patience_s=SPARK_PATIENCE_S)


@pytest.mark.spark
@pytest.mark.slow
def test_a_container_s_log_is_reached_from_outside(containers: Containers) -> None:
    """With the options that the container file shows, and the published port as the advertised one."""
    text = (DEPLOY / "Containerfile").read_text()
    [more] = re.findall(r"^# +(--listen .*)$", text, re.MULTILINE)
    with published(containers.other.there, 9092) as port:
        words = [*of_container("ENTRYPOINT")[1:], *more.split()]
        words = [f"127.0.0.1:{port}" if one == "127.0.0.1:9092" else one for one in words]
        containers.start(words)
        clicks_of(port, containers)
        containers.stop()


@pytest.mark.spark
@pytest.mark.slow
def test_composed_services_work_together(containers: Containers) -> None:
    """A broker with a listener for containers and one for others, a pipeline, and its page."""
    services = composed()
    there = containers.other.there
    with published(there, 19092) as port, published(there, 8750) as page:
        for one in services.values():
            words = (one.get("entrypoint") or of_container("ENTRYPOINT"))[1:]
            places = {"broker:9092": f"{there}:9092", "127.0.0.1:9092": f"127.0.0.1:{port}"}
            for name, place in places.items():
                words = [word.replace(name, place) for word in words]
            more = {k: v.replace("broker:9092", places["broker:9092"])
                    for k, v in one.get("environment", {}).items()}  # fmt: skip
            if "PENSTOCK_UI_PASSWORD" in more:
                more["PENSTOCK_UI_PASSWORD"] = "secret" * 2
                wait_until((containers.data / "shop.penstock").exists, containers.said)
            containers.start(words, **more)
        clicks_of(port, containers)

        def served() -> bool:
            with contextlib.suppress(httpx.HTTPError):
                answer = httpx.get(
                    f"http://127.0.0.1:{page}/api/status", auth=("any", "secret" * 2)
                )
                return answer.status_code == 200 and answer.json()["state"]["name"] == "live"
            return False

        wait_until(served, containers.said)
        containers.stop()

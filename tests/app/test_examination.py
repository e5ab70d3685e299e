"""The examination of a pipeline's directory: its log and its state, sound and damaged."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import crc32c
import numpy as np
import orjson
import pyarrow as pa
import pytest

import penstock as ps
from penstock.app.examination import examine_pipeline, examine_state
from penstock.broker.doctor import Level, Report
from penstock.broker.process import BrokerProcess
from penstock.cli import main
from penstock.client import Client, Producer
from penstock.engine.store import Store, unsealed
from penstock.state import LocalStateFiles

Doctor = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pipeline's directory after some batches: what it has read is in its log."""
    directory = tmp_path_factory.mktemp("doctor") / "shop.penstock"
    app = ps.App("shop")
    sales = app.stream("sales", "item STRING, n BIGINT, at TIMESTAMP", time=ps.event_time("at"))
    app.view("items", sales.window(ps.tumbling("1 minute")).group_by("item").agg(n=ps.sum("n")))
    run = ps.testing.run(app, shaken=False)  # attempts that failed leave files
    run.store = Store(LocalStateFiles(directory / "state"))
    run.restart()
    values = []
    for n in range(60):
        values.append(
            orjson.dumps({"item": f"i{n % 7}", "n": n, "at": f"2026-01-01T00:{n:02}:00Z"})
        )
        run.send_raw("sales", values[-1])
        if n % 10 == 0:
            run.settle()
    run.settle()
    with BrokerProcess(directory / "log") as broker, Client(broker.address) as client:
        client.create_topic("sales", 1)
        times = np.full(len(values), 1_767_225_600_000, np.int64)
        with Producer(broker.address, acks="all") as producer:
            producer.send("sales", 0, None, pa.array(values, pa.binary()), times)
    return directory


@pytest.fixture
def shop(healthy: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(healthy, tmp_path / "shop.penstock"))


def newest(shop: Path, folder: str) -> Path:
    """The newest of some numbered documents."""
    return max((shop / "state" / folder).iterdir())


def trace_file(shop: Path) -> Path:
    """A file that the newest version refers to."""
    content = newest(shop, "versions").read_text()
    return next(one for one in (shop / "state/runs").rglob("*.arrow") if one.name in content)


def worst(reports: list[Report]) -> str:
    """The level of the worst finding."""
    levels = {one.level for report in reports for one in report.findings}
    return next((one.value for one in reversed(Level) if one in levels), "none")


def test_a_sound_pipeline_is_read_as_a_whole(shop: Path) -> None:
    """Log and state are examined, and nothing is changed."""
    before = {file: file.read_bytes() for file in shop.rglob("*") if file.is_file()}
    log, state = examine_pipeline(shop)
    assert worst([log, state]) == "none", [log.findings, state.findings]
    assert [(one.name, one.records) for one in log.topics] == [("sales", 60)]
    assert state.facts["views"] == "items"
    assert int(state.facts["trace files"].partition(",")[0]) > 1
    assert {file: file.read_bytes() for file in shop.rglob("*") if file.is_file()} == before


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def forget(versions: Path) -> None:
    """Loses two versions; one alone would be made again from its plan."""
    for path in sorted(versions.iterdir())[-2:]:
        path.unlink()


def sealed(text: bytes) -> bytes:
    """Content behind the checksum that it would have if it had been written so."""
    return b"%08x " % crc32c.crc32c(text) + text


def claim(path: Path) -> None:
    """Lets a version claim to have read more than there is."""
    content = unsealed(path.read_bytes(), path.name)
    content["offsets"]["sales"]["0"] += 1
    path.write_bytes(sealed(orjson.dumps(content)))


@pytest.mark.parametrize(
    ("victim", "damage", "text"),
    [
        (trace_file, Path.unlink, "found none"),
        (trace_file, cut, "bytes; found"),
        (trace_file, flip, "CRC-32C"),
        (lambda shop: newest(shop, "versions"), cut, "expected the JSON"),
        (lambda shop: shop / "state/versions", forget, "expected the newest plan"),
        (lambda shop: newest(shop, "plans"), cut, "expected the JSON"),
        (lambda shop: newest(shop, "versions"), claim, "expected sales/0 to reach offset 61"),
        (lambda shop: shop / "log/topics", shutil.rmtree, "expected sales/0 to reach offset 60"),
    ],
)
def test_what_the_pipeline_needs_and_is_damaged_is_found(
    shop: Path, victim: Callable[[Path], Path], damage: Callable[[Path], object], text: str
) -> None:
    """With what to do: the state can be made again."""
    damage(victim(shop))
    reports = examine_pipeline(shop)
    assert worst(reports) == "damage"
    found = [one.text for one in reports[1].findings if one.level is Level.DAMAGE]
    assert any(text in one and "--rebuild" in one for one in found), found


def test_what_only_readers_of_the_past_need_is_a_warning(shop: Path) -> None:
    """An older version, or an owner of before, that is damaged costs the pipeline nothing."""
    cut(min((shop / "state/versions").iterdir()))
    cut(min((shop / "state/epochs").iterdir()))
    report = examine_state(shop / "state")
    assert worst([report]) == "warning"
    assert len(report.findings) == 2


def test_leftovers_are_noted(shop: Path) -> None:
    """Unfinished writes, files of nobody, and those of attempts that lost."""
    file = trace_file(shop)
    (shop / "state/plans/x.tmp").write_bytes(b"")
    (shop / "state/versions/mine.txt").write_bytes(b"")
    file.with_name(file.name.replace("-0000.arrow", "-0009.arrow")).write_bytes(b"")
    report = examine_state(shop / "state")
    assert worst([report]) == "note"
    assert len(report.findings) == 3


@pytest.mark.parametrize("content", [b"[]", b"{}", b"null", b'{"version":{}}', b"\xff"])
def test_garbage_never_ends_the_examination(shop: Path, content: bytes) -> None:
    """Whatever the documents hold."""
    for file in (shop / "state").rglob("*.json"):
        file.write_bytes(sealed(content))
    assert worst(examine_pipeline(shop)) == "damage"


@pytest.fixture
def doctor(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Doctor:
    """Calls the command in this process: to load a Python costs more than to examine."""

    def call(folder: Path, *arguments: str) -> tuple[int, str, str]:
        monkeypatch.chdir(folder)
        code = 0
        try:
            main(["doctor", *arguments], prog_name="penstock")
        except SystemExit as done:
            code = int(done.code or 0)
        return (code, *capfd.readouterr())

    return call


def test_the_command_examines_both_and_its_exit_code_tells(shop: Path, doctor: Doctor) -> None:
    """By the directory or the pipeline's name."""
    code, out, _ = doctor(shop.parent, "shop")
    assert (code, out.count("sound: every")) == (0, 2), out
    trace_file(shop).unlink()
    code, out, _ = doctor(shop.parent, "shop.penstock", "--format", "json")
    assert code == 1
    [finding] = json.loads(out)["findings"]
    assert finding["path"].startswith("state/runs/")


def test_a_directory_that_is_neither_is_an_error(tmp_path: Path, doctor: Doctor) -> None:
    """It was "sound" without having been looked at."""
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/cat.jpg").write_bytes(b"")
    (tmp_path / "empty").mkdir()
    for name, found in (("photos", "cat.jpg"), ("empty", "nothing"), ("nope", "nothing at")):
        code, out, err = doctor(tmp_path, name)
        assert (code, out) == (1, "")
        assert err.startswith("error: expected a")
        assert found in err

"""A few scenarios of each script beside this file, so that the scripts can't rot."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import iceberg_spark_job
import kcat
import pytest
import suite

from penstock.broker import BrokerProcess

HERE = Path(__file__).resolve().parent
PEER_S_MAX = 280


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker for all scenarios."""
    with BrokerProcess(tmp_path_factory.mktemp("suites") / "data") as broker:
        yield broker.address


@pytest.mark.skipif(kcat.problem() is not None, reason=str(kcat.problem()))
@pytest.mark.parametrize(
    "scenario",
    [kcat.nulls, kcat.compression, kcat.transactions, kcat.times, kcat.group_of_two],
    ids=lambda scenario: scenario.__name__,
)
def test_kcat(scenario: suite.Scenario, address: str) -> None:
    """The program kcat writes and reads what it should, alone and in a group."""
    scenario(address)


@pytest.mark.peer
@pytest.mark.slow
@pytest.mark.parametrize(
    ("peer", "script", "scenario"),
    [
        ("flink", "flink", "sink_to_the_end"),
        ("spark", "spark", "batch_read_committed"),
        ("iceberg", "iceberg_spark", "aggregates_agree"),
    ],
)
def test_peer(peer: str, script: str, scenario: str) -> None:
    """A scenario of each peer that has a JVM, in a process of its own."""
    if reason := suite.cache.problem(peer):
        pytest.skip(reason)
    command = [sys.executable, HERE / f"{script}.py", "--only", scenario]
    got = suite.run(command, timeout_s=PEER_S_MAX)
    assert got.returncode == 0, got.stdout[-3000:]
    assert "| 1 | 0 | 0 | 0 |" in got.stdout


def test_the_documents_settings_are_those_of_the_suite() -> None:
    """What docs/tiering.md tells Spark of Iceberg and the catalog is what the suite was run with."""
    text = (suite.ROOT / "docs" / "tiering.md").read_text()
    documented = dict(re.findall(r"--conf ([^=\s]+)=(\S+)", text))
    assert documented == iceberg_spark_job.settings("/srv/catalog.db", "file:///srv/warehouse")
    pom = suite.cache.pom("iceberg").read_text()
    jars = re.findall(r"Id>(.*)</artifactId>\s*<version>(.*)</version>", pom)
    (packages,) = re.findall(r"--packages (\S+)", text)
    assert [tuple(one.split(":")[1:]) for one in packages.split(",")] == jars[-2:]


def test_failure_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    """A scenario that fails is in the table, with its reason where one is known, and counts if not."""

    def odd_one(address: str) -> None:
        suite.expect("answer", address, "yes")

    found = [suite.carry_out(odd_one, "no")]
    assert suite.report("suite", found, {}) == 1
    assert "expected answer 'yes', found 'no'" in capsys.readouterr().out
    passed = suite.Outcome("another", "passed")
    assert suite.report("suite", [*found, passed], {"odd": "it is odd"}) == 0
    assert "| suite | 1 | 0 | 1 | 0 |" in capsys.readouterr().out

"""What all tests share: Hypothesis' profiles, seeds, their order, and what a quick run leaves out."""

from __future__ import annotations

import os
import random
import sys
import zlib
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from _pytest.doctest import DoctestModule
from hypothesis import HealthCheck, settings
from tests.effort import QUICK, SOAK, examples

try:
    from xdist.scheduler import LoadFileScheduling
except ImportError:  # an environment without it, which runs tests in one process
    LoadFileScheduling = None

# Examples are timed by nobody: machines that run tests are shared and noisy.
_quiet = {
    "deadline": None,
    "max_examples": examples(100),  # Hypothesis' own number in a run of everything
    "suppress_health_check": [HealthCheck.too_slow],
}
settings.register_profile("default", **_quiet)
settings.register_profile("ci", derandomize=True, print_blob=True, **_quiet)
IN_CI = bool(os.environ.get("CI"))
settings.load_profile("ci" if IN_CI else "default")

LEFT_OUT = pytest.StashKey[int]()


@pytest.fixture(autouse=True)
def _chance_of_ci(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With CI set, a test's seeds follow from its name, as Hypothesis' do; elsewhere each run has others."""
    if IN_CI:
        seed = zlib.crc32(request.node.nodeid.encode())
        random.seed(seed)
        if (testing := sys.modules.get("penstock.testing")) is not None:
            monkeypatch.setattr(testing, "_OWN_SEED", seed)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The longest first, so that no process is left with one of them alone; in a quick run, no slow ones;
    in one of hours, no timeouts.
    """
    if SOAK:
        for item in items:
            item.add_marker(pytest.mark.timeout(0), append=False)
    items.sort(key=lambda item: (item.path.name != "test_kills.py", "spark" not in item.keywords))
    if QUICK:
        taken, left_out = _for_minutes(items)
        items[:] = taken
        config.hook.pytest_deselected(items=left_out)
        config.stash[LEFT_OUT] = len(left_out)


def _mark(item: pytest.Item) -> tuple[bool, int | None]:
    """Whether a quick run takes a test, and how many cases; its own marks count before its file's."""
    own = {mark.name for mark in item.own_markers}
    mark = item.get_closest_marker("quick_cases")
    is_slow = "slow" in own or ("quick_cases" not in own and "slow" in item.keywords)
    return not is_slow, None if mark is None else mark.args[0]


def _for_minutes(items: list[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """What a quick run takes, and what it leaves out: slow tests, and later cases of those with many."""
    taken: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    cases: Counter[str] = Counter()
    for item in items:
        is_taken, most = _mark(item)
        if is_taken and most is not None:
            test = item.nodeid.partition("[")[0]
            cases[test] += 1
            is_taken = cases[test] <= most
        (taken if is_taken else left_out).append(item)
    return taken, left_out


if LoadFileScheduling is not None:

    class _SharedFolders(LoadFileScheduling):
        """Keeps the tests of a file in one process, and those of a folder that share a Spark session."""

        def _split_scope(self, nodeid: str) -> str:
            path = nodeid.split("::", 1)[0]
            folder = path.rpartition("/")[0]
            return folder if folder == "tests/spark" else path

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
        """Used with `--dist loadfile`, as `./test` does."""
        if config.getoption("dist") == "loadfile":
            return _SharedFolders(config, log)
        return None


class _Examples:
    """Collects docstrings' examples only from modules that have some: to look for them imports a module.

    A plugin, as a folder's conftest is not asked about files elsewhere (`src`).
    """

    @pytest.hookimpl(wrapper=True)
    def pytest_collect_file(self, file_path: Path) -> Generator[None, Any, Any]:
        found = yield
        if file_path.suffix == ".py" and b">>>" not in file_path.read_bytes():
            return [one for one in found if not isinstance(one, DoctestModule)]
        return found


def pytest_configure(config: pytest.Config) -> None:
    """See `_Examples`."""
    config.pluginmanager.register(_Examples())


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Each of several processes reports to the one that started them what it has left out."""
    if (output := getattr(session.config, "workeroutput", None)) is not None:
        output["left_out"] = session.config.stash.get(LEFT_OUT, 0)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Takes that; all processes have collected the same."""
    node.config.stash[LEFT_OUT] = getattr(node, "workeroutput", {}).get("left_out", 0)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says what a quick run has left out, and how to run it."""
    if QUICK:
        left_out = terminalreporter.config.stash.get(LEFT_OUT, 0)
        terminalreporter.write_line(
            f"quick run: {left_out} tests were left out, and others tried fewer rounds; "
            "./test --all runs everything"
        )

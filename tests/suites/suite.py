"""What the scripts beside this file share: where fetched suites lie, a broker to run them against, and
the table of what came out.

A suite is fetched into `tests/suites/.cache/`, which git ignores; nothing of it is committed. A
failure that is known and stays has a reason in its script; any other makes the script exit with 1.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

from penstock.broker import BrokerProcess

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))
from peers import cache

__all__ = [
    "CACHE",
    "ROOT",
    "Outcome",
    "Scenario",
    "arguments",
    "cache",
    "carry_out",
    "create_topic",
    "expect",
    "junit",
    "report",
    "run",
    "serving",
    "tried",
    "wait",
]

ROOT = Path(__file__).resolve().parents[2]
CACHE = Path(__file__).resolve().parent / ".cache"
REASON_CHARACTERS_MAX = int(os.environ.get("PENSTOCK_REASON", "110"))
WAIT_S_MAX = 120.0
POLL_S = 0.1
_topics = itertools.count()

Scenario = Callable[[str], None]
"""Something of a client's that is tried against the broker of an address; raises where it fails."""


@dataclass(frozen=True)
class Outcome:
    """How one test of a suite ended: `passed`, `failed` or `skipped`, and why."""

    test: str
    result: str
    why: str = ""


def arguments(description: str | None) -> argparse.Namespace:
    """The command line that all suites have."""
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("--address", help="run against this broker, not one of its own")
    parser.add_argument("--only", default="", help="tests whose name has this in it")
    return parser.parse_args()


@contextlib.contextmanager
def serving(address: str | None, *more: str) -> Iterator[str]:
    """The address of a broker: the one given, or one that lives as long as the block."""
    if address:
        yield address
        return
    with (
        tempfile.TemporaryDirectory() as data,
        BrokerProcess(Path(data) / "data", arguments=more) as broker,
    ):
        yield broker.address


def run(
    command: Sequence[str | Path],
    *,
    timeout_s: float = 600,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: str | None = None,
) -> subprocess.CompletedProcess[str]:
    """A program's output (both streams in one), whatever its exit status."""
    try:
        return subprocess.run(
            [str(one) for one in command],
            cwd=cwd,
            env={**os.environ, **(env or {})},
            input=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired as ended:
        output = ended.output or b""
        text = output.decode(errors="replace") if isinstance(output, bytes) else output
        late = f"{text}\nended after {timeout_s:g} s"
        return subprocess.CompletedProcess(ended.cmd, 124, late)


def carry_out(scenario: Scenario, address: str) -> Outcome:
    """Runs a scenario, named by its function, and tells at once how it went."""
    name = scenario.__name__.replace("_", " ")
    started = time.monotonic()
    try:
        scenario(address)
        outcome = Outcome(name, "passed")
    except Exception as error:
        outcome = Outcome(name, "failed", f"{type(error).__name__}: {error}")
    seconds = time.monotonic() - started
    why = outcome.why[:REASON_CHARACTERS_MAX]
    print(f"{outcome.result:8} {name} ({seconds:.1f} s) {why}", file=sys.stderr, flush=True)
    return outcome


def tried(
    scenarios: Sequence[Scenario],
    description: str | None,
    problem: str | None,
    around: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
    own: Sequence[str] = (),
) -> list[Outcome]:
    """How those scenarios ended that the command line asks for.

    Args:
        scenarios: all that there are.
        description: what the script does.
        problem: why it can't be run here; None where it can.
        around: what must be there for as long as the scenarios take.
        own: arguments of the broker, which must then be one of the script's own.
    """
    asked = arguments(description)
    if problem:
        raise SystemExit(problem)
    if own and asked.address:
        raise SystemExit("expected no --address: these scenarios look into their broker's files")
    with serving(asked.address, *own) as address, around():
        return [carry_out(one, address) for one in scenarios if asked.only in one.__name__]


def expect(what: str, found: object, expected: object) -> None:
    """Raises where two values differ."""
    if found != expected:
        raise AssertionError(f"expected {what} {expected!r}, found {found!r}")


def wait(true: Callable[[], object], what: str, timeout_s: float = WAIT_S_MAX) -> None:
    """Until `true()` is; raises where it takes longer than `timeout_s`."""
    end = time.monotonic() + timeout_s
    while not true():
        if time.monotonic() > end:
            raise AssertionError(f"expected {what} within {timeout_s:g} s, found none")
        time.sleep(POLL_S)


def create_topic(address: str, what: str, partitions: int, **settings: str) -> str:
    """A new topic; its name begins with `what` and was not used before."""
    from confluent_kafka.admin import AdminClient, NewTopic

    name = f"{what}-{os.getpid()}-{next(_topics)}"
    admin = AdminClient({"bootstrap.servers": address, "log_level": 3})
    (made,) = admin.create_topics([NewTopic(name, partitions, 1, config=settings)]).values()
    made.result(WAIT_S_MAX)
    return name


def junit(path: Path) -> list[Outcome]:
    """The outcomes in a JUnit file, as pytest and others write it."""
    found = []
    for case in ET.parse(path).iter("testcase"):
        name = f"{(case.get('classname') or '').rpartition('.')[2]}::{case.get('name')}"
        bad = [one for one in case if one.tag in {"failure", "error"}]
        skipped = [one for one in case if one.tag == "skipped"]
        if bad:
            found.append(Outcome(name, "failed", bad[0].get("message") or ""))
        elif skipped:
            found.append(Outcome(name, "skipped", skipped[0].get("message") or ""))
        else:
            found.append(Outcome(name, "passed"))
    return found


def report(suite: str, outcomes: Sequence[Outcome], known: Mapping[str, str]) -> int:
    """Prints what came out; 1 if anything failed for which there is no reason.

    Args:
        suite: its name.
        outcomes: one per test.
        known: why tests fail, by a pattern for their names.
    """
    counts = dict.fromkeys(("passed", "failed", "explained", "skipped"), 0)
    for one in sorted(outcomes, key=lambda one: one.test):
        reason = next((why for name, why in known.items() if re.search(name, one.test)), None)
        result = "explained" if one.result == "failed" and reason else one.result
        counts[result] += 1
        if result != "passed":
            why = " ".join((reason if result == "explained" else one.why or "").split())
            print(f"{result:10} {one.test}  {why[:REASON_CHARACTERS_MAX]}")
    print("\n| suite | passed | failed | explained | skipped |\n|---|---|---|---|---|")
    print(f"| {suite} | " + " | ".join(str(count) for count in counts.values()) + " |")
    sys.stdout.flush()
    return 1 if counts["failed"] or not counts["passed"] else 0

"""kafkajs against our broker: its npm package has no tests in it, so these are scenarios of our own.

python tests/suites/kafkajs.py [--address HOST:PORT] [--only name]
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from suite import CACHE, Outcome, arguments, report, run, serving

VERSION = "2.2.4"
HOME = CACHE / "kafkajs"
SCENARIOS = Path(__file__).with_name("kafkajs_scenarios.js")

KNOWN: dict[str, str] = {}
"""Failures that stay, and why."""


def fetch() -> None:
    """The package, from npm."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        raise SystemExit("expected node and npm on the path, found none; install Node.js")
    if (HOME / "node_modules" / "kafkajs").is_dir():
        return
    HOME.mkdir(parents=True, exist_ok=True)
    got = run([npm, "install", "--prefix", HOME, "--no-fund", "--no-audit", f"kafkajs@{VERSION}"])
    if got.returncode:
        raise SystemExit(f"expected kafkajs, found:\n{got.stdout}")


def main() -> int:
    """Fetches, runs, tells."""
    asked = arguments(__doc__)
    fetch()
    with serving(asked.address) as address:
        env = {"NODE_PATH": str(HOME / "node_modules"), "KAFKAJS_NO_PARTITIONER_WARNING": "1"}
        got = run(["node", SCENARIOS, address, asked.only], env=env, timeout_s=300)
    lines = [json.loads(line) for line in got.stdout.splitlines() if line.startswith('{"test"')]
    found = [Outcome(one["test"], one["result"], one.get("why", "")) for one in lines]
    if got.returncode or not found:
        found.append(Outcome("all scenarios", "failed", got.stdout[-500:]))
    return report(f"kafkajs {VERSION}, own scenarios", found, KNOWN)


if __name__ == "__main__":
    sys.exit(main())

"""The long forms of what tests try at random: kills, damages, garbage, queries. `./test --soak` runs them.

    scripts/check --soak                  all, one after another: some hours on two cores
    scripts/check --soak chain queries    those whose names are given
    scripts/check --soak --list           what there is, and the command of each

`./test --all` has a short round of each. Seeds are new in each run, so that runs add up; each command is
printed before it begins, and repeats it. Tests have no timeouts here.
"""

from __future__ import annotations

import argparse
import os
import random
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

__all__ = ["SOAKS", "Soak", "run"]

ROOT: Final = Path(__file__).resolve().parents[1]
SEED: Final = "SEED"
"""Stands for the run's seed in variables and arguments."""


@dataclass(frozen=True)
class Soak:
    """One long run.

    Attributes:
        name: what it is called by.
        says: what it does, in a line.
        arguments: of `python`, a module's after its name; of `python -m pytest` where they begin with a file.
        variables: of the environment; the sizes.
    """

    name: str
    says: str
    arguments: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)

    def command(self, seed: int) -> list[str]:
        """What runs it."""
        pytest = () if self.arguments[0] == "-m" else ("-m", "pytest", "-q", "-s")
        return [sys.executable, *pytest, *(one.replace(SEED, str(seed)) for one in self.arguments)]

    def environment(self, seed: int) -> dict[str, str]:
        """The variables that it is run with."""
        sizes = {name: value.replace(SEED, str(seed)) for name, value in self.variables.items()}
        return sizes | {"PENSTOCK_TESTS": "soak"}


SOAKS: Final = (
    Soak(
        "queries",
        "random queries over random changes of tables, compared with DuckDB",
        ("-m", "tests.sql.chance.run", "50000", "--first", SEED),
    ),
    Soak(
        "hostile",
        "random queries whose expressions fail for many rows",
        ("-m", "tests.sql.chance.hostile", "20000", "--first", SEED),
    ),
    Soak(
        "programs",
        "random programs of views over views, and of random schemas, compared with DuckDB",
        ("tests/sql/chance/test_random_queries.py",),
        {
            "PENSTOCK_SQL_PROGRAMS": "500",
            "PENSTOCK_SQL_TYPED": "2000",
            "PENSTOCK_SQL_WINDOWS": "2000",
            "PENSTOCK_SQL_FIRST": SEED,
        },
    ),
    Soak(
        "engine",
        "random operators on damaged, shaken, shared and rescaled input, compared with references",
        (
            "tests/engine/test_garbage.py",
            "tests/engine/hosts/test_shaken.py",
            "tests/engine/states/test_sharing.py",
            "tests/engine/upkeep/test_settling.py",
            "tests/engine/upgrades/test_rescaling.py",
            "tests/serve/test_resumed_changes.py",
        ),
        {
            "PENSTOCK_GARBAGE_SEEDS": "400",
            "PENSTOCK_SHAKEN_SEEDS": "60",
            "PENSTOCK_SHARING_SEEDS": "60",
            "PENSTOCK_SETTLING_RUNS": "200",
            "PENSTOCK_SETTLING_SEED": SEED,
            "PENSTOCK_RESCALINGS": "40",
            "PENSTOCK_CHANGES_SEEDS": "60",
        },
    ),
    Soak(
        "kills",
        "kills of drivers, lanes, JVMs and brokers while pipelines run and are upgraded",
        ("tests/engine/kills",),
        {"PENSTOCK_KILLS": "100", "PENSTOCK_UPGRADE_KILLS": "10", "PENSTOCK_KILL_SEED": SEED},
    ),
    Soak(
        "cluster",
        "kills of workers, lanes, drivers and brokers of a Spark and a Kafka cluster",
        ("tests/engine/spark/test_cluster_kills.py",),
        {"PENSTOCK_CLUSTER_KILLS": "40", "PENSTOCK_KILL_SEED": SEED},
    ),
    Soak(
        "chain",
        "kills of everything from a database through capture and pipeline to each kind of sink",
        ("tests/chain/test_pgbench.py",),
        {"PENSTOCK_CHAIN_KILLS": "100", "PENSTOCK_KILL_SEED": SEED},
    ),
    Soak(
        "capture",
        "kills of captures and databases, failovers, and rows that change while they are first read",
        (
            "tests/capture/test_kills.py",
            "tests/capture/test_mysql.py",
            "tests/capture/test_sqlite.py",
            "tests/capture/postgres/test_failover.py",
            "tests/capture/mysql/test_failover.py",
            "tests/capture/snapshots/test_mysql_chunks.py",
        ),
        {"PENSTOCK_CAPTURE_KILLS": "60", "PENSTOCK_CHUNK_SEEDS": "40"},
    ),
    Soak(
        "sinks",
        "kills of sinks and of what they write to",
        (
            "tests/sinks/test_kills.py",
            "tests/sinks/test_killed_process.py",
            "tests/sinks/test_forwarding.py",
            "tests/sinks/test_iceberg.py",
            "tests/sinks/indices/test_vectors.py",
            "tests/sinks/test_contract.py",
        ),
        {
            "PENSTOCK_SINK_KILLS": "30",
            "PENSTOCK_VECTOR_KILLS": "100",
            "PENSTOCK_VECTOR_ROUNDS": "50",
            "PENSTOCK_TARGET_STEPS": "200",
        },
    ),
    Soak(
        "clients",
        "kills of replays, of queues' workers, of programs that read files, and of Spark's writers",
        (
            "tests/client/test_dead_letters.py",
            "tests/test_queue.py",
            "tests/files/test_ingest.py",
            "tests/spark/test_sink.py",
        ),
        {
            "PENSTOCK_REPLAY_KILLS": "40",
            "PENSTOCK_QUEUE_KILLS": "10",
            "PENSTOCK_KILLS": "40",
            "PENSTOCK_SPARK_SINK_KILLS": "6",
            "PENSTOCK_KILL_SEED": SEED,
        },
    ),
    Soak(
        "broker",
        "kills of a broker under load, with and without a tier; damaged files; garbage from clients",
        (
            "tests/broker/storage/test_crash.py",
            "tests/broker/storage/test_damage.py",
            "tests/broker/storage/test_doctor.py",
            "tests/broker/tier/test_tier_process.py",
            "tests/broker/tier/test_tiering.py",
            "tests/broker/protocol/test_fuzz.py",
            "tests/engine/outputs/test_transactions_brokers.py",
        ),
        {
            "PENSTOCK_KILLS": "300",
            "PENSTOCK_DAMAGES": "200",
            "PENSTOCK_DOCTOR_ROUNDS": "3000",
            "PENSTOCK_TIER_KILLS": "100",
            "PENSTOCK_TIER_RUNS": "300",
            "PENSTOCK_FUZZ_SECONDS": "300",
            "PENSTOCK_TRANSACTION_KILLS": "40",
            "PENSTOCK_SEED": SEED,
        },
    ),
    Soak(
        "simulations",
        "the broker's coordinators of groups, shares and transactions over a simulated network",
        (
            "tests/broker/groups",
            "tests/broker/share",
            "tests/broker/transactions",
            "-k",
            "simulation or share_partition",
        ),
        {"PENSTOCK_SIMULATIONS": "5000", "PENSTOCK_SHARE_SEEDS": "2000"},
    ),
    Soak(
        "patterns",
        "random row patterns, definitions, rows and cuts, against a reference by backtracking and DuckDB",
        ("tests/patterns/test_random.py", "tests/patterns/test_conditions.py"),
        {
            "PENSTOCK_PATTERN_ROUNDS": "3000",
            "PENSTOCK_CONDITION_ROUNDS": "3000",
            "PENSTOCK_PATTERN_SEED": SEED,
        },
    ),
)


def run(asked: Sequence[Soak], seed: int) -> list[str]:
    """Runs them one after another, and says which and for how long.

    Returns:
        The names of those that failed.
    """
    failed = []
    for one in asked:
        variables, command = one.environment(seed), one.command(seed)
        print(f"\n== {one.name}: {one.says}\n{shown(variables, command)}", flush=True)
        began = time.monotonic()
        code = subprocess.run(command, cwd=ROOT, env={**os.environ, **variables}).returncode
        minutes = (time.monotonic() - began) / 60
        print(f"{one.name}: {'failed' if code else 'passed'} after {minutes:.1f} min", flush=True)
        if code:
            failed.append(one.name)
    return failed


def shown(variables: Mapping[str, str], command: Sequence[str]) -> str:
    """A command as one types it."""
    before = " ".join(f"{name}={value}" for name, value in variables.items())
    return f"{before} {shlex.join(['python', *command[1:]])}"


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="all, if none is given")
    parser.add_argument("--seed", type=int, default=random.randrange(10_000, 2**31))
    parser.add_argument("--list", action="store_true", help="prints what would run")
    given = parser.parse_args()
    by_name = {one.name: one for one in SOAKS}
    if unknown := [name for name in given.names if name not in by_name]:
        parser.error(f"expected some of {', '.join(by_name)}; found {', '.join(unknown)}")
    asked = [by_name[name] for name in given.names] or list(SOAKS)
    if given.list:
        for one in asked:
            command = shown(one.environment(given.seed), one.command(given.seed))
            print(f"{one.name}: {one.says}\n    {command}")
        return
    failed = run(asked, given.seed)
    print(f"\n{len(asked)} long runs with seed {given.seed}: {len(failed)} failed {failed or ''}")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()

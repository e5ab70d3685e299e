"""Fetches what only benchmarks and peer tests need, into `benchmarks/peers/.cache/`.

    python benchmarks/peers/fetch.py [kafka] [spark] [flink] [iceberg] [debezium] [lucene] [opensearch]
                                     [registry]

Jars come from Maven Central through `mvn` and the poms beside this file; Flink itself, and the Spark
that Iceberg is built for, come with pip, in environments of their own. What is there already is left
alone, and a fetch that was interrupted starts again. Penstock itself needs none of this.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from cache import (
    CACHE,
    ENVIRONMENTS,
    JAR_PEERS,
    STAMP,
    jar_dir,
    jars,
    jars_stamp,
    java_problem,
    pom,
    python,
    stamped,
    venv,
)

TRANSITIVE = {
    "kafka",
    "debezium",
    "lucene",
    "opensearch",
}  # Spark brings the rest itself; Flink's connector is one self-contained jar
LAST_LINES = 15  # of a failed command's output, shown with the error


class FetchError(Exception):
    """Something is missing, or a command failed; the message says what to do."""


def say(text: str) -> None:
    """Progress goes to standard error."""
    print(text, file=sys.stderr, flush=True)


def run(command: list[str], *, what: str, counted: str | None = None) -> None:
    """Run a command and show that it moves.

    Args:
        command: The program and its arguments.
        what: Names the step in progress and in errors.
        counted: A word whose lines are counted as progress; without it output passes through.
    """
    say(f"{what} …")
    started = time.monotonic()
    lines: list[str] = []
    done = 0
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        for line in process.stdout or ():
            lines = [*lines[1 - LAST_LINES :], line.rstrip()]
            if counted is None:
                say("  " + line.rstrip()[:150])
            elif counted in line:
                done += 1
                if done % 10 == 0:
                    say(f"  {done} files, {time.monotonic() - started:.0f} s")
    if process.returncode:
        tail = "\n    ".join(lines)
        raise FetchError(f"{what} failed: {command[0]} exit {process.returncode}\n    {tail}")


def fetch_jars(peer: str) -> None:
    """Copy a peer's jars from Maven Central."""
    into = jar_dir(peer)
    if stamped(into, jars_stamp(peer)):
        say(f"{peer}: {len(jars(peer))} jars are there")
        return
    mvn = shutil.which("mvn")
    if mvn is None:
        raise FetchError(
            f"{peer}'s jars come through Apache Maven: no `mvn` on the path; install Maven 3.6 or"
            " newer (Debian: apt install maven)"
        )
    if complaint := java_problem(peer):
        raise FetchError(complaint)
    shutil.rmtree(into, ignore_errors=True)
    into.mkdir(parents=True)
    command = [mvn, "-B", "-f", str(pom(peer)), "dependency:copy-dependencies"]
    command += [f"-DoutputDirectory={into}", "-DincludeScope=runtime"]
    if peer not in TRANSITIVE:
        command.append("-DexcludeTransitive=true")
    run(command, what=f"{peer}: jars", counted="Copying")
    if not jars(peer):
        raise FetchError(f"{peer}: Maven succeeded but copied no jar to {into}")
    (into / STAMP).write_text(jars_stamp(peer), encoding="utf-8")
    say(f"{peer}: {len(jars(peer))} jars, {size_mib(into):.0f} MiB")


def interpreter(peer: str) -> str:
    """A Python that a peer has wheels for: this one, or the first fitting one on the path."""
    environment = ENVIRONMENTS[peer]
    if sys.version_info[:2] in environment.pythons:
        return sys.executable
    for major, minor in environment.pythons:
        name = f"python{major}.{minor}"
        found = shutil.which(name)
        # a shim on the path may stand for a version that isn't installed
        if found and subprocess.run([found, "-V"], capture_output=True).returncode == 0:
            return found
    wanted = ", ".join(f"{major}.{minor}" for major, minor in sorted(environment.pythons))
    raise FetchError(
        f"{environment.requirement} needs Python {wanted}: this is {sys.version.split()[0]} and"
        " none of them is on the path; install one"
    )


def fetch_environment(peer: str) -> None:
    """Make a peer's own Python environment."""
    environment, into = ENVIRONMENTS[peer], venv(peer)
    if stamped(into, environment.requirement):
        say(f"{peer}: {environment.requirement} is there")
        return
    if complaint := java_problem(peer):
        raise FetchError(complaint)
    shutil.rmtree(into, ignore_errors=True)
    run([interpreter(peer), "-m", "venv", str(into)], what=f"{peer}: environment")
    # pemja and PySpark may have to be built: setuptools must be there
    pip = [str(python(peer)), "-m", "pip", "install", "--progress-bar", "off"]
    run([*pip, "setuptools<81", "wheel"], what=f"{peer}: build tools")
    what = f"{peer}: {environment.requirement} ({environment.note})"
    run([*pip, environment.requirement], what=what)
    run([str(python(peer)), "-c", environment.check], what=f"{peer}: import")
    (into / STAMP).write_text(environment.requirement, encoding="utf-8")
    say(f"{peer}: environment, {size_mib(into):.0f} MiB")


def size_mib(directory: Path) -> float:
    """The size of all files below a folder."""
    files = (Path(root) / name for root, _, names in os.walk(directory) for name in names)
    return sum(file.lstat().st_size for file in files) / 2**20


def main() -> int:
    """Fetch the peers that were named, or all of them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("peers", nargs="*", metavar="PEER", help=f"of {', '.join(JAR_PEERS)}")
    asked = parser.parse_args().peers or list(JAR_PEERS)
    if unknown := sorted(set(asked) - set(JAR_PEERS)):
        parser.error(f"expected peers of {', '.join(JAR_PEERS)}, found {', '.join(unknown)}")
    failed = False
    for peer in asked:
        try:
            fetch_jars(peer)
            if peer in ENVIRONMENTS:
                fetch_environment(peer)
        except FetchError as error:
            failed = True
            say(f"error: {error}")
    say(f"{'not everything is' if failed else 'everything is'} in {CACHE}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

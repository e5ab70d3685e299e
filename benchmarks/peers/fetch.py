"""Fetches what only benchmarks and peer tests need, into `benchmarks/peers/.cache/`.

    python benchmarks/peers/fetch.py [kafka] [spark] [flink]

Jars come from Maven Central through `mvn` and the poms beside this file; Flink itself comes with
pip, in an environment of its own. What is there already is left alone, and a fetch that was
interrupted starts again. Penstock itself needs none of this.
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
    FLINK_PYTHON,
    FLINK_REQUIREMENT,
    FLINK_VENV,
    JAR_PEERS,
    STAMP,
    jar_dir,
    jars,
    jars_stamp,
    java_problem,
    pom,
    stamped,
)

FLINK_PYTHONS = ((3, 11), (3, 12), (3, 10), (3, 9))  # Flink 2.3's, the likeliest first
TRANSITIVE = {"kafka"}  # Spark brings the rest itself; Flink's connector is one self-contained jar
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
    if complaint := java_problem("kafka" if peer == "kafka" else peer):
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


def flink_interpreter() -> str:
    """A Python that Flink has wheels for: this one, or the first fitting one on the path."""
    if sys.version_info[:2] in FLINK_PYTHONS:
        return sys.executable
    for major, minor in FLINK_PYTHONS:
        name = f"python{major}.{minor}"
        found = shutil.which(name)
        # a shim on the path may stand for a version that isn't installed
        if found and subprocess.run([found, "-V"], capture_output=True).returncode == 0:
            return found
    wanted = ", ".join(f"{major}.{minor}" for major, minor in sorted(FLINK_PYTHONS))
    raise FetchError(
        f"{FLINK_REQUIREMENT} needs Python {wanted}: this is {sys.version.split()[0]} and none of"
        " them is on the path; install one"
    )


def fetch_flink_environment() -> None:
    """Make Flink's own Python environment."""
    if stamped(FLINK_VENV, FLINK_REQUIREMENT):
        say(f"flink: {FLINK_REQUIREMENT} is there")
        return
    if complaint := java_problem("flink"):
        raise FetchError(complaint)
    shutil.rmtree(FLINK_VENV, ignore_errors=True)
    interpreter = flink_interpreter()
    run([interpreter, "-m", "venv", str(FLINK_VENV)], what="flink: environment")
    # pemja, which Flink's pip package depends on, may have to be built: setuptools must be there
    pip = [str(FLINK_PYTHON), "-m", "pip", "install", "--progress-bar", "off"]
    run([*pip, "setuptools<81", "wheel"], what="flink: build tools")
    run([*pip, FLINK_REQUIREMENT], what=f"flink: {FLINK_REQUIREMENT} (about 1 GB installed)")
    check = "from pyflink.table import TableEnvironment"
    run([str(FLINK_PYTHON), "-c", check], what="flink: import")
    (FLINK_VENV / STAMP).write_text(FLINK_REQUIREMENT, encoding="utf-8")
    say(f"flink: environment, {size_mib(FLINK_VENV):.0f} MiB")


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
            if peer == "flink":
                fetch_flink_environment()
        except FetchError as error:
            failed = True
            say(f"error: {error}")
    say(f"{'not everything is' if failed else 'everything is'} in {CACHE}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""Where the fetched peers lie, and why one of them can't be used.

Everything is under `benchmarks/peers/.cache/`, which git ignores: a folder of jars per peer and
Flink's Python environment. `fetch.py` fills it; the programs that drive the peers only read it.
"""

import functools
import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path

HERE = Path(__file__).resolve().parent
CACHE = HERE / ".cache"
FLINK_REQUIREMENT = "apache-flink==2.3.0"
FLINK_VENV = CACHE / "flink-venv"
FLINK_PYTHON = FLINK_VENV / "bin" / "python"
STAMP = ".complete"
FETCH_HINT = "run `python benchmarks/peers/fetch.py`"

JAR_PEERS = ("kafka", "spark", "flink")
JAVA_MAJORS = {
    "kafka": range(17, 26),  # Kafka 4's brokers need 17
    "spark": range(17, 26),  # Spark 4's floor is 17
    "flink": range(11, 22),  # Flink 2 is built for 11, 17 and 21
}
JAVA_TIMEOUT_S = 30.0


def pom(peer: str) -> Path:
    """The Maven project that lists a peer's jars."""
    return HERE / "poms" / f"{peer}.xml"


def jar_dir(peer: str) -> Path:
    """The folder that a peer's jars are copied to."""
    return CACHE / peer


def jars(peer: str) -> list[Path]:
    """A peer's jars, sorted by name."""
    return sorted(jar_dir(peer).glob("*.jar"))


def classpath(peer: str) -> str:
    """A peer's jars as Java's `-cp` takes them."""
    return f"{jar_dir(peer)}{os.sep}*"


def jars_stamp(peer: str) -> str:
    """What `.complete` holds once the jars of this very pom are there."""
    return hashlib.sha256(pom(peer).read_bytes()).hexdigest()


def stamped(directory: Path, stamp: str) -> bool:
    """Whether `directory` was filled to the end, for this stamp."""
    file = directory / STAMP
    return file.is_file() and file.read_text(encoding="utf-8") == stamp


def java() -> Path | None:
    """The Java launcher of `JAVA_HOME`, or else the one on the path."""
    home = os.environ.get("JAVA_HOME")
    if home and (Path(home) / "bin" / "java").is_file():
        return Path(home) / "bin" / "java"
    found = shutil.which("java")
    return Path(found) if found else None


@functools.cache
def java_major(launcher: Path) -> int | None:
    """The major version of a Java launcher, or None where it doesn't say."""
    try:
        asked = subprocess.run(
            [launcher, "-version"], capture_output=True, text=True, timeout=JAVA_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', asked.stderr)
    return int(found[1]) if found else None


def java_problem(peer: str) -> str | None:
    """Why no Java of this machine can run a peer, or None."""
    wanted = JAVA_MAJORS[peer]
    span = f"Java {wanted.start} to {wanted.stop - 1}"
    launcher = java()
    if launcher is None:
        return f"{peer} needs {span}: none in JAVA_HOME or on the path; install a JRE"
    major = java_major(launcher)
    if major not in wanted:
        return f"{peer} needs {span}: {launcher} is {major}; point JAVA_HOME at a fitting one"
    return None


def problem(peer: str) -> str | None:
    """Why a peer can't be used here and what to do, or None where it can."""
    if not stamped(jar_dir(peer), jars_stamp(peer)):
        return f"{peer}'s jars aren't fetched; {FETCH_HINT} {peer}"
    if peer == "flink" and not stamped(FLINK_VENV, FLINK_REQUIREMENT):
        return f"flink's Python environment isn't fetched; {FETCH_HINT} flink"
    return java_problem(peer)

"""Where the fetched peers lie, and why one of them can't be used.

Everything is under `benchmarks/peers/.cache/`, which git ignores: a folder of jars per peer, and a
Python environment for those that come with pip. `fetch.py` fills it; the programs that drive the
peers only read it.
"""

import functools
import hashlib
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
CACHE = HERE / ".cache"
STAMP = ".complete"
FETCH_HINT = "run `python benchmarks/peers/fetch.py`"

JAR_PEERS = ("kafka", "spark", "flink", "iceberg", "debezium", "lucene", "opensearch", "registry")
JAVA_MAJORS = {
    "kafka": range(17, 26),  # Kafka 4's brokers need 17
    "spark": range(17, 26),  # Spark 4's floor is 17
    "flink": range(11, 22),  # Flink 2 is built for 11, 17 and 21
    "iceberg": range(17, 22),  # Spark 4.1 is built for 17 and 21
    "debezium": range(17, 26),  # Debezium 3's floor is 17
    "lucene": range(11, 26),  # Lucene 9's floor is 11; the program is a source file
    "opensearch": range(17, 26),  # OpenSearch 2 runs on 11 and newer; its launcher is a source file
    "registry": range(17, 26),
}
JAVA_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Environment:
    """A peer's own Python environment.

    Attributes:
        requirement: what pip installs.
        pythons: the versions that it has wheels for, the likeliest first.
        check: a statement that works once it is there.
        note: said of it while it is fetched.
    """

    requirement: str
    pythons: tuple[tuple[int, int], ...]
    check: str
    note: str


ENVIRONMENTS = {
    "flink": Environment(
        "apache-flink==2.3.0",
        ((3, 11), (3, 12), (3, 10), (3, 9)),
        "from pyflink.table import TableEnvironment",
        "about 1 GB installed",
    ),
    # The Spark that Iceberg's newest runtime is built for, which isn't Penstock's own.
    "iceberg": Environment(
        "pyspark==4.1.4",
        ((3, 11), (3, 12), (3, 13), (3, 10)),
        "from pyspark.sql import SparkSession",
        "about 500 MB installed",
    ),
}


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


def venv(peer: str) -> Path:
    """The folder of a peer's Python environment."""
    return CACHE / f"{peer}-venv"


def python(peer: str) -> Path:
    """The Python of a peer's environment."""
    return venv(peer) / "bin" / "python"


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
    if peer in ENVIRONMENTS and not stamped(venv(peer), ENVIRONMENTS[peer].requirement):
        return f"{peer}'s Python environment isn't fetched; {FETCH_HINT} {peer}"
    return java_problem(peer)

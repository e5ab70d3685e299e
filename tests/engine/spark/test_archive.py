"""The archive of Spark's classes: used where there is one, and never in the way."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from penstock.engine.spark import archive
from penstock.engine.spark.java import java_home
from penstock.errors import SetupError


@pytest.fixture
def java(tmp_path: Path) -> Path:
    """The runtime that pipelines use."""
    return java_home(tmp_path / "spark")


def test_without_an_archive_there_are_no_options(
    java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipeline starts without `penstock prepare`, too."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert archive.use_options(java) == ""


def test_the_archive_of_this_environment_fits_its_runtime(java: Path) -> None:
    """With -Xshare:on a JVM refuses to start with one that doesn't."""
    options = archive.use_options(java)
    if not options:
        pytest.skip("this environment has no archive; make it with: penstock prepare")
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    done = subprocess.run(
        [str(submit), "--driver-java-options", options.replace("auto", "on"), "--version"],
        capture_output=True,
        text=True,
        env=os.environ | {"JAVA_HOME": str(java)},
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_jvm_starts_with_an_archive_that_is_torn(
    java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is a help, not a need."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    with archive.recording(java) as options:
        made = next(o for o in options.split() if "ArchiveClassesAtExit" in o).partition("=")[2]
        Path(made).write_bytes(b"torn")
    options = archive.use_options(java)
    assert str(tmp_path) in options
    done = subprocess.run(
        [str(java / "bin" / "java"), *options.split(), "-version"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_jvm_that_left_nothing_is_reported(
    java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is put in its place."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    with pytest.raises(SetupError, match="left none"), archive.recording(java):
        pass
    assert archive.use_options(java) == ""

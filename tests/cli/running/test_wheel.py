"""A wheel with compiled kernels starts a first pipeline without compiling one."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
import venv
import zipfile
from pathlib import Path

import pytest
from tests.patience import wait_until

from penstock.core.kernels import stored

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = """
import penstock as ps

app = ps.App("shop")
clicks = app.stream(
    "clicks",
    "user STRING, url STRING, ms DOUBLE, at TIMESTAMP",
    time=ps.event_time("at", lateness="30 seconds"),
)
per_url = clicks.window(ps.tumbling("1 minute")).group_by("url")
app.view("per_minute", per_url.agg(clicks=ps.count(), slowest=ps.max("ms")))
"""
CLICKS = "".join(
    f'{{"user":"u{i % 7}","url":"/{i % 5}","ms":1.5,"at":"2026-01-01T00:00:{i % 60:02}Z"}}\n'
    for i in range(100)
)
EVERY_KERNEL = """
from penstock.cli.pipelines import compiling
from penstock.core import kernels

compiling._import()
kernels.load_all()
stats = [one.load().stats for one in kernels._KERNELS if one.is_stored]
print(sum(sum(s.cache_hits.values()) for s in stats), sum(sum(s.cache_misses.values()) for s in stats))
"""


def environment(folder: Path, wheel: Path) -> Path:
    """An environment that has the wheel, and borrows what it needs from this one; gives its Python."""
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "-q"]
    subprocess.run([*command, str(wheel)], check=True)
    asked = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = subprocess.run([python, "-c", asked], check=True, capture_output=True, text=True).stdout
    # A folder in a .pth file is searched, but its own .pth files, which link this checkout, aren't read.
    (Path(site.strip()) / "borrowed.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return python


@pytest.mark.slow
@pytest.mark.skipif(stored.baseline() is None, reason="this machine can't compile for the baseline")
def test_a_first_pipeline_from_a_wheel_compiles_no_kernel(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every kernel comes with the wheel, and none is left in the user's cache after the first commit."""
    pytest.importorskip("pip")
    build = [sys.executable, str(ROOT / "scripts" / "wheel.py"), str(tmp_path / "dist")]
    subprocess.run(build, check=True, capture_output=True)
    [wheel] = (tmp_path / "dist").glob("*.whl")
    assert "-none-any" not in wheel.name
    with zipfile.ZipFile(wheel) as content:
        shipped = sum(name.endswith(".kernel") for name in content.namelist())
    python = environment(tmp_path / "environment", wheel)
    own = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    env = own | {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}

    (tmp_path / "shop.py").write_text(PROGRAM)
    (tmp_path / "clicks.jsonl").write_text(CLICKS)
    command = [python.with_name("penstock"), "run", "shop.py", "--no-ui", "--ingest"]
    begun = time.monotonic()
    pipeline = subprocess.Popen([*command, "clicks=clicks.jsonl"], cwd=tmp_path, env=env)
    try:
        versions = tmp_path / "shop.penstock" / "state" / "versions"

        def committed() -> bool:
            assert pipeline.poll() is None, "it ended"
            return bool(list(versions.glob("*1.json")))

        wait_until(committed, "a committed version", patience_s=300.0)
        seconds = time.monotonic() - begun
    finally:
        pipeline.send_signal(signal.SIGINT)
        pipeline.wait(120)
    with capsys.disabled():
        print(f"\n{seconds:.1f} s until the first commit of a first pipeline")
    assert list((tmp_path / "cache").glob("*.kernel")) == []

    done = subprocess.run(
        [python, "-c", EVERY_KERNEL], cwd=tmp_path, env=env, check=True, capture_output=True
    )
    assert done.stdout.split() == [str(shipped).encode(), b"0"]
    shutil.rmtree(tmp_path / "environment")

"""A pipeline's directory on disk, made without a JVM."""

from __future__ import annotations

from pathlib import Path

import penstock as ps
from penstock.state import LocalStateFiles
from penstock.testing import Run


def commit(run: Run, directory: Path) -> Path:
    """Writes what a pipeline in this process has committed as one that ran on Spark would have."""
    run.settle()
    files = LocalStateFiles(directory / "state")
    for folder in ("epochs", "plans", "runs", "upgrades", "versions"):
        for path in run.store.files.list(folder):
            files.create(path, run.store.files.read(path))
    return directory


def clicks(rows: int = 20) -> Run:
    """Clicks per user and minute: one view `per_user`, a click each second."""
    app = ps.App("shop")
    stream = app.stream(
        "clicks",
        "user STRING NOT NULL, ms DOUBLE, at TIMESTAMP NOT NULL",
        time=ps.event_time("at", lateness="10 seconds"),
    )
    per_user = stream.window(ps.tumbling("1 minute")).group_by("user")
    app.view("per_user", per_user.agg(n=ps.count(), ms=ps.sum("ms")))
    run = ps.testing.run(app, shaken=False)  # attempts that failed leave files
    for i in range(rows):
        run.send("clicks", user=f"u{i % 3}", ms=1.5, at=f"12:{i // 60:02}:{i % 60:02}")
    return run

"""`penstock new`: a project with a program, a test, sample data and a README, which runs at once."""

from __future__ import annotations

import json
import random
import re
import time
from pathlib import Path
from typing import Final

import click

from penstock.cli.support.tables import note
from penstock.errors import SetupError, UserError

SAMPLES: Final = 600  # clicks: enough for a chart, few enough to read
SPAN_S: Final = 30 * 60  # that they are spread over
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")  # of an app, and of a Python module
_PAGES: Final = ("/", "/tea", "/coffee", "/basket", "/checkout")
_USERS: Final = ("ann", "bob", "cem", "dora", "eva", "finn")

PROGRAM: Final = '''"""Counts clicks: per page and minute, and each user's visits."""

import penstock as ps

app = ps.App("NAME")

clicks = app.stream(
    "clicks",
    "user STRING NOT NULL, page STRING NOT NULL, ms DOUBLE, at TIMESTAMP NOT NULL",
    time=ps.event_time("at", lateness="30 seconds"),
)

# A view is kept up to date. Query it with: penstock query NAME "SELECT * FROM per_page"
per_page = clicks.window(ps.tumbling("1 minute")).group_by("page")
app.view("per_page", per_page.agg(clicks=ps.count(), p95_ms=ps.approx_quantile("ms", 0.95)))

# A visit is a user's clicks with pauses of at most five minutes.
visits = clicks.window(ps.session("5 minutes")).group_by("user").agg(clicks=ps.count())
app.view("visits", visits)

# A topic gets each visit once, when it is over. Read it with: penstock consume long_visits
visits.where("clicks >= 20").to("long_visits", emit="closed")

if __name__ == "__main__":
    app.main()
'''

TEST: Final = '''"""What the pipeline computes. Runs in this process, without Spark and without a broker."""

from NAME import app

import penstock as ps


def test_clicks_are_counted_per_page_and_minute() -> None:
    run = ps.testing.run(app)
    run.send("clicks", user="ann", page="/tea", ms=10.0, at="12:00:10")
    run.send("clicks", user="bob", page="/tea", ms=20.0, at="12:00:50")
    run.send("clicks", user="ann", page="/", ms=30.0, at="12:01:00")
    rows = run.view("per_page").rows()
    assert [(row["page"], row["clicks"]) for row in rows] == [("/tea", 2), ("/", 1)]


def test_a_visit_ends_after_a_pause() -> None:
    run = ps.testing.run(app)
    for at in ("12:00:00", "12:04:00", "12:10:00"):
        run.send("clicks", user="ann", page="/", ms=1.0, at=at)
    assert [row["clicks"] for row in run.view("visits").rows()] == [2, 1]
'''

README: Final = """# NAME

A [Penstock](https://pypi.org/project/penstock/) pipeline: clicks per page and minute, and users' visits.

    penstock dev NAME.py --ingest "clicks=data/*.jsonl"

starts the pipeline with its log, reads the sample data, and shows a live page on http://127.0.0.1:8750.
Change `NAME.py` and save it: the pipeline restarts. Add a file to `data/`: its rows are read, each once.

In another terminal, in this folder:

    echo '{"user": "ann", "page": "/tea", "ms": 12, "at": "2026-01-01T12:00:00Z"}' | penstock produce clicks
    penstock query NAME "SELECT * FROM per_page ORDER BY window_start DESC LIMIT 5"
    penstock consume long_visits
    penstock status NAME

That click is older than the sample data, so it is late: it is in the topic NAME.dead-letters
(`penstock dlq list`).

| file | |
|---|---|
| `NAME.py` | the pipeline |
| `test_NAME.py` | its tests: `pip install pytest`, then `python -m pytest` |
| `pytest.ini` | the settings of pytest |
| `data/clicks.jsonl` | sample events of the half hour before this project was made |
| `NAME.penstock/` | its log and state, once it has run. To start over, stop it and delete this directory |

To run it without restarts on change: `penstock run NAME.py`.
"""

PYTEST: Final = "[pytest]\n"
"""So that the project's tests don't depend on the settings of a folder above, such as a checkout's."""
IGNORED: Final = "*.penstock/\n__pycache__/\n.pytest_cache/\n"


@click.command(
    epilog="""\b
Example:
  penstock new shop
  cd shop
  penstock dev shop.py --ingest "clicks=data/*.jsonl"
"""
)
@click.argument("name")
def new(name: str) -> None:
    """Make a project in the new directory NAME: a pipeline, a test, sample data, a README."""
    if not _NAME.fullmatch(name):
        raise UserError(
            f"expected a name of letters, digits and _ that begins with a letter; found {name!r}"
        )
    folder = Path(name)
    if folder.exists():
        raise SetupError(
            f"expected no file or directory {name!r} here; found one. Choose another name"
        )
    (folder / "data").mkdir(parents=True)
    for path, text in project(name, time.time()).items():
        (folder / path).write_text(text, encoding="utf-8")
    note(f"made {name}/. To run it:\n")
    note(f'  cd {name}\n  penstock dev {name}.py --ingest "clicks=data/*.jsonl"')


def project(name: str, now_s: float) -> dict[str, str]:
    """The files of a project, by their paths in it.

    Args:
        name: of the app and the module.
        now_s: seconds since 1970 UTC; the sample data ends there.
    """
    texts = {
        f"{name}.py": PROGRAM,
        f"test_{name}.py": TEST,
        "README.md": README,
        ".gitignore": IGNORED,
        "pytest.ini": PYTEST,
    }
    files = {path: text.replace("NAME", name) for path, text in texts.items()}
    return {**files, "data/clicks.jsonl": samples(now_s)}


def samples(now_s: float) -> str:
    """Clicks as JSON lines, in the order of their times; always the same but for the time they end at."""
    chance = random.Random(1)  # noqa: S311 - sample data
    ages_s = sorted((chance.uniform(0, SPAN_S) for _ in range(SAMPLES)), reverse=True)
    lines = []
    for age_s in ages_s:
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now_s - age_s))
        ms = round(chance.lognormvariate(3.5, 0.8), 1)
        click_ = {"user": chance.choice(_USERS), "page": chance.choice(_PAGES), "ms": ms, "at": at}
        lines.append(json.dumps(click_))
    return "\n".join(lines) + "\n"

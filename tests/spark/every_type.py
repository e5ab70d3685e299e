"""A pipeline whose view has a column of every type, nested ones and NULLs included."""

from __future__ import annotations

from typing import Any

import penstock as ps
from penstock.testing import Run

SCHEMA = (
    "id BIGINT, i INT, f FLOAT, x DOUBLE, b BOOLEAN, s STRING, d DECIMAL(20, 4), day DATE, tm TIME, "
    "at TIMESTAMP, bin BINARY, u UUID, iv INTERVAL, items ARRAY<BIGINT>, "
    "st STRUCT<a BIGINT, b STRUCT<c STRING, d DECIMAL(10, 2)>>, m MAP<STRING, DOUBLE>, "
    "parts ARRAY<STRUCT<at TIMESTAMP, u UUID, iv INTERVAL>>, texts MAP<STRING, ARRAY<STRING>>"
)


def start() -> Run:
    """Ten rows and one that has nothing but its key, of the table `t` and the view `every`."""
    app = ps.App("types", cores=2)
    app.view("every", app.table("t", SCHEMA, key="id"))
    run = ps.testing.run(app)
    for n in range(10):
        send(run, n)
    run.send("t", id=10)
    return run


def send(run: Run, n: int, **other: Any) -> None:
    """A row, or its next content."""
    some = n % 2 == 0
    uuid = f"00112233-4455-6677-8899-aabbccddee0{n}"
    row = {
        "i": n - 5,
        "f": n / 4,
        "x": "NaN" if n == 7 else n / 8,
        "b": some,
        "s": ["", "a", "ä€😀", "'\"\\", " "][n % 5],
        "d": f"{n - 5}.000{n}",
        "day": f"20{n:02}-03-0{n % 9 + 1}",
        "tm": f"{n:02}:{n:02}:01.5",
        "at": f"2026-10-25T0{n % 4}:30:00.{n:06}Z",
        "bin": "AAECAw==" if some else "",
        "u": uuid,
        "iv": f"P{n + 38}DT{n}.25S",
        "items": [n, None] if some else [],
        "st": {"a": n, "b": {"c": "q", "d": "1.25"}} if some else {"a": None, "b": None},
        "m": {"k": 1.5, "l": None} if some else {},
        "parts": [{"at": "2026-01-01T00:00:00Z", "u": uuid, "iv": "P1D"}, None],
        "texts": {"z": ["a", None]},
    }
    run.send("t", id=n, **(row | other))

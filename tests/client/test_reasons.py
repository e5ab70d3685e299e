"""Reasons of dead letters, by kind."""

from __future__ import annotations

import pytest

import penstock as ps
from penstock.client.letters.reasons import kind_of


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("late", "late"),
        ("", ""),
        ("no such field: user", "no such field: user"),
        ("field 'v': expected text; found 12", "field 'v': expected text; found …"),
        (
            "field 'page2': expected a value (NOT NULL); found none",
            "field 'page2': expected a value (NOT NULL); found …",
        ),
        (
            "CAST(x AS BIGINT): Conversion Error: Could not convert string 'it''s 3' to INT64",
            "CAST(x AS BIGINT): Conversion Error: Could not convert string … to INT64",
        ),
        ("order 4711 of 2026-11-21 failed: -3.5e7", "order … of … failed: …"),
        ("Order 0xff00: timeout after 30s", "Order …: timeout after 30s"),
        (
            "no user 123e4567-e89b-12d3-a456-426614174000 at 2026-11-21T09:00:03.123456Z",
            "no user … at …",
        ),
        ("it's broken, isn't it", "it's broken, isn't it"),
    ],
)
def test_a_kind_is_a_reason_without_its_values(reason: str, kind: str) -> None:
    """Names of fields and types stay, what was found goes; a kind's kind is itself."""
    assert kind_of(reason) == kind
    assert kind_of(kind) == kind


def test_what_a_pipeline_refuses_has_a_few_kinds() -> None:
    """However many letters there are, with however many times and values in their reasons."""
    app = ps.App("p")
    stream = app.stream("t", "x STRING, v BIGINT, at TIMESTAMP NOT NULL", time=ps.event_time("at"))
    numbers = stream.select("at", "v", n="CAST(x AS BIGINT)")
    for size in (1, 5):
        table = numbers.window(ps.tumbling(f"{size} minutes")).agg(n=ps.sum("n"))
        app.view(f"per_{size}", table)
    run = ps.testing.run(app)
    run.send("t", x="1", at="12:00:00")
    run.settle()
    for i in range(30):
        run.send("t", x="1", at=f"10:{i:02}:00")
        run.send("t", x=f"no {i}", at=f"12:00:{i:02}")
        run.send("t", x="1", v=f"v{i}", at="12:00:00")
        run.send_raw("t", b'{"x": %d' % i)
    letters = run.dead_letters()
    reasons = {letter.headers["penstock.reason"] for letter in letters}
    assert len(letters) == 120
    assert len(reasons) > 70
    kinds = {kind_of(reason) for reason in reasons}
    assert len(kinds) <= 6, kinds

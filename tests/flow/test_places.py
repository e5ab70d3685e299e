"""Two things of a program that don't go together: the message says where the other one is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.cli.support.programs import load
from penstock.errors import FlowError, PenstockError

BEGIN = """import penstock as ps

app = ps.App("shop")
clicks = app.stream("clicks", "user STRING")
"""


@pytest.mark.parametrize(
    ("first", "second", "found"),
    [
        ("app.stream('x', 'a INT')", "app.stream('x', 'b INT')", "two that differ"),
        (
            "app.view('v', clicks.group_by('user').agg(n=ps.count()))",
            "app.view('v', clicks.group_by().agg(n=ps.count()))",
            "'v' twice",
        ),
        ("clicks.to('out')", "clicks.where('user IS NULL').to('out')", "two to 'out'"),
        (
            "clicks.map_batches(lambda t: t, 'user STRING', name='f')",
            "clicks.map_batches(lambda t: t.slice(0, 0), 'user STRING', name='f')",
            "two called 'f'",
        ),
    ],
)
def test_the_other_place_is_named(tmp_path: Path, first: str, second: str, found: str) -> None:
    """The file and line of the first, and the line of the second, of the user's program."""
    program = tmp_path / "shop.py"
    program.write_text(f"{BEGIN}\n{first}\n\n{second}\n")
    with pytest.raises(FlowError) as error:
        load(program)
    text = str(error.value)
    assert found in text
    assert f"The other one is in {program}, line 6." in text
    assert f"{program}, line 8:" in text


def test_places_are_the_callers(tmp_path: Path) -> None:
    """A helper of the user's that builds is where it was built, not our own code."""
    app = ps.App("places", directory=tmp_path / "places.penstock")
    stream: Callable[..., Any] = app.stream
    stream("x", "a INT")
    with pytest.raises(FlowError, match=r"in .*test_places\.py, line \d+\."):
        stream("x", "b INT")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "app.view('v', clicks.group_by().agg(n=ps.sum('user')))",
            "expected a column of numbers for sum(user); found string ({path}, line 5: {line})",
        ),
        (
            "app.view('v', clicks.where('user > ').group_by().agg(n=ps.count()))",
            "expected a SQL expression; found 'user > ' (a part is missing) ({path}, line 5: {line})",
        ),
    ],
)
def test_a_mistake_is_shown_with_the_line_of_the_program(
    tmp_path: Path, line: str, said: str
) -> None:
    """Of its file: neither code that Python generates nor a library's classes are in the message."""
    path = tmp_path / "shop.py"
    path.write_text(f"{BEGIN}{line}\n")
    with pytest.raises(PenstockError) as failure:
        load(path).graph()
    assert str(failure.value) == said.format(path=path, line=line)

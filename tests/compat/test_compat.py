"""What a release wrote, the next one reads: state, logs and files, continued from where it stopped."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.compat.all_cases import CASES, PIPELINES
from tests.compat.cases import FIXTURES, read_facts, releases, unpack

from penstock.ops.aggregates import FUNCTIONS
from penstock.ops.registry import load_operators

ADDED_SINCE: dict[str, str] = {
    "percolate": "0.1.0's fixture is made again before the release",
    "match": "row patterns came after the fixture was made",
    "revised match": "likewise over tables",
    "partial match": "likewise, how far they are",
    "corrected match": "likewise over streams whose late rows correct",
}
"""Kinds of operators and of aggregates that the newest fixture has not, and why. It is empty when a release's
fixture has been made: a new kind gets a case then."""

CASES_SINCE: dict[str, str] = {}
"""Cases that were added after the newest fixture, and why; empty, too, when it has been made."""


def _found() -> list[object]:
    found = []
    for release in releases():
        for archive in sorted((FIXTURES / release).glob("*.tar.xz")):
            name = archive.name.removesuffix(".tar.xz")
            marks = [pytest.mark.slow] * CASES[name].is_slow + [pytest.mark.spark] * CASES[
                name
            ].is_spark
            found.append(pytest.param(release, name, id=f"{release}-{name}", marks=marks))
    return found


@pytest.mark.parametrize(("release", "name"), _found())
def test_what_a_release_wrote_is_read(release: str, name: str, tmp_path: Path) -> None:
    """A case of a release's fixture continues as if the current code had run it from the first record on."""
    facts = unpack(FIXTURES / release / f"{name}.tar.xz", tmp_path)
    CASES[name].check(tmp_path, facts | {"release": release})


def test_the_newest_fixture_has_all_operators() -> None:
    """Each kind of operator and of aggregate function is in a case of the newest release's fixture."""
    archives = [FIXTURES / releases()[-1] / f"{one.name}.tar.xz" for one in PIPELINES]
    facts = [read_facts(archive) for archive in archives if archive.exists()]
    kinds = {kind for one in facts for kind in (*one["operators"], *one["aggregates"])}
    missing = {*load_operators(), *FUNCTIONS} - kinds
    assert missing == ADDED_SINCE.keys(), (
        "add a case for it, or name it in ADDED_SINCE with the reason"
    )


def test_every_case_has_an_archive() -> None:
    """The newest release's fixture has every case that isn't newer."""
    newest = {
        archive.name.removesuffix(".tar.xz") for archive in (FIXTURES / releases()[-1]).iterdir()
    }
    assert CASES.keys() - newest == CASES_SINCE.keys()

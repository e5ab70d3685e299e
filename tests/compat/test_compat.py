"""What a release wrote, the next one reads: state, logs and files, continued from where it stopped."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.compat.all_cases import CASES
from tests.compat.cases import FIXTURES, releases, unpack

FOUND = [
    pytest.param(
        release,
        archive.name.removesuffix(".tar.xz"),
        id=f"{release}-{archive.name.removesuffix('.tar.xz')}",
    )
    for release in releases()
    for archive in sorted((FIXTURES / release).glob("*.tar.xz"))
]


@pytest.mark.parametrize(("release", "name"), FOUND)
def test_what_a_release_wrote_is_read(release: str, name: str, tmp_path: Path) -> None:
    """A case of a release's fixture continues as if the current code had run it from the first record on."""
    facts = unpack(FIXTURES / release / f"{name}.tar.xz", tmp_path)
    CASES[name].check(tmp_path, facts)

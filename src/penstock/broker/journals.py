"""The journals of a data directory. All of them are there from the broker's first start on, before
the first topic; so where there are topics, one that is missing was lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

__all__ = ["JOURNALS", "lost_journals"]

JOURNALS: Final = {
    "groups/offsets.journal": "the offsets that groups have committed",
    "groups/members.journal": "groups' members and assignments",
    "transactions/state.journal": "transactional ids and what they had prepared",
    "share/state.journal": "what share groups have settled",
}
"""Each journal, and what it holds."""


def lost_journals(has: Callable[[str], bool]) -> Iterator[tuple[str, str]]:
    """Journals that a directory with topics lacks, and what is to be said of that.

    >>> [path for path, _ in lost_journals(lambda path: path.startswith("groups/"))]
    ['transactions/state.journal', 'share/state.journal']
    """
    for path, held in JOURNALS.items():
        if not has(path):
            yield path, f"expected a journal, found none; {held} are lost if there were any"

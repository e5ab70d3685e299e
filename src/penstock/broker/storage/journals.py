"""The journals and documents of a data directory. All of them are there from the broker's first
start on, before the first topic; so where there are topics, one that is missing was lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

__all__ = ["DOCUMENTS", "JOURNALS", "lost_files"]

JOURNALS: Final = {
    "groups/offsets.journal": "the offsets that groups have committed",
    "groups/members.journal": "groups' members and assignments",
    "transactions/state.journal": "transactional ids and what they had prepared",
    "share/state.journal": "what share groups have settled",
}
"""Each journal, and what it holds."""
DOCUMENTS: Final = {
    "groups/settings.json": (
        "which groups have settings of their own",
        "all have the defaults: no dead-letter topics, no limits or orders of their own",
    ),
    "settings.json": (
        "what clients have set of the broker's settings",
        "all settings are those of the command line",
    ),
    "producer_ids.json": (
        "which producer ids were assigned",
        "ids continue far above the highest one known here",
    ),
}
"""Each document, what it says, and how the broker continues without it."""


def lost_files(has: Callable[[str], bool]) -> Iterator[tuple[str, str]]:
    """The files that a directory with topics lacks, each with a message.

    >>> [path for path, _ in lost_files(lambda path: path.startswith("groups/"))]
    ['transactions/state.journal', 'share/state.journal', 'settings.json', 'producer_ids.json']
    """
    for path, held in JOURNALS.items():
        if not has(path):
            yield path, f"expected a journal; found none; {held} are lost if there were any"
    for path, (said, then) in DOCUMENTS.items():
        if not has(path):
            yield path, f"expected a document that says {said}; found none; {then}"

"""A format as its parts: what stands for a piece of a value, and what stands for itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

__all__ = ["Part", "by_letter", "ordinal", "parts"]

FORMAT_CHARS_MAX: Final = 10_000
"""Of a format: real ones have some tens, and each value is formatted by all of it."""


@dataclass(frozen=True)
class Part:
    """A part of a format.

    Attributes:
        text: what stands for itself, or the key's word as it is written.
        key: what stands for a piece of a value; "" where the part stands for itself.
        before: FM or TM before it, in capital letters.
        after: TH or th behind it.
    """

    text: str
    key: str = ""
    before: str = ""
    after: str = ""


def by_letter(words: str) -> Mapping[str, Sequence[str]]:
    """Words by their first letter, in the order that they are in."""
    found: dict[str, list[str]] = {}
    for one in words.split():
        found.setdefault(one[0], []).append(one)
    return found


def parts(
    form: str,
    keys: Mapping[str, Sequence[str]],
    before: Sequence[str] = (),
    after: Sequence[str] = (),
) -> Iterator[Part]:
    """Reads a format.

    Args:
        form: the format.
        keys: by first letter the words that stand for something; a longer one before those it begins with.
        before: words before a key that change it.
        after: words behind one.

    Raises:
        ValueError: it is too long.
    """
    if len(form) > FORMAT_CHARS_MAX:
        raise ValueError(f"expected a format of at most {FORMAT_CHARS_MAX} characters; found more")
    at = 0
    while at < len(form):
        prefix = next((one for one in before if form.startswith(one, at)), "")
        at += len(prefix)
        key = next((one for one in keys.get(form[at : at + 1], ()) if form.startswith(one, at)), "")
        if key:
            at += len(key)
            suffix = next((one for one in after if form.startswith(one, at)), "")
            at += len(suffix)
            yield Part(key, key, prefix.upper(), suffix)
        elif form[at : at + 1] == '"':
            at += 1
            while at < len(form) and form[at] != '"':
                at += form[at] == "\\" and at + 1 < len(form)
                yield Part(form[at])
                at += 1
            at += 1
        elif at < len(form):
            at += form[at] == "\\" and form[at + 1 : at + 2] == '"'
            yield Part(form[at])
            at += 1


def ordinal(number: str, suffix: str) -> str:
    """The letters behind an ordinal number.

    >>> ordinal("112", "th"), ordinal("23", "TH")
    ('th', 'RD')
    """
    is_teen = number[-2:-1] == "1"
    letters = "th" if is_teen else {"1": "st", "2": "nd", "3": "rd"}.get(number[-1:], "th")
    return letters.upper() if suffix == "TH" else letters

"""Each query on each document, as the definitions say: what `penstock.searches` is compared with."""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Iterator
from itertools import product
from typing import Any

from penstock.searches import tree

STOP_WORDS = ("the", "of")
DEFAULTS = ("title", "tags")
NUMBERS = {"price": float, "stars": int, "at": lambda text: dt.datetime.fromisoformat(text)}


def matches(query: tree.Query, document: dict[str, Any]) -> bool:
    """Whether a document matches a query."""
    return says(query, DEFAULTS) and fits(query, document, DEFAULTS)


def words(text: str) -> list[tuple[str, int]]:
    """Words with their positions, but for stop words."""
    found = re.findall(r"\w+", text.lower())
    return [(word, i) for i, word in enumerate(found) if word not in STOP_WORDS]


def values(document: dict[str, Any], name: str) -> Iterator[Any]:
    """The values of a field, one by one."""
    found: list[Any] = [document]
    for part in name.split("."):
        found = [one[part] for one in found if one is not None]
        found = [x for one in found for x in (one if isinstance(one, list) else [one])]
    yield from (one for one in found if one is not None)


def tokens(document: dict[str, Any], name: str) -> list[tuple[str, int]]:
    """A field's words; those of the next value of a list are far away."""
    made: list[tuple[str, int]] = []
    begin = 0
    for text in values(document, name):
        made += [(word, begin + i) for word, i in words(text)]
        begin += max([i + 1 for _, i in words(text)], default=0) + 100
    return made


def says(query: tree.Query, defaults: tuple[str, ...]) -> bool:
    """Whether anything is left of it without stop words."""
    match query:
        case tree.Term(name, text) | tree.Phrase(name, text) if (
            name or defaults[0]
        ) not in NUMBERS:
            return bool(words(text))
        case tree.Boost(inner):
            return says(inner, defaults)
        case tree.Boolean(must, should, must_not):
            return any(says(one, defaults) for one in (*must, *should, *must_not))
    return True


def fits(query: tree.Query, document: dict[str, Any], defaults: tuple[str, ...]) -> bool:
    """Whether a query that says something is true."""
    match query:
        case tree.All():
            return True
        case tree.Boost(inner):
            return fits(inner, document, defaults)
        case tree.Boolean():
            must, should, not_ = (
                [fits(one, document, defaults) for one in part if says(one, defaults)]
                for part in (query.must, query.should, query.must_not)
            )
            needed = query.minimum or 0
            if len(should) < len(query.should):
                needed = min(needed, len(should))
            if should and not must:
                needed = max(needed, 1)
            return all(must) and not any(not_) and sum(should) >= needed
        case tree.Nested(name, inner):
            prefix = name.partition(".")[0]
            inside = values(document, prefix)
            return says(inner, ("author",)) and any(fits(inner, one, ("author",)) for one in inside)
    names = [query.name] if query.name else defaults
    return any(fits_in(query, document, name) for name in names)


def fits_in(query: tree.Query, document: dict[str, Any], name: str) -> bool:
    """Whether a part without parts is true of a field."""
    found = list(values(document, name))
    kind = NUMBERS.get(name.rpartition(".")[2])
    match query:
        case tree.Exists():
            return bool(found)
        case tree.Range(_, low, high, includes_low, includes_high):
            known = found if kind else [word for word, _ in tokens(document, name)]
            if not kind and low is None and high is None:
                return bool(found)
            make: Any = kind or str.lower
            return any(
                (low is None or make(low) < one or (includes_low and make(low) == one))
                and (high is None or one < make(high) or (includes_high and make(high) == one))
                for one in known
            )
        case tree.Term(_, text) if kind:
            return any(one == kind(text) for one in found)
        case tree.Distance():
            return any(metres(query, one) <= query.metres for one in found)
        case tree.Box(_, top, left, bottom, right):
            return any(
                bottom <= one["lat"] <= top
                and (
                    left <= one["lon"] <= right if left <= right else not right < one["lon"] < left
                )
                for one in found
            )
        case tree.Phrase(_, text, slop):
            return phrase(words(text), slop, tokens(document, name))
        case tree.Term(_, text, every):
            wanted = [word for word, _ in words(text)]
            known = {word for word, _ in tokens(document, name)}
            return all(one in known for one in wanted) if every else not known.isdisjoint(wanted)
    return any(like(query, word) for word, _ in tokens(document, name))


def phrase(wanted: list[tuple[str, int]], slop: int, known: list[tuple[str, int]]) -> bool:
    """Whether words are in a text, each at another place, and moved by so much at most."""
    places = [[i for word, i in known if word == one] for one, _ in wanted]
    for chosen in product(*places):
        moved = [place - offset for place, (_, offset) in zip(chosen, wanted, strict=True)]
        if len(set(chosen)) == len(chosen) and max(moved) - min(moved) <= slop:
            return True
    return False


def like(query: tree.Query, word: str) -> bool:
    """Whether a word is one of a pattern's."""
    match query:
        case tree.Prefix(_, text):
            return word.startswith(text.lower())
        case tree.Wildcard(_, text):
            pattern = re.escape(text.lower()).replace(r"\*", ".*").replace(r"\?", ".")
            return re.fullmatch(pattern, word) is not None
        case tree.Regex(_, text):
            return re.fullmatch(text, word) is not None
        case tree.Fuzzy(_, text, edits):
            return distance(text, word) <= edits
    raise AssertionError(query)


def distance(a: str, b: str) -> int:
    """Insertions, deletions, replacements and swaps of neighbours between two words."""
    rows = [
        [max(i, j) if min(i, j) == 0 else 0 for j in range(len(b) + 1)] for i in range(len(a) + 1)
    ]
    for i, j in product(range(1, len(a) + 1), range(1, len(b) + 1)):
        rows[i][j] = min(
            rows[i - 1][j] + 1, rows[i][j - 1] + 1, rows[i - 1][j - 1] + (a[i - 1] != b[j - 1])
        )
        if i > 1 and j > 1 and a[i - 1] == b[j - 2] and a[i - 2] == b[j - 1]:
            rows[i][j] = min(rows[i][j], rows[i - 2][j - 2] + 1)
    return rows[-1][-1]


def metres(query: tree.Distance, point: dict[str, float]) -> float:
    """Between two points on the earth."""
    a, b = math.radians(query.latitude), math.radians(point["lat"])
    width = math.radians(query.longitude - point["lon"])
    h = math.sin((a - b) / 2) ** 2 + math.cos(a) * math.cos(b) * math.sin(width / 2) ** 2
    return 2 * 6_371_008.7714 * math.asin(min(1.0, math.sqrt(h)))

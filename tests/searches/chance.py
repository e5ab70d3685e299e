"""Random documents and queries, of few words, so that they meet."""

from __future__ import annotations

import datetime as dt
from random import Random
from typing import Any

import pyarrow as pa
from tests.searches.reference import DEFAULTS, STOP_WORDS

from penstock.searches import tree
from penstock.searches.analysis import Analyzer
from penstock.searches.fields import Fields

WORDS = [
    "a",
    "ab",
    "ba",
    "abc",
    "bac",
    "cab",
    "abcd",
    "storm",
    "storms",
    "stern",
    "star",
    "the",
    "of",
    "sea",
    "seas",
    "see",
    "x1",
    "2024",
]
COMMENT = pa.struct([("author", pa.string()), ("stars", pa.int32())])
SCHEMA = pa.schema(
    [
        ("title", pa.string()),
        ("tags", pa.list_(pa.string())),
        ("price", pa.float64()),
        ("at", pa.timestamp("us", "UTC")),
        ("place", pa.struct([("lat", pa.float64()), ("lon", pa.float64())])),
        ("comments", pa.list_(COMMENT)),
    ]
)
FIELDS = Fields(SCHEMA, DEFAULTS, Analyzer(stop_words=STOP_WORDS))
DAY = dt.datetime(2024, 2, 27, tzinfo=dt.UTC)


def text(random: Random, most: int = 8) -> str:
    """Some words."""
    return " ".join(random.choice(WORDS) for _ in range(random.randint(0, most)))


def point(random: Random) -> dict[str, float]:
    """A place on the earth, often at its seams."""
    if random.random() < 0.5:
        return {
            "lat": random.choice([-90.0, 0.0, 90.0]),
            "lon": random.choice([-180.0, 0.0, 180.0]),
        }
    return {"lat": random.uniform(-90, 90), "lon": random.uniform(-180, 180)}


def document(random: Random) -> dict[str, Any]:
    """A document; each field may be missing."""
    comments = [
        {"author": random.choice([None, text(random, 3)]), "stars": random.randint(1, 4)}
        for _ in range(random.randint(0, 3))
    ]
    made: dict[str, Any] = {
        "title": text(random),
        "tags": [random.choice([None, text(random, 3)]) for _ in range(random.randint(0, 3))],
        "price": random.choice([random.randint(-3, 3), random.uniform(-3, 3)]),
        "at": DAY + dt.timedelta(hours=random.randint(0, 100)),
        "place": point(random),
        "comments": comments,
    }
    return {name: value if random.random() < 0.85 else None for name, value in made.items()}


def query(random: Random, depth: int = 3, *, is_inner: bool = False) -> tree.Query:
    """A query; those in elements of a list have other fields."""
    if depth and random.random() < 0.5:
        parts = [
            tuple(query(random, depth - 1, is_inner=is_inner) for _ in range(random.randint(0, 3)))
            for _ in range(3)
        ]
        if random.random() < 0.5:
            parts[2] = ()
        if any(parts):
            return tree.Boolean(*parts, minimum=random.choice([None, None, 1, 2, 3]))
    if random.random() < 0.05:
        return tree.Boost(query(random, 0, is_inner=is_inner), 2.0)
    if is_inner:
        return random.choice([lambda: words(random, "author"), lambda: ordered(random, "stars")])()
    return random.choice(
        [lambda: words(random, random.choice([None, "title", "tags", "comments.author"]))] * 5
        + [lambda: ordered(random, random.choice(["price", "at", "comments.stars"]))]
        + [lambda: geo(random), lambda: other(random)]
    )()


def words(random: Random, name: str | None) -> tree.Query:
    """A part about texts."""
    word = random.choice(WORDS)
    low, high = (random.choice([None, random.choice(WORDS)]) for _ in range(2))
    pattern = random.choice(
        ["*", "?*", "a*", "*a", "s?a*", "*t*r*", "*tor*", "*rms", "s*torm*", "??", "st*m"]
    )
    return random.choice(
        [
            lambda: tree.Term(name, word),
            lambda: tree.Term(name, text(random, 3), every=random.random() < 0.5),
            lambda: tree.Phrase(name, text(random, 4), random.choice([0, 0, 1, 2, 5])),
            lambda: tree.Prefix(name, word[: random.randint(1, 3)]),
            lambda: tree.Wildcard(name, pattern),
            lambda: tree.Fuzzy(name, word, random.randint(1, 2)),
            lambda: tree.Regex(
                name, random.choice(["a.*", "(ab|ba).?", "[s-t]t?[^x]*", "x[0-9]+", ".*m"])
            ),
            lambda: tree.Range(name, low, high, random.random() < 0.5, random.random() < 0.5),
        ]
    )()


def ordered(random: Random, name: str) -> tree.Query:
    """A part about numbers or times."""

    def bound() -> str:
        if name == "at":
            return (DAY + dt.timedelta(hours=random.randint(0, 100), microseconds=1)).isoformat()
        number = random.randint(-3, 3)
        return str(number)

    if random.random() < 0.3 and name != "at":
        return tree.Term(name, bound())
    low, high = (random.choice([None, bound()]) for _ in range(2))
    if (
        name == "at"
    ):  # a bound is a microsecond: whether it belongs to the range counts for none of these
        return tree.Range(name, low, high)
    return tree.Range(name, low, high, random.random() < 0.5, random.random() < 0.5)


def geo(random: Random) -> tree.Query:
    """A part about places."""
    a, b = point(random), point(random)
    if random.random() < 0.5:
        far = random.choice([0.0, 1000.0, 1e6, 1e7, 3e7])
        return tree.Distance("place", a["lat"], a["lon"], far)
    top, bottom = max(a["lat"], b["lat"]), min(a["lat"], b["lat"])
    return tree.Box("place", top, a["lon"], bottom, b["lon"])


def other(random: Random) -> tree.Query:
    """A part about values as such, and about elements of lists."""
    return random.choice(
        [
            lambda: tree.All(),
            lambda: tree.Exists(random.choice([None, *SCHEMA.names])),
            lambda: tree.Nested("comments", query(random, 2, is_inner=True)),
        ]
    )()

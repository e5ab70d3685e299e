"""Stored searches: equal to each document read with each search, one by one."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.effort import examples
from tests.ops.contract import Contract, delta

from penstock.ops.joins import percolate, searches
from penstock.ops.joins.percolate import Percolate
from penstock.searches.fields import MEANING, Fields

DOCUMENTS = pa.schema([("id", pa.int64()), ("title", pa.string()), ("body", pa.string())])
QUERIES = pa.schema([("who", pa.string()), ("q", pa.string())])
STREAM = Percolate(
    documents=DOCUMENTS,
    queries=QUERIES,
    query="q",
    columns=("title", "body"),
    fields=Fields(
        pa.schema([DOCUMENTS.field("title"), DOCUMENTS.field("body")]), ("title", "body")
    ),
    by=("id",),
    kept=False,
    meaning=MEANING,
)
TABLE = replace(STREAM, kept=True, keys=("id", "who", "q"))

words = st.lists(st.sampled_from(["red", "green", "blue", "Red"]), max_size=3).map(" ".join)
document = st.tuples(st.integers(0, 3), st.none() | words, words)
search = st.tuples(
    st.sampled_from(["ann", "bob", None]),
    st.sampled_from(["red", "blue", "+red +green", "red -blue", "*:*", "green blue", "nowhere"])
    | st.none(),
)
batch = st.tuples(st.lists(document, max_size=4), st.lists(search, max_size=4))


def meets(query: str | None, document: Any) -> bool:
    """Whether a document has the words that a search asks for."""
    there = " ".join(text or "" for text in document[1:]).lower().split()
    parts = [] if query is None else query.split()
    must = [one[1:] for one in parts if one.startswith("+")]
    mustnt = [one[1:] for one in parts if one.startswith("-")]
    some = [one for one in parts if one[0] not in "+-"]
    asked = all(one in there for one in must) and not any(one in there for one in mustnt)
    return asked and (bool(must) or any(one == "*:*" or one in there for one in some))


def naive(documents: Iterable[Any], queries: Counter[Any]) -> Counter[Any]:
    """All pairs, one by one."""
    found: Counter[Any] = Counter()
    for one in documents:
        for query, n in queries.items():
            if meets(query[1], one):
                found[(*one, *query)] += n
    return found


def moved(chance: random.Random, there: Counter[Any], come: Iterable[Any]) -> list[tuple[Any, int]]:
    """Some rows that go, and rows that come; `there` becomes what is there then."""
    rows = list(there.elements())
    changes = [(row, -1) for row in chance.sample(rows, chance.randint(0, len(rows)))]
    changes += [(row, 1) for row in come]
    for row, weight in changes:
        there[row] += weight
    for row in [row for row, n in there.items() if not n]:
        del there[row]
    return changes


def weighted(schema: pa.Schema, changes: list[tuple[Any, int]]) -> pa.Table:
    return delta(schema, [row for row, _ in changes], weights=[n for _, n in changes])


@settings(max_examples=examples(20))
@given(st.lists(batch, max_size=6), st.integers(1, 3), st.integers())
def test_documents_of_a_stream_meet_the_searches_of_their_batch(
    batches: list[Any], shards: int, seed: int
) -> None:
    """Searches come and go, some are there twice; what was given stays."""
    chance = random.Random(seed)
    run = Contract(STREAM, shards=shards, chance=chance)
    queries: Counter[Any] = Counter()
    wanted: Counter[Any] = Counter()
    for documents, come in batches:
        changes = moved(chance, queries, come)
        times = [chance.randint(0, 9) for _ in documents]
        run.step([delta(DOCUMENTS, documents, times=times), weighted(QUERIES, changes)])
        wanted += naive(documents, queries)
        assert run.late == [[], []]
        assert run.total() == wanted


@pytest.mark.slow
@settings(max_examples=examples(20))
@given(st.lists(batch, max_size=6), st.integers(1, 3), st.integers(), st.booleans())
def test_matches_of_a_table_follow_documents_and_searches(
    batches: list[Any], shards: int, seed: int, small: bool
) -> None:
    """Either side's rows come and go; what followers see and what readers see is what matches now."""
    chance = random.Random(seed)
    run = Contract(TABLE, shards=shards, chance=chance)
    documents: Counter[Any] = Counter()
    queries: Counter[Any] = Counter()
    with pytest.MonkeyPatch.context() as patch:
        if small:
            patch.setattr(percolate, "CHUNK_ROWS", 2)
            patch.setattr(percolate, "PAIRS_MAX", 3)
        for come, asked in batches:
            some = moved(chance, documents, come), moved(chance, queries, asked)
            run.step([weighted(DOCUMENTS, some[0]), weighted(QUERIES, some[1])])
            wanted = naive(documents.elements(), queries)
            assert run.total() == wanted
            assert run.view() == wanted
    both = [(row, -n) for row, n in documents.items()], [(row, -n) for row, n in queries.items()]
    run.step([weighted(DOCUMENTS, both[0]), weighted(QUERIES, both[1])])
    assert not run.total()
    assert not run.view()


def test_matches_say_how_well_they_match_and_by_which_terms() -> None:
    """The score and the terms are columns of the result, of readers and of followers."""
    operator = replace(TABLE, score="score", terms="terms")
    run = Contract(operator, shards=2)
    docs = [(1, "Red", "red and green"), (2, None, "blue")]
    asked = [("ann", "+red green"), ("bob", "red"), ("eve", "red")]
    run.step(
        [weighted(DOCUMENTS, [(d, 1) for d in docs]), weighted(QUERIES, [(q, 1) for q in asked])]
    )
    assert run.view() == run.total()
    found = {row[3]: row[5:] for row in run.view()}
    assert {who: sorted(terms) for who, (_, terms) in found.items()} == {
        "ann": ["green", "red"],
        "bob": ["red"],
        "eve": ["red"],
    }
    assert found["ann"][0] > found["bob"][0] == found["eve"][0] > 0


@pytest.mark.parametrize("gone", ["document", "search"])
def test_what_goes_takes_back_what_was_given(gone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is matched again for it: a release that analyses texts in another way takes back the same."""
    run = Contract(TABLE, shards=2)
    documents = [((1, "Red", "x"), 1), ((2, "blue", "y"), 1)]
    asked = [(("ann", "red"), 1), (("bob", "red"), 1), (("eve", "blue"), 1)]
    run.step([weighted(DOCUMENTS, documents), weighted(QUERIES, asked)])
    assert len(run.total()) == 3

    def matches(stored: Any, documents: pa.Table, **_: Any) -> pa.Table:
        nothing = np.zeros(0, np.int64)
        return pa.table({"document": nothing, "query": nothing})

    monkeypatch.setattr(searches.Stored, "matches", matches)
    back = [(row, -1) for row, _ in (documents if gone == "document" else asked)]
    empty = (weighted(DOCUMENTS, []), weighted(QUERIES, []))
    if gone == "document":
        run.step([weighted(DOCUMENTS, back), empty[1]])
    else:
        run.step([empty[0], weighted(QUERIES, back)])
    assert not run.total()
    assert not run.view()


class Counting:
    """Searches that are compiled from now on."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.texts: list[str] = []
        real = searches.Stored.add

        def add(stored: Any, texts: Any) -> Any:
            self.texts += texts
            return real(stored, texts)

        patch.setattr(searches.Stored, "add", add)


def test_what_is_compiled_is_kept_and_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """A text is compiled once for all shards, rows and attempts, until its last row goes."""
    monkeypatch.setattr(searches, "KEPT", searches._Kept())
    counting = Counting(monkeypatch)
    run = Contract(STREAM, shards=3)
    run.is_cut = False
    none = delta(DOCUMENTS, [], times=[])
    first = [("ann", "red"), ("bob", "red"), ("ann", "blue")]
    run.step([none, weighted(QUERIES, [(row, 1) for row in first])])
    assert sorted(counting.texts) == ["blue", "red"]
    run.step([none, weighted(QUERIES, [(("ann", "red"), -1), (("eve", "green"), 1)])])
    assert sorted(counting.texts) == ["blue", "green", "red"]
    run.step([delta(DOCUMENTS, [(1, "red", "green")], times=[0]), weighted(QUERIES, [])])
    assert run.total() == {
        (1, "red", "green", who, q): 1 for who, q in (("bob", "red"), ("eve", "green"))
    }
    assert len(counting.texts) == 3


def test_a_process_without_a_version_makes_it_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a restart, and where compiling failed half-way, the searches are those of the state."""
    monkeypatch.setattr(searches, "KEPT", searches._Kept())
    monkeypatch.setattr(searches, "SUMS", searches._Sums())
    run = Contract(STREAM, shards=1)
    none = delta(DOCUMENTS, [], times=[])
    rows = [(f"user{i % 7}", f"word{i % 50}") for i in range(200)]
    run.step([none, weighted(QUERIES, [(row, 1) for row in set(rows)])])
    searches.KEPT.by_name.clear()
    searches.SUMS.known.clear()
    with monkeypatch.context() as patch:

        def add(*_: Any) -> None:
            raise MemoryError

        patch.setattr(searches.Stored, "add", add)
        with pytest.raises(MemoryError):
            run.step([none, weighted(QUERIES, [(("eve", "word7 more"), 1)])])
    run.step([delta(DOCUMENTS, [(1, None, "word7")], times=[0]), weighted(QUERIES, [])])
    assert run.total() == naive([(1, None, "word7")], Counter(set(rows)))


@settings(max_examples=examples(40))
@given(st.lists(st.tuples(st.sets(st.integers(0, 30)), st.booleans()), max_size=12))
def test_texts_are_found_by_hash_and_number(steps: list[Any]) -> None:
    """Texts whose hashes are the same are told apart; those that are gone are not found."""
    texts, there, newest = searches.Texts(), dict[int, int](), 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(searches, "PART_ROWS_MIN", 2)
        for some, comes in steps:
            mine = sorted(some - there.keys() if comes else some)
            column = pa.array([f"text {i}" for i in mine], pa.string())
            hashes = np.array([i % 3 for i in mine], np.int64)
            if comes:
                numbers = np.arange(newest, newest + len(mine))
                newest += len(mine)
                there |= dict(zip(mine, numbers.tolist(), strict=True))
                texts.add(numbers, hashes, column)
            else:
                gone = [there.pop(i) for i in mine if i in there]
                assert sorted(texts.remove(hashes, column).tolist()) == sorted(gone)
            texts.check()
            assert len(texts) == len(there)
            by_number = {
                number: f"text {i}" for i, number in sorted(there.items(), key=lambda x: x[1])
            }
            _, found = texts.of(np.array([*by_number], np.int64))
            assert found.to_pylist() == [*by_number.values()]

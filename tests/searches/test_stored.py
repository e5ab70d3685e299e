"""The index of stored queries: what matches, what that costs, and what is refused."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from tests.searches import chance, reference
from tests.searches.chance import FIELDS, SCHEMA

from penstock.searches import analysis, shelf
from penstock.searches.analysis import Analyzer
from penstock.searches.fields import Fields
from penstock.searches.stored import Stored


def pairs(found: pa.Table) -> list[tuple[int, int]]:
    """Documents and queries that match."""
    return list(zip(found["document"].to_pylist(), found["query"].to_pylist(), strict=True))


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("seed", range(16))
def test_matches_are_those_of_the_definitions(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever was added, removed and asked before, each query matches what it says."""
    monkeypatch.setattr(shelf, "REMOVED_MIN", 20)
    random = Random(seed)
    stored = Stored(FIELDS)
    queries: dict[int, Any] = {}
    for _ in range(4):
        for _ in range(20):
            query = chance.query(random)
            queries[stored.store(query)] = query
        gone = random.sample(sorted(queries), random.choice([0, 10, 20]))
        stored.remove(gone)
        stored.check()
        for one in gone:
            del queries[one]
        documents = [chance.document(random) for _ in range(random.randint(0, 12))]
        found = stored.matches(pa.Table.from_pylist(documents, SCHEMA))
        expected = [
            (i, number)
            for i, document in enumerate(documents)
            for number, query in queries.items()
            if reference.matches(query, document)
        ]
        for one in set(pairs(found)) ^ set(expected):
            raise AssertionError((one in expected, queries.get(one[1]), documents[one[0]]))
        assert pairs(found) == expected


def asked(texts: list[str], documents: list[dict[str, Any]], **options: Any) -> Stored:
    """Stores queries and lets documents run past."""
    stored = Stored(options.pop("fields", FIELDS))
    _, refused = stored.add(texts)
    assert not refused
    stored.matches(pa.Table.from_pylist(documents, SCHEMA))
    return stored


def test_candidates_are_few() -> None:
    """A document is compared with the queries that it has a necessary term of, not with all."""
    stored = asked([f"storm AND word{i}" for i in range(1000)], [{"title": "storm word7 word8"}])
    facts = stored.facts()
    assert (facts.queries, facts.candidates, facts.unindexed) == (1000, 2, 0)


def test_queries_are_listed_under_what_documents_rarely_have() -> None:
    """Once documents were seen, a term that they all have leads to no candidates."""
    stored = asked(
        [f"commonplace AND w{i}" for i in range(10)],
        [{"title": "commonplace w11 w12"} for _ in range(100)],
    )
    before = stored.facts().candidates
    stored.matches(pa.Table.from_pylist([{"title": "commonplace w13"}], SCHEMA))
    assert stored.facts().candidates == before


@pytest.mark.parametrize(
    ("text", "candidates"),
    [
        ("price:[10 TO 11]", 0),
        ("price:[1 TO 3]", 1),
        ("at:2024-03", 1),
        ("at:2023", 0),
        ("place:distance(52, 13, 10km)", 1),
        ("place:distance(10, 13, 10km)", 0),
        ("comments:nested(author:anna AND stars:>3)", 0),
        ("comments:nested(author:anna)", 1),
        ("stormy*", 0),
        ("storn~1", 1),
        ("*orm", 1),
        ("*urn", 0),
        ("(hurricane flooding thunder storm)@2", 0),
        ("NOT storm", 1),
        ("*:*", 1),
    ],
)
def test_all_forms_are_indexed(text: str, candidates: int) -> None:
    """Ranges, points, patterns and elements of lists lead to candidates as terms do."""
    document = {
        "title": "storm",
        "price": 2.0,
        "at": chance.DAY.replace(month=3),
        "place": {"lat": 52.01, "lon": 13.01},
        "comments": [{"author": "Anna", "stars": 3}, {"author": "Bob", "stars": 4}],
    }
    assert asked([text], [document]).facts().candidates == candidates


def test_what_cannot_be_indexed_is_counted() -> None:
    """A query without a necessary term is a candidate for each document."""
    stored = asked(["NOT storm", "*:*", "storm OR -wind", "+a -b"], [])
    assert stored.facts().unindexed == 2


def test_matches_have_their_words() -> None:
    """The words that matched are named as the document has them, and where they are, in characters."""
    stored = Stored(FIELDS)
    stored.add(['"north sea" OR storm* -wave', "tags:red", "price:3", "NOT storm"])
    documents = [
        {"title": "Über the North Sea: a sea storm, STORMS", "price": 3.0},
        {"tags": ["red", None, "not red"]},
    ]
    found = stored.matches(pa.Table.from_pylist(documents, SCHEMA), terms=True, highlights=True)
    rows = [(one["document"], one["query"], one["terms"]) for one in found.to_pylist()]
    assert rows == [
        (0, 0, ["north", "sea", "storm", "storms"]),
        (0, 2, []),
        (1, 1, ["red"]),
        (1, 3, []),
    ]
    first, *_, second, _ = found["highlights"].to_pylist()
    texts = [documents[0]["title"][one["start"] : one["end"]] for one in first]
    assert texts == ["North", "Sea", "storm", "STORMS"]
    assert [(one["field"], one["value"], one["start"], one["end"]) for one in second] == [
        ("tags", 0, 0, 3),
        ("tags", 1, 4, 7),
    ]


def test_scores_are_those_of_lucenes_monitor() -> None:
    """BM25 of a collection of one document: what Lucene 9.11's ScoringMatch gives."""
    stored = Stored(Fields(pa.schema([("body", pa.string())]), ("body",)))
    stored.add(["storm", "storm^2 sea", '"north sea"', "+storm +st*", "sto?m", "storm -wave"])
    found = stored.matches(pa.table({"body": ["a storm on the north sea storm"]}), scores=True)
    idf = math.log(1 + 0.5 / 1.5)
    twice, once = idf * 2 / 3.2, idf / 2.2
    expected = [twice, 2 * twice + once, 2 * once, twice + 1, 1, twice]
    assert found["score"].to_pylist() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("title:a AND pric:3", 12),
        ("price:cheap", 0),
        ("a OR price:[1 TO two]", 5),
        ("at:yesterday", 0),
        ("at:2024-13", 0),
        ("price:chea*", 0),
        ("place:berlin", 0),
        ("title:distance(1, 2, 3km)", 0),
        ("title:nested(a)", 0),
        ("comments:a", 0),
        ("comments:nested(price:3)", 16),
        (f"title:{'a' * 33}~", 0),
        (f'a OR title:"{"a " * 1025}"', 5),
        ("/a(/", 0),
        ("/a{2000}/", 0),
        ("/~a/", 0),
        (None, 0),
    ],
)
def test_queries_that_the_fields_cannot_answer_are_refused(text: str | None, at: int) -> None:
    """They are named with their reason and place; the others are stored."""
    stored = Stored(FIELDS)
    numbers, refused = stored.add(["storm", text, "sea"])
    assert numbers.tolist() == [0, -1, 1]
    (one,) = refused
    assert (one.row, one.at) == (1, at)
    assert one.reason.startswith("expected ")
    assert len(stored) == 2


def test_words_without_a_field_need_default_fields() -> None:
    """Where there are none, the error says so."""
    _, refused = Stored(Fields(SCHEMA)).add(["storm", "title:storm"])
    assert [one.row for one in refused] == [0]


def test_synonyms_of_several_words_are_found() -> None:
    """They are phrases in queries, either way round."""
    fields = Fields(SCHEMA, ("title",), Analyzer(synonyms=(("ny", "new york"), ("car", "auto"))))
    stored = Stored(fields)
    stored.add(["ny", '"new york"', "new AND york", "auto"])
    found = stored.matches(
        pa.Table.from_pylist(
            [{"title": one} for one in ("NY", "New York", "York new", "car")], SCHEMA
        )
    )
    assert pairs(found) == [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (2, 2), (3, 3)]


def test_a_phrase_of_one_word_is_no_burden() -> None:
    """A text of one repeated word is compared with a phrase of it in time that its length bounds."""
    stored = Stored(FIELDS)
    stored.add([f'"{"a " * 500} b"~3', f'"{"a " * 500}"~1000'])
    table = pa.Table.from_pylist([{"title": "a " * 5_000 + "b"}], SCHEMA)
    assert pairs(stored.matches(table)) == [(0, 0), (0, 1)]


def test_many_matches_of_a_document_have_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """More matches than the kernel has room for at once are all given."""
    monkeypatch.setattr("penstock.searches.stored.ROOM", 10)
    stored = Stored(FIELDS)
    stored.add(["storm"] * 100)
    table = pa.Table.from_pylist([{"title": "storm"}] * 5, SCHEMA)
    assert pairs(stored.matches(table)) == [(i, j) for i in range(5) for j in range(100)]


def test_vocabularies_begin_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process forgets words before they take its memory, and nothing changes by that."""
    monkeypatch.setattr(analysis, "WORDS_MAX", 3)
    stored = Stored(FIELDS)
    stored.add(["w5 AND st*", "w6"])
    for i in range(10):
        found = stored.matches(pa.Table.from_pylist([{"title": f"w{i} storm x{i} y{i}"}], SCHEMA))
        assert pairs(found) == {5: [(0, 0)], 6: [(0, 1)]}.get(i, [])

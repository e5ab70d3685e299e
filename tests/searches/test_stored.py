"""The index of stored queries, compared with the evaluation of each query on each document."""

from __future__ import annotations

from random import Random
from typing import Any

import pyarrow as pa
import pytest
from tests.searches import chance, reference
from tests.searches.chance import FIELDS, SCHEMA

from penstock.searches import shelf
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
        for _ in range(30):
            query = chance.query(random)
            queries[stored.store(query)] = query
        gone = random.sample(sorted(queries), random.choice([0, 10, 20]))
        stored.remove(gone)
        stored.check()
        for one in gone:
            del queries[one]
        documents = [chance.document(random) for _ in range(random.randint(0, 20))]
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

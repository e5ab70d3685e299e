"""Queries and documents that were given to Lucene's Monitor, and what it said."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from penstock.searches.analysis import Analyzer
from penstock.searches.fields import Fields
from penstock.searches.stored import Stored

SAID = Path(__file__).with_name("lucene.txt").read_text()


def test_matches_are_those_of_lucenes_monitor() -> None:
    """Random queries of all forms match the documents that Lucene 9.11 finds with StandardAnalyzer and the
    classic parser. (A group of negations alone matches nothing there; none is in the file.)
    """
    head, _, body = SAID.partition("\n\n")
    documents = head.splitlines()
    rows = [one.split("\t") for one in body.splitlines()]
    fields = Fields(pa.schema([("body", pa.string())]), ("body",), Analyzer(folds=False))
    stored = Stored(fields)
    numbers, refused = stored.add([query for query, _ in rows])
    assert not refused
    found = stored.matches(pa.table({"body": documents}))
    matched: dict[int, list[int]] = {one: [] for one in numbers.tolist()}
    for document, query in zip(
        found["document"].to_pylist(), found["query"].to_pylist(), strict=True
    ):
        matched[query].append(document)
    ours = [(query, matched[i]) for i, (query, _) in zip(numbers.tolist(), rows, strict=True)]
    assert ours == [(query, [int(one) for one in said.split()]) for query, said in rows]

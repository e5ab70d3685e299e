"""Stored searches: each document meets the searches of its version, which are a table.

    percolate(D, Q) = { d ++ q : d in D, q in Q, d matches q.query }

Of a stream, each document meets the searches that came up to its batch, once, and nothing of it is kept. Of a
table, what either side takes back takes its matches back, so its documents are kept, and what matched: new
documents meet all searches, new searches all documents, and what goes takes back what was kept of it.

All searches are on every shard, and documents are cut. A document then costs the same however many shards
there are, and documents are what there is more of: were the searches cut, each shard would analyse each
document. A search costs each shard its memory (`searches` in the state, and an index in the process, see
`penstock.ops.joins.searches`), and its time when it comes or goes.

A batch with new searches reads the documents of a table once, all of them; one in which searches go, what has
matched.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Annotated, ClassVar, Final

import numpy as np
import pyarrow as pa

from penstock.core import vectors
from penstock.core.delta import TIME, WATERMARK, WEIGHT
from penstock.core.vectors import Vector
from penstock.ops.codec import RARE
from penstock.ops.joins.searches import Compiler, Searches
from penstock.ops.operator import Context, Follow, Operator, Port, Step, Traits
from penstock.ops.routed import Routed, RowParcels, delta_of
from penstock.ops.state import State
from penstock.ops.windows import NO_TIME
from penstock.searches.fields import Fields
from penstock.searches.highlights import HIGHLIGHT
from penstock.state import kernels
from penstock.state.bag import COUNT, ROW, Bag, matches, plain, repeated, weights_of
from penstock.state.layout import HASH, WINDOW, Layout, concat, hashes, taken
from penstock.state.runs import Opened, gathered
from penstock.state.trace import Trace

__all__ = ["Percolate"]

DOCUMENTS: Final = 0
QUERIES: Final = 1
CHUNK_ROWS: Final = 4_096
"""Documents that are matched at a time."""
PAIRS_MAX: Final = 1 << 16
"""Matches that are given at a time: a document is there as often as it has some."""
SAID: Final = {
    "score": pa.float64(),
    "terms": pa.list_(pa.string()),
    "highlights": pa.list_(HIGHLIGHT),
}
"""What may be said of a match, as `Stored.matches` calls it."""
DOCUMENT: Final = "$document"  # int64, of a match: the document's hash, next to that of its key
SEARCH: Final = "$search"  # int64, likewise: the hash of the search's text
FOUND: Final = "$found"  # int64, likewise: that of its row


@dataclass(frozen=True)
class Percolate(Operator):
    """The operator.

    Args:
        documents: their columns.
        queries: the columns of the table of searches.
        query: the one of them that is a search.
        columns: of documents, of which the fields are made.
        fields: these columns, as searches name them.
        by: columns of documents that say on which shard one is, and where it is found.
        kept: whether documents are a table's, so that what matched may be taken back.
        meaning: of searches (`penstock.searches.fields.MEANING`): where it rises, matches are made anew.
        keys: columns of the result that identify its rows; none where nothing does.
        score: the column that says how well a document matches; None: there is none.
        terms: likewise the column of words that matched.
        highlights: likewise that of where they are.
    """

    kind: ClassVar[str] = "percolate"

    documents: pa.Schema
    queries: pa.Schema
    query: str
    columns: tuple[str, ...]
    fields: Fields
    by: tuple[str, ...]
    kept: bool
    meaning: int
    keys: tuple[str, ...] = ()
    score: Annotated[str | None, RARE] = None
    terms: Annotated[str | None, RARE] = None
    highlights: Annotated[str | None, RARE] = None

    # -- what it is ---------------------------------------------------------------------------------

    @cached_property
    def schema(self) -> pa.Schema:
        """The documents' columns, the searches', and what is said of a match."""
        return pa.schema([*self.documents, *self.queries, *self._said])

    @cached_property
    def _said(self) -> list[pa.Field]:
        """The columns that say more of a match."""
        return [pa.field(name, SAID[what]) for what, name in self._asked.items()]

    @cached_property
    def _asked(self) -> dict[str, str]:
        """What is said of a match, and the name of its column."""
        asked = {"score": self.score, "terms": self.terms, "highlights": self.highlights}
        return {what: name for what, name in asked.items() if name is not None}

    @cached_property
    def traits(self) -> Traits:
        """See `Operator`: of a stream nothing waits, so each document comes out whenever it comes."""
        queries = RowParcels(self.queries, weighted=True, everywhere=(self.query,))
        arranges = {"documents": self._documents} if self.kept else {}
        return Traits(
            schema=self.schema,
            ports=(Port(self._parcels, self.by, arranges=arranges), Port(queries)),
            keys=self.keys,
            follow=Follow.EACH,
            retracts=self.kept,
            timed=not self.kept,
            passes_late=not self.kept,
            everywhere=frozenset({"searches"}),
            keeps=self._layouts,
        )

    @cached_property
    def _parcels(self) -> RowParcels:
        is_stream = not self.kept
        return RowParcels(self.documents, timed=is_stream, marked=is_stream, weighted=self.kept)

    @cached_property
    def _layouts(self) -> Mapping[str, Layout]:
        kept = {"documents": self._documents.layout, "matches": self._matches.layout}
        return {"searches": self._searches.layout, **(kept if self.kept else {})}

    def frontier(self, inputs_us: Sequence[int]) -> int:
        """See `Operator`: documents wait for nothing."""
        return NO_TIME if self.kept else inputs_us[DOCUMENTS]

    # -- state --------------------------------------------------------------------------------------

    def step(self, state: State, inputs: Sequence[Sequence[Routed]], context: Context) -> Step:
        """See `Operator`."""
        documents, queries = inputs
        before, delta = state.traces["searches"], delta_of(self._searches, queries)
        made = context.appended(state, {"searches": delta})
        come = self._come(documents, context)
        moves = _Moves(self, state, come, delta) if self.kept else None
        new = come if moves is None else moves.new_documents
        with self._compiler.held(before, delta) as searches:
            self._compiler.remember(made.traces["searches"], searches)
            is_asked = self.kept or self.gives
            found = [_matched(searches, part) for part in self._parts(new)] if is_asked else []
        if moves is None:
            given = self._given(made.traces["searches"], found)
            return Step(made, self._nothing, more=given) if self.gives else Step(made)
        pairs = self._pairs(moves, made.traces["searches"], found)
        changes = self._changes(pairs, state, come, delta)
        made = context.appended(made, {"documents": come, "matches": pairs})
        return Step(made, self._none, more=changes) if self.gives else Step(made)

    def _come(self, parts: Sequence[Routed], context: Context) -> pa.RecordBatch:
        """The documents of a batch: a table's as a delta of those that are kept."""
        if self.kept:
            made = context.arranged("documents").delta
            return made(partial(delta_of, self._documents, parts))
        return Routed.combine(parts).batch if parts else self._parcels.empty()

    def scan(
        self,
        state: State,
        lo_us: int | None = None,  # noqa: ARG002
        hi_us: int | None = None,  # noqa: ARG002
    ) -> Iterator[pa.RecordBatch]:
        """See `Operator`: what matched is kept, and put together with documents and searches."""
        if not self.kept:
            return
        rows = self._searches.sum(list(state.traces["searches"].scan()))
        for documents in state.traces["documents"].scan(chunk_rows=CHUNK_ROWS):
            wanted = self._documents.wanted(documents, hashes(documents), None)
            pairs = self._matches.find(state.traces["matches"], wanted)
            here = _places(_of_document(pairs), _of_row(documents))
            pairs = pairs.filter(pa.array(here >= 0))  # others are of a document in another chunk
            for part in _slices(pairs):
                yield from self._joined(repeated(part), documents, rows).to_batches()

    # -- a stream's ---------------------------------------------------------------------------------

    def _given(self, trace: Trace, found: Iterable[_Matched]) -> Iterator[pa.Table]:
        """Documents of a stream with the rows of their searches, some at a time."""
        for one in found:
            rows = self._rows_of(trace, one)
            which, there = self._expanded(one, rows)
            times = weights_of(rows)[there]
            if (times != 1).any():
                which, there = np.repeat(which, times), np.repeat(there, times)
            for lo in range(0, len(which), PAIRS_MAX):
                at = slice(lo, lo + PAIRS_MAX)
                yield self._table(one, rows, which[at], there[at])

    def _table(self, one: _Matched, rows: pa.RecordBatch, which: Vector, there: Vector) -> pa.Table:
        """Rows of the result, with `$time` and `$watermark`.

        Args:
            one: what matched.
            rows: of the searches.
            which: int64[n], positions in what matched.
            there: int64[n], positions in the rows.
        """
        document = vectors.from_int64(one.document[which])
        columns = taken(one.documents.select(self.documents.names), one.document[which]).columns
        columns += taken(rows.select(self.queries.names), there).columns
        columns += [column.take(vectors.from_int64(which)) for column in self._sayings(one)]
        made = pa.Table.from_arrays(columns, schema=self.schema)
        for name in (TIME, WATERMARK):
            made = made.append_column(name, one.documents.column(name).take(document))
        return made

    # -- a table's ----------------------------------------------------------------------------------

    def _pairs(self, moves: _Moves, now: Trace, found: Iterable[_Matched]) -> pa.RecordBatch:
        """How what matches changes: what was kept, by what goes; and what comes, matched.

        Args:
            moves: the changes of both sides.
            now: the searches' rows with this batch.
            found: what matches of the new documents.
        """
        pairs = [self._matches.layout.empty(), *moves.of_kept()]
        pairs += (self._paired(one, self._rows_of(now, one)) for one in found)
        if len(moves.new_searches):
            searches = self._compiler.of(moves.new_searches)
            parts = map(self._part, moves.documents_that_stay())
            pairs += (self._paired(_matched(searches, one), moves.new_searches) for one in parts)
        return self._matches.sum(pairs)

    def _paired(self, one: _Matched, rows: pa.RecordBatch) -> pa.RecordBatch:
        """What matched, with rows of searches, as it is kept; yet to be sorted."""
        which, there = self._expanded(one, rows)
        documents = taken(one.documents, one.document[which])
        columns = [documents.column(name) for name in self.by]
        columns += [documents.column(ROW), *taken(rows.select([HASH, ROW]), there).columns]
        columns += [column.take(vectors.from_int64(which)) for column in self._sayings(one)]
        made = pa.RecordBatch.from_arrays(columns, schema=self._matches.schema)
        weights = weights_of(documents) * weights_of(rows)[there]
        return self._matches.spread(made, hashes(documents), weights, None)

    def _changes(
        self, pairs: pa.RecordBatch, before: State, come: pa.RecordBatch, delta: pa.RecordBatch
    ) -> Iterator[pa.Table]:
        """What goes, then what comes, some at a time.

        Args:
            pairs: that do.
            before: the state as it was.
            come: how documents change.
            delta: how searches do.
        """
        documents, searches = before.traces["documents"], before.traces["searches"]
        for sign in (-1, 1):
            for part in _slices(pairs.filter(pa.array(weights_of(pairs) * sign > 0))):
                wanted = self._documents.wanted(part, hashes(part), None)
                mine = come.filter(pa.array(np.isin(hashes(come), hashes(part))))
                rows = concat([delta, *_of_hashes(searches, _longs(part, SEARCH))])
                made = self._joined(part, concat([mine, *documents.lookup(wanted)[1]]), rows)
                weights = vectors.from_int64(weights_of(part))
                yield made.append_column(pa.field(WEIGHT, pa.int64()), weights)

    def _joined(
        self, pairs: pa.RecordBatch, documents: pa.RecordBatch, rows: pa.RecordBatch
    ) -> pa.Table:
        """Rows of the result, without their weights.

        Args:
            pairs: that are kept.
            documents: among which those of all pairs are; one may be there several times.
            rows: likewise of the searches.
        """
        here = _places(_of_document(pairs), _of_row(documents))
        there = _places(_of_search(pairs), _of_row(rows))
        assert (here >= 0).all(), "what matched is kept as long as its document"
        assert (there >= 0).all(), "and its search"
        columns = taken(documents.select(self.documents.names), here).columns
        columns += taken(rows.select(self.queries.names), there).columns
        columns += [pairs.column(field.name) for field in self._said]
        return pa.Table.from_arrays(columns, schema=self.schema)

    # -- what matches -------------------------------------------------------------------------------

    def _parts(self, rows: pa.RecordBatch) -> Iterator[_Part]:
        """Documents, some at a time."""
        for lo in range(0, len(rows), CHUNK_ROWS):
            yield self._part(rows.slice(lo, CHUNK_ROWS))

    def _part(self, rows: pa.RecordBatch) -> _Part:
        """Some documents, and what their fields are."""
        columns = [rows.column(name) for name in self.columns]
        fields = pa.Table.from_arrays(columns, schema=self.fields.schema)
        return _Part(rows, fields, frozenset(self._asked))

    def _sayings(self, one: _Matched) -> list[pa.Array]:
        """The columns that say more of what matched."""
        return [vectors.contiguous(one.found.column(what)) for what in self._asked]

    def _rows_of(self, trace: Trace, one: _Matched) -> pa.RecordBatch:
        """The rows of the searches that matched: sorted, each once."""
        keys = pa.RecordBatch.from_arrays([one.texts], names=[self.query])
        return self._searches.find(trace, self._searches.wanted(keys, one.hashes, None))

    def _expanded(self, one: _Matched, rows: pa.RecordBatch) -> tuple[Vector, Vector]:
        """Each match with each row of its search: positions in what matched, and in the rows."""
        zeros = vectors.from_int64(np.zeros(len(one.texts), np.int64))
        columns = [zeros, vectors.from_int64(one.hashes), one.texts]
        asked = pa.RecordBatch.from_arrays(columns, schema=self._searches.place.schema)
        search, row = matches(asked, rows, [(self.query, self.query)])
        ends = np.cumsum(np.bincount(search, minlength=len(asked)), dtype=np.int64)
        starts = np.concatenate([[0], ends[:-1]]).astype(np.int64)
        lo, hi = starts[one.search], ends[one.search]
        total = int((hi - lo).sum())
        which, at = np.empty(total, np.int64), np.empty(total, np.int64)
        kernels.expand(lo, hi, which, at)
        return which, row[at]

    # -- how it is laid out -------------------------------------------------------------------------

    @cached_property
    def _compiler(self) -> Compiler:
        spec = self.to_spec()
        name = json.dumps([spec[part] for part in ("fields", "queries", "query")])
        return Compiler(self._searches, self.fields, name)

    @cached_property
    def _searches(self) -> Bag:
        return Bag(plain(self.queries), (self.query,))

    @cached_property
    def _documents(self) -> Bag:
        return Bag(plain(self.documents), self.by)

    @cached_property
    def _matches(self) -> Bag:
        """Of what matched: under the key of its document, hashes of this, of the search and of its row."""
        found = [pa.field(name, pa.int64()) for name in (DOCUMENT, SEARCH, FOUND)]
        by = [pa.field(name, self.documents.field(name).type) for name in self.by]
        return Bag(pa.schema([*by, *found, *self._said]), self.by)

    @cached_property
    def _none(self) -> pa.Table:
        """No changes."""
        return self.schema.append(pa.field(WEIGHT, pa.int64())).empty_table()

    @cached_property
    def _nothing(self) -> pa.Table:
        """No rows of a stream."""
        times = [self._parcels.schema.field(name) for name in (TIME, WATERMARK)]
        return pa.schema([*self.schema, *times]).empty_table()


@dataclass(frozen=True)
class _Moves:
    """How both sides of a table change in a batch.

    What was kept of matches says what is taken back, and nothing is matched again for it: so nothing is taken
    back that wasn't given, also where a release analyses texts in another way.

    Attributes:
        of: the operator.
        before: its state.
        come: how documents change.
        delta: how searches do.
    """

    of: Percolate
    before: State
    come: pa.RecordBatch
    delta: pa.RecordBatch

    @cached_property
    def new_documents(self) -> pa.RecordBatch:
        """Those that weren't there."""
        return self.come.filter(pa.array((self._had == 0) & (weights_of(self.come) > 0)))

    @cached_property
    def new_searches(self) -> pa.RecordBatch:
        """Likewise."""
        return self.delta.filter(pa.array((self._asked == 0) & (weights_of(self.delta) > 0)))

    @cached_property
    def _had(self) -> Vector:
        """int64[n]: how often each document of the batch was there."""
        bag, trace = self.of._documents, self.before.traces["documents"]  # noqa: SLF001
        there = bag.find(trace, bag.wanted(self.come, hashes(self.come), None))
        return _weights(_of_row(self.come), there)

    @cached_property
    def _asked(self) -> Vector:
        """int64[n]: likewise each search."""
        bag, trace = self.of._searches, self.before.traces["searches"]  # noqa: SLF001
        there = bag.find(trace, bag.wanted(self.delta, hashes(self.delta), None))
        return _weights(_of_row(self.delta), there)

    def of_kept(self) -> Iterator[pa.RecordBatch]:
        """How what is kept changes with documents and searches that were there: w(d) x w(q), of each pair."""
        bag, trace = self.of._matches, self.before.traces["matches"]  # noqa: SLF001
        pairs = bag.find(trace, bag.wanted(self.come, hashes(self.come), None))
        of = _places(_of_document(pairs), _of_row(self.come))
        pairs, of = pairs.filter(pa.array(of >= 0)), of[of >= 0]
        had = self._had[of]
        asked = weights_of(pairs) // np.maximum(had, 1)
        more = _weights(_of_search(pairs), self.delta)
        yield _weighing(pairs, (had + weights_of(self.come)[of]) * (asked + more))
        if not self._asked.any():
            return
        for chunk in trace.scan():
            of = _places(_of_search(chunk), _of_row(self.delta))
            mine = (of >= 0) & (_places(_of_document(chunk), _of_row(self.come)) < 0)
            chunk, of = chunk.filter(pa.array(mine)), of[mine]  # noqa: PLW2901
            asked = self._asked[of]
            had = weights_of(chunk) // np.maximum(asked, 1)
            yield _weighing(chunk, had * (asked + weights_of(self.delta)[of]))

    def documents_that_stay(self) -> Iterator[pa.RecordBatch]:
        """Those that were there and still are, as often as they are."""
        for chunk in self.before.traces["documents"].scan(chunk_rows=CHUNK_ROWS):
            now = weights_of(chunk) + _weights(_of_row(chunk), self.come)
            yield _weighed(chunk, now).filter(pa.array(now > 0))


@dataclass(frozen=True)
class _Part:
    """Some documents.

    Attributes:
        rows: as they are kept, or come.
        fields: of them, under the names that searches have for them.
        asked: what is to be said of a match.
    """

    rows: pa.RecordBatch
    fields: pa.Table
    asked: frozenset[str]


@dataclass(frozen=True)
class _Matched:
    """What matched of some documents.

    Attributes:
        documents: as they are kept, or come.
        found: what the index says of each match.
        search: int64[n], of each match the position of its search among the texts.
        hashes: int64[m], of the texts.
        texts: of the searches that matched, each once.
    """

    documents: pa.RecordBatch
    found: pa.Table
    search: Vector
    hashes: Vector
    texts: pa.Array

    @property
    def document(self) -> Vector:
        """int64[n], of each match the position of its document."""
        return vectors.raw(vectors.contiguous(self.found.column("document")))


def _matched(searches: Searches, part: _Part) -> _Matched:
    """What matches of some documents."""
    found = searches.stored.matches(
        part.fields,
        scores="score" in part.asked,
        terms="terms" in part.asked,
        highlights="highlights" in part.asked,
    )
    numbers, search = np.unique(found.column("query").to_numpy(), return_inverse=True)
    return _Matched(part.rows, found, search, *searches.texts.of(numbers))


def _slices(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    for lo in range(0, len(rows), PAIRS_MAX):
        yield rows.slice(lo, PAIRS_MAX)


def _longs(rows: pa.RecordBatch, name: str) -> Vector:
    return vectors.raw(rows.column(name))


def _of_document(pairs: pa.RecordBatch) -> tuple[Vector, Vector]:
    """What says which document a match is of: the hashes of its key, and of itself."""
    return hashes(pairs), _longs(pairs, DOCUMENT)


def _of_search(pairs: pa.RecordBatch) -> tuple[Vector, Vector]:
    """What says which row of a search it is of: the hashes of the search, and of the row."""
    return _longs(pairs, SEARCH), _longs(pairs, FOUND)


def _of_row(rows: pa.RecordBatch) -> tuple[Vector, Vector]:
    """The same of a bag's rows."""
    return hashes(rows), _longs(rows, ROW)


def _of_hashes(trace: Trace, asked: Vector) -> list[pa.RecordBatch]:
    """The rows of a trace of some hashes: some may be there several times, and gone."""
    some = np.unique(asked)
    columns = [vectors.from_int64(np.zeros(len(some), np.int64)), vectors.from_int64(some)]
    wanted = pa.RecordBatch.from_arrays(columns, names=[WINDOW, HASH])
    found: list[tuple[Opened, Vector]] = []
    for _, piece, lo, hi in trace.ranges(wanted):
        total = int((hi - lo).sum())
        which, at = np.empty(total, np.int64), np.empty(total, np.int64)
        kernels.expand(lo, hi, which, at)
        found.append((piece, at))
    return gathered(found, list(trace.layout.schema)) if found else []


def _weights(asked: tuple[Vector, Vector], known: pa.RecordBatch) -> Vector:
    """int64[n]: how often each row that is asked for, by its hashes, is among rows of a bag."""
    places = _places(asked, _of_row(known))
    found = np.zeros(len(places), np.int64)
    found[places >= 0] = weights_of(known)[places[places >= 0]]
    return found


def _weighing(rows: pa.RecordBatch, now: Vector) -> pa.RecordBatch:
    """Rows of a bag, with how much more often they are there now."""
    return _weighed(rows, now - weights_of(rows))


def _weighed(rows: pa.RecordBatch, weights: Vector) -> pa.RecordBatch:
    at = rows.schema.get_field_index(COUNT)
    return rows.set_column(at, rows.schema.field(at), vectors.from_int64(weights))


def _places(asked: tuple[Vector, Vector], known: tuple[Vector, Vector]) -> Vector:
    """int64[n]: where each pair of hashes that is asked for is among the known ones; -1: it isn't."""
    order, of_known = np.lexsort(asked[::-1]), np.lexsort(known[::-1])
    lo, hi = np.zeros(len(order), np.int64), np.zeros(len(order), np.int64)
    one, two = (column[order] for column in asked)
    kernels.find(one, two, *(column[of_known] for column in known), lo, hi)
    found = np.full(len(order), -1)
    there = hi > lo
    found[order[there]] = of_known[lo[there]]
    return found

"""Sessions: an incremental group-by over stretches of activity, each ended by a gap.

    session of a key = a maximal set of its rows in which each lies less than `gap` after the one before
    view(version)    = the sessions of all rows up to the version that were in time, with aggregates
    view(version)    = view(version - 1) ++ changes(version)

Rows become partial sessions where they are: a key's rows that chain up, as mergeable partial
aggregates, from `$start` to `$last`. A step puts them together with the key's open sessions; what
overlaps or lies less than the gap apart is one session. A row is late if it lies before its own
watermark, so none can reach a session that is closed (last + gap <= frontier): the result is that of
all rows in time at once, however batches were cut.

State. Three traces, so that a step looks at the open sessions of the keys that came, and at no others:

    open     (hash of the key, start) -> partial aggregates    a long session gains a row per batch
    agenda   (time, key, start)                                when to look whether a session has ended
    closed   (last, key, start) -> partial aggregates          for the view, as long as `keep` says

An open session's identity is its start. When it gets an earlier one, or becomes a part of another, the
row of the old start is emptied: its `$n` is 0. That start never comes again, as its row lies inside
another session from then on. Each open session has one entry on the agenda, at or before its last row.
When the frontier is a gap beyond the entry, the session is closed, or, where it has grown, entered again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any, ClassVar, Final

import numpy as np
import pyarrow as pa

from penstock.core import vectors
from penstock.core.delta import WEIGHT, expiring
from penstock.core.kernels import njit, types
from penstock.core.schema import TIMESTAMP
from penstock.core.vectors import Vector
from penstock.errors import SchemaError
from penstock.ops.aggregates import COUNT, Rows
from penstock.ops.codec import UNSAID
from penstock.ops.operator import Context, Prepared, Step, Traits
from penstock.ops.partials import (
    Hash,
    PartialParcels,
    Partials,
    checked,
    checked_times,
    group_layout,
    standard_hash,
)
from penstock.ops.routed import in_time
from penstock.ops.spec import Windowed
from penstock.ops.state import State
from penstock.ops.views import results, same_results, timed, weighted
from penstock.ops.windows import NO_TIME
from penstock.state.layout import HASH, WINDOW, Layout, Value, combine, concat, equal, hashes, take
from penstock.state.trace import ALWAYS, Trace

__all__ = ["SessionAggregate"]

OPEN: Final = "open"
AGENDA: Final = "agenda"
CLOSED: Final = "closed"
START: Final = "$start"  # int64, us: of a session's first row
LAST: Final = "$last"  # int64, us: of its last row

_I64 = types.Array(types.int64, 1, "C", readonly=True)
_I32 = types.Array(types.int32, 1, "C", readonly=True)
_BOOL = types.Array(types.boolean, 1, "C", readonly=True)
_W_I64 = types.int64[::1]
_W_I32 = types.int32[::1]
_NEVER: Final = -(2**63)
_STARTS: Final = pa.field(START, pa.int64())


@dataclass(frozen=True)
class _Joined:
    """The sessions of some keys: what was open, and partial sessions that came, put together.

    Attributes:
        rows: the open sessions, then the partial ones, then entries of the agenda, which count nothing.
        old: how many are open sessions, and `new`: partial ones.
        session: int32[rows], the number of the session that each is in.
        leads: bool[rows], whether it has its session's start.
        full: the sessions, in the order of their keys and starts.
    """

    rows: pa.RecordBatch
    old: int
    new: int
    session: Vector
    leads: Vector
    full: pa.RecordBatch

    @property
    def touched(self) -> Vector:
        """bool[sessions]: whether rows came."""
        return self._any(slice(self.old, self.old + self.new))

    @property
    def kept(self) -> Vector:
        """bool[sessions]: whether it was open under the same start."""
        return self._any(slice(0, self.old), leading=True)

    @property
    def fired(self) -> Vector:
        """bool[sessions]: whether its entry in the agenda is due."""
        return self._any(slice(self.old + self.new, None), leading=True)

    @property
    def lasts(self) -> Vector:
        """int64[sessions]: the time of the last row."""
        return vectors.raw(self.full.column(LAST))

    def _any(self, part: slice, *, leading: bool = False) -> Vector:
        found = np.zeros(len(self.full), np.bool_)
        which = self.session[part]
        found[which[self.leads[part]] if leading else which] = True
        return found


@dataclass(frozen=True)
class SessionAggregate(Windowed):
    """The operator.

    Args:
        spec: what is computed; its window is of the kind "session".
        hash: of key columns; a test may give a weak one.
    """

    kind: ClassVar[str] = "sessions"

    hash: Annotated[Hash, UNSAID] = field(default=standard_hash, repr=False)

    def __post_init__(self) -> None:
        assert self.spec.window.kind == "session"
        assert not self.spec.retracts, "rows that go make `RevisedSessions`"
        assert not self.spec.correct_us, "so do those that correct"
        assert not self.spec.kept, "values aren't kept here"

    @property
    def _identity(self) -> list[str]:
        """The columns that identify sessions; the first of the layout."""
        return [WINDOW, HASH, *self.keys, START]

    @cached_property
    def traits(self) -> Traits:
        """See `Operator`: what is open, and so may change, ends later than the input's frontier."""
        layouts = {OPEN: self._layout, AGENDA: self._agenda, CLOSED: self._layout}
        return self._traits(self._parcels, layouts, reads=self.spec.reads)

    @cached_property
    def _parcels(self) -> _Chains:
        return _Chains({OPEN: self._layout}, self._chained)

    def wakes(self, before_us: Sequence[int], now_us: Sequence[int]) -> bool:
        """See `Operator`: a session may end, or go, anywhere."""
        if now_us[0] == before_us[0]:
            return False
        return self.spec.closed or self.spec.keep_us is not None

    # --- where the rows are -------------------------------------------------------------------

    def prepare(self, port: int, rows: pa.Table) -> Prepared:  # noqa: ARG002
        """See `Operator`: a row is late if its own watermark has passed it."""
        here, late = in_time(rows)
        return Prepared(self.partials(here), late)

    def partials(self, rows: pa.Table | pa.RecordBatch) -> Partials:
        """Partial sessions of rows, whose columns are those of the spec.

        Raises:
            SchemaError: a column does not fit the spec, or rows are taken back.
        """
        if WEIGHT in rows.schema.names:
            raise SchemaError(
                f"expected rows without retractions for sessions; found {WEIGHT!r}. "
                "Close the table first"
            )
        assert self.spec.time is not None, "windows have a time"
        times = checked_times(rows, self.spec.time)
        columns = {name: checked(rows, column) for name, column in self.spec.inputs.items()}
        keys = [columns[key.name] for key in self.spec.keys]
        place = {WINDOW: vectors.from_int64(np.zeros(len(times), np.int64))}
        place[HASH] = vectors.from_int64(self.hash(keys, len(times)))
        place |= dict(zip(self.keys, keys, strict=True))
        placed = pa.RecordBatch.from_pydict(place)
        key_ids, groups = self._place.grouping(placed)
        ids = np.empty(len(times), np.int32)
        first, starts, lasts = (np.empty(len(times), np.int64) for _ in range(3))
        gap_us = self.spec.window.size_us
        count = _chain(key_ids, times, gap_us, len(groups), ids, first, starts, lasts)
        at = pa.array(first[:count])
        out = [take(placed.column(name), at) for name in placed.schema.names]
        out.append(vectors.from_int64(starts[:count]))
        chains = Rows(columns, None, ids, count)
        for part in self.spec.parts:
            out += part.lift(chains)
        out.append(vectors.from_int64(lasts[:count]))
        made = pa.RecordBatch.from_arrays(out, schema=self._layout.schema)
        return Partials({OPEN: self._chained(self._layout.group(made, whole=False))})

    def _chained(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Partial sessions, sorted and each identity once, as as few as they come to."""
        each = np.arange(len(rows))
        number, count = self._number(rows, each.astype(np.int32), each)
        if count == len(rows):
            return rows
        return self._layout.fold(rows, number, np.unique(number, return_index=True)[1])

    def _number(self, rows: pa.RecordBatch, ids: Vector, first: Vector) -> tuple[Vector, int]:
        """The session of each identity, from a grouping of rows: (int32[identities], how many)."""
        h = hashes(rows)[first]
        fresh = np.ones(len(first), np.bool_)
        fresh[1:] = h[1:] != h[:-1]
        at = np.flatnonzero(~fresh)
        for key in self._layout.keys:
            column = rows.column(key.name)
            if not self._layout.exact or column.null_count:
                fresh[at] |= ~equal(column, first[at], column, first[at - 1])
        starts, lasts = vectors.raw(rows.column(START)), vectors.raw(rows.column(LAST))
        number = np.empty(len(first), np.int32)
        gap_us = self.spec.window.size_us
        return number, int(_join(starts, lasts, ids, first, fresh, gap_us, number))

    # --- where the state is -------------------------------------------------------------------

    def step(self, state: State, inputs: Sequence[Sequence[Partials]], context: Context) -> Step:
        """See `Operator`."""
        [parts], [now_us], [before_us] = inputs, context.frontiers_us, state.frontiers_us
        assert now_us >= before_us, "frontiers don't fall"
        ended_us = ALWAYS  # a session whose last row lies here or before is closed
        if now_us >= NO_TIME + self.spec.window.size_us:
            ended_us = now_us - self.spec.window.size_us
        joined = self._join(state, self._parcels.combine(parts).tables[OPEN], ended_us)
        closing = joined.lasts <= ended_us
        ended = joined.full.filter(pa.array(closing))
        deltas = {
            OPEN: self._open_delta(joined, closing),
            AGENDA: self._agenda_delta(joined, closing),
            CLOSED: self._layout.group(_placed(ended, ended.column(LAST)), whole=True),
        }
        made = context.appended(state, deltas, frontiers_us=context.frontiers_us)
        low_us = self._low(ended_us)
        made = made.above({AGENDA: ended_us + 1 if ended_us > ALWAYS else ALWAYS, CLOSED: low_us})
        closed = pa.Table.from_batches([self._finish(ended)]) if self.spec.closed else None
        return Step(
            made,
            self._changed(joined, closing, state, low_us) if self.spec.changes else None,
            None if closed is None else timed(closed),
        )

    def _join(self, state: State, delta: pa.RecordBatch, ended_us: int) -> _Joined:
        """Puts together what came, the open sessions of its keys, and those whose entry is due."""
        due = self._due(state.traces[AGENDA], ended_us)
        keys = [field.name for field in self._place.schema]
        wanted = self._place.group(concat([delta.select(keys), due.select(keys)]), whole=False)
        _, found = state.traces[OPEN].lookup(wanted)
        old = self._layout.group(concat(found), whole=True) if found else self._layout.empty()
        rows, ids, first = self._layout.merging([old, delta, due])
        number, count = self._number(rows, ids, first)
        begins = np.unique(number, return_index=True)[1]  # the first identity of each session
        session = number[ids]
        heads = rows.select(self._identity).take(vectors.from_int64(first[begins]))
        values = self._values(rows, session, count)
        full = pa.RecordBatch.from_arrays([*heads.columns, *values], schema=self._layout.schema)
        return _Joined(rows, len(old), len(delta), session, begins[session] == ids, full)

    def _values(self, rows: pa.RecordBatch, ids: Vector, groups: int) -> list[pa.Array]:
        """The values of groups of rows, in the groups' order."""
        if groups == len(rows):
            at = np.empty(groups, np.int64)
            at[ids] = np.arange(groups)
            names = rows.schema.names[len(self._identity) :]
            return [take(rows.column(name), vectors.from_int64(at)) for name in names]
        columns: list[pa.Array] = []
        for value in self._layout.values:
            columns += combine(value, rows, ids, groups)
        return columns

    def _due(self, agenda: Trace, ended_us: int) -> pa.RecordBatch:
        """Entries of the agenda up to a time, as rows that count nothing."""
        batches = [] if ended_us == ALWAYS else list(agenda.scan(None, ended_us + 1))
        if not batches:
            return self._layout.empty()
        entries = concat(batches)
        entries = _placed(entries, vectors.from_int64(np.zeros(len(entries), np.int64)))
        names = self._identity
        columns = [*(entries.column(name) for name in names), entries.column(START)]
        rows = pa.RecordBatch.from_arrays(columns, [*names, LAST])
        return self._layout.group(self._layout.padded(rows), whole=False)

    def _open_delta(self, joined: _Joined, closing: Vector) -> pa.RecordBatch:
        """What the trace of open sessions gains, and which of its rows are emptied."""
        session, old, rows = joined.session, joined.old, joined.rows
        live = joined.touched & ~closing
        stays = joined.leads[:old] & ~closing[session[:old]]
        counts = live[session]
        counts[:old] &= ~stays
        counts[old + joined.new :] = False
        number = (np.cumsum(live, dtype=np.int32) - np.int32(1))[session[counts]]
        some = rows.filter(pa.array(counts))
        heads = joined.full.select(self._identity).filter(pa.array(live))
        columns = [*heads.columns, *self._values(some, number, len(heads))]
        grown = pa.RecordBatch.from_arrays(columns, schema=self._layout.schema)
        gone = (joined.touched | closing)[session[:old]] & ~stays
        left = rows.slice(0, old).filter(pa.array(gone))
        less = vectors.from_int64(-vectors.raw(left.column(COUNT)))
        names = [*self._identity, LAST]
        emptied = pa.RecordBatch.from_arrays(
            [*(left.column(name) for name in names), less], [*names, COUNT]
        )
        return self._layout.merge([grown, self._layout.padded(emptied)], whole=False)

    def _agenda_delta(self, joined: _Joined, closing: Vector) -> pa.RecordBatch:
        """Entries of sessions that are new, and of those whose entry was due too early."""
        enter = ~closing & ((joined.touched & ~joined.kept) | joined.fired)
        rows = joined.full.filter(pa.array(enter))
        ones = vectors.from_int64(np.ones(len(rows), np.int64))
        columns = [rows.column(LAST), *(rows.column(name) for name in (HASH, *self.keys, START))]
        made = pa.RecordBatch.from_arrays([*columns, ones], schema=self._agenda.schema)
        return self._agenda.group(made, whole=False)

    def _changed(self, joined: _Joined, closing: Vector, state: State, low: int) -> pa.Table:
        """How the view changes, by retention, too."""
        gone = np.zeros(len(closing), np.bool_)
        changes = self._changes(joined, gone)
        if self.spec.keep_us is None:
            return timed(changes)
        nothing = changes.slice(0, 0)
        taken = [
            weighted(self._finish(rows.filter(pa.array(vectors.raw(rows.column(COUNT)) > 0))), -1)
            for rows in (state.traces[CLOSED].scan(None, low) if low > ALWAYS else ())
        ]
        following = pa.Table.from_batches(taken, changes.schema)
        gone = closing & (joined.lasts < low)
        if not gone.any():
            return timed(expiring(changes, following, nothing))
        following = pa.concat_tables([following, self._changes(joined, gone)])
        return timed(expiring(nothing, following, changes))

    def _changes(self, joined: _Joined, dropped: Vector) -> pa.Table:
        """How the view changes: sessions as they were with weight -1, then as they are with +1.

        Args:
            joined: sessions.
            dropped: bool[sessions], which aren't in the view any more, whatever they are.
        """
        session = joined.session[: joined.old]
        touched = joined.touched | dropped
        was = np.flatnonzero(touched[session])
        now = np.flatnonzero(touched & ~dropped)
        before = self._finish(joined.rows.take(vectors.from_int64(was)))
        after = self._finish(joined.full.take(vectors.from_int64(now)))
        # A session that was open under its start, alone and as long, may look the same.
        count = np.bincount(session, minlength=len(joined.full))
        old_last = vectors.raw(joined.rows.column(LAST))[: joined.old]
        i = np.flatnonzero(
            joined.leads[was] & (count[session[was]] == 1) & ~dropped[session[was]]
            & (old_last[was] == joined.lasts[session[was]])
        )  # fmt: skip
        j = np.searchsorted(now, session[was][i])
        alike = same_results(self.spec, before, i, after, j)
        gone, come = np.ones(len(was), np.bool_), np.ones(len(now), np.bool_)
        gone[i[alike]] = False
        come[j[alike]] = False
        return pa.Table.from_batches(
            [
                weighted(before.filter(pa.array(gone)), -1),
                weighted(after.filter(pa.array(come)), 1),
            ]
        )

    def _low(self, ended_us: int) -> int:
        """The least last row of the closed sessions that retention still keeps."""
        keep_us = self.spec.keep_us
        if keep_us is None or ended_us < NO_TIME + keep_us:
            return ALWAYS
        return ended_us - keep_us + 1

    # --- reading ------------------------------------------------------------------------------

    def scan(
        self, state: State, lo_us: int | None = None, hi_us: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The view's rows, of sessions that start in [lo_us, hi_us).

        Raises:
            CorruptError: a file of the state is not what was written.
        """
        for name, low in ((CLOSED, lo_us), (OPEN, None)):  # no session starts after its last row
            for rows in state.traces[name].scan(low):
                starts = vectors.raw(rows.column(START))
                keep = vectors.raw(rows.column(COUNT)) > 0
                if lo_us is not None:
                    keep &= starts >= lo_us
                if hi_us is not None:
                    keep &= starts < hi_us
                yield self._finish(rows if keep.all() else rows.filter(pa.array(keep)))

    def _finish(self, full: pa.RecordBatch) -> pa.RecordBatch:
        """Sessions as people see them."""
        ends = vectors.raw(full.column(LAST)) + self.spec.window.size_us
        bounds = [vectors.raw(full.column(START)), ends]
        columns = [vectors.from_int64(bound).view(TIMESTAMP) for bound in bounds]
        return pa.RecordBatch.from_arrays(
            [*columns, *results(self.spec, full)], schema=self.spec.schema
        )

    # --- how it is laid out -------------------------------------------------------------------

    @cached_property
    def _groups(self) -> Layout:
        keys = self.spec.keys
        numbers = len(keys) == 1 and vectors.is_fixed(keys[0].type)
        return group_layout(self.spec, kept=False, exact=numbers and self.hash is standard_hash)

    @cached_property
    def _layout(self) -> Layout:
        """Of sessions, found by their start."""
        last = Value(LAST, pa.int64(), "max")
        return replace(self._groups, values=(*self._groups.values, last), tie=_STARTS)

    @cached_property
    def _agenda(self) -> Layout:
        return replace(self._groups, values=(Value(COUNT, pa.int64(), "sum"),), tie=_STARTS)

    @cached_property
    def _place(self) -> Layout:
        return replace(self._groups, values=())


@dataclass(frozen=True)
class _Chains(PartialParcels):
    """How partial sessions travel: joined, where they are of one."""

    chained: Callable[[pa.RecordBatch], pa.RecordBatch]

    def combine(self, parts: Sequence[Partials]) -> Partials:
        """See `Parcels`."""
        whole = super().combine(parts)
        return whole if len(parts) == 1 else Partials({OPEN: self.chained(whole.tables[OPEN])})


def _placed(rows: pa.RecordBatch, window: pa.Array) -> pa.RecordBatch:
    """Rows that lie elsewhere in a trace."""
    return pa.RecordBatch.from_arrays([window, *rows.columns[1:]], names=rows.schema.names)


@njit(types.int64(_I32, _I64, types.int64, types.int64, _W_I32, _W_I64, _W_I64, _W_I64),
      cache=True, nogil=True)  # fmt: skip
def _chain(
    keys: Any, times: Any, gap: Any, groups: Any, ids: Any, first: Any, starts: Any, lasts: Any
) -> Any:
    """Rows -> chains, of which each key has one at a time: a row joins it, or begins the next.

    Where rows are in order, chains are as long as can be; of those that are not, `_join` makes longer ones.

    Returns:
        How many there are.
    """
    current = np.full(groups, -1, np.int32)
    count = 0
    for i in range(len(times)):
        t = times[i]
        c = current[keys[i]]
        if c >= 0 and t - lasts[c] < gap and starts[c] - t < gap:
            lasts[c] = max(lasts[c], t)
            starts[c] = min(starts[c], t)
        else:
            c = count
            current[keys[i]] = c
            first[c] = i
            starts[c] = t
            lasts[c] = t
            count += 1
        ids[i] = c
    return count


@njit(types.int64(_I64, _I64, _I32, _I64, _BOOL, types.int64, _W_I32), cache=True, nogil=True)
def _join(starts: Any, lasts: Any, ids: Any, first: Any, fresh: Any, gap: Any, number: Any) -> Any:
    """Numbers identities, sorted by key and start, by the session that they are in.

    Returns:
        How many sessions there are.
    """
    reach = np.full(len(first), _NEVER, np.int64)
    for i in range(len(ids)):
        reach[ids[i]] = max(reach[ids[i]], lasts[i])
    session = -1
    last = np.int64(0)
    for k in range(len(first)):
        if fresh[k] or starts[first[k]] - last >= gap:
            session += 1
            last = reach[k]
        else:
            last = max(last, reach[k])
        number[k] = session
    return session + 1

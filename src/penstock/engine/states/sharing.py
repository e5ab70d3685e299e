"""Traces that several operators keep alike: one of them writes, all of them have it.

    equal before a batch, given the same rows  =>  equal after it

A trace is a function of the description and the rows that it was made from, so of two operators that keep
the same rows by the same key, and whose traces were equal, the second needn't make its own: it takes the
first one's, files included. Each description stays complete by itself. Code that opens one (a reader of a
view, a savepoint, an upgrade, a recut) needn't know that others have the same files, and an operator that
no longer shares them continues with them. Files are kept as long as some description names them.

Which traces are alike the plan says (`Physical.alike`): those of the same rows, in the same form, cut into
the same shards. Whether two are equal is looked at in each batch. Where they aren't (a view that was made
of the log next to a running program has files of its own), each keeps its own, until `converge` at the next
change of the program finds that they have the same rows.

Source: McSherry et al., Shared Arrangements (2020).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TypeAlias

import pyarrow as pa

from penstock.engine.physical import Physical, Placed
from penstock.engine.record.values import Json, Traces
from penstock.engine.states.hot import Hot
from penstock.ops.state import Shared
from penstock.state import MemoryStateFiles, StateFiles

__all__ = ["Shares", "converge", "lent", "lent_states"]

SameRows: TypeAlias = Callable[[Iterator[pa.RecordBatch], Iterator[pa.RecordBatch]], bool]


class Shares:
    """The traces that are made once in one lane's batch.

    Args:
        physical: says which are alike.
    """

    def __init__(self, physical: Physical) -> None:
        self._physical = physical
        self._made: dict[tuple[tuple[tuple[str, str], ...], int], Shared] = {}

    def of(self, placed: Placed, shard: int) -> Mapping[str, Shared]:
        """By the names of an operator's traces, those that others keep alike on this shard."""
        alike = self._physical.alike(placed.id)
        return {
            name: self._made.setdefault((group, shard), Shared()) for name, group in alike.items()
        }

    def finish(self, traces: dict[str, dict[int, Json]], hot: Hot, files: StateFiles) -> None:
        """Hands what was made to operators that rested, as nothing came for them: merges have gone on.

        Args:
            traces: by operator and shard, what the batch comes to; changed.
            hot: where open states are kept.
            files: where state is.
        """
        for (group, shard), made in self._made.items():
            if made.rests:
                continue
            for operator, name in group:
                description = traces[operator][shard]
                placed = self._physical.placed[operator]
                state = hot.open(placed, shard, files, description)
                if made.was(state.traces[name]):
                    state = replace(state, traces={**state.traces, name: made.after})
                    traces[operator][shard] = state.describe()
                    hot.keep(placed, shard, traces[operator][shard], state)


def lent(placed: Placed, physical: Physical, lenders: frozenset[str]) -> dict[str, tuple[str, str]]:
    """Whose traces together are the state of an operator that is new; empty where they aren't.

    Args:
        placed: the operator.
        physical: the program that it is of.
        lenders: operators whose state is there, cut as the program cuts it.

    Returns:
        By the name of each of its traces: operator and trace.
    """
    state = placed.operator.empty(MemoryStateFiles())
    alike = physical.alike(placed.id)
    if state.frontiers_us or placed.traits.always:
        return {}  # it keeps more than traces
    if not state.traces or not state.traces.keys() <= alike.keys():
        return {}
    found = {}
    for name in state.traces:
        there = [one for one in alike[name] if one[0] in lenders]
        if not there:
            return {}
        found[name] = there[0]
    return found


def lent_states(
    placed: Placed, lenders: Mapping[str, tuple[str, str]], states: Traces, files: StateFiles
) -> dict[int, Json]:
    """By shard, the state of an operator that is new, of the traces of others (see `lent`)."""
    empty = placed.operator.empty(files).describe()
    shards = set.intersection(*(set(states[one]) for one, _ in lenders.values()))
    return {
        shard: {
            **empty,
            "traces": {
                mine: states[one][shard]["traces"][name] for mine, (one, name) in lenders.items()
            },
        }
        for shard in sorted(shards)
    }


def converge(
    physical: Physical, states: Traces, files: StateFiles, same_rows: SameRows
) -> dict[str, dict[int, Json]]:
    """Gives operators whose traces are alike, and have the same rows, the same files.

    Args:
        physical: the program.
        states: of its operators.
        files: where state is.
        same_rows: compares two traces' rows, which are read as a whole.

    Returns:
        The states, as a version is to have them.
    """
    made = {operator: dict(of) for operator, of in states.items()}
    for group in dict.fromkeys(g for one in physical.placed for g in physical.alike(one).values()):
        first, name = group[0]
        for shard, theirs in made[first].items():
            for operator, mine in group[1:]:
                found = made[operator].get(shard)
                if found is None or found["traces"][mine] == theirs["traces"][name]:
                    continue
                one, other = (
                    physical.placed[of].operator.open(files, description).traces[what]
                    for of, description, what in ((first, theirs, name), (operator, found, mine))
                )
                if same_rows(one.scan(), other.scan()):
                    traces = {**found["traces"], mine: theirs["traces"][name]}
                    made[operator][shard] = {**found, "traces": traces}
    return made

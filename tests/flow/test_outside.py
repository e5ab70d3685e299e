"""An operator of another package: one file here, and no other of Penstock's, as CONTRIBUTING describes it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import EntryPoint, EntryPoints
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest
from tests.effort import rounds
from tests.ops.contract import Contract, counted, delta

import penstock as ps
from penstock.core.vectors import from_int64
from penstock.engine.explain import explain
from penstock.engine.physical import compile_graph
from penstock.flow.algebra.stateful import stateful
from penstock.flow.collections import Table
from penstock.ops import (
    Context,
    Operator,
    Port,
    Routed,
    RowParcels,
    State,
    Step,
    Traits,
    operator_from_spec,
    registry,
)
from penstock.ops.operator import KINDS
from penstock.ops.routed import delta_of
from penstock.state.bag import COUNT, Bag, changes_of, negated, plain, weights_of
from penstock.state.layout import hashes

SEEDS = rounds("PENSTOCK_OUTSIDE_SEEDS", quick=2, full=4)


@dataclass(frozen=True)
class Odd(Operator):
    """The rows that are there an odd number of times, once each.

    Args:
        input: the columns of the rows.
    """

    kind: ClassVar[str] = "odd"

    input: pa.Schema

    @cached_property
    def traits(self) -> Traits:
        """Each row is its own key."""
        names = tuple(self.input.names)
        port = Port(RowParcels(self.input, weighted=True), names, arranges={"rows": self._bag})
        keeps = {"rows": self._bag.layout}
        return Traits(schema=self.input, ports=(port,), keeps=keeps, keys=names)

    def step(self, state: State, inputs: Sequence[Sequence[Routed]], context: Context) -> Step:
        """A row comes or goes when its number changes between even and odd."""
        [parts] = inputs
        come = delta_of(self._bag, parts)
        wanted = self._bag.wanted(come, hashes(come), None)
        before = self._bag.find(state.traces["rows"], wanted)
        after = self._bag.sum([before, come])
        moved = self._bag.sum([_odd(after), negated(_odd(before))])
        return Step(context.appended(state, {"rows": come}), changes_of(moved, self.input))

    def scan(
        self, state: State, lo_us: int | None = None, hi_us: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """They are counted, and no more."""
        for rows in state.traces["rows"].scan():
            columns = self._bag.rows(_odd(rows)).columns
            yield pa.RecordBatch.from_arrays(columns, schema=self.input)

    @cached_property
    def _bag(self) -> Bag:
        return Bag(plain(self.input), tuple(self.input.names))


def _odd(rows: pa.RecordBatch) -> pa.RecordBatch:
    rows = rows.filter(pa.array(weights_of(rows) % 2 == 1))
    at = rows.schema.get_field_index(COUNT)
    return rows.set_column(at, rows.schema.field(at), from_int64(np.ones(len(rows), np.int64)))


def odd(rows: Any) -> Table:
    """What a program calls."""
    return Table(rows.flow, rows.flow.node(stateful(Odd(rows.schema.arrow), rows.node)))


ROWS = pa.schema([("k", pa.string()), ("n", pa.int64())])


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_it_holds_to_the_contract(seed: int, shards: int) -> None:
    """Whatever comes and goes, its table is that of all rows so far; a reference is one line."""
    chance = random.Random(seed)
    run = Contract(Odd(ROWS), shards=shards, chance=chance)
    there: Counter[Any] = Counter()
    for _ in range(8):
        rows = [(chance.choice("abc"), chance.randint(0, 2)) for _ in range(chance.randint(0, 9))]
        weights = [chance.choice([1, 1, 2, -min(there[row], 1) or 1]) for row in rows]
        table = delta(ROWS, rows, weights=weights)
        there.update(counted(table))
        run.step([table])
        assert run.total() == run.view() == Counter(row for row, n in there.items() if n % 2)


def program(*names: str) -> ps.App:
    """A program with views of the operator, and of what follows it."""
    app = ps.App("p")
    orders = app.table("orders", "id BIGINT, customer STRING", key="id")
    made = odd(orders.select("customer"))
    if "odd" in names:
        app.view("odd", made)
    if "number" in names:
        app.view("number", sql="SELECT count(*) AS n FROM odd")
    return app


def test_a_program_has_it() -> None:
    """Its view is read by its spec, it survives restarts, and programs that change."""
    run = ps.testing.run(program("odd"), cores=2)
    for i, customer in enumerate(["ann", "bob", "ann", "ann", "eve", "bob"]):
        run.send("orders", id=i, customer=customer)
    run.settle()
    assert run.view("odd").rows() == [{"customer": "ann"}, {"customer": "eve"}]
    run.restart()
    run.send("orders", id=0, customer="bob")
    run.settle()
    assert run.view("odd").rows() == [{"customer": "bob"}, {"customer": "eve"}]
    run.change(program("odd", "number"), shards=3)
    run.send("orders", id=4, customer="ann")
    run.settle()
    assert run.view("odd").rows() == [{"customer": "ann"}, {"customer": "bob"}]
    assert run.view("number").rows() == [{"n": 2}]


def test_it_is_explained() -> None:
    text = explain(compile_graph(program("odd").graph(), {"orders": 1}, 2))
    assert "odd by customer" in text


def test_its_package_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that hasn't imported it, as one that serves views, finds it by an entry point."""
    monkeypatch.delitem(KINDS, "odd")
    mine = EntryPoint("odd", f"{__name__}:Odd", registry.ENTRY_POINTS)
    asked: list[dict[str, str]] = []

    def entry_points(**of: str) -> EntryPoints:
        asked.append(of)
        monkeypatch.setitem(KINDS, "odd", Odd)  # as importing it does
        return EntryPoints([mine]).select(**of)

    monkeypatch.setattr(registry, "entry_points", entry_points)
    assert operator_from_spec({"kind": "odd", "input": "n BIGINT"}) == Odd(
        pa.schema([pa.field("n", pa.int64())])
    )
    assert asked == [{"group": "penstock.operators", "name": "odd"}]

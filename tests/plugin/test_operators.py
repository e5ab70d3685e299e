"""An operator of another distribution, as docs/plugins.md describes it: one file there, none of ours."""

from __future__ import annotations

import importlib
import random
import sys
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from tests.effort import rounds
from tests.ops.contract import Contract, counted, delta

import penstock as ps
from penstock.engine.explain import explain
from penstock.engine.physical import compile_graph
from penstock.errors import CorruptError, SetupError
from penstock.ops import operator_from_spec
from penstock.ops.operator import KINDS
from penstock.ops.registry import load_operators

SEEDS = rounds("PENSTOCK_OUTSIDE_SEEDS", quick=2, full=4)
ROWS = pa.schema([("k", pa.string()), ("n", pa.int64())])


@pytest.fixture(autouse=True)
def _installed(plugin: None) -> None:
    """Programs import the operator, and others find it."""


def notes() -> Any:
    """The operator's module."""
    return importlib.import_module("penstock_notes.odd")


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_it_holds_to_the_contract(seed: int, shards: int) -> None:
    """Whatever comes and goes, its table is that of all rows so far; a reference is one line."""
    chance = random.Random(seed)
    run = Contract(notes().Odd(ROWS), shards=shards, chance=chance)
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
    made = notes().odd(orders.select("customer"))
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


def test_a_process_that_reads_a_view_finds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has not imported it, and imports it for a record with its kind, and for nothing else."""
    monkeypatch.delitem(KINDS, "odd", raising=False)
    monkeypatch.delitem(sys.modules, "penstock_notes.odd", raising=False)
    operator_from_spec({"kind": "upserts", "schema": "n BIGINT", "keys": ["n"]})
    assert "penstock_notes.odd" not in sys.modules
    spec = {"kind": "odd", "input": "n BIGINT"}
    assert operator_from_spec(spec).to_spec() == spec


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("broken_plugin:Even", "distribution penstock-broken 0.3 can't be loaded: ModuleNotFound"),
        ("collections:Counter", "to be an operator of the kind 'even'; found <class"),
    ],
)
def test_one_that_is_broken_harms_no_other(value, reason, broken) -> None:
    """Its own kind gives the reason; processes that load all operators have the others."""
    broken("penstock.operators", {"even": value})
    assert {"top", "upserts"} <= load_operators().keys()
    with pytest.raises(CorruptError, match="found 'no such'"):
        operator_from_spec({"kind": "no such"})
    with pytest.raises(SetupError, match=reason):
        operator_from_spec({"kind": "even"})

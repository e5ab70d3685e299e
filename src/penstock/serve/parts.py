"""A view's rows in one version: what they are made of, so that any process can read them.

A view is the state of one operator, shard by shard, and steps (`where`, `select`) that look at one
row each. So shards are read apart, and in any order.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np
import pyarrow as pa

from penstock.core.schema import Schema
from penstock.engine.record.values import Json
from penstock.engine.record.version import ViewStep
from penstock.expr import EvaluationError
from penstock.expr.duck import evaluate
from penstock.expr.failing import guarded
from penstock.expr.typed import cast_rows
from penstock.ops import operator_from_spec
from penstock.ops.rows import Refused
from penstock.serve.answers import Counting
from penstock.state import StateFiles

__all__ = ["ViewPart"]


@dataclass(frozen=True)
class ViewPart:
    """A view, or some shards of it, in one version. Goes to other processes.

    Attributes:
        version: its number.
        spec: of the view's operator.
        traces: by shard, the operator's state.
        steps: that make the view's rows of the operator's.
    """

    version: int
    spec: Json
    traces: Mapping[int, Json]
    steps: tuple[ViewStep, ...]

    @cached_property
    def schema(self) -> pa.Schema:
        """The view's columns."""
        return self._shown(operator_from_spec(self.spec).traits.schema.empty_table()).schema

    def shards(self) -> list[Self]:
        """The same, a part for each shard."""
        return [replace(self, traces={shard: one}) for shard, one in sorted(self.traces.items())]

    def read(
        self,
        files: StateFiles,
        window_from_us: int | None = None,
        counting: Counting | None = None,
    ) -> Iterator[pa.Table]:
        """The rows.

        Args:
            files: the state's.
            window_from_us: omits windows that begin earlier.
            counting: takes what fails, and is NULL or left out.

        Raises:
            FileNotFoundError: the version isn't kept any more.
        """
        operator = operator_from_spec(self.spec)
        for one in self.shards():
            for state in one.traces.values():
                refused: list[Refused] = []
                opened = operator.open(files, state)
                batches = list(operator.scan_noting(opened, refused, window_from_us))
                if counting is not None:
                    counting.take_groups(refused)
                if batches:
                    yield self._shown(
                        pa.Table.from_batches(batches, operator.traits.schema), counting
                    )

    def _shown(self, rows: pa.Table, counting: Counting | None = None) -> pa.Table:
        for number, step in enumerate(self.steps):
            columns = [("x", step["where"])] if "where" in step else step["select"]
            found, failed = _computed(columns, rows)
            if counting is not None:
                is_last = all("where" in later for later in self.steps[number + 1 :])
                for i, where in enumerate(failed):
                    name, sql = columns[i]
                    column = None if "where" in step else name if is_last else ""
                    counting.take((number, i), sql, column, rows, where)
            rows = rows.filter(found.column(0)) if "where" in step else _typed(found, step)
        return rows

    @property
    def keeps_windows(self) -> bool:
        """Whether the view's `window_start` is that of its operator's windows."""
        traits = operator_from_spec(self.spec).traits
        selects = [step["select"] for step in self.steps if "select" in step]
        own = all(["window_start", '"window_start"'] in map(list, one) for one in selects)
        return own and traits.closes and "window_start" in traits.schema.names


def _typed(rows: pa.Table, step: ViewStep) -> pa.Table:
    """What a step gives, with the types that DuckDB has by other names."""
    for name, text in step.get("types", {}).items():
        at = rows.schema.get_field_index(name)
        schema = Schema.parse(f"x {text}").arrow
        made = cast_rows(rows.select([at]), schema).column(0)
        rows = rows.set_column(at, name, made)
    return rows


def _computed(
    columns: Sequence[Sequence[str]], rows: pa.Table
) -> tuple[pa.Table, Sequence[np.ndarray]]:
    """SQL expressions by name, and where each fails, if one does: bool[rows].

    What fails for a row is NULL there: its other columns can be read.
    """
    quoted = ((name.replace('"', '""'), sql) for name, sql in columns)
    asked = ", ".join(f'{sql} AS "{name}"' for name, sql in quoted)
    with contextlib.suppress(EvaluationError):
        return evaluate(rows, f"SELECT {asked} FROM rows"), ()
    made = [guarded(sql, rows) for _, sql in columns]
    table = pa.table([values for values, _ in made], [name for name, _ in columns])
    return table, [failed for _, failed in made]

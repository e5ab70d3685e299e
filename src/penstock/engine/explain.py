"""What a pipeline will do, as text: its operators, what is exchanged, and what they keep.

    orders  topic, 2 partitions, watermark 2026-01-01T12:00:50Z
      where amount >= 100
        -> topic large-orders, rows
      [1] aggregate by customer  exchanged by customer, 2 shards, 1,204 rows, 56.0 KB
          tumbling 1 minute: n = count(*), total = sum(amount)
        -> view totals

A node stands below what it reads. Where it reads several, it is told in full below the first, and its
number stands below the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from penstock.core.time import duration_text, instant_text
from penstock.engine.physical import Physical, Placed
from penstock.engine.store import Json
from penstock.flow.graph import (
    Closed,
    Node,
    OutputNode,
    RowStep,
    Source,
    Stateful,
    Union,
    ViewNode,
)
from penstock.ops.rows import MapBatches, Select, Unnest, Where

__all__ = ["explain"]

INDENT: Final = "  "
_TOLD: Final = frozenset(
    {"kind", "input", "left", "right", "stream", "table", "schema", "output", "state"}
    | {"keys", "per", "on", "key", "row_key"}
)
"""Of a spec, what is told otherwise, or tells nothing."""


def explain(physical: Physical, version: Json | None = None) -> str:
    """A pipeline's graph as text.

    Args:
        physical: the graph, and where it runs.
        version: the last committed one, for sizes and watermarks.
    """
    return "\n".join(_Told(physical, version).lines())


class _Told:
    def __init__(self, physical: Physical, version: Json | None) -> None:
        self.physical, self.version = physical, version or {}
        graph = physical.graph
        self.below: dict[str, list[Node | ViewNode | OutputNode]] = {}
        for node in graph.nodes:
            for above in dict.fromkeys(node.inputs):
                self.below.setdefault(above.identity, []).append(node)
        ends: list[ViewNode | OutputNode] = [*graph.views, *graph.outputs]
        for end in ends:
            self.below.setdefault(end.node.identity, []).append(end)
        stateful = [node.identity for node in graph.stateful()]
        self.numbers = {name: i for i, name in enumerate(stateful, 1)}
        self.seen: set[str] = set()

    def lines(self) -> Iterator[str]:
        used = {node.identity for node in self.physical.graph.nodes}
        for source in self.physical.graph.sources:
            if source.identity in used:
                yield self._source(source)
                yield from self._below(source, 1)
            else:
                yield f"{source.topic}  topic, read by nothing"

    def _below(self, node: Node, depth: int) -> Iterator[str]:
        for one in self.below.get(node.identity, []):
            yield from self._one(one, depth)

    def _one(self, one: Node | ViewNode | OutputNode, depth: int) -> Iterator[str]:
        pad = INDENT * depth
        match one:
            case ViewNode():
                yield f"{pad}-> view {one.name}"
                return
            case OutputNode():
                key = f", key {', '.join(one.keys)}" if one.keys else ""
                yield f"{pad}-> topic {one.topic}, {one.emission}{key}"
                return
            case Stateful():
                number = f"[{self.numbers[one.identity]}] "
                if one.identity in self.seen:
                    yield f"{pad}{number}{one.operator.kind}, see above"
                    return
                self.seen.add(one.identity)
                yield from self._stateful(self.physical.placed[one.identity], number, pad)
            case Union():
                if one.identity in self.seen:
                    yield f"{pad}union, see above"
                    return
                self.seen.add(one.identity)
                yield f"{pad}union of {len(one.inputs)}"
            case Closed():
                yield f"{pad}closed rows"
            case RowStep():
                yield f"{pad}{_step(one)}"
        assert not isinstance(one, ViewNode | OutputNode)
        yield from self._below(one, depth + 1)

    def _source(self, source: Source) -> str:
        count = self.physical.partitions[source.topic]
        text = f"{source.topic}  topic, {count} partition{'s' if count > 1 else ''}"
        if source.key:
            text += f", key {source.key}"
        watermark = self.version.get("watermark_us", {}).get(source.topic)
        if watermark is not None:
            text += f", watermark {instant_text(watermark)}"
        held = self.version.get("held", {}).get(source.topic)
        if held is not None:
            text += f", held by {held['text']}"
        rows = self.version.get("counts", {}).get("rows", {}).get(source.topic)
        return text if rows is None else f"{text}, {rows:,} rows read"

    def _stateful(self, placed: Placed, number: str, pad: str) -> Iterator[str]:
        operator = placed.operator
        ports = [operator.key(port) for port in range(len(placed.node.inputs))]
        keys = " = ".join(dict.fromkeys(", ".join(key) or "nothing" for key in ports))
        where = "in place" if placed.fused else f"exchanged by {keys}, {placed.shards} shards"
        yield f"{pad}{number}{operator.kind} by {keys}  {where}{self._size(placed)}"
        detail = _detail(operator.to_spec())
        if detail:
            yield f"{pad}{' ' * len(number)}{detail}"

    def _size(self, placed: Placed) -> str:
        entry = self.version.get("operators", {}).get(placed.id)
        if entry is None:
            return ""
        runs = [
            piece
            for shard in entry["traces"].values()
            for trace in shard["traces"].values()
            for run in trace["runs"]
            for piece in run
        ]
        rows, size = sum(piece[1] for piece in runs), sum(piece[2] for piece in runs)
        return f", {rows:,} rows, {size / 1_000:,.1f} KB"


def _step(node: RowStep) -> str:
    match node.operator:
        case Where(condition):
            return f"where {condition.text}"
        case Select(columns):
            shown = [
                name if e.text.strip('"') == name else f"{name} = {e.text}" for name, e in columns
            ]
            return f"select {', '.join(shown)}"
        case MapBatches(name=name):
            return f"map_batches {name}"
        case Unnest(column=column, name=name):
            return f"unnest {column}" + (f" as {name}" if name != column else "")
        case other:
            return repr(other)


def _detail(spec: Json) -> str:
    """What an operator computes."""
    if "aggregates" in spec:
        window = spec["window"]
        text = "" if window["kind"] == "none" else f"{_window(window)}: "
        calls = [
            f"{name} = {kind}({column[0] if column else '*'})"
            for name, kind, column, *_ in spec["aggregates"]
        ]
        text += ", ".join(calls) or "each group"
        for name, word in (("keep_us", "kept"), ("correct_us", "corrected")):
            if spec.get(name):
                text += f", {word} {duration_text(spec[name])}"
        return text
    told = [f"{name.removesuffix('_us').replace('_', ' ')} {_value(name, value)}"
            for name, value in spec.items()
            if name not in _TOLD and value not in (None, False, [], "")]  # fmt: skip
    return ", ".join(told)


def _window(window: Json) -> str:
    text = str(window["kind"])
    if "calendar" in window:
        return text + _calendar(window["calendar"], window["steps"])
    if window.get("size_us"):
        text += f" {duration_text(window['size_us'])}"
    if window.get("every_us") and window["every_us"] != window.get("size_us"):
        text += f" every {duration_text(window['every_us'])}"
    return text


def _calendar(calendar: Json, steps: int) -> str:
    unit = "months" if calendar["months"] else "days"
    step = calendar[unit]
    size = f" {step * steps} {unit}" + (f" every {step} {unit}" if steps > 1 else "")
    return f"{size} in {calendar['zone']}"


def _value(name: str, value: Any) -> str:
    if name.endswith("_us") and isinstance(value, int):
        return duration_text(value) if value >= 0 else str(value)
    if isinstance(value, list):
        return ", ".join(
            " ".join(map(str, one)) if isinstance(one, list) else str(one) for one in value
        )
    return str(value)

"""What each part of a pipeline is called, on paper and on screen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from penstock.core.time import duration_text, instant_text
from penstock.engine.physical import Physical, Placed
from penstock.engine.record.values import Json
from penstock.engine.record.version import Version
from penstock.flow.graph import OutputNode, RowStep, Source
from penstock.ops.rows import MapBatches, Readable, Select, Unnest, Where
from penstock.state.sizes import state_size

__all__ = ["Labels"]

_SHOWN_ELSEWHERE: Final = frozenset(
    {
        "by",
        "columns",
        "computed",
        "documents",
        "given",
        "is_timed",
        "kind",
        "input",
        "left",
        "meaning",
        "queries",
        "right",
        "stream",
        "table",
        "schema",
        "output",
        "state",
    }
    | {"keys", "per", "on", "key", "row_key"}
)
"""Of a spec, what is shown otherwise, or says nothing."""


class Labels:
    """The words for a pipeline's parts.

    Args:
        physical: the graph, and where it runs.
        version: the last committed one, for sizes and watermarks.
    """

    def __init__(self, physical: Physical, version: Version | None) -> None:
        self.physical, self.version = physical, version

    def source(self, source: Source) -> list[str]:
        """Partitions, key, watermark, who holds it, rows read: what is known."""
        count = self.physical.partitions[source.topic]
        found = [f"{count} partition{'s' if count > 1 else ''}"]
        if source.key:
            found.append(f"key {source.key}")
        if self.version is None:
            return found
        watermark = self.version.watermark_us.get(source.topic)
        if watermark is not None:
            found.append(f"watermark {instant_text(watermark)}")
        held = self.version.held.get(source.topic)
        if held is not None:
            found.append(f"held by {held.text}")
        rows = self.version.counts.rows.get(source.topic)
        if rows is not None:
            found.append(f"{rows:,} rows read")
        return found

    def output(self, output: OutputNode) -> list[str]:
        """What a topic gets, and under which key."""
        return [output.emission, *([f"key {', '.join(output.keys)}"] if output.keys else [])]

    def keys(self, placed: Placed) -> str:
        """The columns that bring rows of all ports together."""
        keys = [port.key for port in placed.traits.ports]
        return " = ".join(dict.fromkeys(", ".join(key) for key in keys if key)) or "nothing"

    def size(self, placed: Placed) -> str:
        """Rows and bytes of an operator's state; empty where there is none yet."""
        states = self._states(placed.id)
        if states is None:
            return ""
        rows, size, _ = state_size(states)
        return f"{rows:,} rows, {size / 1_000:,.1f} KB"

    def shared(self, placed: Placed) -> list[tuple[str, list[tuple[str, str]]]]:
        """The traces that other operators have, too: by name, as (operator, name) of the others."""
        found = []
        for name, group in self.physical.alike(placed.id).items():
            mine = self._trace(placed.id, name)
            others = [one for one in group if one != (placed.id, name)]
            found.append((name, [one for one in others if self._trace(*one) == mine]))
        return [(name, others) for name, others in found if others]

    def _trace(self, operator: str, name: str) -> dict[int, Json]:
        """What the version has of a trace, by shard; nothing where there is no version yet."""
        shards = self._states(operator) or {}
        return {shard: state["traces"][name] for shard, state in shards.items()}

    def _states(self, operator: str) -> Mapping[int, Json] | None:
        entry = self.version.operators.get(operator) if self.version is not None else None
        return None if entry is None else entry.traces

    def detail(self, placed: Placed) -> str:
        """What an operator computes."""
        return _detail(placed.operator.to_spec())

    def step(self, node: RowStep) -> str:
        """What a step that keeps nothing does."""
        match node.operator:
            case Where(condition):
                return f"where {condition.text}"
            case Select(columns):
                shown = [
                    name if e.text.strip('"') == name else f"{name} = {e.text}"
                    for name, e in columns
                ]
                return f"select {', '.join(shown)}"
            case MapBatches(name=name):
                return f"map_batches {name}"
            case Unnest(column=column, name=name):
                return f"unnest {column}" + (f" as {name}" if name != column else "")
            case Readable(column=column):
                return f"searches that can be read: {column}"
            case other:
                return repr(other)


def _detail(spec: Json) -> str:
    """What an operator computes."""
    if "aggregates" in spec:
        window = spec["window"]
        text = "" if window["kind"] == "none" else f"{_window(window)}: "
        text += _calls(spec["aggregates"]) or "each group"
        for name, word in (("keep_us", "kept"), ("correct_us", "corrected")):
            if spec.get(name):
                text += f", {word} {duration_text(spec[name])}"
        return text
    parts = [f"{name.removesuffix('_us').replace('_', ' ')} {_value(name, value)}".rstrip()
            for name, value in spec.items()
            if name not in _SHOWN_ELSEWHERE and value not in (None, False, [], "")]  # fmt: skip
    calls = _calls(spec.get("computed", ()))
    return ", ".join(parts) + (f": {calls}" if calls else "")


def _calls(aggregates: Sequence[Any]) -> str:
    """Aggregates as they are written in records."""
    return ", ".join(
        f"{name} = {kind}({column[0] if column else '*'})" for name, kind, column, *_ in aggregates
    )


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
    size = f" {_many(step * steps, unit)}" + (f" every {_many(step, unit)}" if steps > 1 else "")
    return f"{size} in {calendar['zone']}"


def _many(count: int, unit: str) -> str:
    return f"{count} {unit if count > 1 else unit.removesuffix('s')}"


def _value(name: str, value: Any) -> str:
    if name.endswith("_us") and isinstance(value, int):
        return duration_text(value) if value >= 0 else f"-({duration_text(-value)})"
    if value is True:  # the name says it
        return ""
    if name == "order":
        return ", ".join(_order(*one) for one in value)
    if name == "fields":
        return _fields(value)
    if name == "functions":
        return ", ".join(map(_function, value))
    if isinstance(value, dict) and "defines" in value:
        return _pattern(value)
    if isinstance(value, list):
        return ", ".join(
            " ".join(map(str, one)) if isinstance(one, list) else str(one) for one in value
        )
    return str(value)


def _order(column: str, descending: bool, nulls_first: bool = False) -> str:  # noqa: FBT001, FBT002 - a spec's
    return column + " DESC" * descending + " NULLS FIRST" * nulls_first


def _fields(value: Json) -> str:
    """Which fields of documents a stored search looks in, and how."""
    found = ", ".join(value["defaults"])
    if value["analyzer"]["language"] is not None:
        found += f" in {value['analyzer']['language']}"
    return found + (" for all terms" if value["operator"] == "AND" else "")


def _pattern(clause: Json) -> str:
    """A row pattern, with all that belongs to it."""
    found = str(clause["pattern"])
    found += "".join(f", {name} as {text}" for name, text in clause["defines"])
    found += "".join(f", {name} = {'|'.join(names)}" for name, names in clause["subsets"])
    if clause["within_us"] is not None:
        found += f", within {duration_text(clause['within_us'])}"
    if clause["after"] != "past last row":
        found += f", after match to {clause['after']}"
    if clause["rows"] == "all":
        found += ", all rows" + ", unmatched too" * clause["unmatched"]
    measures = ", ".join(f"{name} = {text}" for name, text, _ in clause["measures"])
    return found + (f": {measures}" if measures else "")


def _function(one: Json) -> str:
    """A window function as it is written in SQL, with the rows that it is over."""
    arguments = [one["column"]] if one["column"] else []
    if one["n"]:
        arguments.append(str(one["n"]))
    over = "" if one["frame"] is None else " over rows {} to {}".format(*one["frame"])
    return f"{one['name']} = {one['kind']}({', '.join(arguments)}){over}"

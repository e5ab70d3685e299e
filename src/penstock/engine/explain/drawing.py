"""What a pipeline will do, as a drawing: topics on the left, views and topics on the right.

A box is a topic, steps that keep nothing, an operator, or what shows its rows. A dashed line is an exchange:
rows go to the shard of their key. Boxes stand in columns, each to the right of all that it reads; a line
that passes a column has a place there as boxes have; and all stand where lines cross least (Sugiyama's
method, with barycenters).
"""

from __future__ import annotations

import html
import math
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, TypedDict

from penstock.engine.explain.labels import Labels
from penstock.engine.physical import Physical
from penstock.engine.record.version import Version
from penstock.flow.graph import (
    Closed,
    Graph,
    Node,
    OutputNode,
    RowStep,
    Source,
    Stateful,
    Union,
    ViewNode,
)

__all__ = ["Arranged", "BoxJson", "LineJson", "arrange", "draw"]

LINE_CHARS: Final = 38
LINES_MAX: Final = 9  # of one box; the text form has all
CHAR_PX: Final = 6.7
LINE_PX: Final = 16
PAD_PX: Final = 10
COLUMN_GAP_PX: Final = 70
COLUMN_GAP_LIVE_PX: Final = 96  # a rate and a frontier stand in it
FIGURES: Final = {"topic": (2, 26), "step": (1, 14), "operator": (3, 30), "end": (1, 24)}
"""Lines of a box that are kept free for figures, and their characters, by the box's kind."""
ROW_GAP_PX: Final = 22
SWEEPS: Final = 8  # over the columns, forth and back: what is left then stays

STYLE: Final = """
svg { font: 11px ui-monospace, SFMono-Regular, Menlo, monospace; color-scheme: light dark;
  --ink: #1b1f24; --line: #7a828c; --topic: #dbeafe; --step: #f3f4f6; --operator: #fef3c7; --end: #dcfce7; }
@media (prefers-color-scheme: dark) { svg { --ink: #e6e8eb; --line: #8b949e; --topic: #1e3a5f;
  --step: #2a2f36; --operator: #4d3d10; --end: #17412a; } }
rect { stroke: var(--line); rx: 6px } text { fill: var(--ink) } .head { font-weight: bold }
.topic { fill: var(--topic) } .step { fill: var(--step) } .operator { fill: var(--operator) }
.end { fill: var(--end) } path { fill: none; stroke: var(--line); stroke-width: 1.5 }
.exchange { stroke-dasharray: 6 4 } marker path { fill: var(--line); stroke: none }
"""
ARROW: Final = """<marker id="end" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7"
  orient="auto"><path d="M0 0L8 4L0 8z"/></marker>"""


@dataclass
class _Box:
    """A box: its first line is its name. Its place is found later, in pixels.

    Attributes:
        nodes: identities of those that it shows, from the first to the last.
        more: lines and characters of each that are kept free for figures.
        works: whether there is work to measure: a union hands on what it gets.
    """

    kind: str
    lines: list[str]
    nodes: list[str] = field(default_factory=list)
    more: tuple[int, int] = (0, 0)
    works: bool = True
    column: int = 0
    x: float = 0.0
    y: float = 0.0
    above: list[_Box] = field(default_factory=list)
    below: list[_Box] = field(default_factory=list)

    @property
    def width(self) -> float:
        if not self.lines:
            return 0
        chars = max(self.more[1], *map(len, self.lines))
        return math.ceil(chars * CHAR_PX) + 2 * PAD_PX

    @property
    def height(self) -> float:
        return (len(self.lines) + self.more[0]) * LINE_PX + PAD_PX


@dataclass
class _Edge:
    """A line: from a box, through empty places in the columns between, to a box."""

    boxes: list[_Box]
    exchanged: bool


class BoxJson(TypedDict):
    """A box, as JSON.

    Attributes:
        kind: `topic`, `step`, `operator` or `end`.
        lines: its texts; the first one is its name.
        nodes: identities of those that it shows.
        x: of its corner, as `y`.
        y: see `x`.
        width: of it.
        height: of it.
    """

    kind: str
    lines: list[str]
    nodes: list[str]
    x: float
    y: float
    width: float
    height: float


LineJson = TypedDict("LineJson", {"path": str, "exchanged": bool, "from": str})
"""A line, as JSON: its path in SVG, and the identity of the node whose rows it carries."""


class Arranged(TypedDict):
    """Where everything of a drawing is, in pixels, as JSON.

    Attributes:
        width: of the drawing.
        height: of the drawing.
        boxes: from left to right.
        lines: between them.
    """

    width: float
    height: float
    boxes: list[BoxJson]
    lines: list[LineJson]


def arrange(physical: Physical, version: Version | None = None, *, live: bool = False) -> Arranged:
    """The places of all that a drawing has.

    Args:
        physical: the graph, and where it runs.
        version: the last committed one, for sizes and watermarks.
        live: whether to keep room for figures.
    """
    boxes, edges = _parts(physical, Labels(physical, version), live=live)
    columns = _columns(boxes, edges)
    _place(columns, COLUMN_GAP_LIVE_PX if live else COLUMN_GAP_PX)
    widths = [max(box.width for box in column) for column in columns]
    return {
        "width": max((box.x + box.width for box in boxes), default=0) + PAD_PX,
        "height": max((box.y + box.height for box in boxes), default=0) + PAD_PX,
        "boxes": [_described(box) for box in boxes],
        "lines": [
            {
                "path": _line(edge, widths),
                "exchanged": edge.exchanged,
                "from": edge.boxes[0].nodes[-1],
            }
            for edge in edges
        ],
    }


def _described(box: _Box) -> BoxJson:
    return {
        "kind": box.kind,
        "lines": box.lines,
        "nodes": box.nodes,
        "x": box.x,
        "y": box.y,
        "width": box.width,
        "height": box.height,
    }


def draw(physical: Physical, version: Version | None = None) -> str:
    """A pipeline's graph as an SVG document.

    Args:
        physical: the graph, and where it runs.
        version: the last committed one, for sizes and watermarks.
    """
    found = arrange(physical, version)
    width, height = found["width"], found["height"]
    size = f'viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
        f"<title>{_escape(physical.graph.name)}</title><style>{STYLE}</style><defs>{ARROW}</defs>",
        *(_path(line) for line in found["lines"]),
        *(part for box in found["boxes"] for part in _box(box)),
        "</svg>\n",
    ]
    return "\n".join(parts)


def _parts(physical: Physical, labels: Labels, *, live: bool) -> tuple[list[_Box], list[_Edge]]:
    """All boxes, each after those that it reads, and the lines between them."""
    graph, boxes, edges = physical.graph, dict[str, _Box](), list[_Edge]()

    def join(start: _Box, end: _Box, *, exchanged: bool) -> None:
        end.column = max(end.column, start.column + 1)
        edges.append(_Edge([start, end], exchanged))

    readers = _readers(graph)
    drawn: list[_Box] = []
    for node in graph.nodes:
        above = [boxes[one.identity] for one in dict.fromkeys(node.inputs)]
        if isinstance(node, RowStep) and _continues(node, readers):
            boxes[node.identity] = above[0]
            above[0].lines += _wrapped([labels.step(node)])
            above[0].nodes.append(node.identity)
            continue
        placed = physical.placed.get(node.identity)
        kind, lines = _label(node, physical, labels)
        box = boxes[node.identity] = _Box(kind, lines, [node.identity])
        box.works = not isinstance(node, Closed | Union)
        drawn.append(box)
        for one in above:
            join(one, box, exchanged=placed is not None and not placed.fused)
    ends: list[ViewNode | OutputNode] = [*graph.views, *graph.outputs]
    for end in ends:
        name = f"view {end.name}" if isinstance(end, ViewNode) else f"topic {end.topic}"
        more = [] if isinstance(end, ViewNode) else [", ".join(labels.output(end))]
        box = _Box("end", _wrapped([name, *more]))
        if isinstance(end, OutputNode):
            box.nodes.append(end.identity)
        drawn.append(box)
        join(boxes[end.node.identity], box, exchanged=False)
    for box in drawn:
        if len(box.lines) > LINES_MAX:
            box.lines[LINES_MAX - 1 :] = ["…"]
        if live:
            box.more = FIGURES[box.kind] if box.nodes and box.works else (0, 0)
    return drawn, edges


def _readers(graph: Graph) -> Mapping[str, int]:
    """How many read each node, by identity."""
    counts: dict[str, int] = {}
    ends: list[ViewNode | OutputNode] = [*graph.views, *graph.outputs]
    read = [one for node in graph.nodes for one in dict.fromkeys(node.inputs)]
    for node in read + [end.node for end in ends]:
        counts[node.identity] = counts.get(node.identity, 0) + 1
    return counts


def _continues(node: RowStep, readers: Mapping[str, int]) -> bool:
    """Whether a step goes into the box of the one before, which nothing else reads."""
    return isinstance(node.parent, RowStep) and readers[node.parent.identity] == 1


def _label(node: Node, physical: Physical, labels: Labels) -> tuple[str, list[str]]:
    match node:
        case Source():
            return "topic", _wrapped([f"topic {node.topic}", *labels.source(node)])
        case Stateful():
            placed = physical.placed[node.identity]
            head = f"{node.operator.kind} by {labels.keys(placed)}"
            parts = [head, labels.detail(placed), labels.size(placed)]
            return "operator", _wrapped(filter(None, parts))
        case Union():
            return "step", ["union"]
        case Closed():
            return "step", ["closed rows"]
        case _:
            assert isinstance(node, RowStep)
            return "step", _wrapped([labels.step(node)])


def _wrapped(texts: Iterable[str]) -> list[str]:
    return [line for text in texts for line in textwrap.wrap(text, LINE_CHARS)]


def _columns(boxes: Sequence[_Box], edges: Sequence[_Edge]) -> list[list[_Box]]:
    """The boxes by column, in the order in which their lines cross least."""
    columns: list[list[_Box]] = [[] for _ in range(max((b.column for b in boxes), default=-1) + 1)]
    for box in boxes:
        columns[box.column].append(box)
    for edge in edges:
        start, end = edge.boxes
        passed = [_Box("", [], column=i) for i in range(start.column + 1, end.column)]
        for box in passed:
            columns[box.column].append(box)
        edge.boxes = [start, *passed, end]
        for one, other in pairwise(edge.boxes):
            one.below.append(other)
            other.above.append(one)
    place: dict[int, float] = {}

    def settle() -> None:
        for column in columns:
            place.update({id(box): (i + 0.5) / len(column) for i, box in enumerate(column)})

    settle()
    for sweep in range(SWEEPS):
        for column in columns:
            weights = {id(box): _mean(box, place, above=sweep % 2 == 0) for box in column}
            column.sort(key=lambda box: weights[id(box)])
            settle()
    return columns


def _mean(box: _Box, place: Mapping[int, float], *, above: bool) -> float:
    near = (box.above if above else box.below) or [box]
    return sum(place[id(one)] for one in near) / len(near)


def _place(columns: Sequence[Sequence[_Box]], gap_px: float) -> None:
    """Gives each box its corner: columns from left to right, each in the middle of the height."""
    heights = [sum(box.height + ROW_GAP_PX for box in column) for column in columns]
    x = float(PAD_PX)
    for column, height in zip(columns, heights, strict=True):
        y = PAD_PX + (max(heights) - height) / 2
        for box in column:
            box.x, box.y = x, y
            y += box.height + ROW_GAP_PX
        x += max(box.width for box in column) + gap_px


def _line(edge: _Edge, widths: Sequence[float]) -> str:
    first = edge.boxes[0]
    x, y = first.x + first.width, first.y + first.height / 2
    curve = f"M{x:.0f} {y:.0f}"
    for box in edge.boxes[1:]:
        to_x, to_y = box.x - (1 if box.lines else 0), box.y + box.height / 2
        bend = (to_x - x) / 2
        curve += f"C{x + bend:.0f} {y:.0f} {to_x - bend:.0f} {to_y:.0f} {to_x:.0f} {to_y:.0f}"
        x, y = to_x, to_y
        if not box.lines:
            x += widths[box.column]
            curve += f"H{x:.0f}"
    return curve


def _path(line: LineJson) -> str:
    dashed = ' class="exchange"' if line["exchanged"] else ""
    return f'<path{dashed} d="{line["path"]}" marker-end="url(#end)"/>'


def _box(box: BoxJson) -> Iterator[str]:
    yield (
        f'<rect class="{box["kind"]}" x="{box["x"]:.0f}" y="{box["y"]:.0f}" '
        f'width="{box["width"]:.0f}" height="{box["height"]:.0f}"/>'
    )
    for i, line in enumerate(box["lines"]):
        bold = "" if i or box["kind"] == "step" else ' class="head"'
        x, y = box["x"] + PAD_PX, box["y"] + PAD_PX / 2 + LINE_PX * (i + 0.75)
        yield f'<text{bold} x="{x:.0f}" y="{y:.0f}">{_escape(line)}</text>'


def _escape(text: str) -> str:
    """A text between tags; `xml.sax.saxutils` has this, too, and loads an HTTP client."""
    return html.escape(text, quote=False)

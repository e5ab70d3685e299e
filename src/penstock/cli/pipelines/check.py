"""`penstock check`: whether programs are right, without running them."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import click
import orjson

from penstock.cli.support.errors import FAILED, ExistingPath
from penstock.cli.support.programs import load
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import penstock as ps
    from penstock.flow.graph import Graph

_LINE: Final = re.compile(r"\bline (\d+)(?:, column (\d+))?")


@click.command(
    epilog="""\b
Examples:
  penstock check shop.sql
  penstock check *.sql --format json

Programs are parsed, typed and planned; nothing is run, and no log, Spark or JVM is needed. The code is 1 if
a program has an error.
"""
)
@click.argument(
    "files",
    nargs=-1,
    required=True,
    type=ExistingPath(".py", ".sql"),
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="json writes a line for each program.",
)
def check(files: tuple[Path, ...], form: Literal["text", "json"]) -> None:
    """Parse, type and plan the programs in FILES, in SQL or Python, and show their views."""
    from penstock.cli.loading import load_arrow
    from penstock.cli.pipelines.run import find_app

    load_arrow()
    found: list[dict[str, Any]] = []
    graphs: dict[Path, Graph] = {}
    for file in files:
        try:
            app = find_app(load(file), file)
            found.append({"file": str(file), "ok": True, **described(app)})
            graphs[file] = app.graph()
        except PenstockError as error:
            found.append(_refused(file, error))
    for i, file in enumerate(files):
        try:
            if file in graphs:
                _check_keys(graphs[file], graphs)
        except PenstockError as error:
            found[i] = _refused(file, error)
    for file, said in zip(files, found, strict=True):
        if form == "json":
            click.echo(orjson.dumps(said))
        elif said["ok"]:
            click.echo(f"{file}: no errors")
            for kind in ("streams", "tables", "views", "topics"):
                for name, columns in said[kind].items():
                    listed = ", ".join(f"{column} {type_}" for column, type_ in columns.items())
                    click.echo(f"  {kind.removesuffix('s')} {name} ({listed})")
        else:
            named = "" if str(file) in said["error"] else f"{file}: "
            click.echo(f"{named}{said['error']}", err=True)
    if not all(said["ok"] for said in found):
        sys.exit(FAILED)


def _refused(file: Path, error: PenstockError) -> dict[str, Any]:
    """What is said of a program with an error."""
    said: dict[str, Any] = {"file": str(file), "ok": False, "error": str(error)}
    if (at := _LINE.search(str(error))) is not None:
        said["line"] = int(at[1])
        said |= {} if at[2] is None else {"column": int(at[2])}
    return said


def _check_keys(graph: Graph, graphs: Mapping[Path, Graph]) -> None:
    """Checks that the tables of a program have the keys that the others write their topics with.

    Raises:
        FlowError: one has another.
    """
    from penstock.core.names import built
    from penstock.errors import FlowError

    keys = {
        output.topic: (file, output.keys)
        for file, other in graphs.items()
        for output in other.outputs
        if output.emission != "rows" and output.keys
    }
    for source in graph.sources:
        if source.changelog is None or source.topic not in keys:
            continue
        file, key = keys[source.topic]
        if set(source.changelog.key) != set(key):
            raise FlowError(
                f"expected the table {source.topic!r}{built(source.built_at)} to have the key of its topic, "
                f"{', '.join(key)}, which {file} writes; found {', '.join(source.changelog.key)}"
            )


def described(app: ps.App) -> dict[str, Any]:
    """What a program reads and makes, with the types of columns; planned, not run.

    Raises:
        PenstockError: it can't be run so.
    """
    from penstock.core.schema import type_text
    from penstock.engine.physical import compile_graph

    graph = app.graph()
    partitions = {source.topic: source.partitions for source in graph.sources}
    compile_graph(graph, partitions, app.settings.cores, frozenset())

    def columns(schema: Any) -> dict[str, str]:
        return {name: type_text(schema[name].type) for name in schema.names}

    sources = (*graph.sources, *graph.unused)
    return {
        "streams": {one.topic: columns(one.schema) for one in sources if one.changelog is None},
        "tables": {one.topic: columns(one.schema) for one in sources if one.changelog is not None},
        "views": {one.name: columns(one.node.schema) for one in graph.views},
        "topics": {one.topic: columns(one.node.schema) for one in graph.outputs},
    }

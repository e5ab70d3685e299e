"""`penstock explain`: a pipeline's graph, before or while it runs."""

from __future__ import annotations

from pathlib import Path

import click

from penstock.cli.support.programs import load


@click.command(
    epilog="""\b
Examples:
  penstock explain shop.py
  penstock explain shop.py --svg shop.svg

Nothing is run. If the pipeline has run, the sizes of its state and its watermarks are shown as well.
An operator that is "in place" runs where its input is; others receive rows from all lanes.
"""
)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--svg",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Draw it into this file instead. '-' is standard output.",
)
def explain(file: Path, svg: Path | None) -> None:
    """Show what the pipeline in FILE does: operators, exchanges, state."""
    from penstock.cli.pipelines.run import find_app
    from penstock.engine import explain as plan
    from penstock.engine.physical import compile_graph
    from penstock.engine.runtime import open_store

    app = find_app(load(file), file)
    graph, version = app.graph(), None
    uri = app.settings.state_uri
    if "://" in uri or Path(uri).is_dir():
        store = open_store(uri)
        number = store.newest_version()
        version = store.version(number) if number else None
    partitions = {source.topic: source.partitions for source in graph.sources}
    shards, unkeyed = app.settings.cores, frozenset[str]()
    if version is not None:
        partitions |= {t: n for t, n in version["partitions"].items() if t in partitions}
        shards, unkeyed = version["shards"], frozenset(version.get("unkeyed", ()))
    physical = compile_graph(graph, partitions, shards, unkeyed)
    if svg is None:
        click.echo(plan.explain(physical, version))
        return
    with click.open_file(str(svg), "w", encoding="utf-8") as drawing:
        drawing.write(plan.draw(physical, version))

"""`penstock explain`: a pipeline's graph, before or while it runs."""

from __future__ import annotations

from pathlib import Path

import click

from penstock.cli.support.errors import ExistingPath
from penstock.cli.support.programs import load
from penstock.errors import UserError


@click.command(
    epilog="""\b
Examples:
  penstock explain shop.py
  penstock explain shop.py --svg shop.svg
  penstock explain --analyze shop.py

Nothing is run. If the pipeline has run, the sizes of its state and its watermarks are shown as well.
An operator that is "in place" runs where its input is; others receive rows from all lanes.
With --analyze, each line ends with what its node did since the pipeline's process was started: rows in and
out, time, and its share of the time of all nodes.
Joins that sizes have ordered are listed at the end, with the estimated rows of each table.
"""
)
@click.argument("file", type=ExistingPath(".py", ".sql"))
@click.option(
    "--svg",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Draw it into this file instead. '-' is standard output.",
)
@click.option(
    "--analyze",
    is_flag=True,
    help="Add the rows and the time of each node of the running pipeline.",
)
def explain(file: Path, svg: Path | None, analyze: bool) -> None:  # noqa: FBT001 - Click's
    """Show what the pipeline in FILE does: operators, exchanges, state."""
    from penstock.cli.loading import load_arrow

    load_arrow()
    from penstock.app import read_facts
    from penstock.cli.pipelines.run import find_app
    from penstock.engine import explain as plan
    from penstock.engine.physical import compile_graph
    from penstock.engine.store import Store, open_files

    app = find_app(load(file), file)
    graph, version, orders = app.graph(), None, []
    uri = app.settings.state_uri
    if "://" in uri or Path(uri).is_dir():
        store = Store(open_files(uri))
        number = store.newest_version()
        version = store.version(number) if number else None
        if app.depends_on_sizes and (records := store.sizes()) is not None:
            graph, sizes = app.ordered(records)
            orders = sizes.orders
    partitions = {source.topic: source.partitions for source in graph.sources}
    shards, unkeyed = app.settings.cores, frozenset[str]()
    if version is not None:
        partitions |= {t: n for t, n in version.partitions.items() if t in partitions}
        shards, unkeyed = version.shards, frozenset(version.unkeyed)
    physical = compile_graph(graph, partitions, shards, unkeyed)
    if svg is None:
        figures = None
        if analyze:
            found = read_facts(Path(app.directory))
            if found is None or not found.facts.nodes:
                raise UserError(
                    f"expected a pipeline that runs, or has run; found no figures in {app.directory}. "
                    f"Start it: penstock run {file}"
                )
            figures = found.facts.nodes
        click.echo(plan.explain(physical, version, figures, app.targets()))
        for order in dict.fromkeys(orders):
            tables = ", ".join(f"{name} ({round(rows):,})" for name, rows in order)
            click.echo(f"joined in the order of estimated rows: {tables}")
        return
    with click.open_file(str(svg), "w", encoding="utf-8") as drawing:
        drawing.write(plan.draw(physical, version))

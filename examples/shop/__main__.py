"""A shop: PostgreSQL, and a search index, a cache, a warehouse and a second database that follow it.

    python examples/shop                     # starts the servers, the pipeline and the orders; Ctrl-C stops
    python examples/shop look 7              # a product in each system
    python examples/shop sql "UPDATE products SET price = 1.50 WHERE id = 7"
    python examples/shop search water
    python examples/shop check               # compares all systems with the shop's database, row by row

When it is started again, it continues with the same data.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import click
import psycopg
from look import CATALOG, Systems, present
from orders import create, trading
from servers import Servers, known, running

from penstock.errors import PenstockError, SetupError

COMMAND = os.environ.get("SHOP_COMMAND", "python examples/shop")
DIRECTORY = Path("shop.penstock")
WELCOME = """
The shop sells. Its database, and the one that follows:
    {shop}
    {reports}
Cache:          {cache}, keys product:1, product:2, …
Search index:   {directory}/search.tantivy
Warehouse:      {directory}/warehouse.iceberg, Iceberg tables shop.catalog and shop.sales

Try, in another terminal:
    {command} look 7
    {command} sql "UPDATE products SET price = 1.50 WHERE id = 7"
    {command} look 7        # everywhere within a second; in the warehouse within five
    {command} search water
    {command} check

The page shows the views, the flow (Graph) and each capture and sink (Connections). Ctrl-C stops all.
"""


@click.group(invoke_without_command=True, help=__doc__, context_settings={"max_content_width": 110})
@click.option(
    "--directory",
    type=click.Path(path_type=Path),
    default=DIRECTORY,
    show_default=True,
    help="Where everything is kept.",
)
@click.option(
    "--per-second",
    type=click.FloatRange(0),
    default=5.0,
    show_default=True,
    help="Transactions of the shop per second, on average.",
)
@click.option("--port", type=int, help="The page's port. Default: 8750, or the next free one.")
@click.pass_context
def shop(context: click.Context, directory: Path, per_second: float, port: int | None) -> None:
    """The help is the module's text."""
    context.obj = directory.absolute()
    if context.invoked_subcommand is None:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # also while the servers start
        with running(context.obj) as servers:
            run(servers, context.obj, per_second, [] if port is None else ["--port", str(port)])


def run(servers: Servers, directory: Path, per_second: float, options: list[str]) -> None:
    """Runs the shop until Ctrl-C."""
    create(servers.server, servers.shop)
    prefix = COMMAND if directory == DIRECTORY.absolute() else f"{COMMAND} --directory {directory}"
    click.echo(WELCOME.format(**servers.addresses, directory=directory, command=prefix))
    command = [sys.executable, Path(__file__).with_name("pipeline.py"), *servers.addresses.values()]
    with (
        trading(servers.shop, per_second),
        subprocess.Popen([*command, directory, *options]) as pipeline,
    ):
        for number in (signal.SIGINT, signal.SIGTERM):  # it ends first, then the servers
            signal.signal(number, lambda *_: pipeline.terminate())
        code = pipeline.wait()
    if code:
        sys.exit(code)


@shop.command()
@click.argument("product", type=int, default=1)
@click.pass_obj
def look(directory: Path, product: int) -> None:
    """Shows a product as each system has it."""
    systems = Systems(known(directory), directory)
    rows = {"shop's database": systems.source(CATALOG)}
    followers = systems.followers().items()
    rows |= {name: present(read) for name, (columns, read) in followers if columns == CATALOG}
    for system, found in rows.items():
        name, _, _, price, sold = found.get(product, ("-", "", "", "-", "-"))
        click.echo(f"{system:<20}{name:<16}{price:>10}{sold:>8} sold")


@shop.command()
@click.argument("words", nargs=-1, required=True)
@click.pass_obj
def search(directory: Path, words: tuple[str, ...]) -> None:
    """Searches the index."""
    systems = Systems(known(directory), directory)
    try:
        products = systems.search(" ".join(words))
    except ValueError as error:
        raise SetupError(
            f"expected words, and an index of the products; found: {error}. A new shop has its index after "
            "some seconds"
        ) from None
    for found in products:
        click.echo("{id:>3}  {name:<16}{price:>8}  {description}".format(**found))


@shop.command()
@click.argument("statement")
@click.pass_obj
def sql(directory: Path, statement: str) -> None:
    """Runs a statement in the shop's database."""
    with psycopg.connect(known(directory).shop) as one:
        done = one.execute(statement)
        click.echo(done.statusmessage)
        for row in done.fetchall() if done.description else []:
            click.echo(" | ".join(map(str, row)))


@shop.command()
@click.option(
    "--patience",
    type=click.FloatRange(0),
    default=60.0,
    show_default=True,
    help="Seconds to wait for what is on its way.",
)
@click.pass_obj
def check(directory: Path, patience: float) -> None:
    """Compares every derived table with the shop's database, row by row. Orders wait meanwhile."""
    differences = Systems(known(directory), directory).differences(patience)
    for name, (count, differ) in differences.items():
        click.echo(f"{name:<26}{count:>8} rows  " + (f"{differ} differ" if differ else "equal"))
    if any(differ for _, differ in differences.values()):
        sys.exit(1)


if __name__ == "__main__":
    try:
        shop(prog_name=COMMAND)
    except PenstockError as error:
        sys.exit(f"error: {error}")
    except psycopg.OperationalError as error:
        sys.exit(f"error: expected a shop that runs; found: {error}. Start it: {COMMAND}")
    except psycopg.Error as error:
        sys.exit(f"error: expected a statement that PostgreSQL carries out; found: {error}")

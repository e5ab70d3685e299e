"""`python -m penstock.broker --listen 127.0.0.1:9092 --data DIR`: the log server alone.

Takes what `penstock broker` takes (see `penstock.broker.options`), and what a parent process says.

Prints `listening on HOST:PORT` to standard output once it serves, and a line for each further
listener (`listening on SASL_SSL://HOST:PORT`); everything else goes to standard error.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import TYPE_CHECKING, Any

import uvloop

from penstock.broker.logs import configure_logs
from penstock.broker.options import OPTIONS, Option, config_of
from penstock.broker.server import Broker, serve
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.broker.config import BrokerConfig

__all__ = ["main"]


def _add(parser: argparse.ArgumentParser, option: Option) -> None:
    """Makes an option of the table one of the parser's."""
    shown = option.shown_default
    text = f"{option.help}{f' Default: {shown}.' if shown is not None else ''}".replace("%", "%%")
    if option.is_flag:
        parser.add_argument(option.flag, action="store_true", help=text)
        return

    def parse(value: str) -> Any:
        try:
            return option.parse(value)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    parser.add_argument(
        option.flag,
        action="append" if option.is_multiple else "store",
        type=parse,
        default=None if option.is_multiple else option.default,  # it would be appended to
        choices=option.choices or None,
        metavar=option.metavar,
        help=text,
    )


def parse_arguments(arguments: list[str] | None) -> dict[str, Any]:
    """The options' values by their names."""
    parser = argparse.ArgumentParser(
        prog="penstock.broker", description="An ordered log.", allow_abbrev=False
    )
    for option in OPTIONS:
        _add(parser, option)
    parser.add_argument(
        "--die-with-parent",
        type=int,
        metavar="PID",
        help="End when that process, the parent, ends (what `BrokerProcess` says).",
    )
    found = vars(parser.parse_args(arguments))
    for option in OPTIONS:
        if option.is_multiple:
            found[option.name] = tuple(found[option.name] or option.default)
    return found


def _announce(broker: Broker) -> None:
    for number, listener in enumerate(broker.listeners):
        protocol = f"{listener.protocol}://" if number else ""
        sys.stdout.write(f"listening on {protocol}{listener.address}\n")
    if broker.metrics.address is not None:
        metrics_host, metrics_port = broker.metrics.address
        sys.stdout.write(f"metrics on http://{metrics_host}:{metrics_port}/metrics\n")
    sys.stdout.flush()


def main(arguments: list[str] | None = None) -> int:
    """Serves until SIGTERM or SIGINT; returns the exit status."""
    given = parse_arguments(arguments)
    configure_logs(given["log_level"], given["log_format"])
    if given["die_with_parent"] is not None:
        from penstock.broker.process import die_with_parent

        die_with_parent(given["die_with_parent"])
    try:
        _run(config_of(given))
    except PenstockError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


def _run(config: BrokerConfig) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(config, ready=_announce))


if __name__ == "__main__":
    sys.exit(main())

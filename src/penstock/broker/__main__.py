"""`python -m penstock.broker --listen 127.0.0.1:9092 --data DIR`: the log server alone.

Prints `listening on HOST:PORT` to standard output once it serves; everything else goes to standard
error.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from pathlib import Path

import uvloop

from penstock.broker.config import BrokerConfig
from penstock.broker.server import Broker, serve
from penstock.errors import PenstockError

__all__ = ["main"]


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="penstock.broker", description="An ordered log.")
    add = parser.add_argument
    add("--listen", default="127.0.0.1:9092", metavar="HOST:PORT", help="port 0: any free one")
    add("--data", type=Path, required=True, metavar="DIR", help="the data directory")
    add("--advertise", metavar="HOST:PORT", help="where clients are told to connect")
    add("--allow-remote", action="store_true", help="permit an address beyond loopback")
    add("--partitions", type=int, default=1, help="of topics that are made on first use")
    add("--no-auto-create", action="store_true", help="don't make topics on first use")
    add("--rebalance-delay-ms", type=int, default=0, help="how long a new group waits for members")
    add("--lock-wait-s", type=float, default=5.0, help="for a predecessor that is still stopping")
    add("--tier", metavar="URI", help="object storage for closed segments: s3://bucket/prefix")
    add("--tier-cache-mb", type=int, default=128, help="memory for what is read back from there")
    add("--tier-interval-ms", type=int, default=1000, help="how often to look for what to copy")
    add(
        "--die-with-parent", type=int, metavar="PID", help="end when that process, the parent, ends"
    )
    add("--log-level", default="warning", choices=("debug", "info", "warning", "error"))
    return parser.parse_args(arguments)


def _announce(broker: Broker) -> None:
    host, port = broker.address
    shown = f"[{host}]" if ":" in host else host
    sys.stdout.write(f"listening on {shown}:{port}\n")
    sys.stdout.flush()


def main(arguments: list[str] | None = None) -> int:
    """Serves until SIGTERM or SIGINT; returns the exit status."""
    parsed = _parse(arguments)
    logging.basicConfig(
        level=parsed.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    if parsed.die_with_parent is not None:
        from penstock.broker.process import die_with_parent

        die_with_parent(parsed.die_with_parent)
    try:
        config = BrokerConfig(
            data=parsed.data,
            listen=parsed.listen,
            advertise=parsed.advertise,
            allow_remote=parsed.allow_remote,
            default_partitions=parsed.partitions,
            auto_create_topics=not parsed.no_auto_create,
            rebalance_delay_ms=parsed.rebalance_delay_ms,
            lock_wait_s=parsed.lock_wait_s,
            tier=parsed.tier,
            tier_cache_bytes=parsed.tier_cache_mb << 20,
            tier_interval_ms=parsed.tier_interval_ms,
        )
        _run(config)
    except PenstockError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


def _run(config: BrokerConfig) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(config, ready=_announce))


if __name__ == "__main__":
    sys.exit(main())

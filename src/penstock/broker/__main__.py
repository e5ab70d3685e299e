"""`python -m penstock.broker --listen 127.0.0.1:9092 --data DIR`: the log server alone.

Prints `listening on HOST:PORT` to standard output once it serves, and a line for each further
listener (`listening on SASL_SSL://HOST:PORT`); everything else goes to standard error.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import uvloop

from penstock.broker.config import BrokerConfig
from penstock.broker.groups import SESSION_MS_MIN
from penstock.broker.logs import FORMATS, configure_logs
from penstock.broker.mixed_groups import BIDIRECTIONAL, POLICIES
from penstock.broker.security.tls import TlsFiles
from penstock.broker.server import Broker, serve
from penstock.errors import PenstockError

__all__ = ["main"]

LISTEN: Final = "127.0.0.1:9092"


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="penstock.broker", description="An ordered log.")
    add = parser.add_argument
    add(
        "--listen",
        action="append",
        metavar="[PROTOCOL://]HOST:PORT",
        help="port 0: any free one; PLAINTEXT (the default), SSL, SASL_SSL or SASL_PLAINTEXT; "
        "may be given several times",
    )
    add("--data", type=Path, required=True, metavar="DIR", help="the data directory")
    add("--advertise", metavar="HOST:PORT", help="where clients are told to connect")
    add("--allow-remote", action="store_true", help="permit an address beyond loopback")
    add("--partitions", type=int, default=1, help="of topics that are made on first use")
    add("--no-auto-create", action="store_true", help="don't make topics on first use")
    add("--rebalance-delay-ms", type=int, default=0, help="how long a new group waits for members")
    add("--session-ms-min", type=int, default=SESSION_MS_MIN, help="shortest session of a member")
    add("--migration-policy", choices=POLICIES, default=BIDIRECTIONAL, help="of consumer groups")
    add("--lock-wait-s", type=float, default=5.0, help="for a predecessor that is still stopping")
    add("--tier", metavar="URI", help="object storage for closed segments: s3://bucket/prefix")
    add("--tier-cache-mb", type=int, default=128, help="memory for what is read back from there")
    add("--iceberg-catalog", metavar="URI", help="catalog of the topics' Iceberg tables")
    add("--iceberg-warehouse", metavar="URI", help="where the catalog puts its tables' files")
    add(
        "--iceberg-interval-ms", type=int, default=60_000, help="how long records wait for a commit"
    )
    add(
        "--cleaner-interval-ms",
        type=int,
        default=15_000,
        help="how often to look for what to compact",
    )
    add(
        "--retention-interval-ms",
        type=int,
        default=30_000,
        help="how often to look for old segments and groups that nobody uses",
    )
    add("--tier-interval-ms", type=int, default=1000, help="how often to look for what to copy")
    add(
        "--die-with-parent", type=int, metavar="PID", help="end when that process, the parent, ends"
    )
    _add_security(add)
    add("--metrics", metavar="HOST:PORT", help="serve Prometheus metrics there")
    add("--min-free-bytes", type=int, metavar="N", help="refuse records while less is free")
    add("--log-format", default="text", choices=FORMATS, help="a line of text or of JSON per event")
    add("--log-level", default="warning", choices=("debug", "info", "warning", "error"))
    return parser.parse_args(arguments)


def _add_security(add: Callable[..., object]) -> None:
    add("--tls-cert", type=Path, metavar="PEM", help="certificate (chain); read again on SIGHUP")
    add("--tls-key", type=Path, metavar="PEM", help="its private key")
    add("--tls-client-ca", type=Path, metavar="PEM", help="issues clients' certificates")
    add("--sasl-mechanisms", default="PLAIN,SCRAM-SHA-256,SCRAM-SHA-512", metavar="NAME[,NAME]")
    add("--session-lifetime-s", type=float, default=0.0, help="then clients log in again; 0: never")
    add("--authorize", action="store_true", help="refuse what no access control list allows")
    add("--super-user", action="append", default=[], metavar="User:NAME", help="may do everything")
    add("--allow-if-no-acl", action="store_true", help="allow what no list is about")
    add("--connections-per-address", type=int, metavar="N", help="most connections of one address")


def security_of(parsed: Any) -> dict[str, Any]:
    """The part of a `BrokerConfig` that says who gets in."""
    tls = None
    if parsed.tls_cert is not None:
        tls = TlsFiles(parsed.tls_cert, parsed.tls_key, parsed.tls_client_ca)
    return {
        "tls": tls,
        "mechanisms": tuple(one for one in parsed.sasl_mechanisms.split(",") if one),
        "session_lifetime_s": parsed.session_lifetime_s,
        "authorize": parsed.authorize,
        "super_users": tuple(parsed.super_user),
        "allow_if_no_acl": parsed.allow_if_no_acl,
        "connections_per_address": parsed.connections_per_address,
    }


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
    parsed = _parse(arguments)
    configure_logs(parsed.log_level, parsed.log_format)
    if parsed.die_with_parent is not None:
        from penstock.broker.process import die_with_parent

        die_with_parent(parsed.die_with_parent)
    try:
        config = BrokerConfig(
            data=parsed.data,
            listen=",".join(parsed.listen or [LISTEN]),
            advertise=parsed.advertise,
            allow_remote=parsed.allow_remote,
            default_partitions=parsed.partitions,
            auto_create_topics=not parsed.no_auto_create,
            rebalance_delay_ms=parsed.rebalance_delay_ms,
            session_ms_min=parsed.session_ms_min,
            migration_policy=parsed.migration_policy,
            lock_wait_s=parsed.lock_wait_s,
            tier=parsed.tier,
            tier_cache_bytes=parsed.tier_cache_mb << 20,
            retention_interval_ms=parsed.retention_interval_ms,
            cleaner_interval_ms=parsed.cleaner_interval_ms,
            tier_interval_ms=parsed.tier_interval_ms,
            iceberg_catalog=parsed.iceberg_catalog,
            iceberg_warehouse=parsed.iceberg_warehouse,
            iceberg_interval_ms=parsed.iceberg_interval_ms,
            **security_of(parsed),
            metrics=parsed.metrics,
            min_free_bytes=parsed.min_free_bytes,
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

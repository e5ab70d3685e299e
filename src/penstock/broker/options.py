"""The broker's command-line options: one table, from which the options of `penstock broker` and
of `python -m penstock.broker` are made, and their conversion to a `BrokerConfig`.

A value is parsed here for both, so that they take and refuse the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from penstock.broker.config import BrokerConfig
from penstock.broker.groups.classic import SESSION_MS_MIN
from penstock.broker.groups.mixed import BIDIRECTIONAL, POLICIES
from penstock.broker.groups.settings import BROKER_WIDE
from penstock.broker.listeners import TlsFiles
from penstock.broker.logs import FORMATS
from penstock.wire.scram import MECHANISMS, PLAIN

__all__ = ["OPTIONS", "Option", "config_of"]


def _whole(minimum: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.strip().isdigit() or int(text) < minimum:
            raise ValueError(f"expected a whole number from {minimum} on; found {text!r}")
        return int(text)

    return parse


def _seconds(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found < float("inf"):
        raise ValueError(f"expected seconds, such as 2.5; found {text!r}")
    return found


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ValueError(f"expected NAME=VALUE; found {text!r}")
    return name, value


def _names(text: str) -> tuple[str, ...]:
    return tuple(one.strip() for one in text.split(",") if one.strip())


@dataclass(frozen=True, slots=True)
class Option:
    """An option.

    Attributes:
        flag: `--name`.
        help: what it says to people; a sentence.
        parse: makes a value of a text; raises ValueError that says what was expected.
        default: the value of an option that isn't given; of one that may be given several times, a
            tuple.
        metavar: what stands for the value in the help.
        choices: the texts that it may be, if there are few.
        is_flag: there is no value: given or not.
        is_multiple: it may be given several times.
    """

    flag: str
    help: str
    parse: Callable[[str], Any] = str
    default: Any = None
    metavar: str | None = None
    choices: tuple[str, ...] = ()
    is_flag: bool = False
    is_multiple: bool = False

    @property
    def name(self) -> str:
        """The name of its value."""
        return self.flag.removeprefix("--").replace("-", "_")

    @property
    def shown_default(self) -> str | None:
        """The default as the help shows it; None: there is nothing to show."""
        if self.is_flag or self.default is None or self.default == ():
            return None
        several = isinstance(self.default, tuple)
        return ",".join(self.default) if several else str(self.default)


OPTIONS: Final = (
    Option(
        "--listen",
        "PLAINTEXT (the default), SSL, SASL_SSL or SASL_PLAINTEXT; may be given several times. Port "
        "0 takes a free one, and prints it.",
        default=("127.0.0.1:9092",),
        metavar="[PROTOCOL://]HOST:PORT",
        is_multiple=True,
    ),
    Option(
        "--advertise",
        "Addresses for clients, if they differ from the listeners; one for each "
        "listener, separated by commas.",
        metavar="HOST:PORT",
    ),
    Option(
        "--data",
        "Where the topics are kept.",
        Path,
        default=Path("penstock-log"),
        metavar="DIR",
    ),
    Option(
        "--allow-remote",
        "Permit an address beyond loopback without authentication. Anyone who reaches it can read and "
        "delete everything.",
        is_flag=True,
    ),
    Option(
        "--lock-wait-s",
        "How long to wait for a predecessor that is still stopping.",
        _seconds,
        default=5.0,
        metavar="S",
    ),
    # -- topics
    Option(
        "--partitions", "Partitions of topics that are created on first use.", _whole(1), 1, "N"
    ),
    Option("--no-auto-create", "Don't create topics on first use.", is_flag=True),
    Option(
        "--flush-interval-ms",
        "How often records without a waiting producer are synced to disk.",
        _whole(1),
        1000,
        "MS",
    ),
    Option(
        "--checkpoint-interval-ms",
        "How often a checkpoint covers what was appended.",
        _whole(1),
        60_000,
        "MS",
    ),
    Option(
        "--retention-interval-ms",
        "How often to look for old segments and unused groups.",
        _whole(1),
        30_000,
        "MS",
    ),
    Option(
        "--cleaner-interval-ms",
        "How often to look for segments to compact.",
        _whole(1),
        15_000,
        "MS",
    ),
    Option(
        "--min-free-bytes", "Refuse records while less is free on the disk.", _whole(0), None, "N"
    ),
    # -- groups
    Option(
        "--rebalance-delay-ms",
        "How long a new classic group waits for members.",
        _whole(0),
        0,
        "MS",
    ),
    Option(
        "--session-ms-min",
        "Shortest session of a classic group's member.",
        _whole(1),
        SESSION_MS_MIN,
        "MS",
    ),
    Option(
        "--migration-policy",
        "In which direction groups of consumers may change their protocol while they have members.",
        default=BIDIRECTIONAL,
        choices=POLICIES,
    ),
    Option(
        "--group-default",
        "A default for groups without their own setting; may be given several times. NAME is one of "
        f"{', '.join(BROKER_WIDE)}.",
        _pair,
        default=(),
        metavar="NAME=VALUE",
        is_multiple=True,
    ),
    # -- object storage and tables
    Option(
        "--tier",
        "Copy closed segments of topics with remote.storage.enable there: s3://BUCKET/PREFIX or "
        "file:///DIR. Credentials come from the environment.",
        metavar="URI",
    ),
    Option("--tier-cache-mb", "Memory for data that is read from there.", _whole(1), 128, "MB"),
    Option("--tier-interval-ms", "How often to look for segments to copy.", _whole(1), 1000, "MS"),
    Option(
        "--iceberg-catalog",
        "Append topics with penstock.iceberg.table to tables of this catalog: "
        "sqlite:////DIR/catalog.db or a REST catalog's URI. Needs penstock[iceberg].",
        metavar="URI",
    ),
    Option("--iceberg-warehouse", "Where the catalog puts tables' files.", metavar="URI"),
    Option("--iceberg-interval-ms", "How long records wait for a commit.", _whole(1), 60_000, "MS"),
    # -- who gets in
    Option("--tls-cert", "Certificate (chain); read again on SIGHUP.", Path, metavar="PEM"),
    Option("--tls-key", "Its key, if in another file.", Path, metavar="PEM"),
    Option(
        "--tls-client-ca",
        "Issuer of clients' certificates: SSL listeners then require one.",
        Path,
        metavar="PEM",
    ),
    Option(
        "--sasl-mechanisms",
        "Mechanisms that SASL listeners offer.",
        _names,
        default=(PLAIN, *MECHANISMS),
        metavar="NAME[,NAME]",
    ),
    Option(
        "--session-lifetime-s",
        "Time after which clients must log in again; 0: never.",
        _seconds,
        0.0,
        "S",
    ),
    Option(
        "--authorize",
        "Refuse what no access control list allows; on by default if there is one.",
        is_flag=True,
    ),
    Option(
        "--super-user",
        "May do everything; may be given several times.",
        default=(),
        metavar="User:NAME",
        is_multiple=True,
    ),
    Option("--allow-if-no-acl", "Allow access to resources without a list.", is_flag=True),
    Option("--connections-per-address", "Most connections of one address.", _whole(1), None, "N"),
    # -- what it says
    Option("--metrics", "Serve Prometheus metrics there (http, /metrics).", metavar="HOST:PORT"),
    Option("--log-format", "A line of text or of JSON per event.", default="text", choices=FORMATS),
    Option(
        "--log-level",
        "Least severe level to log.",
        default="warning",
        choices=("debug", "info", "warning", "error"),
    ),
)


def config_of(given: Mapping[str, Any]) -> BrokerConfig:
    """What the options' values, by their names, say to the broker.

    Raises:
        UserError: they can't be right; it says which.
    """
    tls = None
    if given["tls_cert"] is not None:
        tls = TlsFiles(given["tls_cert"], given["tls_key"], given["tls_client_ca"])
    return BrokerConfig(
        data=given["data"],
        listen=",".join(given["listen"]),
        advertise=given["advertise"],
        allow_remote=given["allow_remote"],
        default_partitions=given["partitions"],
        auto_create_topics=not given["no_auto_create"],
        rebalance_delay_ms=given["rebalance_delay_ms"],
        session_ms_min=given["session_ms_min"],
        migration_policy=given["migration_policy"],
        group_defaults=dict(given["group_default"]),
        flush_interval_ms=given["flush_interval_ms"],
        checkpoint_interval_ms=given["checkpoint_interval_ms"],
        retention_interval_ms=given["retention_interval_ms"],
        cleaner_interval_ms=given["cleaner_interval_ms"],
        lock_wait_s=given["lock_wait_s"],
        tier=given["tier"],
        tier_cache_bytes=given["tier_cache_mb"] << 20,
        tier_interval_ms=given["tier_interval_ms"],
        iceberg_catalog=given["iceberg_catalog"],
        iceberg_warehouse=given["iceberg_warehouse"],
        iceberg_interval_ms=given["iceberg_interval_ms"],
        tls=tls,
        mechanisms=given["sasl_mechanisms"],
        session_lifetime_s=given["session_lifetime_s"],
        authorize=given["authorize"],
        super_users=tuple(given["super_user"]),
        allow_if_no_acl=given["allow_if_no_acl"],
        connections_per_address=given["connections_per_address"],
        metrics=given["metrics"],
        min_free_bytes=given["min_free_bytes"],
    )

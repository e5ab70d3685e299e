"""What a broker is given when it starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from penstock.broker.groups.classic import SESSION_MS_MAX, SESSION_MS_MIN
from penstock.broker.groups.mixed import BIDIRECTIONAL, POLICIES
from penstock.broker.groups.settings import broker_wide
from penstock.broker.limits import PARTITIONS_PER_TOPIC_MAX
from penstock.broker.listeners import (
    Listener,
    SecurityProtocol,
    TlsFiles,
    parse_listeners,
)
from penstock.broker.storage.topic_settings import SettingError
from penstock.errors import SetupError, UserError
from penstock.wire.scram import MECHANISMS, PLAIN

__all__ = ["BrokerConfig"]


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """How to serve a data directory.

    Attributes:
        data: the data directory; made where it is missing.
        listen: `[PROTOCOL://]HOST:PORT`, several with commas between them (see
            `penstock.broker.listeners`); port 0 picks a free one.
        advertise: `HOST:PORT` that clients connect to, one for each listener, with commas between them;
            None, or nothing between the commas: the address at which they reached the broker.
        allow_remote: permit addresses beyond this machine's loopback without authentication: any client
            that reaches the port can read and delete everything.
        default_partitions: partitions of a topic that is made on first use, or with a count of -1.
        auto_create_topics: make a topic when a client asks for its metadata, as Kafka does by
            default.
        rebalance_delay_ms: how long a new consumer group waits for more members before its first
            generation.
        session_ms_min: shortest session timeout that a group's member may ask for (Kafka's
            group.min.session.timeout.ms).
        migration_policy: which of "upgrade", "downgrade" a group of consumers may go through while it
            has members of both protocols; "bidirectional", "disabled": both, none (Kafka's
            group.consumer.migration.policy).
        group_defaults: what groups have that aren't configured otherwise, by Kafka's names: see
            `penstock.broker.groups.settings.BROKER_WIDE`.
        flush_interval_ms: how often records with acks=1 are made durable.
        checkpoint_interval_ms: how often a checkpoint covers what was appended (Kafka's
            log.flush.offset.checkpoint.interval.ms).
        retention_interval_ms: how often old segments (Kafka's log.retention.check.interval.ms) and
            groups without members and offsets are looked for.
        cleaner_interval_ms: how often something to compact is looked for (Kafka's
            log.cleaner.backoff.ms).
        lock_wait_s: how long to wait for a predecessor that is still stopping.
        tier: a URI (`s3://bucket/prefix`, `file:///srv/tier`) that closed segments of topics with
            `remote.storage.enable` are copied to; None: nowhere.
        tier_cache_bytes: memory for what is read back from there.
        tier_interval_ms: how often closed segments are looked for.
        iceberg_catalog: the URI of the catalog (`sqlite:////srv/catalog.db`, `https://…`) with the
            tables of topics that have `penstock.iceberg.table`.
        iceberg_warehouse: where the catalog puts its tables' files.
        iceberg_interval_ms: how long records wait for a commit, unless there are many.
        tls: the certificate of listeners with TLS.
        mechanisms: the SASL mechanisms that are offered.
        session_lifetime_s: after how long a connection must log in again; 0: never.
        authorize: whether to refuse what no access control list allows, even where there is none.
        super_users: principals (`User:ann`) that may do everything.
        allow_if_no_acl: allow what no access control list is about.
        connections_per_address: most connections of one address; None: a limit of its own for
            addresses beyond this machine.
        metrics: `HOST:PORT` to serve Prometheus metrics on; None: nowhere.
        min_free_bytes: records are refused while less is free on the disk; None: see
            `penstock.broker.storage.room`.
    """

    data: Path
    listen: str = "127.0.0.1:9092"
    advertise: str | None = None
    allow_remote: bool = False
    default_partitions: int = 1
    auto_create_topics: bool = True
    rebalance_delay_ms: int = 0
    session_ms_min: int = SESSION_MS_MIN
    migration_policy: str = BIDIRECTIONAL
    group_defaults: Mapping[str, str] = field(default_factory=dict)
    flush_interval_ms: int = 1000
    checkpoint_interval_ms: int = 60_000
    retention_interval_ms: int = 30_000
    cleaner_interval_ms: int = 15_000
    lock_wait_s: float = 5.0
    tier: str | None = None
    tier_cache_bytes: int = 128 << 20
    tier_interval_ms: int = 1000
    iceberg_catalog: str | None = None
    iceberg_warehouse: str | None = None
    iceberg_interval_ms: int = 60_000
    tls: TlsFiles | None = None
    mechanisms: tuple[str, ...] = (PLAIN, *MECHANISMS)
    session_lifetime_s: float = 0.0
    authorize: bool = False
    super_users: tuple[str, ...] = ()
    allow_if_no_acl: bool = False
    connections_per_address: int | None = None
    metrics: str | None = None
    min_free_bytes: int | None = None

    def __post_init__(self) -> None:
        for listener in parse_listeners(self.listen, self.advertise):
            self._check(listener)
        wrong = [one for one in self.super_users if not all(one.partition(":"))]
        if wrong:
            raise UserError(f"expected super users such as User:ann; found {wrong[0]!r}")
        unknown = [one for one in self.mechanisms if one not in {PLAIN, *MECHANISMS}]
        if unknown or not self.mechanisms:
            raise UserError(
                f"expected SASL mechanisms of {PLAIN}, {', '.join(MECHANISMS)}; found "
                f"{', '.join(unknown) or 'none'}"
            )
        if self.migration_policy not in POLICIES:
            raise UserError(
                f"expected a migration policy of {', '.join(POLICIES)}; found "
                f"{self.migration_policy!r}"
            )
        try:
            broker_wide(self.group_defaults)
        except SettingError as error:
            raise UserError(str(error)) from None
        if not 1 <= self.default_partitions <= PARTITIONS_PER_TOPIC_MAX:
            raise UserError(
                f"expected 1 to {PARTITIONS_PER_TOPIC_MAX} default partitions; found "
                f"{self.default_partitions}"
            )
        if not 1 <= self.session_ms_min <= SESSION_MS_MAX:
            raise UserError(
                f"expected a shortest session timeout of 1 to {SESSION_MS_MAX} ms; found "
                f"{self.session_ms_min}"
            )

    def listeners(self) -> list[Listener]:
        """Where to listen; the ports are the ones that are asked for."""
        return parse_listeners(self.listen, self.advertise)

    def _check(self, listener: Listener) -> None:
        protocol = listener.protocol
        if protocol.has_tls and self.tls is None:
            raise UserError(
                f"expected a certificate for {protocol}://{listener.address}; found none; name it "
                "with --tls-cert and --tls-key"
            )
        is_mutual = self.tls is not None and self.tls.client_ca is not None
        if self.allow_remote or listener.is_loopback or protocol.has_sasl:
            return
        if protocol is SecurityProtocol.SSL and is_mutual:
            return
        raise SetupError(
            f"expected a loopback address such as 127.0.0.1; found {listener.host!r} without "
            "authentication; have clients log in (--listen SASL_SSL://HOST:PORT) or show a "
            "certificate (SSL:// with --tls-client-ca), or pass --allow-remote if everyone who can "
            "reach it may use it"
        )

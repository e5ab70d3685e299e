"""The broker's metrics.

Components keep plain counters as attributes; they are read here on request, so metrics that are not
scraped cost nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.broker.groups.lag import lags
from penstock.broker.monitoring.stats import Stats
from penstock.broker.protocol.requests import BUCKETS, Requests
from penstock.broker.services import Services
from penstock.wire.messages import api_name

if TYPE_CHECKING:
    from collections.abc import Sized

    from prometheus_client import Metric

    from penstock.broker.tier.iceberg import Iceberg

__all__ = ["Sources", "collect"]

LAG_SERIES_MAX: Final = 20_000
"""Most partitions of groups that have a series of their own; beyond that, only the other metrics are
shown."""

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Sources:
    """The parts that the metrics are read from.

    Attributes:
        broker: its parts.
        stats: of topics.
        requests: counts of requests.
        fetch_sessions: readers that are remembered.
        iceberg: the tables, where there are any.
        connections: how many are open.
        receive_bytes: what their receive buffers take.
    """

    broker: Services
    stats: Stats
    requests: Requests
    fetch_sessions: Sized
    iceberg: Iceberg | None
    connections: int
    receive_bytes: int


def collect(sources: Sources) -> list[Metric]:
    """All metrics, now."""
    parts = (_requests, _topics, _transactions, _upkeep, _tier, _groups, _shares, _process)
    return [metric for part in parts for metric in part(sources)]


def _requests(sources: Sources) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

    broker = sources.broker
    counts = sources.requests
    metric: Any = CounterMetricFamily(
        "penstock_requests", "Requests served, by API.", labels=["api"]
    )
    for key, count in counts.counts.items():
        metric.add_metric([api_name(key)], count)
    yield metric
    metric = CounterMetricFamily(
        "penstock_request_errors",
        "Errors in answers, by API and Kafka's error code.",
        labels=["api", "code"],
    )
    for (key, code), count in counts.errors.items():
        metric.add_metric([api_name(key), str(code)], count)
    yield metric
    metric = HistogramMetricFamily(
        "penstock_request_seconds",
        "From a request's arrival to its answer, waiting (long polls, joins) included.",
        labels=["api"],
    )
    for key, buckets in counts.buckets.items():
        total, pairs = 0, []
        for number, count in enumerate(buckets[: BUCKETS - 1]):
            total += count
            pairs.append((str(2**number / 1e6), total))
        pairs.append(("+Inf", total + buckets[-1]))
        metric.add_metric([api_name(key)], pairs, counts.answered_us[key] / 1e6)
    yield metric
    for name, text, value in (
        ("penstock_received_bytes", "Bytes of requests.", counts.bytes_in),
        ("penstock_sent_bytes", "Bytes of answers.", counts.bytes_out),
        ("penstock_flushes", "Syncs to the disk.", broker.flusher.syncs),
        ("penstock_flush_seconds", "Spent in them.", broker.flusher.busy_s),
        ("penstock_connections_opened", "Connections accepted.", counts.connections_opened),
    ):
        yield CounterMetricFamily(name, text, value=value)


def _topics(sources: Sources) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    broker = sources.broker
    labels = ["topic", "partition"]
    end: Any = GaugeMetricFamily("penstock_log_end_offset", "The next offset.", labels=labels)
    start: Any = GaugeMetricFamily("penstock_log_start_offset", "The first offset.", labels=labels)
    size: Any = GaugeMetricFamily("penstock_log_bytes", "Bytes of the log.", labels=labels)
    appended: Any = CounterMetricFamily(
        "penstock_log_appended_bytes", "Bytes appended since the start.", labels=labels
    )
    failed = 0
    for hosted in broker.topics.partitions():
        names, log = [hosted.topic.name, str(hosted.index)], hosted.log
        end.add_metric(names, log.end_offset)
        start.add_metric(names, log.start_offset)
        size.add_metric(names, log.size)
        appended.add_metric(names, log.appended_bytes)
        failed += log.failure is not None
    yield from (end, start, size, appended)
    yield GaugeMetricFamily("penstock_topics", "Topics.", value=len(broker.topics))
    yield GaugeMetricFamily(
        "penstock_topics_refused",
        "Topics that aren't served, as their description is damaged or lost.",
        value=len(broker.topics.refused),
    )
    yield GaugeMetricFamily(
        "penstock_partitions", "Partitions.", value=broker.topics.partition_count
    )
    yield GaugeMetricFamily(
        "penstock_partitions_failed", "Partitions that take no more records.", value=failed
    )
    yield GaugeMetricFamily(
        "penstock_cut_bytes",
        "Torn or damaged bytes that the start cut off the ends of logs.",
        value=sum(one.log.cut_bytes for one in broker.topics.partitions()),
    )


def _transactions(sources: Sources) -> Iterator[Metric]:
    """Transactions, and the sessions of those who read."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    broker = sources.broker
    known, sessions = broker.transactions, sources.fetch_sessions
    for name, text, value in (
        ("penstock_transactional_ids", "Transactional ids.", len(known.machine)),
        ("penstock_transactions_open", "Transactions that are open.", known.machine.ongoing),
        (
            "penstock_transactions_split",
            "Committed transactions that may lack records, as logs were found damaged at the start.",
            known.split,
        ),
        ("penstock_fetch_sessions", "Readers that are remembered.", len(sessions)),
    ):
        yield GaugeMetricFamily(name, text, value=value)
    for name, text, value in (
        ("penstock_transactions_committed", "Transactions committed.", known.commits),
        ("penstock_transactions_aborted", "Transactions aborted.", known.aborts),
    ):
        yield CounterMetricFamily(name, text, value=value)


def _upkeep(sources: Sources) -> Iterator[Metric]:
    """The metrics of compaction and of damage."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    broker = sources.broker
    logs = [one.log for one in broker.topics.partitions()]
    yield GaugeMetricFamily(
        "penstock_damaged_places",
        "Places in logs that were found not to be as written; reads of damaged records are refused.",
        value=sum(one.damaged for one in logs),
    )
    yield CounterMetricFamily(
        "penstock_compactions",
        "Passes over compacted partitions.",
        value=sum(one.compactor.passes for one in logs),
    )
    yield CounterMetricFamily(
        "penstock_compacted_bytes",
        "Bytes that compaction has removed.",
        value=sum(one.compactor.removed_bytes for one in logs),
    )
    yield GaugeMetricFamily(
        "penstock_partitions_uncleanable",
        "Compacted partitions that are left as they are, as something in them can't be understood.",
        value=sum(one.compactor.uncleanable is not None for one in logs),
    )
    yield GaugeMetricFamily(
        "penstock_compaction_passed_over_segments",
        "Segments of compacted partitions that are left as they are, as they are damaged or lost.",
        value=sum(len(one.compactor.passed_over()) for one in logs if one.config.compacts),
    )


def _tier(sources: Sources) -> Iterator[Metric]:
    """Object storage and Iceberg tables, where there are any."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    broker = sources.broker
    tiering, iceberg = broker.tiering, sources.iceberg
    if tiering is not None:
        cache = tiering.cache
        for name, text, value in (
            ("penstock_tier_copied_segments", "Segments copied.", tiering.copied_segments),
            ("penstock_tier_copied_bytes", "Bytes copied.", tiering.copied_bytes),
            ("penstock_tier_deleted_segments", "Segments deleted.", tiering.deleted_segments),
            (
                "penstock_tier_restored_segments",
                "Local segments that were damaged or lost, and replaced by their copy.",
                tiering.restored_segments,
            ),
            ("penstock_tier_failures", "Rounds that failed.", tiering.failures),
            ("penstock_tier_read_bytes", "Bytes read back.", cache.bytes_read),
            ("penstock_tier_read_failures", "Reads that failed.", cache.failures),
            ("penstock_tier_cache_hits", "Reads that were at hand.", cache.hits),
            ("penstock_tier_cache_misses", "Reads that had to wait.", cache.misses),
        ):
            yield CounterMetricFamily(name, text, value=value)
        yield GaugeMetricFamily(
            "penstock_tier_uncopied_bytes",
            "Bytes of closed segments that wait to be copied.",
            value=tiering.uncopied_bytes(broker.topics),
        )
        yield GaugeMetricFamily(
            "penstock_tier_damaged_segments",
            "Local segments that are not copied, and stay, because they are damaged.",
            value=tiering.damaged_segments,
        )
        yield GaugeMetricFamily(
            "penstock_tier_lost_manifests",
            "Partitions of which it isn't known what the store holds.",
            value=sum(bool(one.log.tier_fault) for one in broker.topics.partitions()),
        )
        yield GaugeMetricFamily(
            "penstock_tier_cache_bytes",
            "Memory of what was read back, answers under way included.",
            value=cache.alive_bytes,
        )
    if iceberg is not None:
        for name, text, value in (
            ("penstock_iceberg_rows", "Rows appended.", iceberg.rows),
            ("penstock_iceberg_dead_letters", "Values that didn't fit.", iceberg.dead_letters),
            ("penstock_iceberg_commits", "Commits.", iceberg.commits),
            ("penstock_iceberg_failures", "Commits that failed.", iceberg.failures),
        ):
            yield CounterMetricFamily(name, text, value=value)


def _groups(sources: Sources) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    broker = sources.broker
    labels = ["group", "topic", "partition"]
    lag: Any = GaugeMetricFamily(
        "penstock_group_lag_records", "Records that a group has yet to read.", labels=labels
    )
    lost: Any = GaugeMetricFamily(
        "penstock_group_lost_records",
        "Records that went before the group read them.",
        labels=labels,
    )
    left: Any = GaugeMetricFamily(
        "penstock_group_time_left_seconds",
        "Until retention reaches the group's position.",
        labels=labels,
    )
    rates = {one.name: one.bytes_per_s for one in sources.stats.topics()}
    found = lags(broker.topics, broker.group_offsets, broker.clock_ms(), rates)
    for number, one in enumerate(found):
        if number == LAG_SERIES_MAX:
            break
        names = [one.group, one.topic, str(one.partition)]
        lag.add_metric(names, one.records)
        lost.add_metric(names, one.lost)
        if one.time_left_ms is not None:
            left.add_metric(names, one.time_left_ms / 1000)
    yield from (lag, lost, left)
    states: dict[str, int] = {}
    for group in broker.groups:
        states[group.state.value] = states.get(group.state.value, 0) + 1
    members: Any = GaugeMetricFamily("penstock_groups", "Groups, by state.", labels=["state"])
    for state, count in states.items():
        members.add_metric([state], count)
    yield members


def _shares(sources: Sources) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    broker = sources.broker
    records: Any = GaugeMetricFamily(
        "penstock_share_records",
        "Records of share groups that are not settled, by what they wait for.",
        labels=["group", "topic", "state"],
    )
    found: dict[tuple[str, str], list[int]] = {}
    for held in broker.share:
        counts = found.setdefault((held.key.group, held.hosted.topic.name), [0] * 5)
        unseen = max(held.hosted.log.end_offset - held.state.end_offset, 0)
        for i, count in enumerate((unseen, *held.state.counts)):
            counts[i] += count
    states = ("unseen", "available", "delayed", "acquired", "rejected")
    for number, (names, counts) in enumerate(found.items()):
        if number == LAG_SERIES_MAX // len(states):
            break
        for state, count in zip(states, counts, strict=True):
            records.add_metric([*names, state], count)
    yield records
    for name, text, value in (
        ("penstock_dead_letters", "Dead letters of share groups.", broker.share.letters.written),
        (
            "penstock_dead_letters_dropped",
            "Records that should have become dead letters, but the topic doesn't take them.",
            broker.share.letters.dropped,
        ),
        (
            "penstock_share_unreadable_records",
            "Records that share groups passed over, as the log is damaged there.",
            broker.share.unreadable,
        ),
    ):
        yield CounterMetricFamily(name, text, value=value)


def _process(sources: Sources) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    broker = sources.broker
    resident, anonymous = _memory()
    times = os.times()
    for name, text, value in (
        ("penstock_connections", "Open connections.", sources.connections),
        ("penstock_receive_buffer_bytes", "Bytes of receive buffers.", sources.receive_bytes),
        ("process_resident_memory_bytes", "Memory, mapped log files included.", resident),
        ("penstock_anonymous_memory_bytes", "Memory without mapped files.", anonymous),
        ("process_open_fds", "Open descriptors.", _descriptors()),
        ("penstock_disk_free_bytes", "Room for data.", broker.room.free_bytes),
        (
            "penstock_disk_full",
            "1 while writes are refused because the disk is full.",
            broker.room.is_full,
        ),
    ):
        yield GaugeMetricFamily(name, text, value=float(value))
    yield CounterMetricFamily(
        "process_cpu_seconds", "CPU time of the process.", value=times.user + times.system
    )


def _memory() -> tuple[int, int]:
    """Resident bytes, and of them those that aren't of files."""
    try:
        fields = Path("/proc/self/statm").read_text().split()
    except OSError:
        return 0, 0
    return int(fields[1]) * _PAGE_BYTES, (int(fields[1]) - int(fields[2])) * _PAGE_BYTES


def _descriptors() -> int:
    try:
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - names alone
    except OSError:
        return 0

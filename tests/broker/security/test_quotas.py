"""Quotas: which one counts, how much flows, and what clients are told."""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.effort import examples

from penstock.broker import BrokerProcess
from penstock.broker.security.quotas import THROTTLE_S_MAX, Quota, Quotas, entity_of
from penstock.errors import SetupError, UserError
from penstock.wire.protocol import ApiKey


def test_the_most_specific_counts(tmp_path: Path) -> None:
    """Of the entities that a request belongs to, Kafka's order decides."""
    quotas = Quotas(tmp_path)
    order: list[dict[str, str | None]] = [
        {"user": "ann", "client-id": "app"},
        {"user": "ann", "client-id": None},
        {"user": "ann"},
        {"user": None, "client-id": "app"},
        {"user": None, "client-id": None},
        {"user": None},
        {"client-id": "app"},
        {"client-id": None},
    ]
    for rate, names in enumerate(order, start=1):
        quotas.change({entity_of(names): {Quota.PRODUCE: float(rate)}})
    for rate, names in enumerate(order, start=1):
        found = quotas.find(Quota.PRODUCE, "ann", "app")
        assert found == (rate, entity_of(names))
        quotas.change({entity_of(names): {Quota.PRODUCE: None}})
    assert quotas.find(Quota.PRODUCE, "ann", "app") is None
    assert not quotas.is_on


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.tuples(st.floats(0, 5), st.integers(0, 3000)), min_size=1, max_size=30))
def test_no_more_flows_than_the_rate(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[float, int]]
) -> None:
    """A client that keeps silent as told never gets more than the rate and one burst."""
    quotas = Quotas(tmp_path_factory.mktemp("q"))
    quotas.change({entity_of({"user": "ann"}): {Quota.FETCH: 1000.0}})
    now_s = total = 0.0
    for pause_s, amount in steps:
        now_s += pause_s
        assert total <= 1000 * (now_s + 2) + 3000 + 1e-6
        total += amount
        silent_s = quotas.take(Quota.FETCH, "ann", "x", amount, now_s)
        assert 0 <= silent_s <= THROTTLE_S_MAX
        now_s += silent_s


def test_quotas_are_kept(tmp_path: Path) -> None:
    """Limits survive a restart and are taken up from another process; a broken file is told."""
    entity = entity_of({"client-id": None})
    Quotas(tmp_path).change({entity: {Quota.REQUEST: 50.0}})
    quotas = Quotas(tmp_path)
    assert list(quotas) == [(entity, {"request_percentage": 50.0})]
    Quotas(tmp_path).change({entity: {Quota.REQUEST: 20.0}})
    quotas.refresh()
    assert quotas.find(Quota.REQUEST, "a", "b") == (20.0, entity)
    (tmp_path / "security" / "quotas.json").write_text("x")
    quotas.refresh()
    assert quotas.is_on
    with pytest.raises(SetupError, match="quotas"):
        Quotas(tmp_path)
    for wrong in ({}, {"ip": "1"}, {"user": ""}, {"user": "x" * 2000}):
        with pytest.raises(UserError):
            entity_of(wrong)


def entry(key: str, value: float | None, **names: str | None) -> dict[str, Any]:
    """One change of an entity's limits."""
    entity = [{"entity_type": k.replace("_", "-"), "entity_name": v} for k, v in names.items()]
    op = {"key": key, "value": value or 0.0, "remove": value is None}
    return {"entity": entity, "ops": [op]}


@pytest.fixture
def quota_broker(own_broker: BrokerProcess) -> BrokerProcess:
    """A broker of the test's own."""
    return own_broker.start()


def test_clients_are_slowed_down(
    quota_broker: BrokerProcess,
    connect: Callable[[str], Any],
    make_batch: Callable[..., bytearray],
) -> None:
    """Beyond its rate a client is told for how long to be silent, and is not served for as long;
    others are.
    """
    with connect(quota_broker.address) as raw, connect(quota_broker.address) as admin:
        admin.call(
            ApiKey.CREATE_TOPICS,
            5,
            topics=[{"name": "t", "num_partitions": 1, "replication_factor": 1}],
        )
        limits = [
            entry("producer_byte_rate", 35_000.0, client_id="test"),
            entry("consumer_byte_rate", 35_000.0, user="ANONYMOUS"),
        ]
        results = admin.call(ApiKey.ALTER_CLIENT_QUOTAS, 1, entries=limits)["entries"]
        assert [one["error_code"] for one in results] == [0, 0]
        part = {"index": 0, "records": bytes(make_batch(1, 140_000))}
        data = [{"name": "t", "partition_data": [part]}]
        began = time.monotonic()  # before the silence begins: what stalls this process only adds
        answer = raw.call(ApiKey.PRODUCE, 9, acks=1, timeout=1000, topic_data=data)
        assert answer["responses"][0]["partition_responses"][0]["error_code"] == 0
        throttle_ms = answer["throttle_time"]
        assert 0 < throttle_ms <= 2100  # 2 s, less what the answer took
        raw.send(18, 0, {})
        admin.call(ApiKey.API_VERSIONS, 0)
        is_silent = not select.select([raw.socket], [], [], 0)[0]
        assert is_silent or time.monotonic() - began >= throttle_ms / 1000
        raw.receive(18, 0)
        assert time.monotonic() - began >= throttle_ms / 1000
        wanted = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
        wanted |= {"current_leader_epoch": -1, "log_start_offset": -1}
        topics = [{"topic": "t", "partitions": [wanted]}]
        fetch = {"max_wait": 0, "max_bytes": 1 << 20, "session_epoch": -1, "topics": topics}
        answer = raw.call(ApiKey.FETCH, 11, **fetch)
        assert len(answer["responses"][0]["partitions"][0]["records"]) > 140_000
        assert 0 < answer["throttle_time"] <= 2100


def test_quotas_are_administered(
    quota_broker: BrokerProcess, connect: Callable[[str], Any]
) -> None:
    """Kafka's requests set, describe and remove limits; nonsense has its error."""
    with connect(quota_broker.address) as raw:
        changes = [
            entry("request_percentage", 30.0, user="ann", client_id="app"),
            entry("producer_byte_rate", 9.0, user=None),
            entry("controller_mutation_rate", 1.0, user="ann"),
            entry("producer_byte_rate", -1.0, user="ann"),
            entry("producer_byte_rate", 1.0, ip="127.0.0.1"),
        ]
        results = raw.call(ApiKey.ALTER_CLIENT_QUOTAS, 1, entries=changes)["entries"]
        assert [one["error_code"] for one in results] == [0, 0, 42, 42, 42]
        found = raw.call(ApiKey.DESCRIBE_CLIENT_QUOTAS, 1, components=[])["entries"]
        assert len(found) == 2
        exact = [{"entity_type": "user", "match_type": 0, "match": "ann"}]
        (one,) = raw.call(ApiKey.DESCRIBE_CLIENT_QUOTAS, 1, components=exact)["entries"]
        assert one["values"] == [{"key": "request_percentage", "value": 30.0}]
        assert (
            raw.call(ApiKey.DESCRIBE_CLIENT_QUOTAS, 1, components=exact, strict=True)["entries"]
            == []
        )
        default = [{"entity_type": "user", "match_type": 1, "match": None}]
        assert len(raw.call(ApiKey.DESCRIBE_CLIENT_QUOTAS, 1, components=default)["entries"]) == 1
        ip = [{"entity_type": "ip", "match_type": 2, "match": None}]
        assert raw.call(ApiKey.DESCRIBE_CLIENT_QUOTAS, 1, components=ip)["error_code"] == 42
        raw.call(
            ApiKey.ALTER_CLIENT_QUOTAS, 1, entries=[entry("producer_byte_rate", None, user=None)]
        )
        assert len(raw.call(ApiKey.DESCRIBE_CLIENT_QUOTAS, 1, components=[])["entries"]) == 1

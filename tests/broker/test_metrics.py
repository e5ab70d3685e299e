"""What the broker tells of itself: metrics, warnings, structured logs."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.patience import PATIENCE_S

from penstock.broker.groups.lag import LagWatch, lags, time_left_ms
from penstock.broker.groups.offsets import Committed, GroupOffsets
from penstock.broker.logs import Seldom, _Json
from penstock.broker.process import BrokerProcess
from penstock.broker.protocol.requests import BUCKETS, Requests
from penstock.broker.storage.topics import Topics
from penstock.log import LocalFiles, LogConfig, Partition
from penstock.log.disk.memory import MemoryFiles
from penstock.wire import batches
from penstock.wire.protocol import ApiKey

DAY_MS = 24 * 3600 * 1000


def start(data: Path, *arguments: str) -> tuple[subprocess.Popen[str], str, str]:
    """A broker with metrics: the process, its address and the metrics' URL."""
    command = [sys.executable, "-m", "penstock.broker", "--data", str(data), "--listen"]
    process = subprocess.Popen(
        [*command, "127.0.0.1:0", "--metrics", "127.0.0.1:0", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    address = process.stdout.readline().removeprefix("listening on ").strip()
    return process, address, process.stdout.readline().removeprefix("metrics on ").strip()


def scrape(url: str) -> dict[str, float]:
    """Samples by name and labels' values."""
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
        text = answer.read().decode()
    return {
        " ".join(
            [sample.name, *(value for _, value in sorted(sample.labels.items()))]
        ): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_metrics_tell_what_happened(tmp_path, connect):
    """Requests, errors, bytes, offsets, sizes, lag; as Prometheus reads them."""
    process, address, url = start(tmp_path / "data")
    try:
        with connect(address) as raw:
            wanted = {"name": "t", "num_partitions": 2, "replication_factor": 1}
            raw.call(ApiKey.CREATE_TOPICS, 5, topics=[wanted], timeout=1000)
            now_ms = time.time_ns() // 1_000_000
            for _ in range(3):
                batch = batches.build([(None, b"v")], timestamps_ms=[now_ms])
                assert raw.produce("t", batch)["error_code"] == 0
            assert raw.produce("t", b"not a batch at all" * 9)["error_code"]
            part = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
            raw.call(
                ApiKey.OFFSET_COMMIT,
                7,
                group_id="g",
                generation_id_or_member_epoch=-1,
                member_id="",
                topics=[{"name": "t", "partitions": [part | {"committed_leader_epoch": -1}]}],
            )
            raw.call(
                ApiKey.SHARE_GROUP_HEARTBEAT,
                1,
                group_id="s",
                member_id="m",
                subscribed_topic_names=["t"],
            )
            raw.produce("t", batches.build([(None, b"v")], timestamps_ms=[now_ms]))
            found = scrape(url)
        assert found["penstock_share_records s unseen t"] == 1
        assert found["penstock_requests_total produce"] == 5
        assert found["penstock_request_seconds_count produce"] == 5
        assert found["penstock_request_seconds_bucket produce +Inf"] == 5
        assert sum(v for k, v in found.items() if "request_errors_total produce" in k) == 1
        assert found["penstock_log_end_offset 0 t"] == 4
        assert found["penstock_log_end_offset 1 t"] == 0
        assert found["penstock_log_bytes 0 t"] > 100
        assert found["penstock_group_lag_records g 0 t"] == 3
        assert 6 * 86400 < found["penstock_group_time_left_seconds g 0 t"] < 8 * 86400
        assert found["penstock_connections"] == 1
        assert found["penstock_received_bytes_total"] > 0
        assert found["penstock_sent_bytes_total"] > 0
        assert found["penstock_anonymous_memory_bytes"] > 1 << 20
        assert found["penstock_disk_free_bytes"] > 0
    finally:
        process.terminate()
        process.communicate()


@pytest.mark.slow
def test_the_metrics_port_is_not_to_be_broken(tmp_path):
    """Neither by nonsense nor by silence; and it answers to GET of two pages alone."""
    process, _, url = start(tmp_path / "data")
    host, port = url.removeprefix("http://").removesuffix("/metrics").split(":")
    try:
        for nonsense in (b"\0" * 100, b"GET /" + b"x" * 100_000, b"POST /metrics HTTP/1.1\r\n\r\n"):
            with (
                socket.create_connection((host, int(port)), timeout=PATIENCE_S) as peer,
                contextlib.suppress(ConnectionError),  # cut off, before all is sent or after it
            ):
                peer.sendall(nonsense)
                with contextlib.suppress(OSError):
                    peer.shutdown(socket.SHUT_WR)
                peer.recv(1000)
        silent = socket.create_connection((host, int(port)))
        with urllib.request.urlopen(url.replace("metrics", "health"), timeout=PATIENCE_S) as answer:
            assert answer.read() == b"serving\n"
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(url + "/x", timeout=PATIENCE_S)
        silent.close()
    finally:
        process.terminate()
        process.communicate()
    taken = BrokerProcess(tmp_path / "other", arguments=["--metrics", "0.0.0.0:0"], stderr=-3)
    with pytest.raises(Exception, match="listen"):
        taken.start()


def test_the_time_left_is_until_the_segment_goes():
    """By time, and by size at the pace at which the log grows."""
    config = LogConfig(segment_bytes=1000, retention_ms=DAY_MS, retention_bytes=-1)
    log = Partition(MemoryFiles(), "t/0", config, 0)
    for number in range(12):
        batch = batches.build([(None, bytes(400))], timestamps_ms=[number * 1000])
        log.append(batch, number * 1000)
    assert [one.base_offset for one in log.segments] == [0, 2, 4, 6, 8, 10]
    assert time_left_ms(log, 0, 0) == DAY_MS + 1000
    assert time_left_ms(log, 3, 5000) == DAY_MS + 3000 - 5000
    assert time_left_ms(log, 12, 0) is None
    size = log.segments[0].size
    log.config = LogConfig(retention_ms=-1, retention_bytes=size * 6)
    assert time_left_ms(log, 0, 0) is None
    assert time_left_ms(log, 0, 0, bytes_per_s=size) == 1000
    assert time_left_ms(log, 11, 0, bytes_per_s=size) == 6000


def test_groups_are_warned_of_once(tmp_path, caplog):
    """When retention comes near, and when records were lost; and told again after they caught up."""
    files = LocalFiles(tmp_path)
    topics = Topics(files, lambda: 0)
    topic = topics.create("t", 1, {"retention.ms": "10000"})
    (tmp_path / "groups").mkdir()
    offsets = GroupOffsets(files)
    log = topic.partitions[0].log
    for number in range(4):
        log.append(batches.build([(None, b"v")], timestamps_ms=[number * 1000]), 0)
    offsets.commit("g", {("t", 0): Committed(1, -1, "", 0)}, 0)
    watch = LagWatch(topics, offsets)
    with caplog.at_level(logging.WARNING):
        assert not watch.look(5000, {})
        assert [state for _, state in watch.look(12_500, {})] == ["low"]
        assert not watch.look(12_600, {})
        log.delete_records(3, 0)
        assert [state for _, state in watch.look(12_700, {})] == ["lost"]
        (lag,) = lags(topics, offsets, 12_700)
        assert (lag.records, lag.lost) == (1, 2)
        offsets.commit("g", {("t", 0): Committed(4, -1, "", 0)}, 0)
        assert not watch.look(12_800, {})
    assert "retention reaches" in caplog.text
    assert "lost 2 records" in caplog.text


def test_logs_are_json_without_secrets():
    """One object a line, with the error; passwords are blotted out."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_Json())
    log = logging.getLogger("penstock.test.json")
    log.addHandler(handler)
    try:
        raise ValueError("sasl.jaas.config=hunter2 password: hunter3")
    except ValueError:
        log.exception("a login with password=%s failed", "hunter1")
    (line,) = stream.getvalue().splitlines()
    entry = json.loads(line)
    assert (entry["level"], entry["logger"]) == ("error", "penstock.test.json")
    assert entry["time"].endswith("Z")
    assert "ValueError" in entry["error"]
    assert "hunter" not in line


def test_the_same_failure_is_said_seldom(caplog):
    """With how often it was passed over."""
    now = [0.0]
    seldom = Seldom(logging.getLogger("penstock.test"), lambda: now[0])
    for _ in range(10):
        seldom.say("full", "no room")
    now[0] = 6.0
    seldom.say("full", "no room")
    assert [record.getMessage() for record in caplog.records] == [
        "full: no room",
        "full: no room (and 9 more of the kind)",
    ]


def test_counters_add_up():
    """Durations fall into buckets of powers of two; errors are found where they lie in answers."""
    counts = Requests()
    for _ in range(100):
        counts.began(3)
        counts.answered(3, time.perf_counter() - 0.001)
    counts.answered(3, -1e9)
    counts.began(3)
    counts.check()
    assert counts.buckets[3][BUCKETS - 1] == 1
    assert sum(counts.buckets[3][:10]) == 0
    parts = [{"error_code": 3}, {"error_code": 0}, {"error_code": 3}]
    counts.note_errors(8, {"error_code": 5, "topics": [{"name": "t", "partitions": parts}]})
    counts.note_errors(8, {"names": ["a"], "empty": [], "raw": b""})
    assert counts.errors == {(8, 5): 1, (8, 3): 2}

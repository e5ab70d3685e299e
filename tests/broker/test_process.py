from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.patience import PATIENCE_S

from penstock.broker import BrokerProcess
from penstock.broker.config import BrokerConfig
from penstock.errors import SetupError, UserError
from penstock.wire import batches
from penstock.wire.protocol import ApiKey

pytestmark = pytest.mark.interpreter

Raw = Any
NOW_MS = time.time_ns() // 1_000_000


def test_everything_survives_a_restart(
    own_broker: BrokerProcess, connect: Callable[..., Raw], make_batch: Callable[..., bytearray]
) -> None:
    """Topics, settings, records, commits and producer ids are there after an orderly restart."""
    own_broker.start()
    with connect(own_broker.address) as raw:
        config = {"name": "retention.ms", "value": "123456789"}
        wanted = {"name": "t", "num_partitions": 3, "replication_factor": 1, "configs": [config]}
        raw.call(ApiKey.CREATE_TOPICS, 5, topics=[wanted], timeout=1000)
        before = raw.call(ApiKey.METADATA, 12, topics=None)["topics"]
        raw.produce("t", make_batch(5), partition=2)
        part = {"partition_index": 2, "committed_offset": 4, "committed_metadata": "m"}
        commit = {"topics": [{"name": "t", "partitions": [part]}]}
        raw.call(ApiKey.OFFSET_COMMIT, 8, group_id="g", generation_id_or_member_epoch=-1, **commit)
        first_id = raw.call(ApiKey.INIT_PRODUCER_ID, 4, transactional_id=None)["producer_id"]
    own_broker.stop()
    own_broker.start()
    with connect(own_broker.address) as raw:
        assert raw.call(ApiKey.METADATA, 12, topics=None)["topics"] == before
        assert raw.fetch("t", 0, partition=2)["high_watermark"] == 5
        asked = [{"name": "t", "partition_indexes": [2]}]
        (found,) = raw.call(ApiKey.OFFSET_FETCH, 7, group_id="g", topics=asked)["topics"][0][
            "partitions"
        ]
        assert (found["committed_offset"], found["metadata"]) == (4, "m")
        assert raw.call(ApiKey.INIT_PRODUCER_ID, 4, transactional_id=None)["producer_id"] > first_id
        resource = {"resource_type": 2, "resource_name": "t", "configuration_keys": None}
        (result,) = raw.call(ApiKey.DESCRIBE_CONFIGS, 4, resources=[resource])["results"]
        values = {one["name"]: one["value"] for one in result["configs"]}
        assert values["retention.ms"] == "123456789"


def test_kill_loses_nothing_acknowledged(
    own_broker: BrokerProcess, connect: Callable[..., Raw]
) -> None:
    """SIGKILL under load, several times: each acknowledged batch is there once, in its place, and
    retries of unacknowledged ones are stored once.
    """
    chance = random.Random(7)
    own_broker.start()
    stored: dict[int, int] = {}
    next_sequence = 0
    with connect(own_broker.address) as raw:
        wanted = {"name": "t", "num_partitions": 1, "replication_factor": 1}
        raw.call(ApiKey.CREATE_TOPICS, 5, topics=[wanted], timeout=1000)
    for _ in range(4):
        timer = threading.Timer(chance.uniform(0, 0.1), own_broker.kill)
        begun_at = next_sequence
        with connect(own_broker.address) as raw:
            try:
                while True:
                    if next_sequence == begun_at + 10:
                        timer.start()
                    batch = numbered(next_sequence, chance.randrange(500))
                    answer = raw.produce("t", batch, acks=-1)
                    assert answer["error_code"] == 0
                    stored[next_sequence] = answer["base_offset"]
                    next_sequence += 1
            except OSError:
                pass
        timer.join()
        own_broker.start()
    with connect(own_broker.address) as raw:
        found = read_numbers(raw)
    assert len(stored) >= 40
    assert {sequence: found[offset] for sequence, offset in stored.items()} == {
        sequence: sequence for sequence in stored
    }
    assert sorted(found.values()) == sorted(set(found.values()))


def numbered(sequence: int, size: int) -> bytearray:
    """A batch of one record with its sequence as its key."""
    return batches.build(
        [(b"%d" % sequence, bytes(size))],
        timestamps_ms=[NOW_MS],
        producer_id=1,
        producer_epoch=0,
        base_sequence=sequence,
    )


def read_numbers(raw: Raw) -> dict[int, int]:
    """Sequence by offset of all batches in topic t."""
    found: dict[int, int] = {}
    offset = 0
    while True:
        data = raw.fetch("t", offset)["records"]
        if not data:
            return found
        for at, header in batches.iterate(data):
            assert batches.checksum_matches(data, at, header)
            found[header.base_offset] = header.base_sequence
            offset = header.next_offset


@pytest.mark.slow
def test_slow_reader_takes_no_memory(
    own_broker: BrokerProcess, connect: Callable[..., Raw]
) -> None:
    """Clients that ask for much and read nothing don't make the broker's own memory grow."""
    own_broker.start()
    batch = batches.build([(None, os.urandom(500_000))], timestamps_ms=[NOW_MS])
    with connect(own_broker.address) as raw:
        wanted = {"name": "t", "num_partitions": 1, "replication_factor": 1}
        raw.call(ApiKey.CREATE_TOPICS, 5, topics=[wanted], timeout=1000)
        for _ in range(60):
            raw.produce("t", batch)
        before = private_bytes(own_broker.pid)
        slow = [connect(own_broker.address) for _ in range(5)]
        for one in slow:
            one.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            for _ in range(50):
                one.send_fetch("t", 0, max_bytes=30_000_000)
        for _ in range(20):
            assert raw.fetch("t", 60)["error_code"] == 0
        time.sleep(0.2)
        assert private_bytes(own_broker.pid) - before < 40_000_000
        for one in slow:
            one.socket.close()
        assert raw.fetch("t", 0)["error_code"] == 0


def private_bytes(pid: int) -> int:
    """Memory of a process that isn't a mapped file."""
    memory = psutil.Process(pid).memory_info()
    return int(memory.rss - memory.shared)


@pytest.mark.slow
def test_promised_frames_take_no_memory(
    own_broker: BrokerProcess, connect: Callable[..., Raw]
) -> None:
    """Connections that announce 100 MB and send little cost what they sent, not what they said."""
    own_broker.start()
    before = private_bytes(own_broker.pid)
    liars = [connect(own_broker.address) for _ in range(50)]
    for one in liars:
        one.socket.sendall((100 << 20).to_bytes(4, "big") + bytes(1000))
    with connect(own_broker.address) as raw:
        assert raw.call(ApiKey.API_VERSIONS, 0)["error_code"] == 0
    assert private_bytes(own_broker.pid) - before < 20_000_000
    for one in liars:
        one.socket.close()


def test_full_disk_is_reported(
    own_broker: BrokerProcess, connect: Callable[..., Raw], make_batch: Callable[..., bytearray]
) -> None:
    """When a write fails, the producer gets the storage error, readers are served, and with room
    again writes succeed.
    """
    own_broker.start()
    with connect(own_broker.address) as raw:
        wanted = {"name": "t", "num_partitions": 1, "replication_factor": 1}
        raw.call(ApiKey.CREATE_TOPICS, 5, topics=[wanted], timeout=1000)
        raw.produce("t", make_batch(1, 500))
        process = psutil.Process(own_broker.pid)
        process.rlimit(psutil.RLIMIT_FSIZE, (1000, psutil.RLIM_INFINITY))
        assert raw.produce("t", make_batch(1, 2000))["error_code"] == 56
        process.rlimit(psutil.RLIMIT_FSIZE, (psutil.RLIM_INFINITY, psutil.RLIM_INFINITY))
        assert raw.fetch("t", 0)["high_watermark"] == 1
        assert raw.produce("t", make_batch(1, 2000))["base_offset"] == 1


@pytest.mark.slow
def test_one_broker_per_directory(own_broker: BrokerProcess, capfd: Any) -> None:
    """A second broker on a directory waits for the first one to stop, then gives up with a
    reason.
    """
    own_broker.start()
    hasty = BrokerProcess(own_broker.data, arguments=["--lock-wait-s", "0.2"])
    with pytest.raises(SetupError):
        hasty.start()
    assert f"process {own_broker.pid}" in capfd.readouterr().err
    thread = threading.Timer(1, own_broker.stop)
    thread.start()
    second = BrokerProcess(own_broker.data, arguments=["--lock-wait-s", str(PATIENCE_S)])
    second.start()
    second.stop()
    thread.join()


@pytest.mark.slow
def test_taken_port_is_reported(own_broker: BrokerProcess, tmp_path: Path, capfd: Any) -> None:
    """A port in use is an error that says what to do."""
    own_broker.start()
    with pytest.raises(SetupError):
        BrokerProcess(
            tmp_path / "other", listen=own_broker.address, arguments=["--lock-wait-s", "0.2"]
        ).start()
    assert "choose another with --listen" in capfd.readouterr().err


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_it_cleanly(own_broker: BrokerProcess, how: signal.Signals) -> None:
    """SIGTERM and SIGINT end the broker with status 0."""
    own_broker.start()
    process = psutil.Process(own_broker.pid)
    process.send_signal(how)
    assert process.wait(PATIENCE_S) in {0, None}


def test_broker_ends_with_its_parent(tmp_path: Path) -> None:
    """A broker that was asked to dies with its parent, even if that is killed."""
    script = (
        "import sys, time\n"
        "from penstock.broker import BrokerProcess\n"
        "print(BrokerProcess(sys.argv[1]).start().pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "data")], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
        parent.wait()
    child.wait(PATIENCE_S)


def test_remote_addresses_need_consent(tmp_path: Path) -> None:
    """Without authentication the broker listens to this machine alone, unless it is told
    otherwise.
    """
    with pytest.raises(SetupError, match="allow-remote"):
        BrokerConfig(data=tmp_path, listen="0.0.0.0:0")
    assert BrokerConfig(data=tmp_path, listen="0.0.0.0:0", allow_remote=True)
    assert BrokerConfig(data=tmp_path, listen="[::1]:9092")
    with pytest.raises(UserError, match="HOST:PORT"):
        BrokerConfig(data=tmp_path, listen="9092")


@pytest.mark.slow
def test_damaged_description_is_explained(own_broker: BrokerProcess, capfd: Any) -> None:
    """A topic's description that can't be read is told, and kept; the broker serves what it can."""
    damaged = own_broker.data / "topics" / "t" / "topic.json"
    damaged.parent.mkdir(parents=True)
    damaged.write_text("{")
    own_broker.start()
    assert "topics/t/topic.json" in capfd.readouterr().err
    assert damaged.read_text() == "{"


@pytest.mark.slow
def test_a_broker_loads_neither_arrow_nor_numpy() -> None:
    """They are 40 MB and a third of a second that it needs for few things: those load them."""
    code = (
        "import sys, penstock.broker.__main__\n"
        "heavy = {'numpy', 'pyarrow', 'numba', 'pandas', 'prometheus_client'} & sys.modules.keys()\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

"""A pipeline on a cluster: Spark's master and two workers, a Kafka of three brokers, state that all reach.

A worker, a lane, the driver and a broker are killed while input streams in; what is made equals what a
pipeline on one machine makes of the same log. Repeat a failure with
`PENSTOCK_KILL_SEED=… pytest tests/engine/spark/test_cluster_kills.py`.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.effort import rounds
from tests.engine.kills.harness import (
    PATIENCE_S,
    SEED,
    Feed,
    Pipeline,
    contents,
    ended,
    ends_of,
    is_lane,
)
from tests.engine.spark.daemons import Daemon, master, worker
from tests.patience import wait_until
from tests.peers import kafka_peer
from tests.ports import free_port

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(3_000)]

VICTIMS = ("worker", "lane", "driver", "broker")
KILLS = rounds("PENSTOCK_CLUSTER_KILLS", quick=len(VICTIMS), full=len(VICTIMS))
BUCKET = "state"


@pytest.fixture
def kafka(tmp_path: Path) -> Iterator[Any]:
    """Three brokers; a topic has a copy on each."""
    with kafka_peer().KafkaCluster(tmp_path / "kafka") as cluster:
        yield cluster


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A bucket of moto's server, by its URI."""
    moto = pytest.importorskip("moto.server")
    boto3 = pytest.importorskip("boto3")
    port = free_port()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "any")
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=port, verbose=False)
    server.start()
    try:
        url = f"http://127.0.0.1:{port}"
        boto3.client("s3", endpoint_url=url, region_name="us-east-1").create_bucket(Bucket=BUCKET)
        yield f"s3://{BUCKET}/hit?endpoint_override=127.0.0.1:{port}&scheme=http&region=us-east-1"
    finally:
        server.stop()


class Fire:
    """Kills one of those who take part."""

    def __init__(self, kafka: Any, workers: list[Daemon], pipeline: Pipeline) -> None:
        self.kafka, self.workers, self.pipeline = kafka, workers, pipeline
        self.chance = random.Random(SEED)

    def kill(self, victim: str) -> None:
        """Kills it, and goes on when something is committed again."""
        number = self.chance.randrange(2)
        if victim == "broker":
            self.kafka.kill(number)
        elif victim == "worker":
            # The one that has a lane, and its executor ends with it.
            busy = [one for one in self.workers if any(map(is_lane, one.family()))]
            daemon = self.chance.choice(busy or self.workers)
            daemon.kill()
        elif victim == "lane":
            wait_until(self._kill_lane, "a lane to kill", patience_s=PATIENCE_S)
        else:
            self.pipeline.kill()
            self.pipeline.start()
        self.pipeline.wait_for()
        if victim == "broker":
            self.kafka.start(number)
        elif victim == "worker":
            daemon.start()

    def _kill_lane(self) -> bool:
        lanes = [one for daemon in self.workers for one in daemon.family() if is_lane(one)]
        with contextlib.suppress(psutil.NoSuchProcess, IndexError):
            self.chance.choice(lanes).kill()
            return True
        return False


def check(tmp_path: Path, kafka: Any, state: str) -> None:
    """Runs a pipeline on the cluster with kills, and one without on this machine; both make the same."""
    feed = Feed(kafka.address, SEED)
    killed: Counter[str] = Counter()
    with (
        master(tmp_path) as spark,
        worker(tmp_path, spark, "worker-1") as first,
        worker(tmp_path, spark, "worker-2") as second,
    ):
        more = ("whole,transactions",)
        cluster = {"spark": spark, "state": state}
        with ended(
            Pipeline("hit", tmp_path / "hit.penstock", kafka.address, *more, **cluster)
        ) as hit:
            feed.start()
            hit.wait_for()
            fire = Fire(kafka, [first, second], hit)
            for victim in fire.chance.sample((list(VICTIMS) * KILLS)[:KILLS], KILLS):
                time.sleep(fire.chance.uniform(0.0, 1.0))
                fire.kill(victim)
                killed[victim] += 1
            feed.finish.set()
            feed.join(PATIENCE_S)
            assert feed.failure is None, feed.failure
            ends = ends_of(kafka.address)
            hit.wait_for(ends)
            hit.stop()
    with ended(Pipeline("calm", tmp_path / "calm.penstock", kafka.address)) as calm:
        calm.wait_for(ends)
        calm.stop()
    disturbed = contents("hit", state, kafka.address)
    undisturbed = contents("calm", tmp_path / "calm.penstock", kafka.address)
    assert undisturbed["closed"], "windows were closed"
    for what, rows in undisturbed.items():
        mine = Counter(str(row).replace("hit", "calm") for row in disturbed[what])
        theirs = Counter(map(str, rows))
        assert mine == theirs, f"{what} differ; seed {SEED}, kills {dict(killed)}"
    print(f"seed {SEED}: kills {dict(killed)}, {feed.sent:,} events")


def test_state_in_a_shared_folder(tmp_path: Path, kafka: Any) -> None:
    """What every machine mounts is enough."""
    folder = tmp_path / "shared"
    folder.mkdir()
    check(tmp_path, kafka, folder.as_uri())


def test_state_in_a_bucket(tmp_path: Path, kafka: Any, bucket: str) -> None:
    """So is an object store that has conditional writes."""
    check(tmp_path, kafka, bucket)

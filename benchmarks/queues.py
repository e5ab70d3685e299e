"""How fast does a queue hand out its records, beside Kafka's share groups?

    python benchmarks/queues.py [--brokers penstock,kafka] [--rounds 1] [--json]

Kafka's own load tool, ShareConsumerPerformance, takes and acknowledges what ProducerPerformance has
written before: records of 100 B in batches of up to 64 KB, and records in batches of their own, as
producers make them that don't wait. Beside the rates, which are largely the tool's own on two cores,
stands the broker's processor time per record. Joining the group is counted: the tool can't leave it out.

Then jobs one at a time, by `ps.Queue` on either broker: put all, and for each get and acknowledge.
Penstock has an acknowledgement on the disk before it answers, Kafka in the page cache. Without Java
that is all there is.
"""

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import penstock as ps
from broker import Effort, Process, compare, parser_of, started
from common.load_tools import BATCHED, UNBATCHED, Figure, create, java_produce, java_take, say
from penstock.client.share import ShareClient
from penstock.wire.protocol import ConfigResource

AIMS = {"records/s": 1.5, "jobs/s": 1.5, "us/record": 1.5, "us/job": 1.5}
WARM_UP = 20
PATIENCE_S = 60.0


@dataclass(frozen=True)
class Plan:
    """How many records."""

    batched: int = 500_000
    single: int = 50_000
    jobs: int = 1_000


SMOKE = Plan(jobs=50)


def measure(which: str, plan: Plan, libs: Path | None, work: Path) -> Iterator[Figure]:
    """One broker's figures."""
    kinds = (("in batches", BATCHED, plan.batched), ("in batches of one", UNBATCHED, plan.single))
    with started(which, work / which) as (process, _):
        for what, properties, count in kinds if libs else ():
            assert libs is not None
            say(f"{which}: records {what}")
            topic = what.replace(" ", "-")
            create(process.address, topic)
            with ShareClient(process.address) as client:
                client.configure(
                    ConfigResource.GROUP, topic, {"share.auto.offset.reset": "earliest"}
                )
            java_produce(libs, process.address, topic, count, 100, "1", properties)
            with Effort(process.pid) as effort:
                rate = java_take(libs, process.address, topic, count)
            yield Figure(f"records {what}", 100, which, rate, "records/s")
            yield Figure(f"records {what}, CPU", 100, which, 1e6 * effort.s / count, "us/record")
        say(f"{which}: jobs")
        rate, seconds = jobs(process, plan.jobs)
        yield Figure("jobs, one at a time", 100, which, rate, "jobs/s")
        yield Figure("jobs, CPU", 100, which, 1e6 * seconds / plan.jobs, "us/job")


def jobs(process: Process, count: int) -> tuple[float, float]:
    """Jobs/s of one worker, and the broker's processor time in all."""
    with ps.Queue("jobs", process.address) as queue:
        for _ in range(count + WARM_UP):
            queue.put(bytes(100))
        for _ in range(WARM_UP):
            take(queue)
        with Effort(process.pid) as effort:
            began = time.perf_counter()
            for _ in range(count):
                take(queue)
            rate = count / (time.perf_counter() - began)
    return rate, effort.s


def take(queue: ps.Queue) -> None:
    """Gets a job and acknowledges it."""
    job = queue.get(PATIENCE_S)
    if job is None:
        raise RuntimeError("expected a job, found none")
    job.ack()


def main(arguments: list[str] | None = None) -> int:
    options = parser_of(__doc__).parse_args(arguments)
    plan = SMOKE if options.smoke else Plan()
    compare(options, lambda which, libs, work: measure(which, plan, libs, work), AIMS)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Queues as users see them: `ps.Queue` and `penstock queue` against the broker, with kills."""

from __future__ import annotations

import itertools
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.effort import rounds
from tests.patience import PATIENCE_S, wait_until

import penstock as ps
from penstock.broker import BrokerProcess
from penstock.client import Client, Reader
from penstock.errors import JobLostError, UserError
from penstock.wire.columns import header

pytestmark = pytest.mark.interpreter

MakeQueue = Callable[..., ps.Queue]
KILLS = rounds("PENSTOCK_QUEUE_KILLS", quick=1, full=2)
_names = (f"jobs-{i}" for i in itertools.count())


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker for this module."""
    with BrokerProcess(tmp_path_factory.mktemp("queues") / "data") as process:
        yield process


@pytest.fixture
def name() -> str:
    """A new queue's name."""
    return next(_names)


@pytest.fixture
def make(broker: BrokerProcess, name: str) -> Iterator[MakeQueue]:
    """Opens the queue, with short times."""
    opened: list[ps.Queue] = []

    def make(**options: object) -> ps.Queue:
        given = {"backoff": "50ms", "lock": "30s", **options}
        queue = ps.Queue(name, broker.address, **given)  # type: ignore[arg-type]
        opened.append(queue)
        return queue

    yield make
    for queue in opened:
        queue.close()


def take(queue: ps.Queue) -> ps.queue.Job:  # type: ignore[name-defined]
    """The next job, which is there or will be."""
    job = queue.get(f"{PATIENCE_S:g}s")
    assert job is not None
    return job


def drain(queue: ps.Queue, count: int) -> list[bytes]:
    """Acknowledges the next jobs, after which there are none; their values in order."""
    found: list[bytes] = []
    for _ in range(count):
        with take(queue) as job:
            found.append(job.value)
    assert queue.work(lambda job: found.append(job.value), idle="200ms") == 0
    return found


def dead(
    broker: BrokerProcess, queue: ps.Queue, count: int = 1
) -> list[tuple[bytes, dict[str, bytes]]]:
    """The queue's dead letters, once there are as many, with their headers."""
    topic = queue.dead_letter_topic
    wait_until(lambda: queue.stats().dead >= count, lambda: f"{count} letters, {queue.stats()}")
    with Reader(broker.address) as reader:
        found = []
        for records in reader.read(topic, 0, 0, queue.stats().dead):
            values = records.values().to_pylist()
            found += [
                (value, {key: text or b"" for key, text in header(records, i)})
                for i, value in enumerate(values)
            ]
    return found


def test_jobs_go_to_one_worker_each(make: MakeQueue) -> None:
    """Two workers of one group share the jobs; what is acknowledged is gone."""
    queue, other = make(), make()
    for i in range(6):
        queue.put({"n": i})
    taken = [take(queue), take(other), take(queue)]
    numbers = []
    for job in taken:
        numbers.append(job.json()["n"])
        assert job.attempt == 1
        job.ack()
    assert numbers == [0, 1, 2]
    assert [int(one[5:-1]) for one in drain(other, 3)] == [3, 4, 5]
    assert queue.stats().waiting == 0
    assert queue.stats().workers == 2


def test_failed_job_comes_again_and_dies_at_last(make: MakeQueue, broker: BrokerProcess) -> None:
    """An exception gives a job back with growing pauses; the last one is in the dead letter."""
    queue = make(attempts=3)
    queue.put(b"poison", key="k", headers={"h": "x"})
    times, attempts = [], []
    for _ in range(3):
        job = take(queue)
        times.append(time.monotonic())
        attempts.append(job.attempt)
        with pytest.raises(ZeroDivisionError), job:
            _ = 1 / 0
    assert attempts == [1, 2, 3]
    assert times[1] - times[0] >= 0.05
    assert times[2] - times[1] >= 0.1
    assert queue.get("200ms") is None
    [(value, headers)] = dead(broker, queue)
    assert value == b"poison"
    assert headers["h"] == b"x"
    assert headers["__dlq.errors.message"] == b"ZeroDivisionError: division by zero"
    assert headers["__dlq.errors.delivery.count"] == b"3"


def test_rejected_job_is_a_dead_letter(make: MakeQueue, broker: BrokerProcess) -> None:
    """A reason that a worker gives stands in the dead letter."""
    queue = make()
    queue.put("no such thing")
    job = take(queue)
    job.reject("we don't do that")
    with pytest.raises(UserError):
        job.ack()
    [(value, headers)] = dead(broker, queue)
    assert (value, headers["__dlq.errors.message"]) == (b"no such thing", b"we don't do that")


def test_delays(make: MakeQueue) -> None:
    """A job that was put or released with a delay comes when its time has come, others before."""
    queue = make()
    began = time.monotonic()
    queue.put("later", delay="2500ms")
    queue.put("now")
    job = take(queue)
    assert job.text() == "now" or time.monotonic() - began >= 2.5
    released = time.monotonic()
    job.release(delay="300ms", counts=False)
    due = {job.text(): released + 0.3}
    due.setdefault("later", began + 2.5)
    due.setdefault("now", began)
    for _ in range(2):
        one = take(queue)
        assert one.attempt == 1
        assert time.monotonic() >= due.pop(one.text())
        one.ack()
    assert not due


def test_a_queue_whose_topic_is_made_anew_goes_on(
    make: MakeQueue, broker: BrokerProcess, name: str
) -> None:
    """A worker gets the new topic's jobs; what it says of an old one settles none of them."""
    queue = make()
    queue.put("old")
    old = take(queue)
    with Client(broker.address) as client:
        client.delete_topic(name)
        client.create_topic(name, 1)
    queue.put("new")
    new = take(queue)
    assert (new.text(), new.offset) == ("new", old.offset)
    with pytest.raises(JobLostError):
        old.ack()
    new.ack()
    assert queue.stats().waiting == 0


def test_lock_ends_unless_it_is_renewed(make: MakeQueue) -> None:
    """A job that nobody settles in time is another's; its first worker is told."""
    queue, other = make(lock="5s"), make(lock="5s")
    queue.put("slow")
    job = take(queue)
    for _ in range(3):
        time.sleep(1.7)  # three times this is longer than the lock; once leaves time for a stall
        job.renew()
    assert other.get("100ms") is None
    stolen = take(other)
    assert stolen.attempt == 2
    with pytest.raises(JobLostError, match="ours still"):
        job.ack()
    stolen.ack()


def test_closed_worker_gives_its_jobs_back(make: MakeQueue) -> None:
    """What a worker has when it leaves comes again at once, and isn't counted."""
    queue, other = make(prefetch=3), make()
    for i in range(3):
        queue.put(str(i))
    take(queue)
    queue.close()
    jobs = [take(other) for _ in range(3)]
    assert sorted((job.text(), job.attempt) for job in jobs) == [("0", 1), ("1", 1), ("2", 1)]


def test_closed_worker_gives_back_what_is_still_its_own(make: MakeQueue) -> None:
    """Jobs that it has lost meanwhile don't keep the others from coming back uncounted."""
    queue, other = make(prefetch=3), make()
    for i in range(3):
        queue.put(str(i))
    take(queue)
    (session,) = queue._member._sessions.values()  # type: ignore[union-attr]
    (offsets,) = session.unsettled.values()
    offsets.add(1_000)
    queue.close()
    jobs = [take(other) for _ in range(3)]
    assert sorted((job.text(), job.attempt) for job in jobs) == [("0", 1), ("1", 1), ("2", 1)]


def test_redelivery_reorders(make: MakeQueue) -> None:
    """The literature's example: worker 2 dies while it works on m3; m3 is done after m4."""
    one, two = make(), make()
    for i in range(1, 6):
        one.put(f"m{i}")
    done: list[str] = []

    def finish(job: ps.queue.Job) -> None:  # type: ignore[name-defined]
        done.append(job.text())
        job.ack()

    finish(take(two))
    finish(take(one))
    m3 = take(two)
    assert m3.text() == "m3"
    m4 = take(one)
    two._member._sessions.popitem()[1].connection.close()  # type: ignore[union-attr]
    finish(m4)
    done += [one_more.decode() for one_more in drain(one, 2)]
    assert sorted(done) == ["m1", "m2", "m3", "m4", "m5"]
    assert done.index("m3") > done.index("m4")


def test_a_queue_per_key_keeps_the_order(make: MakeQueue) -> None:
    """With order="key" a failed job holds back the later ones of its key, and no others."""
    queue, other = make(order="key", attempts=10), make(order="key", attempts=10)
    for i in range(12):
        queue.put(f"{i}", key=f"k{i % 3}")
    done: dict[bytes, list[int]] = {}
    turns = itertools.cycle([queue, other])
    failures = Counter[bytes]()
    while sum(map(len, done.values())) < 12:
        job = next(turns).get("100ms")
        if job is None:
            continue
        assert job.key is not None
        if failures[job.value] < 1 and int(job.value) % 2 == 0:
            failures[job.value] += 1
            job.release()
        else:
            done.setdefault(job.key, []).append(int(job.value))
            job.ack()
    assert done == {b"k0": [0, 3, 6, 9], b"k1": [1, 4, 7, 10], b"k2": [2, 5, 8, 11]}


WORKER = """
import sys, time
import penstock as ps
q = ps.Queue(sys.argv[1], sys.argv[2], attempts=10, backoff="20ms", prefetch=3)
done = open(sys.argv[3], "a", buffering=1)
for job in q:
    time.sleep(0.005)
    job.ack()
    done.write(job.text() + "\\n")
"""


def test_killed_workers_lose_nothing(
    make: MakeQueue, broker: BrokerProcess, name: str, tmp_path: Path
) -> None:
    """Workers die by SIGKILL; every job is acknowledged, and none twice."""
    queue = make(attempts=10, backoff="20ms")
    queue._join()
    jobs = 100
    for i in range(jobs):
        queue.put(str(i))
    files = [tmp_path / f"done-{n}" for n in range(2 + KILLS)]

    def spawn(n: int) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-c", WORKER, name, broker.address, str(files[n])]
        return subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    workers = [spawn(0), spawn(1)]
    try:
        for n in range(KILLS):
            wanted = (n + 1) * jobs // (KILLS + 2)
            wait_until(lambda wanted=wanted: count(files) >= wanted, f"{wanted} jobs done")
            workers[n % 2].send_signal(signal.SIGKILL)
            workers[n % 2].wait()
            workers[n % 2] = spawn(2 + n)
        wait_until(lambda: queue.stats().waiting == 0, queue.stats)
        # The file is written after the acknowledgement, so a kill between the two may lack a line.
        wait_until(lambda: count(files) >= jobs - KILLS, "the lines of all jobs")
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    done = [line for file in files if file.exists() for line in file.read_text().split()]
    assert len(done) == len(set(done))
    assert jobs - KILLS <= len(done) <= jobs
    assert queue.stats().dead == 0


def count(files: list[Path]) -> int:
    """Lines of all files."""
    return sum(file.read_bytes().count(b"\n") for file in files if file.exists())


@pytest.mark.slow
def test_killed_broker_forgets_nothing(tmp_path: Path) -> None:
    """The broker dies by SIGKILL while jobs are put, worked on and rejected: each job that was put
    is acknowledged or a dead letter, once.
    """
    broker = BrokerProcess(tmp_path / "data", die_with_parent=False).start()
    settings = {"attempts": 10, "backoff": "10ms", "lock": "2s", "prefetch": 4}
    queue = ps.Queue("t", broker.address, **settings)  # type: ignore[arg-type]
    jobs, accepted, rejected, unsure = 160, Counter[str](), set[str](), set[str]()
    stop = threading.Event()

    def work() -> None:
        with ps.Queue("t", broker.address, **settings) as mine:  # type: ignore[arg-type]
            while not stop.is_set():
                job = mine.get("200ms")
                if job is None:
                    continue
                bad = int(job.value) % 10 == 3
                try:
                    job.reject("bad") if bad else job.ack()
                except JobLostError:
                    unsure.add(job.text())
                else:
                    if bad:
                        rejected.add(job.text())
                    else:
                        accepted[job.text()] += 1

    queue._join()
    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for i in range(jobs):
            queue.put(str(i))
            if KILLS and i % (jobs // KILLS) == jobs // KILLS - 10:
                broker.kill()
                broker.start()
        wait_until(lambda: queue.stats().waiting == 0, queue.stats)
        letters = [value.decode() for value, _ in dead(broker, queue, jobs // 10)]
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        queue.close()
        broker.kill()
    assert max(accepted.values()) == 1
    assert sorted(letters, key=int) == [str(i) for i in range(jobs) if i % 10 == 3]
    missing = {str(i) for i in range(jobs)} - set(accepted) - set(letters)
    assert missing <= unsure  # acknowledged, but the broker died before it could say so


def test_command_line(broker: BrokerProcess, name: str) -> None:
    """Jobs are put, listed, run, and counted from the shell."""
    from penstock.cli.entry import main

    def run(*arguments: str, text: str = "") -> str:
        argv = ["queue", "--broker", broker.address, *arguments]
        result = CliRunner().invoke(main, argv, input=text, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output

    run("put", name, "one", "two", "--key", "k")
    run("put", name, text="three\nfour\n")
    assert run("work", name, "--max", "1") == "one\n"
    assert '"attempt":1' in run("work", name, "--max", "1", "--show")
    assert '"waiting": 2' in run("stats", name, "--format", "json").replace('":', '": ')
    run("work", name, "--idle", "2s", "--attempts", "2", "--backoff", "10ms", "--", "false")
    stats = run("stats", name, "--format", "csv").splitlines()[1].split(",")
    assert stats[:2] == [name, "0"]
    assert name in run("list")


def test_the_documented_programs_run(broker: BrokerProcess) -> None:
    """What the page on queues shows works."""
    page = (Path(__file__).resolve().parent.parent / "docs" / "queues.md").read_text()
    space: dict[str, object] = {"ADDRESS": broker.address, "ps": ps}
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(compile(block, "docs/queues.md", "exec"), space)
    assert space["done"] == ["cat.jpg", "dog.jpg"]


def test_senseless_queues_are_refused(broker: BrokerProcess) -> None:
    """Arguments that can't be meant are errors."""
    for options in ({"attempts": 1}, {"order": "value"}, {"prefetch": 0}, {"lock": "-1"}):
        with pytest.raises(UserError):
            ps.Queue("x", broker.address, **options)  # type: ignore[arg-type]

"""Share sessions over the wire: how they begin, go on and end, and whose records are whose then."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from share_worker import ACCEPT, FETCH, Worker
from tests.patience import wait_until

from penstock.wire import batches
from penstock.wire.protocol import ErrorCode

Connect = Callable[[str], Any]


def test_lost_connection_gives_records_back(worker: Worker, address: str, connect: Connect) -> None:
    """A member whose connection breaks loses its records, and the delivery counts."""
    with connect(address) as raw:
        other = Worker(raw, worker.group, worker.topic)
        other.beat()
        assert other.fetch(most=2) == [(0, 1), (1, 1)]
    found: list[tuple[int, int]] = []

    def came_back() -> list[tuple[int, int]]:
        found.extend(worker.fetch(most=1, wait=200))
        return [one for one in found if one[1] == 2]

    wait_until(lambda: len(came_back()) == 2, lambda: f"both, found {found}")
    assert came_back() == [(0, 2), (1, 2)]


def test_session_epochs(worker: Worker) -> None:
    """A session goes on with the next epoch, and nothing else."""
    worker.fetch(most=1)
    worker.session_epoch = 7
    worker.send_fetch()
    answer = worker.raw.receive(FETCH, 2)
    assert answer["error_code"] == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    worker.id = "nobody"
    worker.send_fetch()
    assert worker.raw.receive(FETCH, 2)["error_code"] == ErrorCode.SHARE_SESSION_NOT_FOUND


def test_end_of_a_session_gives_records_back(worker: Worker, second: Worker) -> None:
    """Epoch -1 ends a session; what its member had is another's, and was delivered."""
    assert worker.fetch(most=2) == [(0, 1), (1, 1)]
    worker.session_epoch = -1
    assert worker.fetch() == []
    assert second.fetch(most=2) == [(0, 2), (1, 2)]


def test_who_leaves_the_group_keeps_its_records(worker: Worker, second: Worker) -> None:
    """A client's heartbeat that leaves may overtake its last acknowledgements: they still count."""
    assert worker.fetch(most=3) == [(0, 1), (1, 1), (2, 1)]
    assert worker.beat(-1)["error_code"] == 0
    assert second.fetch(most=1) == [(3, 1)]
    assert worker.acknowledge(0, 1, ACCEPT) == 0
    worker.session_epoch = -1
    assert worker.fetch() == []
    assert second.fetch(most=2) == [(2, 2), (4, 1)]


def test_a_session_that_begins_anew_leaves_records_acquired(worker: Worker) -> None:
    """Epoch 0 on the same connection: what its member has stays its own, until its lock ends."""
    assert worker.fetch(most=2) == [(0, 1), (1, 1)]
    worker.session_epoch = 0
    assert worker.fetch(most=2) == [(2, 1), (3, 1)]
    assert worker.acknowledge(0, 3, ACCEPT) == 0


def test_a_session_that_begins_on_another_connection_ends_the_former(
    worker: Worker, address: str, connect: Connect
) -> None:
    """A member that has connected again doesn't have what it had, seen or not that it was gone."""
    assert worker.fetch(most=2) == [(0, 1), (1, 1)]
    with connect(address) as raw:
        worker.raw, worker.session_epoch = raw, 0
        assert worker.fetch(most=2) == [(0, 2), (1, 2)]


def test_a_fault_is_reported_once_at_once(worker: Worker, second: Worker) -> None:
    """A member that goes on asking for a topic that is gone waits as if there were no records."""
    assert len(worker.fetch(most=99)) == 10
    known = worker.topic_id
    worker.topic_id = uuid.uuid4()
    worker.send_fetch(wait=60_000)
    answer = worker.raw.receive(FETCH, 2)
    assert codes(answer) == {worker.topic_id: ErrorCode.UNKNOWN_TOPIC_ID}
    worker.send_fetch(wait=60_000)
    for _ in range(3):
        second.beat()  # so that the fetch is under way
    second.raw.produce(worker.topic, batches.build([(None, b"more")]))
    found = codes(worker.raw.receive(FETCH, 2))
    assert found == {worker.topic_id: ErrorCode.UNKNOWN_TOPIC_ID, known: ErrorCode.NONE}


def codes(answer: dict[str, Any]) -> dict[uuid.UUID, int]:
    """The error code of each topic's one partition."""
    assert answer["error_code"] == 0
    return {one["topic_id"]: one["partitions"][0]["error_code"] for one in answer["responses"]}

"""Messages arrive whole, however their bytes were cut; what is none of ours is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engine.record import samples

from penstock.engine.lanes.messages import (
    HEAD_BYTES_MAX,
    PREFIX,
    Abort,
    Beat,
    Done,
    Failed,
    Frames,
    Go,
    Hello,
    LevelEnd,
    Message,
    Parcel,
    Peer,
    Stop,
    frame,
)
from penstock.engine.letters.failures import Described
from penstock.engine.record.marks import Activity, FoundProducers, Producers
from penstock.engine.record.plan import Repeats, Split, Transaction, WriterEntry
from penstock.errors import PenstockError

PLAN = samples.plan(
    9,
    splits=(Split("t", 1, 2, 3, 4, 0, Producers(("a",), (1,), (2,), (3, 4)), [[0, 5]]),),
    writers={"t/0": WriterEntry(7, 0, {3: 4})},
    activity={"t": Activity(1, {0: 2}, {0: 3}, {"b": 4})},
    repeats=Repeats(8, "abc", ["x"], Repeats(7, "abc", [])),
    transaction=Transaction("p", ["x"], 7, 1, {"t": {0: 9}}),
)
REPORT = samples.report(
    traces={"op": {0: {"runs": []}}},
    sources=[samples.split_report("t", 1, rows=3, producers=FoundProducers({"a": 1}, None))],
    writers={"t/0": {3: 5}},
    transaction={"t": {0: 9}},
)
SENT: list[tuple[Message, bytes]] = [
    (Hello(1, 77, "127.0.0.1", 4_000), b""),
    (Go(3, PLAN, {"op": {0: {"runs": []}}}, [["127.0.0.1", 1]]), b""),
    (Parcel(3, 0, "op", 2, 1, "events/000001"), b"x" * 5_000),
    (Parcel(3, 0, "op", 0, 0, "ä"), b""),
    (LevelEnd(3, 0, 1), b""),
    (Done(3, REPORT), b""),
    (Failed(3, Described("FlowError", "expected", retriable=False)), b""),
    (Peer(0, "00"), b""),
    (Abort(3), b""),
    (Beat(), b""),
    (Stop(), b""),
]


def parsed(data: bytes, pieces: list[int]) -> list[tuple[Message, bytes]]:
    """What `Frames` makes of bytes that come in pieces of these sizes, over and over."""
    frames, found, at, turn = Frames(), [], 0, 0
    while at < len(data):
        space = frames.space()
        size = min(len(space), pieces[turn % len(pieces)], len(data) - at)
        space[:size] = data[at : at + size]
        at, turn = at + size, turn + 1
        done = frames.filled(size)
        if done is not None:
            found.append((done[0], bytes(done[1])))
    assert frames.is_between, "nothing is left over"
    return found


@given(pieces=st.lists(st.integers(1, 3_000), min_size=1, max_size=20))
def test_any_cut_gives_the_messages(pieces: list[int]) -> None:
    """With their blobs, in their order."""
    data = b"".join(frame(message, len(blob)) + blob for message, blob in SENT)
    assert parsed(data, pieces) == SENT


@pytest.mark.parametrize(
    "head", [b"{}", b"[]", b"not JSON", b'{"kind":"Evil"}', b'{"kind":"Abort"}', b'{"kind":[]}']
)
def test_what_is_no_message_is_refused(head: bytes) -> None:
    """Nothing but the listed kinds is made of bytes, whatever they name."""
    with pytest.raises(PenstockError, match="expected a message"):
        parsed(PREFIX.pack(len(head), 0) + head, [1_000])


def test_absurd_lengths_are_refused_before_memory_is_taken() -> None:
    """Those of another protocol's first bytes, say."""
    with pytest.raises(PenstockError, match="expected a message"):
        parsed(PREFIX.pack(HEAD_BYTES_MAX + 1, 0), [1_000])
    with pytest.raises(PenstockError, match="expected a message"):
        parsed(b"GET / HTTP/1.1\r\n\r\n", [1_000])

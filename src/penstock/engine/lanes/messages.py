"""What the driver and its lanes say to each other: typed messages in frames. Pure.

    frame = length of the head (4 bytes) | length of the blob (8 bytes), little endian | head | blob

The head is a JSON object: the message's fields and, as `kind`, its type. Only a `Parcel` has a blob:
Arrow IPC, which is never parsed as anything else.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, fields
from typing import Any, Final, TypeAlias

import orjson

from penstock.engine.letters.failures import Described
from penstock.engine.record.plan import Plan
from penstock.engine.record.report import Report
from penstock.engine.record.values import Traces, by_name
from penstock.errors import PenstockError

__all__ = [
    "BEAT_S",
    "PEER_LOST",
    "PREFIX",
    "Abort",
    "Beat",
    "Done",
    "Failed",
    "Frames",
    "Go",
    "Hello",
    "LevelEnd",
    "Message",
    "Parcel",
    "Peer",
    "Stop",
    "Written",
    "frame",
]

PREFIX: Final = struct.Struct("<IQ")
HEAD_BYTES_MAX: Final = 256 << 20
"""Of a message's head: a plan with the traces of thousands of shards has some MiB."""
BLOB_BYTES_MAX: Final = 8 << 30
"""Of one parcel: what a batch sends to one shard is bounded by the batch's rows."""
PEER_BYTES_MAX: Final = 1_000
"""Of the first message between two lanes, which says who sends."""
BEAT_S: Final = 5.0
"""How often a lane says that its process is alive."""
PEER_LOST: Final = "PeerLost"
"""As an error's type in `Failed`: another lane could not be reached."""


@dataclass(frozen=True, slots=True)
class Hello:
    """A lane reports for duty: its number, its process, and where other lanes reach it.

    Attributes:
        stands_in: whether it works only until Spark's lane of that number is there.
    """

    lane: int
    pid: int
    host: str
    port: int
    stands_in: bool = False


@dataclass(frozen=True, slots=True)
class Go:
    """Run a batch.

    Attributes:
        ticket: of this attempt.
        plan: of the batch.
        traces: the state that the batch begins with, of this lane's shards.
        peers: where each lane is reached, `[host, port]`, by lane.
    """

    ticket: int
    plan: Plan
    traces: Traces
    peers: list[list[Any]]


@dataclass(frozen=True, slots=True)
class Abort:
    """Give up an attempt: another lane was lost."""

    ticket: int


@dataclass(frozen=True, slots=True)
class Written:
    """The plan of an attempt is written down: topics may be written to."""

    ticket: int


@dataclass(frozen=True, slots=True)
class Stop:
    """There are no more batches."""


@dataclass(frozen=True, slots=True)
class Beat:
    """The lane's process is alive."""


@dataclass(frozen=True, slots=True)
class Done:
    """What a lane has made of an attempt."""

    ticket: int
    report: Report


@dataclass(frozen=True, slots=True)
class Failed:
    """Why an attempt can't be ended."""

    ticket: int
    error: Described


@dataclass(frozen=True, slots=True)
class Peer:
    """The first message between two lanes: who sends, and a proof that it knows the secret."""

    lane: int
    proof: str


@dataclass(frozen=True, slots=True)
class Parcel:
    """Rows for one shard of an operator; the blob holds them.

    Attributes:
        port: the operator's input that they are for.
        origin: of whom they are: parcels of one shard are put in the order of their origins.
    """

    ticket: int
    level: int
    operator: str
    port: int
    shard: int
    origin: str


@dataclass(frozen=True, slots=True)
class LevelEnd:
    """A lane has sent all of a level."""

    ticket: int
    level: int
    lane: int


Message: TypeAlias = (
    Hello | Go | Written | Abort | Stop | Beat | Done | Failed | Peer | Parcel | LevelEnd
)
_KINDS: Final[dict[str, type[Message]]] = {
    kind.__name__: kind
    for kind in (Hello, Go, Written, Abort, Stop, Beat, Done, Failed, Peer, Parcel, LevelEnd)
}
_FIELDS: Final = {kind: tuple(f.name for f in fields(kind)) for kind in _KINDS.values()}


def frame(message: Message, blob_bytes: int = 0) -> bytes:
    """A message's bytes, up to its blob, which follows."""
    content = {name: getattr(message, name) for name in _FIELDS[type(message)]}
    content["kind"] = type(message).__name__
    head = orjson.dumps(content, option=orjson.OPT_NON_STR_KEYS)
    if len(head) > HEAD_BYTES_MAX or blob_bytes > BLOB_BYTES_MAX:
        raise PenstockError(
            f"expected messages between driver and lanes of at most {HEAD_BYTES_MAX} bytes and parcels of "
            f"at most {BLOB_BYTES_MAX}; found {len(head)} and {blob_bytes}. Make batches smaller (batch_rows)"
        )
    return PREFIX.pack(len(head), blob_bytes) + head


class Frames:
    """Puts frames together from pieces as they arrive.

    `space()` is where the next bytes belong; `filled(n)` says how many came, and gives the message that
    they completed, if any. Nothing is copied: a blob is received in the memory where it stays.

    Args:
        is_known: whether the sender has proved who it is. Until then it may announce no more than a
            `Peer` takes, so that strangers cost no memory.
    """

    def __init__(self, *, is_known: bool = True) -> None:
        self.is_known = is_known
        self._begin()

    @property
    def is_between(self) -> bool:
        """Whether no frame has begun."""
        return self._part == 0 and self._at == 0

    def space(self) -> memoryview:
        """Where the next bytes go; never empty."""
        return self._into[self._at :]

    def filled(self, count: int) -> tuple[Message, memoryview] | None:
        """Takes note of `count` bytes; the message and its blob, where they were the last of it.

        Raises:
            PenstockError: these are no messages of ours.
        """
        self._at += count
        while self._at == len(self._into):
            match self._part:
                case 0:
                    head_bytes, self._blob_bytes = PREFIX.unpack(self._into)
                    head_max = HEAD_BYTES_MAX if self.is_known else PEER_BYTES_MAX
                    blob_max = BLOB_BYTES_MAX if self.is_known else 0
                    if head_bytes > head_max or self._blob_bytes > blob_max:
                        raise PenstockError(
                            f"expected a message of a driver or lane; found a head of {head_bytes} bytes "
                            f"and a blob of {self._blob_bytes}"
                        )
                    self._next(head_bytes)
                case 1:
                    self._message = _parsed(self._into)
                    self._next(self._blob_bytes)
                case _:
                    found = self._message, self._into
                    self._begin()
                    return found
        return None

    def _begin(self) -> None:
        self._part, self._at = 0, 0
        self._into = memoryview(bytearray(PREFIX.size))

    def _next(self, size: int) -> None:
        self._part, self._at = self._part + 1, 0
        self._into = memoryview(bytearray(size))


def _parsed(head: memoryview) -> Message:
    try:
        content = orjson.loads(head)
        kind = _KINDS[content.pop("kind")]
        if kind is Go:
            content["plan"] = Plan.from_json(content["plan"])
            content["traces"] = by_name(content["traces"])
        elif kind is Done:
            content["report"] = Report.from_json(content["report"])
        elif kind is Failed:
            content["error"] = Described(**content["error"])
        return kind(**content)
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise PenstockError(
            f"expected a message of a driver or lane of this release; found {bytes(head[:80])!r} ({error!r})"
        ) from None

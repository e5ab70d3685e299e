"""Differences from Kafka that stay, each told as narrowly as it can be.

`docs/compatibility.md` has the same list for people. A difference is explained where the step, the
field and both values are those of an entry; every other value of the same field is a failure.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

__all__ = ["EXPLAINED", "Explained", "reason_of"]

Holds = Callable[[Any, Any], bool]


class Explained(NamedTuple):
    """A difference that stays.

    Attributes:
        step: a pattern for the step.
        field: a pattern for the field's path.
        holds: whether our value and Kafka's are those that the reason is about.
        reason: why.
    """

    step: str
    field: str
    holds: Holds
    reason: str


def values(ours: Any, theirs: Any) -> Holds:
    """Just these two values."""
    return lambda mine, its: (mine, its) == (ours, theirs)


def is_time(mine: Any, its: Any) -> bool:
    """Two times of the wall clock (ms)."""
    return min(mine, its) > 1_500_000_000_000


def is_behind(mine: Any, its: Any) -> bool:
    """An epoch of ours that has counted less."""
    return 0 <= mine < its


def is_written_default(mine: Any, its: Any) -> bool:
    """A default of ours that Kafka's cluster (source 3) was told once more, and its properties (4) have."""
    if isinstance(mine, int):
        return (mine, its) == (5, 3)
    broker_wide, from_file = (
        {"name": "min.insync.replicas", "value": "1", "source": n} for n in (3, 4)
    )
    return (
        broker_wide in its and [one for one in its if one not in (broker_wide, from_file)] == mine
    )


def codes(answers: Any) -> set[str]:
    """The error codes that some answers hold."""
    return set(re.findall(r"'error_code': (-?\d+)", repr(answers)))


def is_late_acknowledgement(mine: Any, its: Any) -> bool:
    """What only we refuse: of one answer its code, or of several their list."""
    if isinstance(mine, int):
        return (mine, its) == (121, 0)
    return codes(mine) == {"0", "121"} and codes(its) == {"0", "121"} and len(mine) < len(its)


EXPLAINED: tuple[Explained, ...] = (
    Explained(
        r"^(produce|0) ",
        r"log_start_offset$",
        lambda mine, its: mine >= 0 and its == -1,
        "of a refused batch: the start; Kafka says -1 or the start, by the place that refuses it",
    ),
    Explained(
        r"^produce v\d+ codec ",
        r"error_code$",
        values(76, -1),
        "an unknown compression: UNSUPPORTED_COMPRESSION_TYPE; Kafka's UNKNOWN_SERVER_ERROR tells less",
    ),
    Explained(
        r"^produce v\d+ \S+ producer \d+ seq ",
        r"error_code$",
        values(46, 45),
        "an old duplicate: DUPLICATE_SEQUENCE_NUMBER, which producers take for a success",
    ),
    Explained(
        r"^produce v\d+ (garbage|cut) ",
        r"error_code$",
        lambda mine, its: {mine, its} <= {2, 53, 76, 87},
        "which of several faults is told: the checksum, the transactional id, the compression, the format",
    ),
    Explained(
        r"^produce v\d+ acks ",
        r"error_code$",
        values(21, 76),
        "which of two faults is told: the acks, or a compression newer than the request",
    ),
    Explained(
        r"^61 ",
        r"last_timestamp$",
        is_time,
        "when the producer last wrote; Kafka says the time of its record",
    ),
    Explained(
        r"^create .*True}$",
        r"topic_id$",
        lambda mine, its: "<id>" in {mine, its} and "00000000" in f"{mine}{its}",
        "nothing is made, so there is no id; Kafka makes one up",
    ),
    Explained(
        r"^32 .*'min.insync.replicas'",
        r"configs\[\d\]\.(config_source|synonyms)$",
        is_written_default,
        "min.insync.replicas: Kafka's controller writes the default down for the whole cluster",
    ),
    Explained(
        r"^68 .*'member_epoch': Ref\(name='before ",
        r"error_code$",
        values(42, 110),
        "the epoch before a group's first is 0 here, and says that a member joins",
    ),
    Explained(
        r"^(68 v\d (joins|subscribes|leaves)|68 settles|69 v\d) .*\bc[\d-]+-0\b",
        r"members\[\d\]\.(topic_partitions|(target_)?assignment)\b|^\[0\]\.assignment\b",
        lambda mine, its: mine != its,
        "who has what by the uniform assignor: Kafka shares out by the order of its hash tables; "
        "that all is shared out is compared (`assigned`)",
    ),
    Explained(
        r"^76 (joins|settles) ",
        r"topic_partitions$",
        lambda mine, its: len(mine) > 0 and not its,
        "Kafka assigns a partition once it has made its state anew",
    ),
    Explained(
        r"^mixed odd 68 classic ",
        r"\.error_code$",
        values(25, 110),
        "a heartbeat of the newer protocol with a classic member's id: there is no such member",
    ),
    Explained(
        r"^mixed last modern is back as classic ",
        r"\.said\.|\.seen\.",
        lambda mine, its: mine != its,
        "ours has it join once more, which begins a generation; Kafka does so as well, or lets it have "
        "what it had, or tells it a generation that there isn't; who has what then is compared",
    ),
    Explained(
        r"^(76|77) ",
        r"epochs?(\[\d\])?$",
        is_behind,
        "a share group counts from 1, anew once it was empty; Kafka counts made partitions, too",
    ),
    Explained(
        r"^share work ",
        r"\.again(\[0\]\.responses\[0\]\.partitions\[0\]\.error_code)?$",
        is_late_acknowledgement,
        "who acknowledges too late is told so; Kafka says nothing once the group is beyond that",
    ),
    Explained(
        r"^share work ",
        r"\.unknown\[0\]\.responses\[0\]\.partitions\[0\]\.error_code$",
        values(121, 42),
        "one code for offsets that a member hasn't",
    ),
    Explained(
        r"^90 ",
        r"start_offset$",
        lambda mine, its: mine > its >= -1,
        "where the group stands; Kafka says what it stored with the last change but one",
    ),
    Explained(
        r"^90 ",
        r"contradictions$",
        lambda mine, its: mine == [] and len(its) > 0,
        "Kafka's start is older than its lag, so that it may be done with all before the end",
    ),
    Explained(
        r"^90 ",
        r"lag$",
        lambda mine, its: 0 <= mine < its or its == -1,
        "from where the group stands; Kafka counts from what it stored",
    ),
)


def reason_of(step: str, path: str, mine: Any, its: Any) -> str | None:
    """Why a difference stays; None where it is one to look into."""
    for one in EXPLAINED:
        if re.search(one.step, step) and re.search(one.field, path):
            try:
                holds = one.holds(mine, its)
            except TypeError:  # not the kind of value that the entry is about
                holds = False
            if holds:
                return one.reason
    return None

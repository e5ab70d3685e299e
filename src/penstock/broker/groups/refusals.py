"""What the coordinator of KIP-848 refuses whatever its groups are up to, and how it says so.

A refusal changes nothing: it is raised before anything is touched.
"""

from __future__ import annotations

from typing import Any, Final

from penstock.broker.groups.assignors import ASSIGNORS
from penstock.broker.groups.consumer_members import JOIN, LEAVE_FOR_A_WHILE, Beat, ConsumerMember
from penstock.wire.protocol import ErrorCode

__all__ = ["RefusedError", "check_epoch", "check_instance", "no_group", "no_member", "validate"]

CLIENT_MAKES_ID_FROM: Final = 1
"""Version of the request from which on clients make member ids."""
NAMES_MAX: Final = 5_000
"""Most topics that a member can name: as many as a broker can have."""
ID_CHARACTERS_MAX: Final = 256
"""Longest id of a member, an instance, a rack; clients make ids of 22 to 36 characters."""


class RefusedError(Exception):
    """A heartbeat that is refused.

    Args:
        code: the error code of the answer.
        message: what was expected, what was found.
    """

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code

    def answer(self) -> dict[str, Any]:
        """The response's fields."""
        return {"error_code": self.code, "error_message": str(self), "member_epoch": 0}


def validate(beat: Beat) -> None:
    """Refuses a request that makes no sense whatever the state."""
    needs_id = beat.version >= CLIENT_MAKES_ID_FROM or beat.epoch != JOIN
    joins = beat.epoch == JOIN
    faults = (
        (not beat.group_id, "a group id"),
        (needs_id and not beat.member_id, "a member id"),
        (beat.instance_id == "", "an instance id that is not empty"),
        (beat.rack_id == "", "a rack id that is not empty"),
        (beat.epoch < LEAVE_FOR_A_WHILE, f"a member epoch of {LEAVE_FOR_A_WHILE} or more"),
        (joins and beat.rebalance_ms == -1, "a rebalance timeout with the first request"),
        (
            joins and (beat.owned is None or (bool(beat.owned) and beat.classic is None)),
            "no partitions from one who joins",
        ),
        (joins and beat.names is None and beat.regex is None, "topic names or an expression"),
        (beat.epoch == LEAVE_FOR_A_WHILE and beat.instance_id is None, "an instance id"),
        (len(beat.names or ()) > NAMES_MAX, f"at most {NAMES_MAX} topic names"),
        (
            max(len(one or "") for one in (beat.member_id, beat.instance_id, beat.rack_id))
            > ID_CHARACTERS_MAX,
            f"ids of at most {ID_CHARACTERS_MAX} characters",
        ),
    )
    for is_fault, expected in faults:
        if is_fault:
            raise RefusedError(
                ErrorCode.INVALID_REQUEST, f"expected {expected}; found none such in the request"
            )
    if beat.assignor is not None and beat.assignor not in ASSIGNORS:
        raise RefusedError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"expected one of the assignors {', '.join(ASSIGNORS)}; found {beat.assignor!r}",
        )


def check_epoch(member: ConsumerMember, beat: Beat) -> None:
    """Refuses who has been left behind, unless only an answer was lost on the way."""
    if beat.epoch in {JOIN, member.epoch}:
        return
    is_retry = beat.epoch == member.previous_epoch and beat.epoch < member.epoch
    if is_retry and beat.owned is not None and beat.owned <= member.assigned.keys():
        return
    raise RefusedError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"expected member epoch {member.epoch} of member {member.id!r}; found {beat.epoch}; it "
        "must give up all partitions and join again",
    )


def check_instance(member: ConsumerMember, beat: Beat) -> None:
    """Refuses who isn't the instance's member any more."""
    if member.id != beat.member_id:
        raise RefusedError(
            ErrorCode.FENCED_INSTANCE_ID,
            f"expected member id {member.id!r} for instance id {beat.instance_id!r}; found "
            f"{beat.member_id!r}: another one has taken its place",
        )


def no_group(group_id: str) -> RefusedError:
    """There is no such group."""
    return RefusedError(
        ErrorCode.GROUP_ID_NOT_FOUND, f"expected a consumer group; found {group_id!r}"
    )


def no_member(group_id: str, member_id: str) -> RefusedError:
    """The group has no such member."""
    return RefusedError(
        ErrorCode.UNKNOWN_MEMBER_ID,
        f"expected a member of group {group_id!r}; found {member_id!r}; it must join again",
    )

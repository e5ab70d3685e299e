"""What consumers exchange through the coordinator, to and from bytes."""

import pytest

from penstock.broker.groups.consumer_protocol import (
    Assignment,
    Subscription,
    read_assignment,
    read_subscription,
)
from penstock.errors import ProtocolError

SUBSCRIPTION = bytes.fromhex(
    "0003 00000002 0001 61 0001 62 00000002 7573"  # version, topics, user data
    "00000001 0001 61 00000002 00000000 00000005 00000007 0002 7231"  # owned, generation, rack
)
ASSIGNMENT = bytes.fromhex("0000 00000001 0001 61 00000002 00000001 00000003 ffffffff")


def test_a_subscription_is_read() -> None:
    """Topics, owned partitions, rack and user data of a subscription are read; a newer version as well."""
    wanted = Subscription(("a", "b"), frozenset({("a", 0), ("a", 5)}), "r1", b"us")
    assert read_subscription(SUBSCRIPTION) == wanted
    assert read_subscription(b"\0\x09" + SUBSCRIPTION[2:] + b"more") == wanted


def test_an_old_subscription_owns_nothing() -> None:
    """A subscription of version 0 has topics and user data alone."""
    assert read_subscription(b"\0\0" + SUBSCRIPTION[2:18]) == Subscription(
        ("a", "b"), user_data=b"us"
    )


def test_an_assignment_is_what_consumers_read() -> None:
    """An assignment's bytes are those of Kafka's version 0, and read back; none are no assignment yet."""
    one = Assignment(frozenset({("a", 3), ("a", 1)}))
    assert one.to_bytes() == ASSIGNMENT
    assert read_assignment(ASSIGNMENT) == one
    assert read_assignment(b"") == Assignment()


@pytest.mark.parametrize("size", range(len(SUBSCRIPTION)))
def test_cut_bytes_are_refused(size: int) -> None:
    """Bytes that end early are an error, wherever they end."""
    with pytest.raises(ProtocolError, match="expected"):
        read_subscription(SUBSCRIPTION[:size])


def test_absurd_counts_and_versions_are_refused() -> None:
    """A count beyond the bytes that are there is an error and no allocation; so is a negative version."""
    for data in (b"\0\0\x7f\xff\xff\xff", b"\xff\xff" + SUBSCRIPTION[2:]):
        with pytest.raises(ProtocolError, match="expected"):
            read_subscription(data)

"""How an answer's errors become exceptions."""

from typing import Any

import pytest

from penstock.client.network.cluster import Cluster
from penstock.client.network.errors import check
from penstock.errors import BrokerError
from penstock.wire.protocol import ApiKey, ErrorCode

NESTED = {
    "topics": [{"partitions": [{"error_code": 0}, {"error_code": 29, "error_message": "no"}]}]
}


def test_the_first_error_of_any_entry_is_raised() -> None:
    """An answer that is right as a whole, and wrong for one entry, is an error with the broker's words."""
    with pytest.raises(
        BrokerError, match=r"read it; found TOPIC_AUTHORIZATION_FAILED \(code 29\): no"
    ):
        check(NESTED, "read it", "topics", "partitions")
    check(NESTED, "read it", "topics")


def test_accepted_errors_and_missing_lists_are_no_errors() -> None:
    """A code that the caller reads himself isn't raised; a list that is null has no entries."""
    check(NESTED, "read it", "topics", "partitions", accepts={ErrorCode.TOPIC_AUTHORIZATION_FAILED})
    check({"error_code": 0, "entries": None}, "read them", "entries")


def test_advice_follows_the_error_that_it_is_for() -> None:
    """What to do about an error is said where it is that error."""
    advice = {ErrorCode.TOPIC_ALREADY_EXISTS: "Choose another name"}
    with pytest.raises(BrokerError, match="Choose another name"):
        check({"error_code": 36}, "create it", advice=advice)
    with pytest.raises(BrokerError, match=r"code 17\)$"):
        check({"error_code": 17}, "create it", advice=advice)


def test_a_request_is_repeated_while_its_answer_may_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group's list is asked for again while the coordinator loads, not taken for an empty one."""
    answers = [{"error_code": 14, "groups": []}, {"error_code": 0, "groups": [{"group_id": "g"}]}]

    def call(*_: Any) -> dict[str, Any]:
        return answers.pop(0)

    cluster = Cluster("127.0.0.1:1", client_id="test")
    monkeypatch.setattr(cluster, "call", call)
    answer = cluster.request("list groups", lambda: None, ApiKey.LIST_GROUPS, {}, "groups")
    assert [one["group_id"] for one in answer["groups"]] == ["g"]

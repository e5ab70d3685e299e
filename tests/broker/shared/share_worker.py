"""A member of a share group over a raw connection, as tests drive it."""

from __future__ import annotations

import uuid
from typing import Any

from penstock.wire import batches
from penstock.wire.protocol import ApiKey, ConfigResource

HEARTBEAT = ApiKey.SHARE_GROUP_HEARTBEAT
DESCRIBE = ApiKey.SHARE_GROUP_DESCRIBE
FETCH = ApiKey.SHARE_FETCH
ACKNOWLEDGE = ApiKey.SHARE_ACKNOWLEDGE
ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4
GROUP = ConfigResource.GROUP


def configure(raw: Any, kind: int, name: str, **settings: str) -> None:
    """Sets settings; underscores stand for dots."""
    configs = [
        {"name": key.replace("_", "."), "config_operation": 0, "value": value}
        for key, value in settings.items()
    ]
    resource = {"resource_type": kind, "resource_name": name, "configs": configs}
    answer = raw.call(
        ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource], validate_only=False
    )
    assert answer["responses"][0]["error_code"] == 0, answer


def topic_id(raw: Any, name: str) -> uuid.UUID:
    """A topic's id."""
    answer = raw.call(ApiKey.METADATA, 12, topics=[{"name": name, "topic_id": uuid.UUID(int=0)}])
    found: uuid.UUID = answer["topics"][0]["topic_id"]
    return found


class Worker:
    """A member of a share group that fetches from one partition."""

    def __init__(self, raw: Any, group: str, topic: str) -> None:
        self.raw, self.group, self.topic = raw, group, topic
        self.id = str(uuid.uuid4())
        self.member_epoch = self.session_epoch = 0
        self.topic_id = topic_id(raw, topic)

    def beat(self, epoch: int | None = None) -> dict[str, Any]:
        """A heartbeat; the first one joins."""
        answer: dict[str, Any] = self.raw.call(
            HEARTBEAT,
            1,
            group_id=self.group,
            member_id=self.id,
            member_epoch=self.member_epoch if epoch is None else epoch,
            subscribed_topic_names=[self.topic] if self.member_epoch == 0 else None,
        )
        if answer["error_code"] == 0:
            self.member_epoch = answer["member_epoch"]
        return answer

    def topics(self, acks: list[Any]) -> list[Any]:
        part = {"partition_index": 0, "acknowledgement_batches": acks}
        return [{"topic_id": self.topic_id, "partitions": [part]}]

    def send_fetch(self, *, most: int = 10, wait: int = 0, acks: Any = (), **more: Any) -> None:
        """Asks for records."""
        self.raw.send(
            FETCH,
            2,
            {
                "group_id": self.group,
                "member_id": self.id,
                "share_session_epoch": self.session_epoch,
                "max_wait": wait,
                "max_bytes": 1 << 20,
                "max_records": most,
                "batch_size": most,
                "share_acquire_mode": 1,
                "topics": self.topics(list(acks)),
                "forgotten_topics_data": [],
                **more,
            },
        )
        self.session_epoch += 1

    def receive(self) -> list[tuple[int, int]]:
        """The records of the answer: offset and delivery."""
        answer = self.raw.receive(FETCH, 2)
        assert answer["error_code"] == 0, answer
        found = []
        for topic in answer["responses"]:
            for part in topic["partitions"]:
                assert part["error_code"] == part["acknowledge_error_code"] == 0, part
                offsets = {
                    record.offset
                    for at, header in batches.iterate(part["records"])
                    for record in batches.records(part["records"], at, header)
                }
                for one in part["acquired_records"]:
                    for offset in range(one["first_offset"], one["last_offset"] + 1):
                        assert offset in offsets
                        found.append((offset, one["delivery_count"]))
        return found

    def fetch(self, **more: Any) -> list[tuple[int, int]]:
        """Fetches records."""
        self.send_fetch(**more)
        return self.receive()

    def acknowledge(self, first: int, last: int, kind: int, **more: Any) -> int:
        """Acknowledges records; the error code."""
        batch = {"first_offset": first, "last_offset": last, "acknowledge_types": [kind], **more}
        answer = self.raw.call(
            ACKNOWLEDGE,
            2,
            group_id=self.group,
            member_id=self.id,
            share_session_epoch=self.session_epoch,
            is_renew_ack=kind == RENEW,
            topics=self.topics([batch]),
        )
        self.session_epoch += 1
        assert answer["error_code"] == 0, answer
        code: int = answer["responses"][0]["partitions"][0]["error_code"]
        return code

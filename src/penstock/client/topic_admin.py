"""What can be changed of a topic that is there: its configs, its partitions, where it begins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from penstock.client.client import ADMIN_TIMEOUT_MS, Client
from penstock.client.network.errors import check
from penstock.wire.protocol import ApiKey, ConfigChange, ConfigResource

__all__ = ["TopicAdmin", "TopicConfig"]

OWN: Final = 1
"""Where a config's value comes from: the topic itself."""


class TopicConfig(NamedTuple):
    """One config of a topic.

    Attributes:
        name: Kafka's.
        value: its value; None where it is secret.
        is_own: it was set on the topic; otherwise it is the default.
        doc: what it means; empty where the broker doesn't say.
    """

    name: str
    value: str | None
    is_own: bool
    doc: str


class TopicAdmin(Client):
    """A client that changes topics; not to be shared between threads."""

    def configs(self, topic: str) -> list[TopicConfig]:
        """All configs of a topic, by name."""
        wanted = {
            "resource_type": ConfigResource.TOPIC,
            "resource_name": topic,
            "configuration_keys": None,
        }
        fields = {
            "resources": [wanted],
            "include_synonyms": False,
            "include_documentation": True,
        }
        what = f"describe topic {topic!r}"
        found = self._ask(ApiKey.DESCRIBE_CONFIGS, fields, what, "results")
        return sorted(
            TopicConfig(
                one["name"],
                one["value"],
                one["config_source"] == OWN,
                one.get("documentation") or "",
            )
            for one in found["configs"]
        )

    def change_configs(
        self,
        topic: str,
        new: Mapping[str, str],
        unset: Iterable[str] = (),
        *,
        dry_run: bool = False,
    ) -> None:
        """Sets configs of a topic, and gives others their default back; all of it or nothing.

        Args:
            topic: its name.
            new: the values.
            unset: configs that are to have their default.
            dry_run: only ask whether it could be done.

        Raises:
            BrokerError: there is no such topic or config, or a value isn't right.
        """
        changes = [
            {"name": k, "config_operation": ConfigChange.SET, "value": v} for k, v in new.items()
        ]
        changes += [
            {"name": k, "config_operation": ConfigChange.DELETE, "value": None} for k in unset
        ]
        resource = {
            "resource_type": ConfigResource.TOPIC,
            "resource_name": topic,
            "configs": changes,
        }
        fields = {"resources": [resource], "validate_only": dry_run}
        self._ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, fields, f"change topic {topic!r}", "responses")

    def grow(self, topic: str, partitions: int) -> None:
        """Adds partitions to a topic, so that it has so many. Its records stay where they are; new
        ones of a key may go to another partition than its old ones.

        Raises:
            BrokerError: there is no such topic, or it has as many or more.
        """
        wanted = {"name": topic, "count": partitions, "assignments": None}
        fields = {"topics": [wanted], "timeout": ADMIN_TIMEOUT_MS, "validate_only": False}
        what = f"give topic {topic!r} {partitions} partitions"
        self._ask(ApiKey.CREATE_PARTITIONS, fields, what, "results")
        self._cluster.attempt(f"lead topic {topic!r}", lambda: self._require_leaders(topic))

    def trim(self, topic: str, before: Mapping[int, int]) -> dict[int, int]:
        """Deletes the records before an offset of each partition, for good.

        Returns:
            Where each partition begins now.
        """
        what = f"delete records of topic {topic!r}"

        def ask() -> dict[int, int]:
            found: dict[int, int] = {}
            pairs = [(topic, number) for number in before]
            for connection, mine in self._cluster.by_leader(pairs).items():
                parts = [{"partition_index": n, "offset": before[n]} for _, n in mine]
                fields = {
                    "topics": [{"name": topic, "partitions": parts}],
                    "timeout": ADMIN_TIMEOUT_MS,
                }
                answer = self._cluster.call(connection, ApiKey.DELETE_RECORDS, fields)
                for one in answer["topics"][0]["partitions"]:
                    check(one, what)
                    found[one["partition_index"]] = one["low_watermark"]
            return found

        return self._cluster.attempt(what, ask)

    def _ask(self, api: ApiKey, fields: dict[str, Any], what: str, results: str) -> dict[str, Any]:
        """The answer about the one topic that was asked for."""
        answer = self._cluster.request(what, self._cluster.controller, api, fields, results)
        found: dict[str, Any] = answer[results][0]
        return found

"""Which of a topic's settings on tiering go together; rules and wording follow Kafka's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.broker.storage.topic_settings import TOPIC_SETTINGS, SettingError, log_config

__all__ = ["check_tier_settings"]

_SAME: Final = -2


def check_tier_settings(
    settings: Mapping[str, str], before: Mapping[str, str], *, has_tier: bool
) -> None:
    """Checks a topic's new settings as a whole.

    Args:
        settings: all that are given.
        before: those that were given so far; empty for a new topic.
        has_tier: whether the broker has object storage to copy to.

    Raises:
        SettingError: they contradict each other, or what the broker can do.
    """
    config, was = log_config(settings), log_config(before)
    if was.remote_storage and not config.remote_storage and not config.remote_delete_on_disable:
        raise SettingError(
            "expected remote.storage.enable to stay true; found false; to keep the remote data and "
            "copy nothing more, set remote.log.copy.disable=true; to delete it, set "
            "remote.log.delete.on.disable=true as well"
        )
    if not config.remote_storage:
        return
    policy = settings.get("cleanup.policy", TOPIC_SETTINGS["cleanup.policy"].default)
    if "compact" in policy:
        raise SettingError(
            "expected cleanup.policy=delete in a topic with remote.storage.enable; found "
            f"{policy!r}: compacted topics can't be tiered"
        )
    if not was.remote_storage and not has_tier:
        raise SettingError(
            "expected a broker with tiered storage; found none: start it with --tier URI"
        )
    for name, local, whole in (
        ("bytes", config.local_retention_bytes, config.retention_bytes),
        ("ms", config.local_retention_ms, config.retention_ms),
    ):
        if local != _SAME and whole >= 0 and not 0 <= local <= whole:
            raise SettingError(
                f"expected local.retention.{name} from 0 to {whole} (retention.{name}), or -2 for "
                f"the same; found {local}"
            )

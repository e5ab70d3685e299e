"""AlterConfigs, which replaces all of a resource's settings, and IncrementalAlterConfigs, which changes
single ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from penstock.broker.broker_settings import broker_settings, broker_values
from penstock.broker.dynamic_settings import validate_dynamic
from penstock.broker.groups.settings import GROUP_SETTINGS, validate_group
from penstock.broker.handlers.base import Call, Fields, missing
from penstock.broker.handlers.configs.resources import (
    error,
    is_broker,
    is_cluster,
    no_resource,
)
from penstock.broker.storage.topic_settings import LIST, TOPIC_SETTINGS, SettingError, validate
from penstock.broker.tier.settings import check_tier_settings
from penstock.errors import LimitError
from penstock.wire.protocol import ApiKey, ConfigChange, ConfigResource, ErrorCode

__all__ = ["alter_configs", "incremental_alter_configs"]


class _Known(Protocol):
    """A setting, as far as a change has to know it."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> int: ...
    @property
    def default(self) -> str | None: ...


class _InvalidError(Exception):
    """A request that makes no sense, whatever the setting."""


Check = Callable[[str, str | None], str]
Change = Callable[[Mapping[str, str], list[Fields], Mapping[str, _Known], Check], dict[str, str]]
"""What settings become by a request: those of a table, each value of which is checked."""


def alter_configs(call: Call, fields: Fields) -> Fields:
    """Replaces settings as a whole."""
    return _alter(call, fields, _replaced)


def incremental_alter_configs(call: Call, fields: Fields) -> Fields:
    """Sets, resets, and of lists extends and shortens single settings."""
    return _alter(call, fields, _changed)


def _replaced(
    _: Mapping[str, str], configs: list[Fields], __: Mapping[str, _Known], check: Check
) -> dict[str, str]:
    return {one["name"]: check(one["name"], one["value"]) for one in configs}


def _changed(
    settings: Mapping[str, str], configs: list[Fields], table: Mapping[str, _Known], check: Check
) -> dict[str, str]:
    """The settings after single changes.

    Raises:
        SettingError: a setting or a value isn't known.
        _InvalidError: a change makes no sense.
    """
    names = [one["name"] for one in configs]
    if len(set(names)) < len(names):
        raise _InvalidError("expected each setting once in a request; found one twice")
    changed = dict(settings)
    for one in configs:
        name, value, operation = one["name"], one["value"], one["config_operation"]
        if operation == ConfigChange.DELETE:
            changed.pop(name, None)  # of a setting that there isn't, too
            continue
        if name not in table:
            check(name, value)  # says that there is none
        if value is None:
            raise _InvalidError(f"expected a value for {name}; found null")
        if operation in {ConfigChange.APPEND, ConfigChange.SUBTRACT}:
            value = _list_changed(changed.get(name, table[name].default) or "", table[name], one)
        elif operation != ConfigChange.SET:
            raise _InvalidError(f"expected an operation from 0 to 3 on {name}; found {operation}")
        changed[name] = check(name, value)
    return changed


def _list_changed(current: str, setting: _Known, one: Fields) -> str:
    if setting.kind != LIST:
        raise SettingError(f"expected a list to append to or subtract from; found {setting.name}")
    parts = [part for part in current.split(",") if part]
    given = [part.strip() for part in one["value"].split(",") if part.strip()]
    if one["config_operation"] == ConfigChange.SUBTRACT:
        return ",".join(part for part in parts if part not in given)
    return ",".join([*parts, *(part for part in given if part not in parts)])


def _alter(call: Call, fields: Fields, change: Change) -> Fields:
    results = []
    for wanted in fields["resources"]:
        kind, name = wanted["resource_type"], wanted["resource_name"]
        result: Fields = {"resource_type": kind, "resource_name": name}
        dry_run = fields["validate_only"]
        try:
            if kind == ConfigResource.TOPIC:
                result |= _alter_topic(call, wanted, change, dry_run=dry_run)
            elif (
                kind == ConfigResource.GROUP
                and name
                and call.api_key == ApiKey.INCREMENTAL_ALTER_CONFIGS
            ):
                _alter_group(call, wanted, change, dry_run=dry_run)
            elif is_broker(kind, name) or is_cluster(kind, name):
                _alter_broker(call, wanted, change, dry_run=dry_run)
            else:
                raise _InvalidError(no_resource(kind, name))
        except _InvalidError as refused:
            result |= error(ErrorCode.INVALID_REQUEST, str(refused))
        except (SettingError, LimitError) as refused:
            result |= error(ErrorCode.INVALID_CONFIG, str(refused))
        except OSError as failed:
            result |= error(ErrorCode.KAFKA_STORAGE_ERROR, f"expected room; found {failed}")
        results.append(result)
    return {"responses": results}


def _alter_topic(call: Call, wanted: Fields, change: Change, *, dry_run: bool) -> Fields:
    """Takes one topic's changes. They are looked at before the topic is looked for, as in Kafka."""
    topics = call.broker.topics
    topic = topics.get(wanted["resource_name"])
    present = topic.settings if topic is not None else {}
    settings = change(present, wanted["configs"], TOPIC_SETTINGS, validate)
    if topic is None:
        return error(*missing(call, wanted["resource_name"]))
    check_tier_settings(settings, present, has_tier=call.broker.tiering is not None)
    if not dry_run:
        topics.configure(topic, settings)
    return {}


def _alter_group(call: Call, wanted: Fields, change: Change, *, dry_run: bool) -> None:
    name, groups = wanted["resource_name"], call.broker.group_settings
    settings = change(groups.of(name), wanted["configs"], GROUP_SETTINGS, validate_group)
    groups.check(settings)
    if not dry_run:
        groups.replace(name, settings)
        call.broker.share.settings_changed(name)


def _alter_broker(call: Call, wanted: Fields, change: Change, *, dry_run: bool) -> None:
    """Takes what is set for this broker, or for all."""
    dynamic, cluster = call.broker.dynamic, not wanted["resource_name"]
    configs = [one for one in wanted["configs"] if not _is_so(call, one)]
    settings = change(dynamic.of(cluster=cluster), configs, broker_settings(), _check_dynamic)
    if not dry_run:
        dynamic.replace(settings, cluster=cluster)


def _is_so(call: Call, wanted: Fields) -> bool:
    """Whether a setting that can't be changed is set to the value that it has, as tools do that send
    back all settings.
    """
    setting = broker_settings().get(wanted["name"])
    if setting is None or setting.is_changeable or setting.is_sensitive:
        return False
    broker = call.broker
    values = broker_values(broker.config, broker.listeners, broker.room.reserve_bytes)
    is_set = wanted.get("config_operation", ConfigChange.SET) == ConfigChange.SET
    return is_set and (wanted["value"] or "") == (values.get(setting.name, setting.default) or "")


def _check_dynamic(name: str, value: str | None) -> str:
    """As `validate_dynamic`; errors for which Kafka has another code than for topic settings get that
    code.
    """
    if name not in broker_settings():
        raise SettingError(f"expected a setting of the broker; found {name!r}")
    try:
        return validate_dynamic(name, value)
    except SettingError as refused:
        raise _InvalidError(str(refused)) from None

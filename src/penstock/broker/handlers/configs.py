"""Settings of topics and of the broker: DescribeConfigs, AlterConfigs, IncrementalAlterConfigs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock.broker.group_settings import GROUP_SETTINGS, validate_group
from penstock.broker.handlers.base import Api, Call, Fields
from penstock.broker.handlers.cluster import NODE_ID
from penstock.broker.settings import (
    BROKER_SETTINGS,
    TOPIC_SETTINGS,
    Setting,
    SettingError,
    validate,
)
from penstock.broker.tier_settings import check_tier_settings
from penstock.broker.topics import Topic
from penstock.errors import LimitError
from penstock.wire.kafka import ErrorCode

__all__ = ["APIS"]

TOPIC, BROKER, GROUP = 2, 4, 32
INCREMENTAL: Final = 44
"""IncrementalAlterConfigs; a group's settings are changed by no other request."""
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
SOURCE_TOPIC, SOURCE_STATIC, SOURCE_DEFAULT, SOURCE_GROUP = 1, 4, 5, 8


def describe_configs(call: Call, fields: Fields) -> Fields:
    """Every setting of the resources, with its value and where that comes from."""
    return {"results": [_describe(call, one, fields) for one in fields["resources"]]}


def _describe(call: Call, wanted: Fields, fields: Fields) -> Fields:
    kind, name = wanted["resource_type"], wanted["resource_name"]
    result: Fields = {"resource_type": kind, "resource_name": name, "configs": []}
    given: dict[str, str] = {}
    if kind == TOPIC:
        topic = call.broker.topics.get(name)
        if topic is None:
            return result | _error(
                ErrorCode.unknown_topic_or_partition, f"expected a topic, found {name!r}"
            )
        table, given, source = TOPIC_SETTINGS, topic.settings, SOURCE_TOPIC
    elif kind == BROKER and name in {"", str(NODE_ID)}:
        table, given, source = BROKER_SETTINGS, _broker_values(call), SOURCE_STATIC
    elif kind == GROUP and name:
        table, given, source = GROUP_SETTINGS, call.broker.group_settings.of(name), SOURCE_GROUP
    else:
        return result | _error(
            ErrorCode.invalid_request,
            f"expected a topic (type {TOPIC}), broker {NODE_ID} (type {BROKER}) or a group (type "
            f"{GROUP}), found type {kind}, {name!r}",
        )
    keys = wanted["configuration_keys"]
    result["configs"] = [
        _setting(one, given, source, fields)
        for one in table.values()
        if keys is None or one.name in keys
    ]
    return result


def _broker_values(call: Call) -> dict[str, str]:
    config = call.broker.config
    return {
        "auto.create.topics.enable": str(config.auto_create_topics).lower(),
        "num.partitions": str(config.default_partitions),
        "group.initial.rebalance.delay.ms": str(config.rebalance_delay_ms),
    }


def _setting(one: Setting, given: dict[str, str], source: int, fields: Fields) -> Fields:
    value = given.get(one.name, one.default)
    synonyms = [{"name": one.name, "value": one.default, "source": SOURCE_DEFAULT}]
    if one.name in given:
        synonyms.insert(0, {"name": one.name, "value": value, "source": source})
    return {
        "name": one.name,
        "value": value,
        "read_only": source == SOURCE_STATIC,
        "config_source": source if one.name in given else SOURCE_DEFAULT,
        "is_sensitive": False,
        "synonyms": synonyms if fields.get("include_synonyms") else [],
        "config_type": one.kind,
        "documentation": (one.doc or None) if fields.get("include_documentation") else None,
    }


def alter_configs(call: Call, fields: Fields) -> Fields:
    """Replaces a topic's settings as a whole."""

    def replace(_: Topic, configs: list[Fields]) -> dict[str, str]:
        return {one["name"]: validate(one["name"], one["value"]) for one in configs}

    return _alter(call, fields, replace)


def incremental_alter_configs(call: Call, fields: Fields) -> Fields:
    """Sets and resets single settings of a topic."""

    def change(topic: Topic, configs: list[Fields]) -> dict[str, str]:
        settings = dict(topic.settings)
        for one in configs:
            match one["config_operation"]:
                case 0:
                    settings[one["name"]] = validate(one["name"], one["value"])
                case 1 if one["name"] in TOPIC_SETTINGS:
                    settings.pop(one["name"], None)
                case operation:
                    raise SettingError(
                        f"expected to set (0) or delete (1) a known setting, found operation "
                        f"{operation} on {one['name']!r}"
                    )
        return settings

    return _alter(call, fields, change)


def _alter(
    call: Call, fields: Fields, change: Callable[[Topic, list[Fields]], dict[str, str]]
) -> Fields:
    results = []
    for wanted in fields["resources"]:
        kind, name = wanted["resource_type"], wanted["resource_name"]
        result: Fields = {"resource_type": kind, "resource_name": name}
        if kind == GROUP and call.api_key == INCREMENTAL:
            results.append(result | _alter_group(call, wanted, dry_run=fields["validate_only"]))
            continue
        topic = call.broker.topics.get(name) if kind == TOPIC else None
        if kind != TOPIC:
            result |= _error(
                ErrorCode.invalid_request, "expected a topic: the broker's settings are fixed"
            )
        elif topic is None:
            result |= _error(
                ErrorCode.unknown_topic_or_partition, f"expected a topic, found {name!r}"
            )
        else:
            try:
                settings = change(topic, wanted["configs"])
                has_tier = call.broker.tiering is not None
                check_tier_settings(settings, topic.settings, has_tier=has_tier)
                if not fields["validate_only"]:
                    call.broker.topics.configure(topic, settings)
            except SettingError as error:
                result |= _error(ErrorCode.invalid_config, str(error))
            except OSError as error:
                result |= _error(ErrorCode.kafka_storage_error, f"expected room, found {error}")
        results.append(result)
    return {"responses": results}


def _alter_group(call: Call, wanted: Fields, *, dry_run: bool) -> Fields:
    """Sets and resets single settings of a group."""
    name, groups = wanted["resource_name"], call.broker.group_settings
    if not name:
        return _error(ErrorCode.invalid_request, "expected a group id, found an empty one")
    settings = dict(groups.of(name))
    try:
        for one in wanted["configs"]:
            if one["config_operation"] == SET:
                settings[one["name"]] = validate_group(one["name"], one["value"])
            elif one["config_operation"] == DELETE and one["name"] in GROUP_SETTINGS:
                settings.pop(one["name"], None)
            else:
                raise SettingError(
                    f"expected to set (0) or delete (1) a known setting, found operation "
                    f"{one['config_operation']} on {one['name']!r}"
                )
        groups.check(settings)
        if not dry_run:
            groups.replace(name, settings)
            call.broker.share.settings_changed(name)
    except (SettingError, LimitError) as error:
        return _error(ErrorCode.invalid_config, str(error))
    except OSError as error:
        return _error(ErrorCode.kafka_storage_error, f"expected room, found {error}")
    return {}


def _error(code: ErrorCode, message: str) -> Fields:
    return {"error_code": code, "error_message": message}


APIS: Final = (
    Api(32, 1, 4, describe_configs),
    Api(33, 0, 2, alter_configs),
    Api(44, 0, 1, incremental_alter_configs),
)

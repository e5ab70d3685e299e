"""Settings of topics, groups and the broker: DescribeConfigs, AlterConfigs, IncrementalAlterConfigs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from penstock.broker.broker_settings import (
    broker_settings,
    broker_values,
    check_unchanged,
    synonym_of,
)
from penstock.broker.group_settings import GROUP_SETTINGS, validate_group
from penstock.broker.handlers.base import Api, Call, Fields
from penstock.broker.handlers.cluster import NODE_ID
from penstock.broker.settings import LIST, TOPIC_SETTINGS, Setting, SettingError, validate
from penstock.broker.tier_settings import check_tier_settings
from penstock.errors import LimitError
from penstock.wire.kafka import ErrorCode

__all__ = ["APIS"]

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
INCREMENTAL: Final = 44
"""IncrementalAlterConfigs; a group's settings are changed by no other request."""
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
SOURCE_TOPIC, SOURCE_STATIC, SOURCE_DEFAULT, SOURCE_GROUP = 1, 4, 5, 8
_REFUSED: Final = {
    BROKER_LOGGER: "loggers (type 8) can't be changed: see --log-level",
    CLIENT_METRICS: "clients are not asked for metrics (type 16)",
}


class _InvalidError(Exception):
    """A request that makes no sense, whatever the setting."""


# -- describing ------------------------------------------------------------------------------------


def describe_configs(call: Call, fields: Fields) -> Fields:
    """Every setting of the resources, with its value and where that comes from."""
    return {"results": [_describe(call, one, fields) for one in fields["resources"]]}


def _describe(call: Call, wanted: Fields, fields: Fields) -> Fields:
    kind, name = wanted["resource_type"], wanted["resource_name"]
    keys = wanted["configuration_keys"]
    result: Fields = {"resource_type": kind, "resource_name": name, "configs": []}
    if kind == TOPIC:
        topic = call.broker.topics.get(name)
        if topic is None:
            return result | _error(
                ErrorCode.unknown_topic_or_partition, f"expected a topic, found {name!r}"
            )
        found = _settings("topics", TOPIC_SETTINGS, topic.settings, SOURCE_TOPIC, fields)
    elif kind == BROKER and name == str(NODE_ID):
        found = _broker_settings(call, fields)
    elif kind == BROKER and not name:
        found = []  # what was set for all brokers at once: nothing can be
    elif kind == GROUP and name:
        given = call.broker.group_settings.of(name)
        found = _settings("groups", GROUP_SETTINGS, given, SOURCE_GROUP, fields)
    else:
        return result | _error(ErrorCode.invalid_request, _no_resource(kind, name))
    result["configs"] = [one for one in found if keys is None or one["name"] in keys]
    return result


def _no_resource(kind: int, name: str) -> str:
    return _REFUSED.get(
        kind,
        f"expected a topic (type {TOPIC}), broker {NODE_ID} (type {BROKER}) or a group (type "
        f"{GROUP}), found type {kind}, {name!r}",
    )


def _settings(
    kind: str,
    table: Mapping[str, Setting],
    given: Mapping[str, str],
    source: int,
    fields: Fields,
) -> list[Fields]:
    """Settings of a topic or a group: its own, else the default that the broker's setting has."""
    found = []
    for one in table.values():
        synonyms = []
        if one.name in given:
            synonyms.append({"name": one.name, "value": given[one.name], "source": source})
        fallback = synonym_of(kind, one.name)
        if fallback is not None:
            synonyms.append({"name": fallback, "value": one.default, "source": SOURCE_DEFAULT})
        found.append(
            {
                "name": one.name,
                "value": given.get(one.name, one.default),
                "read_only": False,
                "config_source": source if one.name in given else SOURCE_DEFAULT,
                "is_sensitive": False,
                "synonyms": synonyms if fields.get("include_synonyms") else [],
                "config_type": one.kind,
                "documentation": _documentation(one, fields),
            }
        )
    return found


def _documentation(one: Setting, fields: Fields) -> str | None:
    if not fields.get("include_documentation"):
        return None
    fixed = "This broker knows only this value." if one.is_fixed else ""
    if one.doc:
        return f"{one.doc} {fixed}".strip()
    name = synonym_of("topics", one.name) or synonym_of("groups", one.name) or one.name
    synonym = broker_settings().get(name)
    return f"{synonym.doc if synonym is not None else ''} {fixed}".strip()


def _broker_settings(call: Call, fields: Fields) -> list[Fields]:
    values = broker_values(call.broker)
    found = []
    for one in broker_settings().values():
        synonyms = []
        if one.name in values:
            synonyms.append({"name": one.name, "value": values[one.name], "source": SOURCE_STATIC})
        if one.default is not None:
            synonyms.append({"name": one.name, "value": one.default, "source": SOURCE_DEFAULT})
        is_given = one.name in values and values[one.name] != one.default
        found.append(
            {
                "name": one.name,
                "value": None if one.is_sensitive else values.get(one.name, one.default),
                "read_only": True,
                "config_source": SOURCE_STATIC if is_given else SOURCE_DEFAULT,
                "is_sensitive": one.is_sensitive,
                "synonyms": synonyms if fields.get("include_synonyms") else [],
                "config_type": one.kind,
                "documentation": one.doc if fields.get("include_documentation") else None,
            }
        )
    return found


# -- altering --------------------------------------------------------------------------------------


def alter_configs(call: Call, fields: Fields) -> Fields:
    """Replaces a topic's settings as a whole."""

    def replace(_: Mapping[str, str], configs: list[Fields]) -> dict[str, str]:
        return {one["name"]: validate(one["name"], one["value"]) for one in configs}

    return _alter(call, fields, replace)


def incremental_alter_configs(call: Call, fields: Fields) -> Fields:
    """Sets, resets, and of lists extends and shortens single settings."""

    def change(settings: Mapping[str, str], configs: list[Fields]) -> dict[str, str]:
        return _changed(settings, configs, TOPIC_SETTINGS, validate)

    return _alter(call, fields, change)


def _changed(
    settings: Mapping[str, str],
    configs: list[Fields],
    table: Mapping[str, Setting],
    check: Callable[[str, str | None], str],
) -> dict[str, str]:
    """The settings after single changes.

    Raises:
        SettingError: a setting or a value isn't known.
        _InvalidError: a change makes no sense.
    """
    names = [one["name"] for one in configs]
    if len(set(names)) < len(names):
        raise _InvalidError("expected each setting once in a request, found one twice")
    changed = dict(settings)
    for one in configs:
        name, value, operation = one["name"], one["value"], one["config_operation"]
        if operation == DELETE:
            changed.pop(name, None)  # of a setting that there isn't, too
            continue
        if name not in table:
            check(name, value)  # says that there is none
        if value is None:
            raise _InvalidError(f"expected a value for {name}, found null")
        if operation in {APPEND, SUBTRACT}:
            value = _list_changed(changed.get(name, table[name].default), table[name], one)
        elif operation != SET:
            raise _InvalidError(f"expected an operation from 0 to 3 on {name}, found {operation}")
        changed[name] = check(name, value)
    return changed


def _list_changed(current: str, setting: Setting, one: Fields) -> str:
    if setting.kind != LIST:
        raise SettingError(f"expected a list to append to or subtract from, found {setting.name}")
    parts = [part for part in current.split(",") if part]
    given = [part.strip() for part in one["value"].split(",") if part.strip()]
    if one["config_operation"] == SUBTRACT:
        return ",".join(part for part in parts if part not in given)
    return ",".join([*parts, *(part for part in given if part not in parts)])


def _alter(
    call: Call,
    fields: Fields,
    change: Callable[[Mapping[str, str], list[Fields]], dict[str, str]],
) -> Fields:
    results = []
    for wanted in fields["resources"]:
        kind, name = wanted["resource_type"], wanted["resource_name"]
        result: Fields = {"resource_type": kind, "resource_name": name}
        try:
            if kind == TOPIC:
                result |= _alter_topic(call, wanted, change, dry_run=fields["validate_only"])
            elif kind == GROUP and name and call.api_key == INCREMENTAL:
                _alter_group(call, wanted, dry_run=fields["validate_only"])
            elif kind == BROKER and name in {"", str(NODE_ID)}:
                _alter_broker(call, wanted)
            else:
                raise _InvalidError(_no_resource(kind, name))
        except _InvalidError as error:
            result |= _error(ErrorCode.invalid_request, str(error))
        except (SettingError, LimitError) as error:
            result |= _error(ErrorCode.invalid_config, str(error))
        except OSError as error:
            result |= _error(ErrorCode.kafka_storage_error, f"expected room, found {error}")
        results.append(result)
    return {"responses": results}


def _alter_topic(
    call: Call,
    wanted: Fields,
    change: Callable[[Mapping[str, str], list[Fields]], dict[str, str]],
    *,
    dry_run: bool,
) -> Fields:
    """Takes one topic's changes. They are looked at before the topic is looked for, as in Kafka."""
    topics = call.broker.topics
    topic = topics.get(wanted["resource_name"])
    present = topic.settings if topic is not None else {}
    settings = change(present, wanted["configs"])
    if topic is None:
        return _error(
            ErrorCode.unknown_topic_or_partition,
            f"expected a topic, found {wanted['resource_name']!r}",
        )
    check_tier_settings(settings, present, has_tier=call.broker.tiering is not None)
    if not dry_run:
        topics.configure(topic, settings)
    return {}


def _alter_group(call: Call, wanted: Fields, *, dry_run: bool) -> None:
    """Sets and resets single settings of a group."""
    name, groups = wanted["resource_name"], call.broker.group_settings
    settings = _changed(groups.of(name), wanted["configs"], GROUP_SETTINGS, validate_group)
    groups.check(settings)
    if not dry_run:
        groups.replace(name, settings)
        call.broker.share.settings_changed(name)


def _alter_broker(call: Call, wanted: Fields) -> None:
    """Accepts what is so already, for tools that set all that they were told."""
    values = broker_values(call.broker)
    for one in wanted["configs"]:
        if one.get("config_operation", SET) == DELETE:
            continue  # nothing was set, so nothing changes
        check_unchanged(values, one["name"], one["value"])


def _error(code: ErrorCode, message: str) -> Fields:
    return {"error_code": code, "error_message": message}


APIS: Final = (
    Api(32, 1, 4, describe_configs),
    Api(33, 0, 2, alter_configs),
    Api(44, 0, 1, incremental_alter_configs),
)

"""DescribeConfigs: every setting of a resource, with its value and where that comes from.

A value is the first of its synonyms: what was set for the resource itself, under the name of the
broker's setting what was set for this broker (2), for all (3), what the broker was given when it started
(4), and Kafka's default (5).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from penstock.broker.broker_settings import (
    LEGACY,
    BrokerSetting,
    broker_settings,
    broker_values,
    synonym_of,
)
from penstock.broker.dynamic_settings import CLUSTER, DynamicSettings, is_carried_out
from penstock.broker.groups.settings import GROUP_SETTINGS
from penstock.broker.handlers.base import Call, Fields, missing
from penstock.broker.handlers.configs.resources import (
    error,
    is_broker,
    is_cluster,
    no_resource,
)
from penstock.broker.storage.topic_settings import TOPIC_SETTINGS, Setting
from penstock.wire.protocol import ConfigResource, ErrorCode

__all__ = ["describe_configs", "topic_configs"]

OF_TOPIC, STATIC, DEFAULT, OF_GROUP = 1, 4, 5, 8
"""Kafka's numbers of where values come from."""
_TAILS: Final = dict(LEGACY.values())


def describe_configs(call: Call, fields: Fields) -> Fields:
    """Every setting of the resources."""
    return {"results": [_describe(call, one, fields) for one in fields["resources"]]}


def _describe(call: Call, wanted: Fields, fields: Fields) -> Fields:
    kind, name = wanted["resource_type"], wanted["resource_name"]
    keys = wanted["configuration_keys"]
    result: Fields = {"resource_type": kind, "resource_name": name, "configs": []}
    if kind == ConfigResource.TOPIC:
        topic = call.broker.topics.get(name)
        if topic is None:
            return result | error(*missing(call, name))
        found = topic_configs(call.broker.dynamic, topic.settings, fields)
    elif is_broker(kind, name):
        found = _broker(call, fields)
    elif is_cluster(kind, name):
        found = _cluster(call.broker.dynamic, fields)
    elif kind == ConfigResource.GROUP and name:
        groups = call.broker.group_settings
        found = _group(groups.of(name), groups.broker_wide, fields)
    else:
        return result | error(ErrorCode.INVALID_REQUEST, no_resource(kind, name))
    result["configs"] = [one for one in found if keys is None or one["name"] in keys]
    return result


def _synonym(name: str, value: str, source: int) -> Fields:
    return {"name": name, "value": value, "source": source}


# -- topics and groups -----------------------------------------------------------------------------


def topic_configs(
    dynamic: DynamicSettings, given: Mapping[str, str], fields: Fields
) -> list[Fields]:
    """A topic's settings.

    Args:
        dynamic: the broker's.
        given: the topic's own.
        fields: what to return in addition to values: `include_synonyms`, `include_documentation`.
    """
    return _settings(TOPIC_SETTINGS, given, OF_TOPIC, lambda one: _fallbacks(dynamic, one), fields)


def _fallbacks(dynamic: DynamicSettings, setting: Setting) -> list[Fields]:
    """The values for a topic without a setting of its own: synonyms, the effective one first."""
    name, tail = LEGACY.get(setting.name, (synonym_of("topics", setting.name), None))
    if name is None:
        return []
    found = [_synonym(name, value, source) for value, source in dynamic.sources(name)]
    if tail is None:
        found.append(_synonym(name, setting.default, DEFAULT))
    elif found:
        found += _default_of(tail)
    return found


def _default_of(name: str) -> list[Fields]:
    default = broker_settings()[name].default
    return [] if default is None else [_synonym(name, default, DEFAULT)]


def _group(
    given: Mapping[str, str], broker_wide: Mapping[str, str], fields: Fields
) -> list[Fields]:
    def fallbacks(one: Setting) -> list[Fields]:
        name = synonym_of("groups", one.name)
        if name is None:
            return []
        configured = (
            [_synonym(name, broker_wide[one.name], STATIC)] if one.name in broker_wide else []
        )
        return [*configured, _synonym(name, one.default, DEFAULT)]

    return _settings(GROUP_SETTINGS, given, OF_GROUP, fallbacks, fields)


def _settings(
    table: Mapping[str, Setting],
    given: Mapping[str, str],
    source: int,
    fallbacks: Callable[[Setting], list[Fields]],
    fields: Fields,
) -> list[Fields]:
    found = []
    for one in table.values():
        synonyms = fallbacks(one)
        if one.name in given:
            synonyms.insert(0, _synonym(one.name, given[one.name], source))
        first = synonyms[0] if synonyms else _synonym(one.name, one.default, DEFAULT)
        found.append(
            {
                "name": one.name,
                "value": first["value"],
                "read_only": False,
                "config_source": first["source"],
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


# -- the broker ------------------------------------------------------------------------------------


def _broker(call: Call, fields: Fields) -> list[Fields]:
    broker = call.broker
    values = broker_values(broker.config, broker.listeners, broker.room.reserve_bytes)
    found = []
    for one in broker_settings().values():
        name = one.name
        synonyms = [_synonym(name, value, n) for value, n in broker.dynamic.sources(name)]
        is_set = bool(synonyms)
        if name in values:
            synonyms.append(_synonym(name, values[name], STATIC))
        if one.default is not None:
            synonyms.append(_synonym(name, one.default, DEFAULT))
        elif is_set and name in _TAILS:
            synonyms += _default_of(_TAILS[name])
        is_configured = name in values and values[name] != one.default
        source = synonyms[0]["source"] if is_set else STATIC if is_configured else DEFAULT
        value = synonyms[0]["value"] if is_set else values.get(name, one.default)
        found.append(_described(one, value, source, synonyms, fields))
    return found


def _cluster(dynamic: DynamicSettings, fields: Fields) -> list[Fields]:
    """What was set for all brokers."""
    return [
        _described(
            broker_settings()[name], value, CLUSTER, [_synonym(name, value, CLUSTER)], fields
        )
        for name, value in dynamic.of(cluster=True).items()
    ]


def _described(
    one: BrokerSetting, value: str | None, source: int, synonyms: list[Fields], fields: Fields
) -> Fields:
    text = one.doc
    if one.is_changeable and not is_carried_out(one.name):
        text += " This broker keeps what it is set to, and does the same whatever it is."
    return {
        "name": one.name,
        "value": None if one.is_sensitive else value,
        "read_only": not one.is_changeable,
        "config_source": source,
        "is_sensitive": one.is_sensitive,
        "synonyms": synonyms if fields.get("include_synonyms") else [],
        "config_type": one.kind,
        "documentation": text if fields.get("include_documentation") else None,
    }

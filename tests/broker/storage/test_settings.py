from __future__ import annotations

import dataclasses

import pytest

from penstock.broker.storage.topic_settings import (
    TOPIC_SETTINGS,
    SettingError,
    log_config,
    validate,
)
from penstock.log.validation import LogConfig


def test_defaults_are_the_logs_defaults() -> None:
    """Each setting's default in the table is what a log does when nothing is set."""
    settings = {name: one.default for name, one in TOPIC_SETTINGS.items()}
    assert log_config(settings) == log_config({}) == LogConfig()


def test_every_default_is_valid() -> None:
    """A client may set any setting to its default, whether or not it can be changed."""
    for name, one in TOPIC_SETTINGS.items():
        assert validate(name, one.default) == one.default


def test_every_field_of_the_log_can_be_set() -> None:
    """Nothing that a log can be told is out of reach of a topic's settings."""
    fields = {one.name for one in dataclasses.fields(LogConfig)}
    assert {one.field for one in TOPIC_SETTINGS.values()} - {None} == fields


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("retention.ms", "-2"),
        ("retention.ms", "soon"),
        ("retention.ms", None),
        ("segment.bytes", "1"),
        ("cleanup.policy", "squeeze"),
        ("min.cleanable.dirty.ratio", "1.5"),
        ("min.insync.replicas", "0"),
        ("min.insync.replicas", "2147483648"),
        ("unclean.leader.election.enable", "maybe"),
        ("flush.messages", "0"),
        ("flush.ms", "-1"),
        ("preallocate", "maybe"),
        ("segment.index.bytes", "3"),
        ("leader.replication.throttled.replicas", "all"),
        ("message.timestamp.type", "Never"),
        ("no.such.setting", "1"),
    ],
)
def test_unfit_values_are_refused(name: str, value: str | None) -> None:
    """A value that a setting can't have, or that nothing here would carry out, is an error."""
    with pytest.raises(SettingError, match="expected"):
        validate(name, value)

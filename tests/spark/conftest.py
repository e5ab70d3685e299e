"""One Spark session for all tests here, with the source registered."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

import penstock as ps
from penstock.broker import BrokerProcess
from penstock.engine.spark.session import start_session


@pytest.fixture(scope="session")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A session of two cores."""
    before = dict(os.environ)
    made = start_session("source", None, tmp_path_factory.mktemp("spark"), cores=2)
    made.conf.set("spark.sql.shuffle.partitions", "2")
    ps.spark.register(made)
    yield made
    made.stop()
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker that all tests share."""
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as one:
        yield one

"""One broker for all tests of a registry that stands on a log."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.broker.process import BrokerProcess


@pytest.fixture(scope="package")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker; tests take topics of their own."""
    with BrokerProcess(tmp_path_factory.mktemp("log")) as found:
        yield found

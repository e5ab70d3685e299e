"""What tests need of the peers: Apache Kafka, which `benchmarks/peers/fetch.py` fetches."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

import pytest

__all__ = ["kafka_peer"]

BENCHMARKS: Final = Path(__file__).parents[1] / "benchmarks"


def kafka_peer() -> Any:
    """The module that starts Kafka (and has `cache`, which knows its jars); where Kafka can't be had,
    the test is skipped and says why.
    """
    if str(BENCHMARKS) not in sys.path:
        sys.path.append(str(BENCHMARKS))
    kafka = pytest.importorskip("peers.kafka", reason="benchmarks/peers/kafka.py is not there")
    if reason := kafka.available():
        pytest.skip(reason)
    return kafka

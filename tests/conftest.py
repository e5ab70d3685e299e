"""What all tests share: Hypothesis' profiles, and their order."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

# Examples are timed by nobody: machines that run tests are shared and noisy.
_quiet = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("default", **_quiet)
settings.register_profile("ci", derandomize=True, print_blob=True, **_quiet)
settings.load_profile("ci" if os.environ.get("CI") else "default")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest first, so that no process is left with one of them alone."""
    items.sort(key=lambda item: (item.path.name != "test_kills.py", "spark" not in item.keywords))

"""A session of Spark Connect, which has no context in this process."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.engine.spark.session import session_for
from penstock.errors import FlowError


class Remote:
    """What a pipeline may not ask a session for isn't there."""


def test_a_session_without_a_context_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the program's, as any other; a master that the program names can't be its server's."""
    remote = Remote()
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: remote)
    with session_for("p", None, tmp_path / "spark", cores=2) as found:
        assert found.place is remote
        assert not found.can_start_again
    with (
        pytest.raises(
            FlowError, match="found a session of this program at 'a server of Spark Conn"
        ),
        session_for("p", "spark://h:7077", tmp_path / "spark", cores=2),
    ):
        pass

"""A pipeline in a program that has a Spark session of its own: a notebook, say."""

from __future__ import annotations

import gc
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

import penstock as ps
from penstock.client import Producer
from penstock.engine.spark.session import session_for, start_context, start_session
from penstock.errors import FlowError
from penstock.serve import Views

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def test_the_programs_own_session_is_used_and_left_as_it_is(tmp_path: Path) -> None:
    """Its settings stay, it goes on after the pipeline, which runs in it twice."""
    session = start_session("notebook", None, tmp_path / "own", cores=2)
    try:
        session.conf.set("spark.sql.adaptive.enabled", "true")
        settings = dict(session.sparkContext.getConf().getAll())
        app = ps.App("inside", directory=tmp_path / "inside", cores=2)
        events = app.stream("events", "user STRING")
        app.view("counted", events.group_by("user").agg(n=ps.count()))
        for expected in (3, 6):
            rows: list[int] = []
            sent: list[int] = []

            def send() -> None:
                if sent or app.address is None:  # noqa: B023 - called in this turn
                    return
                sent.append(3)  # noqa: B023
                with Producer(app.address) as producer:
                    values = pa.array([b'{"user": "a"}'] * 3, pa.binary())
                    now = np.full(3, time.time_ns() // 1_000_000)
                    producer.send("events", 0, None, values, now)

            def read(batch: ps.Progress) -> None:
                rows.append(batch.rows)  # noqa: B023
                left_out.append(gc.get_freeze_count())  # noqa: B023

            left_out: list[int] = []
            app.run(on_idle=send, on_progress=read, until=lambda: sum(rows) >= 3)  # noqa: B023
            assert min(left_out) > 0
            assert gc.get_freeze_count() == 0
            assert Views(app.directory).table("counted")["n"].to_pylist() == [expected]
            assert session.range(5).count() == 5
        assert dict(session.sparkContext.getConf().getAll()) == settings
        assert session.conf.get("spark.sql.adaptive.enabled") == "true"
        other = ps.App(
            "far",
            directory=tmp_path / "far",
            spark="spark://h:7077",
            state=(tmp_path / "state").as_uri(),
        )
        other.view("v", other.stream("events", "user STRING").group_by().agg(n=ps.count()))
        with pytest.raises(FlowError, match="found a session of this program"):
            other.run(seconds=1)
    finally:
        session.stop()


def test_a_context_without_a_session_is_used_and_left_as_it_is(tmp_path: Path) -> None:
    """It is the program's, too: other jobs run on it after the pipeline's."""
    context = start_context("jobs", None, tmp_path / "own", cores=2)
    try:
        with session_for("inside", None, tmp_path / "inside", cores=2) as found:
            assert found.place is context
            assert not found.can_start_again
            assert found.is_here
        assert context.parallelize(range(5), 2).count() == 5
    finally:
        context.stop()


def test_a_pipeline_begins_no_session(tmp_path: Path) -> None:
    """Thousands of classes of Spark's SQL would be loaded, for what no lane uses."""
    with session_for("alone", None, tmp_path / "spark", cores=2) as found:
        assert isinstance(found.place, SparkContext)
        assert found.can_start_again
        assert SparkSession.getActiveSession() is None
    assert SparkContext._active_spark_context is None

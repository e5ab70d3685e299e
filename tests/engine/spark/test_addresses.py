"""Where a cluster's workers reach the driver, and how much of the cluster a pipeline takes."""

from __future__ import annotations

import pytest
from pyspark import SparkConf

import penstock as ps
from penstock.engine.spark import session
from penstock.engine.spark.addresses import address_towards
from penstock.errors import FlowError


def test_the_address_is_that_of_the_route(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the first master that has one; loopback where the master, or all of Spark, is on this machine."""
    monkeypatch.delenv("SPARK_LOCAL_IP", raising=False)
    assert address_towards(None) == address_towards("local[4]") == "127.0.0.1"
    assert address_towards("spark://127.0.0.5:7077") in {"127.0.0.1", "127.0.0.5"}
    assert address_towards("spark://nowhere.invalid:7077,127.0.0.1:7077") == "127.0.0.1"
    assert address_towards("k8s://https://127.0.0.1:6443") == "127.0.0.1"
    assert address_towards("yarn") is None


def test_a_master_without_a_route_is_named() -> None:
    """Instead of the executors' refusals."""
    with pytest.raises(OSError, match=r"master 'spark://nowhere\.invalid:7077'; found none"):
        address_towards("spark://nowhere.invalid:7077")


def test_the_environment_and_the_program_say_another_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The program's counts first, then SPARK_LOCAL_IP, which Spark reads itself."""
    monkeypatch.setenv("SPARK_LOCAL_IP", "10.0.0.9")
    assert session._local_ip("spark://127.0.0.1:7077", None) is None
    assert session._local_ip("spark://127.0.0.1:7077", "10.0.0.5") == "10.0.0.5"
    assert session._local_ip(None, "10.0.0.5") == "127.0.0.1"
    assert ps.App("p", address="10.0.0.5").settings.address == "10.0.0.5"
    with pytest.raises(FlowError, match=r"address='10\.0\.0\.5'"):
        ps.App("p", address=5)  # type: ignore[arg-type]


def configured(master: str | None, **own: str) -> dict[str, str]:
    """What a pipeline with three lanes makes of Spark's own configuration."""
    conf = SparkConf(loadDefaults=False)
    conf.setAll([(name.replace("_", "."), value) for name, value in own.items()])
    made = session._configure(conf, master, 3, "10.0.0.5", is_given=master is None)
    return dict(made.getAll())


def test_a_pipeline_takes_the_cores_of_its_lanes() -> None:
    """More where Spark gives a task several; as many as Spark's own configuration says, if it does."""
    master = "spark://a:7077"
    assert configured(master)["spark.cores.max"] == "3"
    assert configured(master, spark_task_cpus="2")["spark.cores.max"] == "6"
    assert configured(master, spark_cores_max="8")["spark.cores.max"] == "8"
    assert "spark.cores.max" not in configured(None)


def test_sparks_own_configuration_may_name_the_address() -> None:
    """Except where all of Spark is on this machine: nothing else is to reach it."""
    assert configured("spark://a:7077")["spark.driver.host"] == "10.0.0.5"
    assert configured("spark://a:7077", spark_driver_host="h")["spark.driver.host"] == "h"
    assert configured(None, spark_driver_host="h")["spark.driver.host"] == "10.0.0.5"

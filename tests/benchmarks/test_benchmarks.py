"""The benchmarks' own arithmetic, and their smoke sizes."""

import json
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SMOKE_TIMEOUT_S = 1500  # four engines, two runs each, on a busy machine


@pytest.fixture(autouse=True)
def _path(monkeypatch: pytest.MonkeyPatch) -> None:
    """The programs import each other by the names that they have as scripts."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def _run(*command: str, timeout_s: float = SMOKE_TIMEOUT_S) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        cwd=BENCHMARKS.parent,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


class TestEvents:
    def test_the_same_workload_gives_the_same_events(self):
        """Every side and every run of a benchmark sees the same events."""
        from common.events import Workload

        first, second = (pa.concat_tables(Workload(1000).chunks()) for _ in range(2))
        assert first.equals(second)
        assert first.num_rows == 1000

    def test_disorder_is_bounded(self):
        """No event is behind the newest before it by as much as the disorder."""
        from common.events import Workload

        events = pa.concat_tables(Workload(20_000, disorder_ms=500).chunks())
        times = events.column("ts").to_numpy()
        assert 400 < (np.maximum.accumulate(times) - times).max() < 500

    def test_json_holds_the_events(self):
        """The JSON rows decode to the columns that they were made from."""
        from common.events import Workload, to_json

        events = next(Workload(1000).chunks())
        assert [json.loads(row) for row in to_json(events).to_pylist()] == events.to_pylist()

    @pytest.mark.parametrize("name", ["rows", "users", "disorder_ms", "per_second", "partitions"])
    def test_a_size_of_nothing_is_refused(self, name):
        """The message names the size."""
        from common.events import Workload

        with pytest.raises(ValueError, match=name):
            Workload(**{"rows": 1, name: 0})


class TestCompare:
    @pytest.fixture
    def truth(self, tmp_path):
        from common.events import Workload, write_truth

        workload = Workload(20_000, users=50, per_second=100)
        write_truth(workload, tmp_path / "truth.parquet")
        return workload, tmp_path / "truth.parquet"

    def _compared(self, truth, query):
        from common.events import compare

        workload, file = truth
        return compare(f"({query.format(truth=file)})", file, workload.closed_before_ms())

    def test_the_truth_counts_every_event(self, truth):
        """No event is lost on the way to the true windows."""
        workload, file = truth
        assert duckdb.sql(f"SELECT sum(n) FROM '{file}'").fetchall() == [(workload.rows,)]

    def test_the_truth_equals_itself(self, truth):
        """A side with the true windows is equal."""
        assert self._compared(truth, "SELECT * FROM '{truth}'").equal

    def test_open_windows_may_be_missing(self, truth):
        """A side needn't have the windows that no watermark has closed."""
        query = "SELECT * FROM '{truth}' QUALIFY window_start_ms < max(window_start_ms) OVER ()"
        assert self._compared(truth, query).equal

    @pytest.mark.parametrize(
        ("query", "found"),
        [
            ("SELECT * FROM '{truth}' WHERE \"user\" <> 7", "missing"),
            ("SELECT * REPLACE (n + 1 AS n) FROM '{truth}'", "wrong"),
            ("SELECT * REPLACE (total + 0.5 AS total) FROM '{truth}'", "wrong"),
            ('SELECT * REPLACE ("user" + 1000 AS "user") FROM \'{truth}\'', "unknown"),
            ("FROM '{truth}' UNION ALL FROM '{truth}'", "repeated"),
        ],
    )
    def test_a_difference_is_found(self, truth, query, found):
        """A missing, wrong, unknown or repeated row makes a side differ."""
        compared = self._compared(truth, query)
        assert not compared.equal
        assert getattr(compared, found) > 0


class TestLatencies:
    def test_an_event_is_visible_when_its_own_user_has_reached_it(self):
        """Another user's progress doesn't make an event visible."""
        from latency import Produced, latencies_ms

        produced = Produced(np.array([1, 2, 1]), np.array([10.0, 10.1, 10.2]), 0)
        samples = [(10.5, {2: 1}), (10.6, {1: 0, 2: 1}), (11.0, {1: 2, 2: 1})]
        assert np.allclose(latencies_ms(produced, samples), [600, 400, 800])

    def test_what_was_never_seen_is_infinite(self):
        """An event that the view never showed isn't left out silently."""
        from latency import Produced, latencies_ms

        produced = Produced(np.array([1, 2]), np.array([1.0, 1.0]), 0)
        assert np.isinf(latencies_ms(produced, [(2.0, {1: 0})])).tolist() == [False, True]

    def test_a_value_is_served_when_it_changes(self):
        """Who knows the last one waits for another one."""
        from peers.served import Served

        served = Served()
        try:
            assert _got(served.url, "") == ("0", {})
            asked = threading.Thread(target=lambda: answers.append(_got(served.url, "0")))
            answers: list[tuple[str, dict[str, int]]] = []
            asked.start()
            served.put({1: 4})
            asked.join(60)
            assert answers == [("1", {"1": 4})]
        finally:
            served.end()


def _got(url: str, known: str) -> tuple[str, dict[str, int]]:
    """The number and the value of an answer, which is asked for until there is one."""
    while True:
        try:
            request = urllib.request.Request(url, headers={"If-None-Match": known})
            with urllib.request.urlopen(request) as answer:
                return answer.headers["ETag"], json.load(answer)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code != 304:
                raise


class TestSteadyRate:
    def test_the_first_batch_is_left_out(self):
        """Warming up isn't counted, and a batch without events still costs its time."""
        from peers.batches import steady_rows_per_s

        batches = [
            {"rows": 100, "ms": 9000},
            {"rows": 100, "ms": 150},
            {"rows": 0, "ms": 50},
        ]
        assert steady_rows_per_s(batches) == 500
        assert steady_rows_per_s(batches[:1]) is None


class TestRatios:
    def test_a_ratio_is_penstock_over_the_peer(self):
        """Twice as fast as a peer is a ratio of 2."""
        from windows import with_ratios

        sides = [{"side": "penstock", "rows_per_s": 200}, {"side": "flink", "rows_per_s": 100}]
        assert with_ratios(sides)[1]["rows_per_s_ratio"] == 2

    def test_an_unknown_peer_is_refused(self):
        """The message lists what there is."""
        from windows import chosen_sides

        with pytest.raises(ValueError, match="flink-rocksdb"):
            chosen_sides("storm", penstock=True)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(SMOKE_TIMEOUT_S)
class TestSmoke:
    def test_windows(self):
        """Penstock's windows of the smoke size equal the true ones."""
        ran = _run("benchmarks/windows.py", "--smoke", "--peers", "", "--json")
        assert ran.returncode == 0, ran.stderr
        assert json.loads(ran.stdout)["keyed"][0]["windows"]["equal"]

    def test_latency(self):
        """Every event of the smoke size becomes visible in Penstock's view, through a join as well."""
        sides = "penstock,penstock-join"
        ran = _run("benchmarks/latency.py", "--smoke", "--sides", sides, "--json")
        assert ran.returncode == 0, ran.stderr
        assert [one["never_visible"] for one in json.loads(ran.stdout)["sides"]] == [0, 0]


@pytest.mark.slow
@pytest.mark.peer
@pytest.mark.timeout(SMOKE_TIMEOUT_S)
class TestPeers:
    @pytest.mark.parametrize("side", ["flink", "spark"])
    def test_windows(self, side):
        """A peer's windows, read from the embedded broker, equal the true ones."""
        from peers import cache

        if reason := cache.problem(side):
            pytest.skip(reason)
        command = ["benchmarks/windows.py", "--smoke", "--without-penstock", "--json"]
        ran = _run(*command, "--peers", side)
        assert ran.returncode == 0, ran.stderr
        assert json.loads(ran.stdout)["keyed"][0]["windows"]["equal"]

    def test_kafka_keeps_its_topics_over_a_kill(self, tmp_path):
        """A Kafka node that is started again has the same address and data."""
        from peers import kafka

        if reason := kafka.available():
            pytest.skip(reason)
        admin = pytest.importorskip("confluent_kafka.admin")
        with kafka.KafkaProcess(tmp_path) as node:
            client = admin.AdminClient({"bootstrap.servers": node.address})
            client.create_topics([admin.NewTopic("kept", 3, 1)])["kept"].result(30)
            former = node.address
            node.kill()
        with kafka.KafkaProcess(tmp_path) as node:
            client = admin.AdminClient({"bootstrap.servers": node.address})
            assert node.address == former
            assert len(client.list_topics("kept", timeout=30).topics["kept"].partitions) == 3

"""The history of groups' lag: what is kept, and what a chart gets of it."""

from __future__ import annotations

import itertools

import pytest
from tests.patience import wait_until

from penstock.errors import BrokerError
from penstock.web.console.lag import GROUPS_MAX, TIERS, TOPICS_MAX, LagHistory, next_look_s

T0 = 1_767_225_600  # 2026-01-01T00:00:00Z, where stretches of every width begin


class Clock:
    """A clock that is set."""

    def __init__(self) -> None:
        self.s = float(T0)

    def __call__(self) -> float:
        return self.s


def test_each_stretch_has_the_largest_lag_of_its_time() -> None:
    """Two looks in one stretch are one point, by topic; a topic that wasn't there then has none."""
    clock = Clock()
    history = LagHistory(dict, clock)
    for at, lags in ((0, {"a": 5}), (4, {"a": 9}), (8, {"a": 2}), (12, {"a": 1, "b": 7})):
        clock.s = T0 + at
        history.add({"audit": lags})
        history.check()
    found = history.series("audit", 900)
    assert found["windows"] == [["2026-01-01T00:00:00Z", None], ["2026-01-01T00:00:10Z", None]]
    assert found["series"] == [
        {"key": "a", "values": [9, 1]},
        {"key": "b", "values": [None, 7]},
    ]
    assert (found["every_ms"], found["since"]) == (10_000, "2026-01-01T00:00:00Z")


def test_a_look_that_fails_leaves_a_gap() -> None:
    """No stretch stands for a time in which nobody looked."""
    clock = Clock()
    history = LagHistory(dict, clock)
    for at in (0, 10, 50):
        clock.s = T0 + at
        history.add({"audit": {"a": at}})
    starts = [begin for begin, _ in history.series("audit", 900)["windows"]]
    assert [one[17:19] for one in starts] == ["00", "10", "50"]


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    ("range_s", "width_s"), [(900, 10), (3_600, 10), (21_600, 60), (86_400, 300), (604_800, 1_800)]
)
def test_a_long_time_is_kept_in_bounded_space(range_s: int, width_s: int) -> None:
    """Of eight days a week is kept; each range has its points, without a gap, and a peak survives."""
    clock = Clock()
    history = LagHistory(dict, clock)
    end = 8 * 86_400
    peak = end - range_s + 2 * width_s
    for at in itertools.chain(range(0, end - 90_000, 60), range(end - 90_000, end + 1, 10)):
        clock.s = T0 + at
        history.add({"audit": {"a": 1_000 if peak <= at < peak + 60 else 1}})
    history.check()
    found = history.series("audit", range_s)
    assert found["every_ms"] == width_s * 1_000
    [line] = found["series"]
    assert len(line["values"]) in (range_s // width_s, range_s // width_s + 1)
    assert max(line["values"]) == 1_000


def test_groups_and_topics_are_bounded_and_forgotten() -> None:
    """More groups than are followed aren't; of topics the largest are; a group that has gone is forgotten."""
    clock = Clock()
    history = LagHistory(dict, clock)
    history.add(
        {f"g{n}": {f"t{m}": m for m in range(TOPICS_MAX + 5)} for n in range(GROUPS_MAX + 5)}
    )
    history.check()
    found = history.series("g0", 900)
    assert (found["keys_total"], found["series"][0]["key"]) == (TOPICS_MAX, f"t{TOPICS_MAX + 4}")
    assert history.series(f"g{GROUPS_MAX}", 900)["since"] is None
    width_s, kept = TIERS[-1]
    clock.s += width_s * (kept + 1)
    history.add({"late": {"t": 1}})
    assert history.series("g0", 900)["since"] is None
    assert history.series("late", 900)["series"] == [{"key": "t", "values": [1]}]


def test_it_looks_in_a_thread_and_survives_a_log_that_is_away() -> None:
    """The first look fails; a later one is kept. It ends when it is closed."""
    looks = iter([BrokerError("expected a broker; found none")])

    def look() -> dict[str, dict[str, int]]:
        for error in looks:
            raise error
        return {"audit": {"a": 3}}

    history = LagHistory(look)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock.web.console.lag.LOOK_S", 0.01)
        history.start()
        wait_until(lambda: history.series("audit", 900)["series"], "a look")
        history.close()
        assert history._thread is not None
        wait_until(lambda: not history._thread.is_alive(), "the thread to end")


def test_no_stretch_is_left_out_however_long_looks_take() -> None:
    """Each look is at the clock's next step; where looks take long, they are whole steps apart."""
    assert [next_look_s(T0 + 3.5, took_s) for took_s in (0.0, 0.3)] == [6.5, 6.5]
    assert next_look_s(T0 + 1.0, 0.5) == pytest.approx(9 + 10)
    assert next_look_s(float(T0), 0.01) == 10.0

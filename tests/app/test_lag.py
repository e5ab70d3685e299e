"""How far a pipeline is behind its log, and since when."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.app.lag import BEHIND_US, SAMPLES_MAX, Waiting

S = 1_000_000
steps = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 6)), max_size=60)


@given(steps)
def test_behind_is_since_the_first_look_whose_records_are_not_all_read(
    moves: list[tuple[int, int, int]],
) -> None:
    """As searched for among all looks: the oldest that saw an end which has not been reached."""
    waiting, ends, read = Waiting(), {("t", 0): 0, ("t", 1): 0}, {("t", 0): 0, ("t", 1): 0}
    looks: list[tuple[int, dict[tuple[str, int], int]]] = []
    for number, (more, other, done) in enumerate(moves):
        ends = {("t", 0): ends["t", 0] + more, ("t", 1): ends["t", 1] + other}
        read = {p: min(ends[p], offset + done) for p, offset in read.items()}
        looks.append((number * S, ends))
        waiting.look(number * S, ends, read)
        behind = [us for us, seen in looks if any(read[p] < end for p, end in seen.items())]
        assert waiting.behind_us == min(behind, default=None)
        assert waiting.lag == {"t": sum(ends.values()) - sum(read.values())}


def test_a_long_delay_is_remembered_in_little_memory() -> None:
    """However long the views stand still, since when is known."""
    waiting = Waiting()
    for second in range(10 * SAMPLES_MAX):
        waiting.look(second * S, {("t", 0): second + 1}, {("t", 0): 0})
    assert waiting.behind_us == 0
    assert len(waiting._samples) <= SAMPLES_MAX
    assert waiting.abreast_us is None
    waiting.look(10**12, {("t", 0): 10 * SAMPLES_MAX}, {("t", 0): 10 * SAMPLES_MAX})
    assert (waiting.behind_us, waiting.abreast_us) == (None, 10**12)


def test_abreast_is_since_the_delay_was_short() -> None:
    """Records that are read within seconds don't end it."""
    waiting = Waiting()
    for second in range(60):
        waiting.look(second * S, {("t", 0): 10 * second}, {("t", 0): max(0, 10 * (second - 2))})
    assert waiting.abreast_us == 0
    for second in range(60, 60 + BEHIND_US // S + 2):
        waiting.look(second * S, {("t", 0): 10 * second}, {("t", 0): 580})
    assert waiting.abreast_us is None


def test_a_partition_that_nobody_has_read_counts_from_its_first_record() -> None:
    """Without an offset there is nothing to compare with; the meter gives the first one."""
    waiting = Waiting()
    waiting.look(0, {("t", 0): 100}, {("t", 0): 40})
    assert waiting.lag == {"t": 60}

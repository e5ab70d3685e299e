from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.log.markers import build_marker
from penstock.wire import batches
from penstock.wire.columns import decode, scan

TRANSACTIONAL = 0x10


class History:
    """A log in which producers write and end transactions; knows what a reader should see."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self.aborted: list[tuple[int, int, int]] = []  # producer, first offset, marker's offset
        self.visible: dict[int, bytes] = {}
        self._open: dict[int, list[int]] = {}
        self.end = 0

    def write(self, producer: int, *, transactional: bool) -> None:
        """One record; seen at once, or once its transaction is committed."""
        value = b"%d" % self.end
        attributes = TRANSACTIONAL if transactional else 0
        batch = batches.build(
            [(None, value)], producer_id=producer, base_offset=self.end, attributes=attributes
        )
        if transactional:
            self._open.setdefault(producer, []).append(self.end)
        else:
            self.visible[self.end] = value
        self._append(batch)

    def finish(self, producer: int, *, commit: bool) -> None:
        """A marker."""
        batch = build_marker(producer, 0, commit=commit, coordinator_epoch=0, now_ms=0)
        batches.patch(batch, 0, self.end, 0)
        offsets = self._open.pop(producer, [])
        if commit:
            self.visible |= {offset: b"%d" % offset for offset in offsets}
        elif offsets:
            self.aborted.append((producer, offsets[0], self.end))
        self._append(batch)

    def finish_all(self) -> None:
        """Aborts what is open: a broker gives out nothing beyond the last stable offset."""
        for producer in list(self._open):
            self.finish(producer, commit=False)

    def _append(self, batch: bytearray) -> None:
        self.batches.append(bytes(batch))
        self.end += 1


steps = st.lists(
    st.tuples(st.sampled_from(["data", "write", "commit", "abort"]), st.integers(1, 3)),
    max_size=30,
)


@settings(deadline=None)
@given(steps, st.randoms(use_true_random=False))
def test_what_was_aborted_is_left_out(taken: list[tuple[str, int]], random: object) -> None:
    """From any offset to any other, a reader sees what was committed and nothing else."""
    history = History()
    for kind, producer in taken:
        if kind in {"data", "write"}:
            history.write(producer + 10 * (kind == "data"), transactional=kind == "write")
        else:
            history.finish(producer, commit=kind == "commit")
    history.finish_all()
    lo = random.randint(0, history.end)  # type: ignore[attr-defined]
    hi = random.randint(lo, history.end)  # type: ignore[attr-defined]
    overlapping = [
        (producer, first)
        for producer, first, last in history.aborted
        if first < hi + 3 and last >= lo  # a broker may name later ones, too
    ]
    found = scan(b"".join(history.batches[lo:hi]))
    kept = found.without_aborted(overlapping)
    records = decode(kept)
    assert records.offset.tolist() == [one for one in sorted(history.visible) if lo <= one < hi]
    assert records.values().to_pylist() == [history.visible[one] for one in records.offset.tolist()]
    assert (kept.next_offset, kept.whole_bytes) == (found.next_offset, found.whole_bytes)

"""What retention keeps, without any files."""

from __future__ import annotations

from typing import NamedTuple

from penstock.log.retention import kept_from, kept_locally_from
from penstock.log.validation import LogConfig


class Piece(NamedTuple):
    """A segment."""

    base_offset: int
    next_offset: int
    size: int
    max_timestamp: int


PIECES = [Piece(10 * n, 10 * n + 10, 100, 1000 * n) for n in range(4)]


def test_old_segments_go_up_to_the_first_that_is_kept() -> None:
    """A segment that is kept keeps all later ones, however old they are."""
    config = LogConfig(retention_ms=1500, retention_bytes=-1)
    assert kept_from(PIECES, PIECES[-1], config, 3000) == 20
    odd = [PIECES[0], PIECES[1]._replace(max_timestamp=9000), *PIECES[2:]]
    assert kept_from(odd, odd[-1], config, 9000) == 10
    assert kept_from(PIECES, PIECES[-1], config, 1000) is None


def test_size_spares_the_active_segment() -> None:
    """Age removes the active segment's records, size doesn't; an empty one stays."""
    config = LogConfig(retention_ms=-1, retention_bytes=0)
    assert kept_from(PIECES, PIECES[-1], config, 0) == 30
    assert kept_from(PIECES, PIECES[-1], LogConfig(retention_ms=0), 9000) == 40
    empty = [*PIECES, Piece(40, 40, 0, -1)]
    assert kept_from(empty, empty[-1], LogConfig(retention_ms=0), 9000) == 40


def test_lost_segment_goes_with_the_next() -> None:
    """Nothing tells a lost segment's age."""
    config = LogConfig(retention_ms=500, retention_bytes=-1)
    lost = [PIECES[0]._replace(size=0, max_timestamp=-1), *PIECES[1:]]
    assert kept_from(lost, lost[-1], config, 1400) is None
    assert kept_from(lost, lost[-1], config, 1600) == 20


def test_compacted_topic_keeps_all() -> None:
    """Where nothing is deleted, neither age nor size matter."""
    config = LogConfig(retention_ms=0, retention_bytes=0, cleanup_policy="compact")
    assert kept_from(PIECES, PIECES[-1], config, 9000) is None


def test_local_copies_go_once_the_tier_has_them() -> None:
    """Local retention is the whole log's unless it is set, and keeps what wasn't copied."""
    closed = PIECES[:-1]
    config = LogConfig(retention_ms=-1, retention_bytes=-1, local_retention_bytes=150)
    assert kept_locally_from(closed, 30, 400, config, 0) == 20
    assert kept_locally_from(closed, 10, 400, config, 0) == 10
    assert kept_locally_from(closed, 5, 400, config, 0) is None
    whole = LogConfig(retention_ms=1500, retention_bytes=-1)
    assert kept_locally_from(closed, 30, 400, whole, 3000) == 20

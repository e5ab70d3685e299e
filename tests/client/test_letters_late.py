"""Letters that would be late again."""

from __future__ import annotations

import pytest

from penstock.client.letters.lateness import late_again

REASON = (
    "late: its event time is 2026-01-01T09:00:00Z, the watermark was already "
    "2026-01-01T10:00:00Z, and no window that it is in is open"
)
NINE_S = 1_767_258_000


@pytest.mark.parametrize(
    ("value", "again"),
    [
        (b'{"at": "2026-01-01T09:00:00Z"}', True),
        (b'{"at": "2026-01-01T09:30:00Z"}', True),  # repaired, and still before the watermark
        (b'{"at": "2026-01-01T10:30:00Z"}', False),
        (b'{"event": {"at": "2026-01-01T12:00:00+01:00"}}', False),
        (b'{"at": "2026-01-01T09:00:00Z", "sent": "2026-01-01T11:00:00Z"}', True),
        (b'{"at": %d}' % (NINE_S * 1000), True),
        (b'{"at": %d}' % ((NINE_S + 7200) * 1000), False),
        (b'{"user": 7}', True),  # by the record's timestamp, which a replay keeps
        (b"not JSON", True),
        (None, True),
    ],
)
def test_a_late_letter_is_late_again_unless_its_time_is_repaired(
    value: bytes | None, again: bool
) -> None:
    """The watermark never goes back, so a time before the watermark of then is late now."""
    assert late_again(REASON, value) is again


def test_other_letters_are_not_late() -> None:
    """A letter with another reason was not judged by its time."""
    assert not late_again("no such field: user", b'{"at": "2026-01-01T09:00:00Z"}')

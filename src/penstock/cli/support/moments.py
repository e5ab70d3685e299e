"""Moments as people say them: `now`, `2 hours ago`, `2026-11-21T09:00:00Z`."""

from __future__ import annotations

from penstock.core.time import moment_us
from penstock.errors import UserError


def moment_ms(text: str, now_ms: int, option: str) -> int:
    """The moment that a text names, in ms since 1970.

    Args:
        text: what was said.
        now_ms: what time it is.
        option: which option said it, for the message.

    >>> moment_ms("2 hours ago", 10_000_000, "--from")
    2800000
    """
    try:
        return -(-moment_us(text, now_ms * 1000) // 1000)
    except UserError:
        raise UserError(
            f"expected {option} as an instant such as 2026-11-21T09:00:00Z, as '2 hours ago' or "
            f"now; found {text!r}"
        ) from None

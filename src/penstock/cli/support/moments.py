"""Moments as people say them: `now`, `2 hours ago`, `2026-11-21T09:00:00Z`."""

from __future__ import annotations

from penstock.core.time import duration_us, instant_us
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
    words = text.strip()
    try:
        if words == "now":
            return now_ms
        if words.endswith(" ago"):
            return now_ms - duration_us(words.removesuffix(" ago")) // 1000
        return -(-instant_us(words) // 1000)
    except UserError:
        raise UserError(
            f"expected {option} as an instant such as 2026-11-21T09:00:00Z, as '2 hours ago' or "
            f"now; found {text!r}"
        ) from None

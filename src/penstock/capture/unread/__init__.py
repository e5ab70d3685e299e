"""Values that can't be read or written: they never end a capture."""

from penstock.capture.unread.values import (
    UNREADABLE,
    Losses,
    Lost,
    OnUnreadable,
    PartlyError,
    as_json,
    keys_of,
    letter_headers,
)

__all__ = [
    "UNREADABLE",
    "Losses",
    "Lost",
    "OnUnreadable",
    "PartlyError",
    "as_json",
    "keys_of",
    "letter_headers",
]

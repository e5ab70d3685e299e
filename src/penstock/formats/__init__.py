"""Formats of records: rows to columns and back."""

from typing import TYPE_CHECKING

from penstock.core.lazy import lazy_names

if TYPE_CHECKING:
    from penstock.formats.json import Decoded
    from penstock.formats.lines.decoding import LineDecoder
    from penstock.formats.lines.kinds import Decoder, FormatKind
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "json": ("Decoded",),
            "lines.decoding": ("LineDecoder",),
            "lines.kinds": ("Decoder", "FormatKind"),
        },
    )

__all__ = ["Decoded", "Decoder", "FormatKind", "LineDecoder"]

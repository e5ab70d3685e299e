"""The compressions of record batches, by the number that a batch's attributes have of them."""

from __future__ import annotations

from typing import Final

__all__ = ["CODECS", "CODEC_BITS"]

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
"""Their names, by their number."""
CODEC_BITS: Final = 0x07
"""Where in the attributes that number is."""

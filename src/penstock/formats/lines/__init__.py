"""Records that are lines of text: CSV, and what a pattern describes."""

from penstock.formats.lines.decoding import Csv, Decoder, LineFormat, Pattern, decoder_for
from penstock.formats.lines.kinds import Format
from penstock.formats.lines.text import TextDecoder

__all__ = ["Csv", "Decoder", "Format", "LineFormat", "Pattern", "TextDecoder", "decoder_for"]

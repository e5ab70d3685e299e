"""MySQL's and MariaDB's character sets."""

from penstock.capture._mysql._charsets._asked import asked
from penstock.capture._mysql._charsets._charset import BINARY, Charset

__all__ = ["BINARY", "Charset", "asked"]

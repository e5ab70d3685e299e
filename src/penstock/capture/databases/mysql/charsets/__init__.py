"""MySQL's and MariaDB's character sets."""

from penstock.capture.databases.mysql.charsets.asking import asked
from penstock.capture.databases.mysql.charsets.charset import BINARY, Charset

__all__ = ["BINARY", "Charset", "asked"]

"""Character sets: bytes to text, as the server decodes them. Pure."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

__all__ = ["BINARY", "Charset"]

BINARY: Final = "binary"
_CODECS: Final = {
    "utf8": "utf-8",
    "utf8mb3": "utf-8",
    "utf8mb4": "utf-8",
    "ascii": "ascii",
    "latin1": "cp1252",
    "ucs2": "utf-16-be",
    "utf16": "utf-16-be",
    "utf16le": "utf-16-le",
    "utf32": "utf-32-be",
    "latin2": "iso8859-2",
    "latin5": "iso8859-9",
    "latin7": "iso8859-13",
    "greek": "iso8859-7",
    "hebrew": "iso8859-8",
    "koi8r": "koi8-r",
    "koi8u": "koi8-u",
    "sjis": "shift_jis",
    "ujis": "euc_jp",
    "eucjpms": "euc_jp",
    "euckr": "euc_kr",
    "tis620": "tis_620",
    **{one: one for one in ("cp850", "cp852", "cp866", "cp932", "cp1250", "cp1251", "cp1256")},
    **{one: one for one in ("cp1257", "big5", "gbk", "gb2312", "gb18030")},
}
SEVERAL: Final = {"sjis", "cp932", "ujis", "eucjpms", "euckr", "big5", "gbk", "gb2312"}
"""Sets whose characters have one to three bytes. The server has other characters than Python in most."""
_BYTES: Final = 256
"""How many there are."""


@dataclass(frozen=True)
class Charset:
    """A character set.

    Attributes:
        codec: Python's; `binary` where it is bytes.
        characters: of a set with one byte for each: those of all bytes, as the server converts them. Python
            has others here and there, and some of these sets not at all.
        several: of a set with one to three bytes for each: gives the characters of bytes, likewise.
    """

    codec: str = "utf-8"
    characters: str = ""
    several: Callable[[], Mapping[bytes, str]] | None = field(default=None, compare=False)

    @staticmethod
    def of(
        name: str, characters: str = "", several: Callable[[], Mapping[bytes, str]] | None = None
    ) -> Charset:
        """That of MySQL's name."""
        known = characters if len(characters) == _BYTES else ""
        codec = _CODECS.get(name, BINARY if name == BINARY else "utf-8")
        return Charset(codec, known, several if name in SEVERAL else None)

    def text(self, data: bytes) -> str:
        """Bytes as text."""
        if self.characters:
            return codecs.charmap_decode(data, "replace", self.characters)[0]
        if self.several is not None and not data.isascii():
            return _of_several(data, self.several())
        return str(data, self.codec, "replace")


def _of_several(data: bytes, characters: Mapping[bytes, str]) -> str:
    """Text of a set whose characters have one to three bytes."""
    made, at, end = [], 0, len(data)
    while at < end:
        for size in (2, 3, 1):
            if (found := characters.get(data[at : at + size])) is not None:
                break
        else:
            found, size = "\ufffd", 1
        made.append(found)
        at += size
    return "".join(made)

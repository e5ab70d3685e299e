"""What each character is for cutting texts into words: rules of Unicode's word boundaries (UAX #29).

Differences from UAX #29, which Lucene's StandardTokenizer follows: a colon separates words, so that
`Talk:Berlin` is two; digits in superscript and in circles are digits.
"""

from __future__ import annotations

import unicodedata
from functools import cache
from typing import Final

import numpy as np

from penstock.core.vectors import Vector

__all__ = [
    "CJK",
    "DIGIT",
    "EMOJI",
    "EXTEND",
    "JOINER",
    "LETTER",
    "MID_LETTER",
    "MID_NUMBER",
    "MID_WORD",
    "NOTHING",
    "classes",
]

NOTHING: Final = 0  # separates words
LETTER: Final = 1
DIGIT: Final = 2
JOINER: Final = 3  # an underscore: joins, but isn't a word by itself
EXTEND: Final = 4  # belongs to the character before
MID_WORD: Final = 5  # joins two letters, or two digits: . and '
MID_LETTER: Final = 6
MID_NUMBER: Final = 7
CJK: Final = 8  # Han, Hiragana, Katakana, Hangul: cut into pairs
EMOJI: Final = 9  # a word each

_CODE_POINTS: Final = 0x110000
_LAST_KNOWN: Final = 0x20000
"""Beyond, there are Han characters and, far behind them, selectors of variants."""
_OF_CATEGORY: Final = {
    "L": LETTER, "Nd": DIGIT, "No": DIGIT, "Nl": LETTER, "Pc": JOINER, "M": EXTEND, "Cf": EXTEND,
}  # fmt: skip
_CJK: Final = (
    (0x1100, 0x11FF), (0x2E80, 0x2FDF), (0x3005, 0x3007), (0x3021, 0x3029), (0x3038, 0x303B),
    (0x3041, 0x3096), (0x309D, 0x309F), (0x30A1, 0x30FA), (0x30FC, 0x30FF), (0x3130, 0x318F),
    (0x31F0, 0x31FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xA960, 0xA97F), (0xAC00, 0xD7FF),
    (0xF900, 0xFAFF), (0xFF66, 0xFF9D), (0xFFA0, 0xFFDC), (0x20000, 0x3FFFD),
)  # fmt: skip
_EMOJI: Final = ((0x1F1E6, 0x1F1FF), (0x1F300, 0x1F3FA), (0x1F400, 0x1FAFF), (0x2600, 0x27BF))
_MID: Final = {
    MID_WORD: ".'\u2018\u2019\u2024\ufe52\uff07\uff0e",
    MID_LETTER: "\u00b7\u0387\u055f\u05f4\u2027",
    MID_NUMBER: ",;\u037e\u0589\u060c\u060d\u066c\u07f8\u2044\ufe10\ufe14\ufe50\ufe54\uff0c\uff1b",
}


@cache
def classes() -> Vector:
    """uint8 of each code point: one of this module's constants."""
    table = np.zeros(_CODE_POINTS, np.uint8)
    for code in range(_LAST_KNOWN):
        category = unicodedata.category(chr(code))
        table[code] = _OF_CATEGORY.get(category, _OF_CATEGORY.get(category[0], NOTHING))
    table[0xE0100:0xE01F0] = EXTEND
    for first, last in _CJK:
        table[first : last + 1] = CJK
    for first, last in _EMOJI:
        table[first : last + 1] = EMOJI
    table[0x1F3FB:0x1F400] = EXTEND  # tones of skin
    table[0xFF9E:0xFFA0] = EXTEND  # voice marks of half width
    table[0x200B] = NOTHING
    for kind, characters in _MID.items():
        for one in characters:
            table[ord(one)] = kind
    table.setflags(write=False)
    return table

"""Numbers as text, as PostgreSQL's `formatting.c` writes them.

Its own names are kept where a rule would be hard to find again: `pre` and `post` are the places before
and behind the point, `spaces` the places that a number leaves free before it.
"""

from __future__ import annotations

import functools
import math
import struct
from dataclasses import dataclass, replace
from decimal import ROUND_HALF_UP, Decimal, localcontext
from typing import Final

from penstock.serve.characters.words import Part, by_letter, ordinal, parts

__all__ = ["DOUBLE_DIGITS", "FLOAT_DIGITS", "number_text"]

FLOAT_DIGITS, DOUBLE_DIGITS = 6, 15
"""Decimal digits that floats of 32 and of 64 bits know."""
DIGITS_MAX: Final = 1_000
"""Places of a number: more than any decimal has. Arithmetic below is exact within them."""
ROMAN_MAX, ROMAN_CHARS = 3_999, 15
_KEYS: Final = by_letter(
    ", . 0 9 B C D EEEE FM G L MI PL PR RN SG SP S TH V b c d eeee fm g l mi pl pr rn sg sp s th v"
)
_ROMAN: Final = (
    (1000, "M"), (900, "CM"), (500, "D"), (400, "CD"), (100, "C"), (90, "XC"), (50, "L"), (40, "XL"),
    (10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I"),
)  # fmt: skip


_END: Final = "\0"


@dataclass(frozen=True)
class _Form:
    """What a format says of the number as a whole."""

    parts: tuple[Part, ...]
    pre: int = 0
    post: int = 0
    shift: int = 0  # digits behind V
    zero_start: int = 0  # the first place with zeros, from 1; 0: none
    zero_end: int = 0
    lsign: str = ""  # before or behind the number, where S is
    pre_lsign: int = 0
    flags: frozenset[str] = frozenset()

    def has(self, flag: str) -> bool:
        return flag in self.flags


def number_text(value: str, form: str, digits: int = 0) -> str | None:
    """A number as text.

    Args:
        value: as DuckDB writes it.
        form: the format.
        digits: that a float has; 0 of exact numbers.

    Raises:
        ValueError: the format makes no sense.

    >>> number_text("1234567.891", "9,999,999.99"), number_text("-5", "FM009"), number_text("485", "FMRN")
    (' 1,234,567.89', '-005', 'CDLXXXV')
    """
    wanted = _form(form)
    number = _float(value, digits) if digits else Decimal(value)
    if wanted.has("RN"):
        return _Writer(wanted, _roman(number), "", 0).written()
    if wanted.has("EEEE"):
        return _scientific(number, wanted)
    if wanted.shift or wanted.has("V"):
        number = number * 10**wanted.shift
        wanted = replace(wanted, pre=wanted.pre + wanted.shift)
    wanted, text = _digits(number, wanted, digits)
    is_negative = text.startswith("-")
    text = text.removeprefix("-")
    whole = len(text.partition(".")[0])
    spaces = max(0, wanted.pre - whole)
    if whole > wanted.pre:
        text = "#" * wanted.pre + "." + "#" * wanted.post
    return _Writer(wanted, text, "-" if is_negative else "+", spaces).written()


def _float(value: str, digits: int) -> float:
    """A float; one of 32 bits is not exactly what its shortest text says."""
    number = float(value)
    if digits == FLOAT_DIGITS and math.isfinite(number):
        number = struct.unpack("f", struct.pack("f", number))[0]
    return number


def _digits(number: float | Decimal, wanted: _Form, digits: int) -> tuple[_Form, str]:
    """The number with as many digits behind the point as wanted; a float has no more than it knows."""
    if isinstance(number, Decimal):
        with localcontext(prec=DIGITS_MAX, rounding=ROUND_HALF_UP):
            rounded = number.quantize(Decimal(1).scaleb(-wanted.post))
            return wanted, f"{rounded or abs(rounded):f}"
    if not math.isfinite(number):
        name = "NaN" if math.isnan(number) else "Infinity"
        return wanted, f"-{name}" if number < 0 else name
    whole = len(f"{abs(number):.0f}")
    post = 0 if whole >= digits else min(wanted.post, digits - whole)
    return replace(wanted, post=post), f"{number:.{post}f}"


def _scientific(number: float | Decimal, wanted: _Form) -> str:
    if not math.isfinite(number):
        return " " + "#" * wanted.pre + "." + "#" * (wanted.post + 4)
    with localcontext(prec=DIGITS_MAX, rounding=ROUND_HALF_UP):
        mantissa, _, exponent = f"{number or 0.0:.{wanted.post}e}".partition("e")
    text = f"{mantissa}e{int(exponent):+03}"
    return text if text.startswith("-") else f" {text}"


def _roman(number: float | Decimal) -> str:
    rest = 0
    if math.isfinite(number):
        if isinstance(number, Decimal):
            number = number.to_integral_value(ROUND_HALF_UP)
        rest = round(number)
    if not 1 <= rest <= ROMAN_MAX:
        return "#" * ROMAN_CHARS
    found = ""
    for size, letters in _ROMAN:
        found += letters * (rest // size)
        rest %= size
    return found


@functools.lru_cache(maxsize=256)
def _form(form: str) -> _Form:
    """Reads a format.

    Raises:
        ValueError: words in it don't go together.
    """
    found = _Form(tuple(parts(form, _KEYS)))
    for one in found.parts:
        if one.key:
            found = _with(found, one.key.upper())
    return found


_EXCLUDED: Final = {
    "9": ("PR",),
    "0": ("PR",),
    "D": (".", "V"),
    ".": (".", "V"),
    "S": ("S", "PL", "MI", "PR"),
    "MI": ("S",),
    "PL": ("S",),
    "SG": ("S",),
    "PR": ("S", "PL", "MI"),
    "V": (".",),
    "EEEE": ("EEEE", "FM", "S", "PR", "MI", "PL", "RN", "V"),
}
"""By word: those that may not come before it."""


def _with(form: _Form, key: str) -> _Form:
    """The format with one more of its words."""
    before = next((one for one in _EXCLUDED.get(key, ()) if form.has(one)), None)
    before = "EEEE" if form.has("EEEE") else before
    if before is not None:
        raise ValueError(f"expected a format of a number; found {key!r} behind {before!r}")
    is_behind = form.has(".")
    flags = {key}
    match key:
        case "9" | "0":
            if key == "9":
                flags = set()
                if form.has("V"):
                    return replace(form, shift=form.shift + 1)
            elif not form.has("0") and not is_behind:
                form = replace(form, zero_start=form.pre + 1)
            else:
                flags = {"0"} & form.flags
            form = (
                replace(form, post=form.post + 1) if is_behind else replace(form, pre=form.pre + 1)
            )
            if key == "0":
                form = replace(form, zero_end=form.pre + form.post)
        case "D":
            flags = {"."}
        case "S":
            if not is_behind:
                form = replace(form, lsign="before", pre_lsign=form.pre)
            else:
                form = replace(form, lsign=form.lsign or "behind")
        case "SG":
            flags = {"MI", "PL"}
    return replace(form, flags=form.flags | flags)


class _Writer:
    """Writes one number, place by place."""

    def __init__(self, form: _Form, number: str, sign: str, spaces: int) -> None:
        self._form, self._number, self._sign, self._spaces = form, number, sign, spaces
        self._zero_start = form.zero_start - 1 if form.zero_start else 0
        self._is_filled = form.has("FM")
        self._at = self._place = 0  # in the number, and in the format
        self._is_inside = False  # whether a digit was written last
        self._lsign = form.lsign
        self._has_brackets = form.has("PR")
        self._out: list[str] = []
        if form.has("PL") or form.has("MI"):
            self._is_signed = form.has("MI")
        else:
            if sign != "-" and self._is_filled:
                self._has_brackets = False
            self._is_signed = sign == "+" and self._is_filled and not form.has("S")
            if form.lsign == "before" and form.pre == form.pre_lsign:
                self._lsign = "behind"
        self._count = form.post + form.pre - 1 + (not self._is_signed and spaces == 0)
        self._last = self._last_that_counts()

    def _last_that_counts(self) -> int | None:
        """The last digit behind the point that is not a zero which fill mode leaves out; None: all count."""
        point = self._number.find(".")
        if not self._is_filled or not self._form.has(".") or point < 0:
            return None
        last = max(point, len(self._number.rstrip("0")) - 1)
        if self._form.zero_end > self._spaces:
            last = max(last, min(len(self._number) - 1, self._form.zero_end - self._spaces))
        return last

    def written(self) -> str:
        """The text. Behind the number's end, PostgreSQL writes the end of its own text."""
        for one in self._form.parts:
            if not one.key:
                self._out.append(one.text)
            elif one.key in ("9", "0", ".", "D", "d"):
                if not self._form.has("RN"):
                    self._write_place(one.key)
            else:
                self._out.append(self._other(one.key))
        return "".join(self._out).partition(_END)[0]

    def _other(self, key: str) -> str:
        """What isn't a place of the number."""
        blank = "" if self._is_filled else " "
        match key.upper():
            case "," | "G":
                return "," if self._is_inside else blank
            case "L":
                return " "
            case "TH":
                is_odd = self._number[:1] == "#" or self._sign != "+" or self._form.has(".")
                if is_odd:
                    return ""
                if not self._number[-1:].isdecimal():
                    raise ValueError(f"expected a format with digits; found {key!r} without")
                return ordinal(self._number, key)
            case "RN":
                roman = self._number if key == "RN" else self._number.lower()
                return roman if self._is_filled else roman.rjust(ROMAN_CHARS)
            case "MI":
                return "-" if self._sign == "-" else blank
            case "PL":
                return "+" if self._sign == "+" else blank
            case "SG":
                return self._sign or _END
        return ""

    def _is_hidden_zero(self) -> bool:
        """Whether the next digit is the zero of `0.1`, which `9.9` writes as a space."""
        is_zero = self._at == 0 and self._number[:1] == "0"
        return not self._form.has("0") and is_zero and self._form.post != 0

    def _ends_at_point(self) -> bool:
        return self._last is not None and self._number[self._last] == "."

    def _write_sign(self) -> None:
        begins = self._place >= self._spaces or (
            self._form.has("0") and self._zero_start == self._place
        )
        if self._is_signed or not begins or (self._is_hidden_zero() and not self._ends_at_point()):
            return
        if self._form.has("S"):
            if self._lsign != "before":
                return
            self._out.append(self._sign)
        elif self._has_brackets:
            self._out.append(" " if self._sign == "+" else "<")
        elif self._sign == "-":
            self._out.append("-")
        elif not self._is_filled:
            self._out.append(" ")
        self._is_signed = True

    def _write_place(self, key: str) -> None:
        """A digit, the point, or a space for one."""
        self._is_inside = False
        self._write_sign()
        has_zeros = self._form.has("0")
        if self._place < self._spaces and (self._zero_start > self._place or not has_zeros):
            self._out.append("" if self._is_filled else " ")
        elif has_zeros and self._place < self._spaces:
            self._out.append("0")
            self._is_inside = True
        else:
            self._write_digit(key)
        end = self._count + (self._spaces > 0) + self._form.has(".")
        if self._last is not None and self._last == self._at:
            end = self._place
        if self._place + 1 == end:
            if self._is_signed and self._has_brackets:
                self._out.append(" " if self._sign == "+" else ">")
            elif self._form.has("S") and self._lsign == "behind":
                self._out.append(self._sign)
        self._place += 1

    def _write_digit(self, key: str) -> None:
        digit = self._number[self._at : self._at + 1]
        if digit == ".":
            self._out.append(".")
        elif self._last is not None and self._at > self._last and key != "0":
            pass
        elif self._is_hidden_zero():
            if not self._is_filled:
                self._out.append(" ")
            elif self._ends_at_point():
                self._out.append("0")
        else:
            self._out.append(digit or _END)
            self._is_inside = True
        if digit:
            self._at += 1

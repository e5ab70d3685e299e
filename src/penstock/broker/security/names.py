"""The name of a certificate's subject as Kafka writes it: RFC 2253, as Java's X500Principal does.

Python gives a subject's attributes decoded and under its own names, so this reads the certificate's
DER: just enough of X.509 (RFC 5280, section 4.1) to reach the subject. OpenSSL has verified it.
"""

from __future__ import annotations

from typing import Final

from penstock.errors import ProtocolError

__all__ = ["subject_of"]

_KEYWORDS: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
"""The attribute types that RFC 2253 has keywords for; others are written as `OID=#DER`."""
_TEXTS: Final = {0x0C: "utf-8", 0x13: "ascii", 0x14: "latin-1", 0x16: "ascii", 0x1E: "utf-16-be"}
_SPECIAL: Final = ',+"\\<>;'


def subject_of(certificate: bytes) -> str:
    """The subject's distinguished name, most specific part first: `CN=ann,OU=ops,O=Acme`.

    Args:
        certificate: in DER.

    Raises:
        ProtocolError: it is none.
    """
    try:
        _, whole, _ = _element(certificate, 0)
        _, signed, _ = _element(whole, 0)
        tag, _, at = _element(signed, 0)
        if tag == 0xA0:  # the version, which may be left out
            _, _, at = _element(signed, at)
        for _ in range(3):  # signature's algorithm, issuer, validity
            _, _, at = _element(signed, at)
        _, subject, _ = _element(signed, at)
        parts = ["+".join(_attribute(one) for one in _elements(rdn)) for rdn in _elements(subject)]
    except (IndexError, UnicodeDecodeError) as error:
        raise ProtocolError(f"expected a certificate in DER; found other bytes ({error})") from None
    return ",".join(reversed(parts))


def _element(data: bytes, at: int) -> tuple[int, bytes, int]:
    """The tag and content of the element at `at`, and the position after it."""
    tag, size = data[at], data[at + 1]
    at += 2
    if size & 0x80:
        width = size & 0x7F
        size = int.from_bytes(data[at : at + width], "big")
        at += width
    if at + size > len(data):
        raise IndexError("it ends early")
    return tag, data[at : at + size], at + size


def _elements(data: bytes) -> list[bytes]:
    """The contents of the elements in a sequence or set, in their order."""
    found, at = [], 0
    while at < len(data):
        _, content, at = _element(data, at)
        found.append(content)
    return found


def _attribute(data: bytes) -> str:
    _, oid_bytes, at = _element(data, 0)
    oid = _oid(oid_bytes)
    tag, content, _ = _element(data, at)
    keyword = _KEYWORDS.get(oid)
    encoding = _TEXTS.get(tag)
    if keyword is None or encoding is None:
        return f"{keyword or oid}=#{data[at:].hex()}"
    return f"{keyword}={_escape(content.decode(encoding))}"


def _oid(data: bytes) -> str:
    numbers, value = [], 0
    for byte in data:
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            numbers.append(value)
            value = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(str(n) for n in (first, numbers[0] - 40 * first, *numbers[1:]))


def _escape(text: str) -> str:
    escaped = "".join(f"\\{c}" if c in _SPECIAL else c for c in text)
    if text.startswith((" ", "#")):
        escaped = f"\\{escaped}"
    if text.endswith(" ") and len(text) > 1:
        escaped = f"{escaped[:-1]}\\ "
    return escaped

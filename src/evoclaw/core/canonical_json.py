"""Canonical JSON: the one encoding of a value, to hash and sign it.

`evoclaw/verify.py` has an implementation of its own: the two check each other.
"""

from __future__ import annotations

from hashlib import sha256
from json.encoder import encode_basestring
from math import isfinite

from msgspec.json import encode

from evoclaw.core.messages import JSON, is_array, is_object

LONG_TEXT_CHARS = 500
"""From this length on, msgspec encodes a text faster than the standard library."""


def canonical(value: JSON) -> bytes:
    """Canonical JSON by RFC 8785, except that integers are written in full."""
    try:
        return _canonical_text(value).encode()
    except UnicodeEncodeError:
        raise ValueError("a text contains an unpaired surrogate") from None


def _canonical_text(value: JSON) -> str:
    if isinstance(value, str):
        # Both write the same; each is faster for its length.
        return encode_basestring(value) if len(value) < LONG_TEXT_CHARS else encode(value).decode()
    if value is None or value is True or value is False:
        return "null" if value is None else "true" if value else "false"
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float):
        return _canonical_number(value)
    if is_object(value):
        names = sorted(value)
        if not "".join(names).isascii():
            names.sort(key=_utf16_order)
        return (
            "{"
            + ",".join(
                [f"{_canonical_text(name)}:{_canonical_text(value[name])}" for name in names]
            )
            + "}"
        )
    if is_array(value):
        return "[" + ",".join(map(_canonical_text, value)) + "]"
    raise TypeError(f"{type(value).__name__} is not JSON")


def _utf16_order(name: str) -> bytes:
    """A sort key by UTF-16 code units; for ASCII names the usual order."""
    return name.encode("utf-16-be")


def _canonical_number(value: float) -> str:
    """A number as JavaScript writes it: the fewest digits that identify it."""
    if not isfinite(value):
        return "null"
    if value == 0:
        return "0"
    mantissa, _, exponent = f"{value!r}e0".partition("e")
    sign, mantissa = ("-", mantissa[1:]) if mantissa.startswith("-") else ("", mantissa)
    whole, _, part = mantissa.partition(".")
    point = len(whole) + int(exponent.removesuffix("e0"))
    digits = whole + part
    point -= len(digits) - len(digits.lstrip("0"))
    digits = digits.strip("0")
    count = len(digits)
    if count <= point <= 21:
        return f"{sign}{digits}{'0' * (point - count)}"
    if 0 < point <= 21:
        return f"{sign}{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    rest = f".{digits[1:]}" if count > 1 else ""
    return f"{sign}{digits[0]}{rest}e{'+' if point > 0 else '-'}{abs(point - 1)}"


def canonical_hash(value: JSON) -> str:
    """The SHA-256 of a value's canonical JSON."""
    return sha256(canonical(value)).hexdigest()

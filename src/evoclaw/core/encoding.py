"""Canonical encodings: digests and texts of JSON values, their depth, and base64url."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from hashlib import sha256

import msgspec

from evoclaw.core.messages import JSON, is_array, is_object


def json_digest(value: JSON) -> str:
    """The SHA-256 of a JSON value, the same whatever the order of its keys."""
    return sha256(msgspec.json.encode(value, order="sorted")).hexdigest()


def json_text(value: JSON) -> str:
    """A value as text: strings as they are, everything else as JSON."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def is_deeper(value: JSON, limit: int) -> bool:
    """Whether a value has more nested objects and lists than the limit; never recurses."""
    level: list[JSON] = [value]
    for _ in range(limit):
        inner: list[JSON] = []
        for value in level:
            if is_object(value):
                inner += value.values()
            elif is_array(value):
                inner += value
        level = inner
    return any(is_object(value) or is_array(value) for value in level)


def encode_base64url(data: bytes) -> str:
    """Encode bytes as base64url without padding."""
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def decode_base64url(text: str) -> bytes:
    """Decode base64url; accepts only the form that `encode_base64url` writes."""
    data = urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
    if encode_base64url(data) != text:
        raise ValueError("not base64url")
    return data

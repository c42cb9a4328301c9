"""Signed tokens for links that answer an approval: one call, one decision, for a short time."""

from __future__ import annotations

import hmac
import re
from base64 import b32encode, urlsafe_b64decode, urlsafe_b64encode
from hashlib import sha256
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct

KEY_BYTES = 32
MAX_TOKEN_CHARS = 1_000
DIGEST_CHARS = 32
"""Of the digest of the call: 128 bits."""
_TOKEN = re.compile(r"([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]{43})")
OneTapDecision: TypeAlias = Literal["once", "deny"]
_PURPOSE = b"evoclaw one-tap answer 1\n"
_CODE_PURPOSE = b"evoclaw answer code 1\n"
BUTTON_SIGNATURE_CHARS = 22
"""Of the signature of a button: 132 bits; a button of Telegram holds 64 characters."""
CODE_CHARS = 8
"""Of a code that a person types: 40 bits, valid for one call and one sender."""
BUTTON_TOKEN = re.compile(r"([A-Za-z0-9]{1,20})\.([0-9a-f]{1,12})\.([od])\.[A-Za-z0-9_-]{22}")
"""The id of the approval, the end of the validity in hexadecimal, `o`nce or `d`eny."""


class OneTapAnswer(Struct, frozen=True, array_like=True):
    """What a link answers, and who got it."""

    tenant: str
    approval_id: str
    digest: str
    """The start of the digest of the call: another call is another token."""
    decision: OneTapDecision
    notifier: str
    target: str
    """The receiver, of a notifier that has several."""
    expires_at: int


class AnswerTokens:
    """Signs and reads tokens with one key, which every orchestrator of a store has."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def sign(self, answer: OneTapAnswer) -> str:
        """The token of an answer."""
        body = _encoded(msgspec.json.encode(answer))
        return f"{body}.{self._signature(body)}"

    def read(self, token: str) -> OneTapAnswer | None:
        """The answer of a token that this key signed, expired or not; None for any other text."""
        match = _TOKEN.fullmatch(token) if len(token) <= MAX_TOKEN_CHARS else None
        if match is None or not hmac.compare_digest(self._signature(match[1]), match[2]):
            return None
        padded = match[1] + "=" * (-len(match[1]) % 4)
        try:
            return msgspec.json.decode(urlsafe_b64decode(padded), type=OneTapAnswer)
        except (ValueError, msgspec.DecodeError):
            return None

    def button(self, answer: OneTapAnswer) -> str:
        """A short token; it is checked by making it again for the call that waits."""
        signature = self._signature(_encoded(msgspec.json.encode(answer)))
        start = f"{answer.approval_id}.{answer.expires_at:x}.{answer.decision[0]}"
        return f"{start}.{signature[:BUTTON_SIGNATURE_CHARS]}"

    def code(self, answer: OneTapAnswer) -> str:
        """A code that a person can type; it is checked by making it again."""
        signed = hmac.new(self._key, _CODE_PURPOSE + msgspec.json.encode(answer), sha256)
        return b32encode(signed.digest())[:CODE_CHARS].decode().lower()

    def _signature(self, body: str) -> str:
        return _encoded(hmac.new(self._key, _PURPOSE + body.encode(), sha256).digest())


def _encoded(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()

"""HMAC signatures of webhook requests and of the answers."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping

from msgspec import Struct

from evoclaw.orchestrator.channels.inbound import MessageRefused
from evoclaw.orchestrator.channels.settings import WebhookSettings

MIN_SECRET_BYTES = 16
"""A shorter secret can be guessed."""
_TIMESTAMP = re.compile(r"[0-9]{1,12}")


class SignatureFormat(Struct, frozen=True):
    """How a scheme signs requests."""

    signature_header: str
    prefix: str
    """Before the signature in its header."""
    timestamp_header: str = ""
    """Empty if no timestamp is signed."""
    before_timestamp: bytes = b""
    after_timestamp: bytes = b""
    """What is signed before the timestamp, and between the timestamp and the body."""


SIGNATURE_FORMATS: Mapping[str, SignatureFormat] = {
    "evoclaw": SignatureFormat("x-evoclaw-signature", "v1=", "x-evoclaw-timestamp", b"", b"."),
    "github": SignatureFormat("x-hub-signature-256", "sha256="),
    "slack": SignatureFormat("x-slack-signature", "v0=", "x-slack-request-timestamp", b"v0:", b":"),
}


class WebhookSignatures:
    """Signs and verifies with one secret, in one format."""

    def __init__(self, settings: WebhookSettings, secret: bytes) -> None:
        form = SIGNATURE_FORMATS[settings.scheme]
        self._format, self._secret, self._window_s = form, secret, settings.window_s
        self._signature_header = settings.signature_header.lower() or form.signature_header
        self._timestamp_header = form.timestamp_header and (
            settings.timestamp_header.lower() or form.timestamp_header
        )

    @property
    def has_timestamp(self) -> bool:
        """Whether a timestamp is signed, so that a replayed request is detected."""
        return bool(self._timestamp_header)

    def check(self, headers: Mapping[str, str], body: bytes, now: float) -> None:
        """Raise `MessageRefused` unless the signature of a request is valid and recent.

        Args:
            headers: Of the request; their names in lower case.
            body: The exact bytes of the body.
            now: Unix seconds.
        """
        timestamp = headers.get(self._timestamp_header, "") if self.has_timestamp else ""
        if self.has_timestamp and not _TIMESTAMP.fullmatch(timestamp):
            raise _invalid_signature()
        signature = headers.get(self._signature_header, "")
        expected = self._signature(timestamp, body)
        # Compared before the timestamp is: only a caller who knows the secret learns more.
        if not hmac.compare_digest(signature.encode(), expected.encode()):
            raise _invalid_signature()
        if self.has_timestamp and abs(now - int(timestamp)) > self._window_s:
            raise MessageRefused(
                "stale",
                f"the signed timestamp differs by more than {self._window_s:g} s from the time "
                "here; "
                "check both clocks and sign the request again",
            )

    def headers(self, body: bytes, now: float) -> dict[str, str]:
        """The headers that sign a body."""
        timestamp = str(int(now)) if self.has_timestamp else ""
        signed = {self._signature_header: self._signature(timestamp, body)}
        return signed | ({self._timestamp_header: timestamp} if self.has_timestamp else {})

    def _signature(self, timestamp: str, body: bytes) -> str:
        form = self._format
        start = (
            form.before_timestamp + timestamp.encode() + form.after_timestamp
            if self.has_timestamp
            else b""
        )
        digest = hmac.new(self._secret, start + body, hashlib.sha256).hexdigest()
        return form.prefix + digest


def _invalid_signature() -> MessageRefused:
    return MessageRefused(
        "unsigned", "the signature is missing or wrong; sign the exact bytes of the body"
    )

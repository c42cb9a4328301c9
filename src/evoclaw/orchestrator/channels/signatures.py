"""Signatures on letters that come over HTTP, and on the answers: who knows the secret sent it."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping

from msgspec import Struct

from evoclaw.orchestrator.channels.letters import Refused
from evoclaw.orchestrator.channels.settings import WebhookSettings

SHORTEST_SECRET = 16
"""Bytes; a shorter one can be guessed."""
_TIME = re.compile(r"[0-9]{1,12}")


class Form(Struct, frozen=True):
    """Whose way of signing."""

    signature_header: str
    prefix: str
    """Stands before the signature."""
    timestamp_header: str = ""
    """Empty if no time is signed."""
    before: bytes = b""
    between: bytes = b""
    """What stands before the time, and between it and the body, in what is signed."""


FORMS: Mapping[str, Form] = {
    "evoclaw": Form("x-evoclaw-signature", "v1=", "x-evoclaw-timestamp", b"", b"."),
    "github": Form("x-hub-signature-256", "sha256="),
    "slack": Form("x-slack-signature", "v0=", "x-slack-request-timestamp", b"v0:", b":"),
}


class Signatures:
    """Signs and checks with one secret, in one form."""

    def __init__(self, settings: WebhookSettings, secret: bytes) -> None:
        form = FORMS[settings.scheme]
        self._form, self._secret, self._window = form, secret, settings.window_s
        self._signature_header = settings.signature_header.lower() or form.signature_header
        self._timestamp_header = form.timestamp_header and (
            settings.timestamp_header.lower() or form.timestamp_header
        )

    @property
    def timed(self) -> bool:
        """Whether the time is signed, too, so that an old letter is seen as one."""
        return bool(self._timestamp_header)

    def check(self, headers: Mapping[str, str], body: bytes, now: float) -> None:
        """Raise `Refused` unless somebody signed exactly this, and just now.

        Args:
            headers: Of the request; their names in lower case.
            body: As it came, to the byte.
            now: Unix seconds.
        """
        said = headers.get(self._timestamp_header, "") if self.timed else ""
        if self.timed and not _TIME.fullmatch(said):
            raise _unsigned()
        given = headers.get(self._signature_header, "")
        wanted = self._signature(said, body)
        # Compared before anything is said about the time: only who knows the secret learns more.
        if not hmac.compare_digest(given.encode(), wanted.encode()):
            raise _unsigned()
        if self.timed and abs(now - int(said)) > self._window:
            raise Refused(
                "stale",
                f"it was signed more than {self._window:g} s before or after the time here; "
                "sign it anew, and check both clocks",
            )

    def headers(self, body: bytes, now: float) -> dict[str, str]:
        """What goes with a body to show that it is ours."""
        said = str(int(now)) if self.timed else ""
        signed = {self._signature_header: self._signature(said, body)}
        return signed | ({self._timestamp_header: said} if self.timed else {})

    def _signature(self, said: str, body: bytes) -> str:
        form = self._form
        start = form.before + said.encode() + form.between if self.timed else b""
        digest = hmac.new(self._secret, start + body, hashlib.sha256).hexdigest()
        return form.prefix + digest


def _unsigned() -> Refused:
    return Refused(
        "unsigned", "the signature is missing or wrong; sign the exact bytes of the body"
    )

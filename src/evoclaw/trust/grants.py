"""Grants: the orchestrator's signature under one command, which an edge verifies offline."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path

import msgspec
from msgspec import Struct

from evoclaw.core.encoding import decode_base64url, encode_base64url
from evoclaw.core.errors import ConfigError, EvoClawError
from evoclaw.core.messages import JSON
from evoclaw.core.tools import ALL_PERMISSIONS
from evoclaw.trust import ed25519
from evoclaw.trust.keys import load_or_create_seed

MAX_GRANT_CHARS = 8192
"""Maximum length of a grant's text; a longer one is refused unread."""
_SIGNATURE_CONTEXT = b"evoclaw grant 1\n"
"""Signed together with the payload, so that no other signature of the key passes for a grant."""


class Grant(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which agent may run which tool, with which arguments, and until when.

    The fields of a command are only claims; those that its grant repeats are signed.
    """

    agent: str
    tenant: str = ""
    request_id: str
    run_id: str = ""
    epoch: int = 0
    tool: str
    args_sha256: str
    permissions: tuple[str, ...] = ()
    sandbox: str = ""
    """The weakest sandbox the call may run in; empty leaves the choice to the edge."""
    budget: dict[str, float] = {}
    """What is left of each limit."""
    issued_at: float
    """Unix seconds by the orchestrator's clock."""
    life_s: float
    payload_sha256: str = ""
    """The hash of the command's whole payload: its arguments, and how they are to be run."""
    fields: dict[str, JSON] | None = None
    """Every other field of the command: its name, label, expiry, hops and so on."""


class GrantRefusal(StrEnum):
    """Why a grant is refused."""

    MALFORMED = "malformed"
    BAD_SIGNATURE = "bad_signature"
    OTHER_AGENT = "other_agent"
    OTHER_TOOL = "other_tool"
    OTHER_ARGUMENTS = "other_arguments"
    OTHER_REQUEST = "other_request"
    OTHER_COMMAND = "other_command"
    """A field of the command is not as it was signed."""
    OUTDATED = "outdated"
    """Signed by an orchestrator whose grants do not cover the whole command."""
    NO_CLOCK = "no_clock"
    """The device cannot tell whether it has expired."""
    NOT_PERMITTED = "not_permitted"
    EXPIRED = "expired"


class GrantRefused(EvoClawError):
    """The grant does not cover the call; the edge must not run it."""

    def __init__(self, code: GrantRefusal, reason: str) -> None:
        super().__init__(reason)
        self.code, self.reason = code, reason


class Signer:
    """Signs grants with a key that never leaves its file."""

    def __init__(self, seed: bytes) -> None:
        self._key = ed25519.signing_key(seed)
        self.public_key = encode_base64url(self._key.public_key)
        """The public key for a `Verifier`: 43 characters, not secret."""

    @classmethod
    def load_or_create(cls, path: Path) -> Signer:
        """Read the key, or create it; processes that do so at the same time get the same key."""
        return cls(load_or_create_seed(path, " and give every edge the new public key"))

    def sign(self, grant: Grant) -> str:
        """The grant as text: payload and signature in base64url, separated by a dot."""
        payload = msgspec.json.encode(grant)
        signature = self._key.sign(_SIGNATURE_CONTEXT + payload)
        return f"{encode_base64url(payload)}.{encode_base64url(signature)}"


class Verifier:
    """Verifies grants with the public keys of the orchestrators; needs no connection."""

    def __init__(self, *public_keys: str) -> None:
        """Trust these keys; several while a new key replaces an old one."""
        if not public_keys:
            raise ConfigError("a public key is needed to verify grants; pair this edge again")
        try:
            self._keys = [decode_base64url(key) for key in public_keys]
        except ValueError:
            self._keys = [b""]
        if any(len(key) != ed25519.KEY_BYTES for key in self._keys):
            raise ConfigError(
                "invalid public key for grants; copy all 43 characters from the orchestrator"
            )

    def verify(
        self,
        text: str,
        *,
        agent: str,
        tool: str,
        args_sha256: str,
        request_id: str,
        permissions: Iterable[str],
        now: float,
    ) -> Grant:
        """Return the grant if it covers exactly this call, or raise `GrantRefused`.

        Args:
            text: The grant.
            agent: The agent that is about to run the call.
            tool: The tool of the call.
            args_sha256: The hash of the arguments, computed by the edge.
            request_id: The id of the command.
            permissions: The permissions that the tool needs, as the edge knows them.
            now: The orchestrator's time, as the edge estimates it.
        """
        grant = self._read(text)
        for asked, granted, code, what in (
            (agent, grant.agent, GrantRefusal.OTHER_AGENT, "agent"),
            (tool, grant.tool, GrantRefusal.OTHER_TOOL, "tool"),
            (args_sha256, grant.args_sha256, GrantRefusal.OTHER_ARGUMENTS, "arguments"),
            (request_id, grant.request_id, GrantRefusal.OTHER_REQUEST, "request"),
        ):
            if asked != granted:
                raise GrantRefused(code, f"the grant is for another {what}")
        missing = (
            set[str]()
            if ALL_PERMISSIONS in grant.permissions
            else {*permissions} - {*grant.permissions}
        )
        if missing:
            names = ", ".join(sorted(missing))
            raise GrantRefused(GrantRefusal.NOT_PERMITTED, f"the grant does not permit {names}")
        # Negated, so that a NaN counts as expired.
        if not now < grant.issued_at + grant.life_s:
            raise GrantRefused(GrantRefusal.EXPIRED, "the grant has expired; ask for a new one")
        return grant

    def _read(self, text: str) -> Grant:
        body, dot, tail = text.partition(".") if len(text) <= MAX_GRANT_CHARS else ("", "", "")
        try:
            payload, signature = decode_base64url(body), decode_base64url(tail)
        except ValueError:
            dot, payload, signature = "", b"", b""
        if not dot:
            raise GrantRefused(GrantRefusal.MALFORMED, "the grant cannot be read")
        signed = _SIGNATURE_CONTEXT + payload
        if not any(ed25519.verify(key, signature, signed) for key in self._keys):
            raise GrantRefused(
                GrantRefusal.BAD_SIGNATURE,
                "the grant was not signed by an orchestrator that this edge knows",
            )
        try:
            return msgspec.json.decode(payload, type=Grant)
        except msgspec.DecodeError as problem:
            raise GrantRefused(
                GrantRefusal.MALFORMED, f"the grant cannot be read: {problem}"
            ) from None

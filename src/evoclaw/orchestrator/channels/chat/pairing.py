"""Adds senders to a channel: the operator shows a one-time code, which the person sends."""

from __future__ import annotations

import re
import secrets
from hashlib import sha256

import msgspec
from msgspec import Struct

from evoclaw.store.channels import ChannelStore

CODE_VALIDITY_S = 600.0
CODE_CHARS = 10
MAX_GUESSES = 100
"""Wrong codes, of all senders together, after which the code is no longer valid."""
_ALPHABET = "abcdefghijkmnpqrstuvwxyz23456789"
_MESSAGE = re.compile(rf"[/!]pair(?:@\w+)?\s+([a-z0-9]{{{CODE_CHARS}}})", re.IGNORECASE)
CODE, PAIRED = "pairing-code", "paired"


class PairingCode(Struct, frozen=True):
    """A code that adds one sender."""

    sha256: str
    user: str
    """The user that the sender becomes; empty: a user of its own."""
    expires_at: float
    guesses: int = 0
    """Wrong codes that were sent since."""


class ChannelPairing:
    """The paired senders of one channel, and its present code."""

    def __init__(self, channel: str, store: ChannelStore) -> None:
        self._channel, self._store = channel, store

    async def new_code(self, user: str) -> str:
        """Make a code, which replaces the one before.

        Args:
            user: The user that the sender becomes; empty: `CHANNEL:SENDER`.
        """
        code = "".join(secrets.choice(_ALPHABET) for _ in range(CODE_CHARS))
        stored = PairingCode(_hash(code), user, self._store.clock() + CODE_VALIDITY_S)
        await self._write(stored)
        return code

    async def redeem(self, sender: str, text: str) -> str | None:
        """The user that a sender became by sending a valid code; None for any other text."""
        match = _MESSAGE.fullmatch(text.strip())
        encoded = "" if match is None else await self._store.read_state(self._channel, CODE)
        if match is None or not encoded:
            return None
        code = msgspec.json.decode(encoded, type=PairingCode)
        if code.expires_at <= self._store.clock() or code.guesses >= MAX_GUESSES:
            return None
        if _hash(match[1].lower()) != code.sha256:
            await self._write(msgspec.structs.replace(code, guesses=code.guesses + 1))
            return None
        user = code.user or f"{self._channel}:{sender}"
        await self._store.write_state(self._channel, f"{PAIRED}/{sender}", user)
        await self._store.write_state(self._channel, CODE, "")
        return user

    async def user_of(self, sender: str) -> str | None:
        """The user of a paired sender."""
        return await self._store.read_state(self._channel, f"{PAIRED}/{sender}") or None

    async def senders(self) -> dict[str, str]:
        """The paired senders and their users."""
        found = await self._store.list_state(self._channel, f"{PAIRED}/")
        return {key.removeprefix(f"{PAIRED}/"): user for key, user in found.items()}

    async def remove(self, sender: str) -> bool:
        """Remove a paired sender; False if it is not paired."""
        return await self._store.delete_state(self._channel, f"{PAIRED}/{sender}")

    async def _write(self, code: PairingCode) -> None:
        await self._store.write_state(self._channel, CODE, msgspec.json.encode(code).decode())


def _hash(code: str) -> str:
    return sha256(code.encode()).hexdigest()

"""A candidate that a share of the new sessions uses."""

from __future__ import annotations

from hashlib import sha256

from msgspec import Struct


class Canary(Struct, frozen=True):
    """A candidate that a share of the new sessions uses."""

    digest: str
    share: float

    def has(self, session: str) -> bool:
        """Whether a session uses it: always the same answer for the same session."""
        drawn = int.from_bytes(sha256(f"{self.digest} {session}".encode()).digest()[:8])
        return drawn < self.share * 2**64

"""Signed checkpoints of the audit chain: the number of records, and the hash of the last one."""

from __future__ import annotations

from functools import cached_property
from hashlib import sha256
from pathlib import Path

import msgspec
from msgspec import Struct

from evoclaw.core.encoding import decode_base64url, encode_base64url
from evoclaw.core.errors import ConfigError
from evoclaw.trust import ed25519
from evoclaw.trust.keys import load_or_create_seed

NO_CHECKPOINT = ""
"""The hash before the first checkpoint."""
_PURPOSE = b"evoclaw audit checkpoint 1\n"
"""Signed with every checkpoint, so that no other text signed by this key can pass for one."""
_ENCODER = msgspec.json.Encoder(order="sorted")


class Checkpoint(Struct, frozen=True, forbid_unknown_fields=True):
    """The state of the chain when it was signed."""

    chain: str
    n: int
    """The number of the checkpoint, from 1."""
    seq: int
    """The number of records."""
    head: str
    """The hash of the last record."""
    at: float
    """Unix seconds."""
    prev: str
    """The hash of the previous checkpoint."""
    key: str
    """The public key."""
    signature: str = ""

    @property
    def hash(self) -> str:
        """Of the whole checkpoint, including the signature."""
        return sha256(encode(self)).hexdigest()

    @property
    def body(self) -> bytes:
        """The bytes that are signed."""
        return _PURPOSE + encode(msgspec.structs.replace(self, signature=""))


def encode(checkpoint: Checkpoint) -> bytes:
    """The line of a checkpoint, without the newline."""
    return _ENCODER.encode(checkpoint)


def decode(line: bytes) -> Checkpoint | None:
    """Parse a line; None if it is not exactly as `encode` writes it."""
    try:
        found = msgspec.json.decode(line, type=Checkpoint)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return found if encode(found) == line else None


KEY_PREFIX = "ed25519:"
"""In front of a printed key: a bare key may start with a dash and be taken for an option."""


class AuditKey:
    """Signs checkpoints; created on first use, and never leaves its file."""

    def __init__(self, seed: bytes) -> None:
        self._seed = seed

    @classmethod
    def load_or_create(cls, path: Path) -> AuditKey:
        """Read the key, or create it; concurrent processes all get the same key."""
        return cls(load_or_create_seed(path, " to sign with a new key from now on"))

    @cached_property
    def _key(self) -> ed25519.SigningKey:
        return ed25519.signing_key(self._seed)

    @property
    def public(self) -> str:
        """The public key that verifies checkpoints: 43 characters."""
        return encode_base64url(self._key.public_key)

    def secret_for(self, purpose: str) -> bytes:
        """A secret for another purpose, derived from this key."""
        return sha256(b"evoclaw " + purpose.encode() + b"\n" + self._seed).digest()

    def sign(self, checkpoint: Checkpoint) -> Checkpoint:
        """The checkpoint with its signature."""
        unsigned = msgspec.structs.replace(checkpoint, key=self.public, signature="")
        signature = encode_base64url(self._key.sign(unsigned.body))
        return msgspec.structs.replace(unsigned, signature=signature)


def is_signed(checkpoint: Checkpoint) -> bool:
    """Whether the key in a checkpoint signed it."""
    try:
        key, signature = decode_base64url(checkpoint.key), decode_base64url(checkpoint.signature)
        return ed25519.verify(key, signature, checkpoint.body)
    except ValueError:  # not base64url, or not a key
        return False


def check_key(text: str) -> str:
    """A public key without its prefix; `ConfigError` if it is not one."""
    key = text.strip().removeprefix(KEY_PREFIX)
    try:
        data = decode_base64url(key)
    except ValueError:
        data = b""
    if len(data) != ed25519.KEY_BYTES:
        raise ConfigError(
            f"{text[:80]!r} is not a public key: 43 characters, as `evoclaw audit key` prints it"
        )
    return key

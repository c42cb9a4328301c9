"""Signed checkpoints of the audit chain: the number of records, and the hash of the last one."""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from evoclaw.core.encoding import decode_base64url, encode_base64url
from evoclaw.core.errors import ConfigError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

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
        self._key: Ed25519PrivateKey | None = None

    @classmethod
    def load_or_create(cls, path: Path) -> AuditKey:
        """Read the key, or create it; concurrent processes all get the same key."""
        try:
            if not path.exists():
                _create_key(path)
            if path.stat().st_mode & 0o077:
                raise ConfigError(f"other users may read the key {path}; run chmod 600 {path}")
            seed = decode_base64url(path.read_text("ascii").strip())
        except (OSError, ValueError) as problem:
            raise ConfigError(
                f"cannot read the audit key {path}: {problem}; restore a copy, or delete the file "
                "to sign with a new key from now on"
            ) from None
        if len(seed) != 32:
            raise ConfigError(
                f"{path} contains no key; restore a copy, or delete the file to create a new key"
            )
        return cls(seed)

    @property
    def public(self) -> str:
        """The public key that verifies checkpoints: 43 characters."""
        return encode_base64url(self._loaded().public_key().public_bytes_raw())

    def secret_for(self, purpose: str) -> bytes:
        """A secret for another purpose, derived from this key."""
        return sha256(b"evoclaw " + purpose.encode() + b"\n" + self._seed).digest()

    def sign(self, checkpoint: Checkpoint) -> Checkpoint:
        """The checkpoint with its signature."""
        unsigned = msgspec.structs.replace(checkpoint, key=self.public, signature="")
        signature = encode_base64url(self._loaded().sign(unsigned.body))
        return msgspec.structs.replace(unsigned, signature=signature)

    def _loaded(self) -> Ed25519PrivateKey:
        if self._key is None:
            # Imported here: it costs some 30 ms and 7 MB, and checkpoints are rare.
            from cryptography.hazmat.primitives.asymmetric import ed25519

            self._key = ed25519.Ed25519PrivateKey.from_private_bytes(self._seed)
        return self._key


def is_signed(checkpoint: Checkpoint) -> bool:
    """Whether the key in a checkpoint signed it."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric import ed25519

    try:
        key = ed25519.Ed25519PublicKey.from_public_bytes(decode_base64url(checkpoint.key))
        key.verify(decode_base64url(checkpoint.signature), checkpoint.body)
    except (InvalidSignature, ValueError):
        return False
    return True


def check_key(text: str) -> str:
    """A public key without its prefix; `ConfigError` if it is not one."""
    key = text.strip().removeprefix(KEY_PREFIX)
    try:
        data = decode_base64url(key)
    except ValueError:
        data = b""
    if len(data) != 32:
        raise ConfigError(
            f"{text[:80]!r} is not a public key: 43 characters, as `evoclaw audit key` prints it"
        )
    return key


def _create_key(path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(encode_base64url(os.urandom(32)).encode() + b"\n")
            file.flush()
            os.fsync(descriptor)
        try:
            path.hardlink_to(draft)
        except FileExistsError:
            return  # another process was faster: its key is used
    finally:
        draft.unlink()

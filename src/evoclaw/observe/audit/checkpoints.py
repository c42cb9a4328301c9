"""Signed words about the chain: so many records there were, and this was the hash of the last."""

from __future__ import annotations

import os
from base64 import urlsafe_b64decode, urlsafe_b64encode
from hashlib import sha256
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from evoclaw.core.errors import ConfigError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

NO_CHECKPOINT = ""
"""What the first checkpoint follows."""
_PURPOSE = b"evoclaw audit checkpoint 1\n"
"""Signed with it, so that nothing else this key may sign can pass for a checkpoint."""
_ENCODER = msgspec.json.Encoder(order="sorted")


class Checkpoint(Struct, frozen=True, forbid_unknown_fields=True):
    """What was true when it was signed."""

    chain: str
    n: int
    """The first is 1."""
    seq: int
    """How many records there were."""
    head: str
    """The hash of the last of them."""
    at: float
    """Unix seconds."""
    prev: str
    """The hash of the checkpoint before."""
    key: str
    """The public key."""
    signature: str = ""

    @property
    def hash(self) -> str:
        """Of all of it, signature included."""
        return sha256(encode(self)).hexdigest()

    @property
    def body(self) -> bytes:
        """What is signed."""
        return _PURPOSE + encode(msgspec.structs.replace(self, signature=""))


def encode(checkpoint: Checkpoint) -> bytes:
    """A checkpoint's line, without its end."""
    return _ENCODER.encode(checkpoint)


def decode(line: bytes) -> Checkpoint | None:
    """Read a line back; None if it is not exactly as we write it."""
    try:
        found = msgspec.json.decode(line, type=Checkpoint)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return found if encode(found) == line else None


KEY_PREFIX = "ed25519:"
"""Before a key that people copy: a bare one may begin with a dash, and be taken for an option."""


class AuditKey:
    """Signs checkpoints; made on first use, and never leaves its file."""

    def __init__(self, seed: bytes) -> None:
        self._seed = seed
        self._key: Ed25519PrivateKey | None = None

    @classmethod
    def load_or_create(cls, path: Path) -> AuditKey:
        """Read the key, or make one; of several processes that make one, all get the same."""
        try:
            if not path.exists():
                _create_key(path)
            if path.stat().st_mode & 0o077:
                raise ConfigError(f"others may read the key {path}; say chmod 600 {path}")
            seed = _from_text(path.read_text("ascii").strip())
        except (OSError, ValueError) as problem:
            raise ConfigError(
                f"the audit's key {path} cannot be used: {problem}; put a copy back, or remove the "
                "file: what follows is then signed by a new key"
            ) from None
        if len(seed) != 32:
            raise ConfigError(f"{path} holds no key; put a copy back, or remove the file")
        return cls(seed)

    @property
    def public(self) -> str:
        """What checkpoints are checked with: 43 letters, no secret."""
        return _to_text(self._loaded().public_key().public_bytes_raw())

    def secret_for(self, purpose: str) -> bytes:
        """Another key, drawn from this one."""
        return sha256(b"evoclaw " + purpose.encode() + b"\n" + self._seed).digest()

    def sign(self, checkpoint: Checkpoint) -> Checkpoint:
        """The same, signed."""
        mine = msgspec.structs.replace(checkpoint, key=self.public, signature="")
        signature = _to_text(self._loaded().sign(mine.body))
        return msgspec.structs.replace(mine, signature=signature)

    def _loaded(self) -> Ed25519PrivateKey:
        if self._key is None:
            # Not above: it costs some 30 ms and 7 MB, and a checkpoint is rare.
            from cryptography.hazmat.primitives.asymmetric import ed25519

            self._key = ed25519.Ed25519PrivateKey.from_private_bytes(self._seed)
        return self._key


def is_signed(checkpoint: Checkpoint) -> bool:
    """Whether the key that it names signed it."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric import ed25519

    try:
        key = ed25519.Ed25519PublicKey.from_public_bytes(_from_text(checkpoint.key))
        key.verify(_from_text(checkpoint.signature), checkpoint.body)
    except (InvalidSignature, ValueError):
        return False
    return True


def check_key(text: str) -> str:
    """A public key as it was typed; `ConfigError` if it is none."""
    key = text.strip().removeprefix(KEY_PREFIX)
    try:
        data = _from_text(key)
    except ValueError:
        data = b""
    if len(data) != 32:
        raise ConfigError(
            f"{text[:80]!r} is no public key: it has 43 letters, as `evoclaw audit key` says it"
        )
    return key


def _create_key(path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(_to_text(os.urandom(32)).encode() + b"\n")
            file.flush()
            os.fsync(descriptor)
        try:
            path.hardlink_to(draft)
        except FileExistsError:
            return  # somebody was quicker, and his key is the key
    finally:
        draft.unlink()


def _to_text(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def _from_text(text: str) -> bytes:
    """Read base64url, and only as `_to_text` writes it: one text for each sequence of bytes."""
    data = urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
    if _to_text(data) != text:
        raise ValueError("not base64url")
    return data

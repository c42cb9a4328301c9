"""`BlobCipher`: encrypts what runs hold before it is stored, with a key outside the data folder.

The encryption is deterministic (AES-SIV): the same value is stored as the same bytes, so that a
repeated one is still recognised. Values from before there was a key are read as they are.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

from evoclaw.core.errors import EvoClawError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESSIV

SEALED_PREFIX = b"\0evoclaw sealed 2\0"
"""The start of an encrypted value, before the id of its key; no JSON starts so."""
KEY_ID_BYTES = 8
SEALED_LINE_START, SEALED_LINE_END = b'{"sealed":"', b'"}'
"""Around an encrypted line of a file, which so is still JSON."""
_CIPHER_KEY_BYTES = 64


class SealedValue(EvoClawError):
    """An encrypted value that cannot be read: its key is another one, or it was changed."""


class BlobCipher:
    """Encrypts and decrypts values; without a key they stay as they are."""

    def __init__(self, key: bytes = b"", key_file: str = "", *, seals: bool = True) -> None:
        """Use a secret of 32 bytes, or none.

        Args:
            key: The secret.
            key_file: Where it is from, for messages.
            seals: Whether new values are encrypted; otherwise the key only reads older ones.
        """
        self._key, self._key_file = key, key_file
        self.seals = seals and bool(key)
        """Whether new values are encrypted."""
        self.key_id = key_id(key) if key else ""
        """Tells the key from others without revealing it; a part of every encrypted value."""
        self._prefix = SEALED_PREFIX + bytes.fromhex(self.key_id)

    def seal(self, data: bytes) -> bytes:
        """The encrypted value."""
        return self._prefix + self._cipher.encrypt(data, None) if self.seals else data

    def open(self, value: bytes, location: Path | str) -> bytes:
        """The decrypted value; `SealedValue` if that needs another key."""
        if not value.startswith(SEALED_PREFIX):
            return value
        if not (self._key and value.startswith(self._prefix)):
            raise SealedValue(self._other_key(location, sealed_with(value)))
        from cryptography.exceptions import InvalidTag

        try:
            return self._cipher.decrypt(value.removeprefix(self._prefix), None)
        except InvalidTag:
            raise SealedValue(
                f"{location} holds an encrypted value that was changed or damaged; restore it from "
                "a backup"
            ) from None

    def _other_key(self, location: Path | str, wanted: str) -> str:
        ours = f"the key in {self._key_file} is another one" if self._key else "there is no key"
        return (
            f"{location} holds values that are encrypted with the key {wanted}, and {ours}: "
            "restore the key file from a backup, or name it as key_file under [store] in "
            "evoclaw.toml"
        )

    def seal_line(self, line: bytes) -> bytes:
        """A line of a file, without its end, encrypted as a line."""
        if not self.seals:
            return line
        return SEALED_LINE_START + b64encode(self.seal(line)) + SEALED_LINE_END

    def open_line(self, line: bytes, location: Path | str) -> bytes:
        """The decrypted line; `ValueError` if it is not whole."""
        if not is_sealed_line(line):
            return line
        inner = line.removeprefix(SEALED_LINE_START).removesuffix(SEALED_LINE_END)
        return self.open(b64decode(inner, validate=True), location)

    @cached_property
    def _cipher(self) -> AESSIV:
        # Loaded with the first value: most commands neither read nor write any.
        from cryptography.hazmat.primitives.ciphers.aead import AESSIV

        context = b"evoclaw records 1"
        return AESSIV(blake2b(context, key=self._key, digest_size=_CIPHER_KEY_BYTES).digest())


def key_id(key: bytes) -> str:
    """The id of a key."""
    return blake2b(b"evoclaw key id 1", key=key, digest_size=KEY_ID_BYTES).hexdigest()


def sealed_with(value: bytes) -> str:
    """The id of the key of an encrypted value; empty if the value is not encrypted."""
    if not value.startswith(SEALED_PREFIX):
        return ""
    return value[len(SEALED_PREFIX) : len(SEALED_PREFIX) + KEY_ID_BYTES].hex()


def is_sealed_line(line: bytes) -> bool:
    """Whether a line of a file is encrypted."""
    return line.startswith(SEALED_LINE_START)

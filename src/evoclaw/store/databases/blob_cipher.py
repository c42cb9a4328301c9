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

SEALED_PREFIX = b"\0evoclaw sealed 1\0"
"""The start of an encrypted value; no JSON starts so."""
SEALED_LINE_START, SEALED_LINE_END = b'{"sealed":"', b'"}'
"""Around an encrypted line of a file, which so is still JSON."""
_CIPHER_KEY_BYTES = 64


class SealedValue(EvoClawError):
    """An encrypted value that cannot be read with the key of this process."""

    def __init__(self, location: Path | str, key_file: str) -> None:
        key = f"the key in {key_file} is another one" if key_file else "this process has no key"
        super().__init__(
            f"{location} holds encrypted runs, and {key}: restore the key file from a backup, or "
            "name it as key_file under [store] in evoclaw.toml"
        )


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

    def seal(self, data: bytes) -> bytes:
        """The encrypted value."""
        return SEALED_PREFIX + self._cipher.encrypt(data, None) if self.seals else data

    def open(self, value: bytes, location: Path | str) -> bytes:
        """The decrypted value; `SealedValue` if that needs another key."""
        if not value.startswith(SEALED_PREFIX):
            return value
        if not self._key:
            raise SealedValue(location, "")
        from cryptography.exceptions import InvalidTag

        try:
            return self._cipher.decrypt(value.removeprefix(SEALED_PREFIX), None)
        except InvalidTag:
            raise SealedValue(location, self._key_file) from None

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


def is_sealed_line(line: bytes) -> bool:
    """Whether a line of a file is encrypted."""
    return line.startswith(SEALED_LINE_START)

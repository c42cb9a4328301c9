"""Ed25519 signatures by the OpenSSL that Python has loaded, or else by `cryptography`.

`cryptography` brings an OpenSSL of its own: 8 MB, a fifth of an edge. Python's `hashlib` has loaded
one already, so its functions are called through `ctypes`. If that library cannot be called, or does
not pass the self-test, `cryptography` is used.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from typing import Any, Protocol

from evoclaw.core.errors import EvoClawError

KEY_BYTES = 32
"""Length of a seed, and of a public key."""
SIGNATURE_BYTES = 64
_OPENSSL_ED25519_ID = 1087
"""`EVP_PKEY_ED25519` in the headers of OpenSSL."""
_TEST_SEED = bytes.fromhex("c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7")
_TEST_PUBLIC_KEY = bytes.fromhex("fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025")
_TEST_MESSAGE = bytes.fromhex("af82")
_TEST_SIGNATURE = bytes.fromhex(
    "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac"
    "18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a"
)
"""Test 3 of RFC 8032."""


class SigningFailed(EvoClawError):
    """The library failed; a wrong signature is not a failure."""


class SigningKey(Protocol):
    """A private key."""

    public_key: bytes

    def sign(self, message: bytes) -> bytes:
        """The signature of a message."""
        ...


class SignatureLibrary(Protocol):
    """Signs and verifies; a key of another length than 32 bytes is a `ValueError`."""

    def signing_key(self, seed: bytes) -> SigningKey:
        """The private key of a seed."""
        ...

    def verify(self, public_key: bytes, signature: bytes, message: bytes) -> bool:
        """Whether the key signed exactly this message."""
        ...


def signing_key(seed: bytes) -> SigningKey:
    """The private key of a seed."""
    return _library().signing_key(seed)


def verify(public_key: bytes, signature: bytes, message: bytes) -> bool:
    """Whether the key signed exactly this message."""
    return _library().verify(public_key, signature, message)


@cache
def _library() -> SignatureLibrary:
    return choose_library(loaded_openssl())


def choose_library(loaded: ctypes.CDLL | None) -> SignatureLibrary:
    """The loaded OpenSSL if it passes the self-test, else `cryptography`."""
    if loaded is not None:
        try:
            library = OpenSSL(loaded)
        except AttributeError:  # built into Python, which does not export its functions
            return Cryptography()
        if passes_self_test(library):
            return library
    return Cryptography()


def loaded_openssl() -> ctypes.CDLL | None:
    """The library that `hashlib` uses; None if it cannot be found."""
    try:
        import _hashlib

        # Looks up functions in its dependencies too: exactly the OpenSSL that it is linked to.
        return ctypes.CDLL(_hashlib.__file__)
    except (ImportError, AttributeError, OSError):
        return None


def passes_self_test(library: SignatureLibrary) -> bool:
    """Whether a library makes the published signature, accepts it, and refuses others."""
    try:
        key = library.signing_key(_TEST_SEED)
        return (
            key.public_key == _TEST_PUBLIC_KEY
            and key.sign(_TEST_MESSAGE) == _TEST_SIGNATURE
            and library.verify(_TEST_PUBLIC_KEY, _TEST_SIGNATURE, _TEST_MESSAGE)
            and not library.verify(_TEST_PUBLIC_KEY, _TEST_SIGNATURE, _TEST_MESSAGE + b"\0")
            and not library.verify(_TEST_PUBLIC_KEY, bytes(SIGNATURE_BYTES), _TEST_MESSAGE)
        )
    except SigningFailed:  # such as a FIPS build without Ed25519
        return False


class OpenSSL:
    """OpenSSL 1.1.1 or later, by its C functions."""

    def __init__(self, library: ctypes.CDLL) -> None:
        """`AttributeError` if the library lacks a function."""
        pointer, data, size, number = (
            ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int,
        )  # fmt: skip
        sizes = ctypes.POINTER(size)

        def function(name: str, result: type | None, *arguments: type) -> Any:
            found = getattr(library, name)
            found.restype, found.argtypes = result, arguments
            return found

        key_arguments = (number, pointer, data, size)
        self._new_private_key = function("EVP_PKEY_new_raw_private_key", pointer, *key_arguments)
        self._new_public_key = function("EVP_PKEY_new_raw_public_key", pointer, *key_arguments)
        self._get_public_key = function("EVP_PKEY_get_raw_public_key", number, pointer, data, sizes)
        self._free_key = function("EVP_PKEY_free", None, pointer)
        self._new_context = function("EVP_MD_CTX_new", pointer)
        self._free_context = function("EVP_MD_CTX_free", None, pointer)
        self._start_signing = function("EVP_DigestSignInit", number, *[pointer] * 5)
        self._sign = function("EVP_DigestSign", number, pointer, data, sizes, data, size)
        self._start_verifying = function("EVP_DigestVerifyInit", number, *[pointer] * 5)
        self._verify = function("EVP_DigestVerify", number, pointer, data, size, data, size)
        self._clear_errors = function("ERR_clear_error", None)

    def signing_key(self, seed: bytes) -> SigningKey:
        """The private key of a seed."""
        key = self._key(self._new_private_key, seed)
        made = OpenSSLSigningKey(self, key, self._public_key(key))
        weakref.finalize(made, self._free_key, key).atexit = False
        return made

    def sign(self, key: int, message: bytes) -> bytes:
        """The signature of a message, with a key of this library."""
        signature, length = (
            ctypes.create_string_buffer(SIGNATURE_BYTES),
            ctypes.c_size_t(SIGNATURE_BYTES),
        )
        with self._context() as context:
            started = self._start_signing(context, None, None, None, key)
            self._check(started == 1)
            done = self._sign(context, signature, ctypes.byref(length), message, len(message))
            self._check(done == 1 and length.value == SIGNATURE_BYTES)
        return signature.raw

    def verify(self, public_key: bytes, signature: bytes, message: bytes) -> bool:
        """Whether the key signed exactly this message."""
        key = self._key(self._new_public_key, public_key)
        try:
            with self._context() as context:
                started = self._start_verifying(context, None, None, None, key)
                self._check(started == 1)
                answer = self._verify(context, signature, len(signature), message, len(message))
        finally:
            self._free_key(key)
        # 0 or a negative number: refused, or it could not be computed.
        return answer == 1

    def _key(self, new: Any, raw: bytes) -> int:
        if len(raw) != KEY_BYTES:
            raise ValueError(f"an Ed25519 key has {KEY_BYTES} bytes, this one has {len(raw)}")
        key = new(_OPENSSL_ED25519_ID, None, raw, len(raw))
        self._check(key is not None)
        return key

    def _public_key(self, key: int) -> bytes:
        public, length = ctypes.create_string_buffer(KEY_BYTES), ctypes.c_size_t(KEY_BYTES)
        done = self._get_public_key(key, public, ctypes.byref(length))
        self._check(done == 1 and length.value == KEY_BYTES)
        return public.raw

    @contextmanager
    def _context(self) -> Generator[int]:
        context = self._new_context()
        self._check(context is not None)
        try:
            yield context
        finally:
            self._free_context(context)
            # `ssl` has the same queue of errors, and would take these for its own.
            self._clear_errors()

    def _check(self, worked: bool) -> None:
        if not worked:
            self._clear_errors()
            raise SigningFailed("OpenSSL could not use an Ed25519 key; update OpenSSL or Python")


class OpenSSLSigningKey:
    """A private key in the memory of OpenSSL; freed with this object."""

    def __init__(self, library: OpenSSL, key: int, public_key: bytes) -> None:
        self._library, self._key, self.public_key = library, key, public_key

    def sign(self, message: bytes) -> bytes:
        """The signature of a message."""
        return self._library.sign(self._key, message)


class Cryptography:
    """The package `cryptography`, imported with the first use."""

    def signing_key(self, seed: bytes) -> SigningKey:
        """The private key of a seed."""
        return CryptographySigningKey(seed)

    def verify(self, public_key: bytes, signature: bytes, message: bytes) -> bool:
        """Whether the key signed exactly this message."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        try:
            Ed25519PublicKey.from_public_bytes(public_key).verify(signature, message)
        except InvalidSignature:
            return False
        return True


class CryptographySigningKey:
    """A private key of `cryptography`."""

    def __init__(self, seed: bytes) -> None:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        self._key = Ed25519PrivateKey.from_private_bytes(seed)
        self.public_key = self._key.public_key().public_bytes_raw()

    def sign(self, message: bytes) -> bytes:
        """The signature of a message."""
        return self._key.sign(message)

"""Ed25519: the OpenSSL of Python and `cryptography` agree, and what fails its test is not used."""

from __future__ import annotations

import ctypes
import gc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evoclaw.trust import ed25519
from tests.support.properties import examples

LOADED = ed25519.loaded_openssl()
needs_openssl = pytest.mark.skipif(
    not isinstance(ed25519.choose_library(LOADED), ed25519.OpenSSL),
    reason="install a Python that is linked to OpenSSL",
)
LIBRARIES = [
    pytest.param("openssl", marks=needs_openssl),
    pytest.param("cryptography"),
]
VECTORS = [
    (
        "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555"
        "fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
    ),
    (
        "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da0"
        "85ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
    ),
]
"""Tests 1 and 2 of RFC 8032: seed, public key, message, signature."""
GROUP_ORDER = 2**252 + 27742317777372353535851937790883648493


def library(name: str) -> ed25519.SignatureLibrary:
    if name == "cryptography":
        return ed25519.Cryptography()
    assert LOADED is not None
    return ed25519.OpenSSL(LOADED)


@pytest.mark.parametrize("name", LIBRARIES)
@pytest.mark.parametrize("vector", VECTORS)
def test_the_published_signatures_are_made_and_accepted(
    name: str, vector: tuple[str, str, str, str]
) -> None:
    seed, public, message, signature = map(bytes.fromhex, vector)
    key = library(name).signing_key(seed)

    assert key.public_key == public
    assert key.sign(message) == signature
    assert library(name).verify(public, signature, message)


@needs_openssl
@settings(max_examples=examples(200))
@given(st.binary(min_size=32, max_size=32), st.binary(max_size=2_000))
def test_both_libraries_sign_alike_and_accept_each_other(seed: bytes, message: bytes) -> None:
    ours, theirs = library("openssl").signing_key(seed), library("cryptography").signing_key(seed)

    assert ours.public_key == theirs.public_key
    assert ours.sign(message) == theirs.sign(message)
    assert library("openssl").verify(ours.public_key, theirs.sign(message), message)


@pytest.mark.parametrize("name", LIBRARIES)
def test_every_flipped_bit_of_key_signature_or_message_is_refused(name: str) -> None:
    chosen, message = library(name), b"echo\0hi"
    key = chosen.signing_key(bytes(range(32)))
    parts = (key.public_key, key.sign(message), message)
    assert chosen.verify(*parts)

    for changed in range(3):
        for bit in range(8 * len(parts[changed])):
            flipped = bytearray(parts[changed])
            flipped[bit // 8] ^= 1 << bit % 8
            attempt = [*parts]
            attempt[changed] = bytes(flipped)
            assert not chosen.verify(attempt[0], attempt[1], attempt[2]), (changed, bit)


@pytest.mark.parametrize("name", LIBRARIES)
@pytest.mark.parametrize("signature", [b"", b"\0", bytes(63), bytes(64), bytes(65), bytes(9_000)])
def test_a_signature_of_any_other_form_is_refused(name: str, signature: bytes) -> None:
    public = library(name).signing_key(bytes(32)).public_key

    assert not library(name).verify(public, signature, b"message")


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_second_form_of_the_same_signature_is_refused(name: str) -> None:
    key = library(name).signing_key(bytes(32))
    signature = key.sign(b"message")
    scalar = int.from_bytes(signature[32:], "little") + GROUP_ORDER
    other = signature[:32] + scalar.to_bytes(32, "little")

    assert not library(name).verify(key.public_key, other, b"message")


@pytest.mark.parametrize("name", LIBRARIES)
@pytest.mark.parametrize("length", [0, 31, 33, 64])
def test_a_key_of_another_length_is_an_error(name: str, length: int) -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        library(name).signing_key(bytes(length))
    with pytest.raises(ValueError, match="32 bytes"):
        library(name).verify(bytes(length), bytes(64), b"message")


@needs_openssl
def test_a_refused_signature_leaves_no_error_for_ssl_to_find() -> None:
    assert LOADED is not None
    peek = LOADED.ERR_peek_error
    peek.restype, peek.argtypes = ctypes.c_ulong, []
    chosen = library("openssl")
    public = chosen.signing_key(bytes(32)).public_key

    for signature in (b"", bytes(64), b"\xff" * 64):
        assert not chosen.verify(public, signature, b"message")
        assert peek() == 0


@needs_openssl
def test_a_key_is_freed_with_its_object_and_only_then() -> None:
    freed: list[int] = []

    class Counting(ed25519.OpenSSL):
        def __init__(self, library: ctypes.CDLL) -> None:
            super().__init__(library)
            self._really_free = self._free_key
            self._free_key = self._free

        def _free(self, key: int) -> None:
            freed.append(key)
            self._really_free(key)

    assert LOADED is not None
    chosen = Counting(LOADED)
    key = chosen.signing_key(bytes(32))
    key.sign(b"message")
    assert not freed
    del key
    gc.collect()
    assert len(freed) == 1


class WrongLibrary:
    """A library that is wrong in one way."""

    def __init__(self, fault: str) -> None:
        self._fault, self._real = fault, ed25519.Cryptography()

    def signing_key(self, seed: bytes) -> ed25519.SigningKey:
        if self._fault == "fails":
            raise ed25519.SigningFailed("no Ed25519 here")
        if self._fault == "other key":
            return self._real.signing_key(seed[::-1])
        return WrongKey(self._real.signing_key(seed), self._fault)

    def verify(self, public_key: bytes, signature: bytes, message: bytes) -> bool:
        match self._fault:
            case "accepts all":
                return True
            case "refuses all":
                return False
            case "ignores the message":
                return signature != bytes(64)
            case "ignores the signature":
                return len(message) == 2
            case _:
                return self._real.verify(public_key, signature, message)


class WrongKey:
    def __init__(self, key: ed25519.SigningKey, fault: str) -> None:
        self._key, self._fault, self.public_key = key, fault, key.public_key

    def sign(self, message: bytes) -> bytes:
        return bytes(64) if self._fault == "signs nothing" else self._key.sign(message)


@pytest.mark.parametrize(
    "fault",
    [
        *("fails", "other key", "signs nothing", "accepts all", "refuses all"),
        *("ignores the message", "ignores the signature"),
    ],
)
def test_a_library_that_is_wrong_fails_the_self_test(fault: str) -> None:
    assert ed25519.passes_self_test(WrongLibrary("none"))
    assert not ed25519.passes_self_test(WrongLibrary(fault))


def test_without_a_usable_openssl_cryptography_is_used() -> None:
    lacks_functions = ctypes.CDLL(None)
    if hasattr(lacks_functions, "EVP_DigestVerify"):
        pytest.skip("install a Python that is linked to OpenSSL")

    assert isinstance(ed25519.choose_library(None), ed25519.Cryptography)
    assert isinstance(ed25519.choose_library(lacks_functions), ed25519.Cryptography)


@needs_openssl
def test_an_openssl_that_cannot_use_the_keys_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ed25519, "_OPENSSL_ED25519_ID", 0)

    assert isinstance(ed25519.choose_library(LOADED), ed25519.Cryptography)

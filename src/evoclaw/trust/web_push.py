"""Web Push: signs requests to push services (VAPID, RFC 8292), encrypts messages (RFC 8291)."""

from __future__ import annotations

import hmac
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from hashlib import sha256
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from evoclaw.core.errors import EvoClawError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric import ec

RECORD_BYTES = 4_096
"""The only record of a message: push services take no larger one."""
MAX_MESSAGE_BYTES = RECORD_BYTES - 103
"""Without header, padding and authentication tag."""
TOKEN_VALID_S = 12 * 3_600
PUBLIC_KEY_BYTES, AUTH_BYTES, SALT_BYTES, PRIVATE_KEY_BYTES = 65, 16, 16, 32


class InvalidPushKey(EvoClawError):
    """The keys of a subscription are not those of a browser."""

    def __init__(self) -> None:
        super().__init__("the keys of the push subscription are invalid; subscribe again")


class VapidKey:
    """The key pair that identifies this service at push services."""

    def __init__(self, private: bytes) -> None:
        """Load a key that `generate` made."""
        self._key = _private_key(private)
        self.public = _public_bytes(self._key)

    @staticmethod
    def generate() -> bytes:
        """A new private key."""
        from cryptography.hazmat.primitives.asymmetric import ec

        number = ec.generate_private_key(ec.SECP256R1()).private_numbers().private_value
        return number.to_bytes(PRIVATE_KEY_BYTES, "big")

    @property
    def public_text(self) -> str:
        """The public key, as browsers take it."""
        return encode_base64url(self.public)

    def authorization(self, endpoint: str, contact: str, now: float) -> str:
        """The `Authorization` header of a request to a push service."""
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

        parts = urlsplit(endpoint)
        claims = {
            "aud": f"{parts.scheme}://{parts.netloc}",
            "exp": int(now) + TOKEN_VALID_S,
            "sub": contact,
        }
        signed = ".".join(
            encode_base64url(msgspec.json.encode(part))
            for part in ({"typ": "JWT", "alg": "ES256"}, claims)
        )
        r, s = decode_dss_signature(self._key.sign(signed.encode(), ec.ECDSA(hashes.SHA256())))
        signature = encode_base64url(r.to_bytes(32, "big") + s.to_bytes(32, "big"))
        return f"vapid t={signed}.{signature}, k={self.public_text}"


def check_keys(p256dh: str, auth: str) -> None:
    """Raise `InvalidPushKey` unless these are the keys of a subscription."""
    _receiver_keys(p256dh, auth)


def encrypt(
    message: bytes, p256dh: str, auth: str, *, salt: bytes = b"", sender: bytes = b""
) -> bytes:
    """A message that only the browser of a subscription can read.

    Args:
        message: At most `MAX_MESSAGE_BYTES`.
        p256dh: The public key of the subscription.
        auth: Its authentication secret.
        salt: Random bytes; made here unless a test gives them.
        sender: The private key for this message; made here unless a test gives it.
    """
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    if len(message) > MAX_MESSAGE_BYTES:
        raise EvoClawError(f"the message has more than {MAX_MESSAGE_BYTES} bytes")
    receiver, secret = _receiver_keys(p256dh, auth)
    own = _private_key(sender or VapidKey.generate())
    salt, own_public = salt or secrets.token_bytes(SALT_BYTES), _public_bytes(own)
    shared = own.exchange(ec.ECDH(), receiver)
    info = b"WebPush: info\0" + decode_base64url(p256dh) + own_public
    input_key = _expand(_hmac(secret, shared), info, 32)
    pseudorandom = _hmac(salt, input_key)
    key = _expand(pseudorandom, b"Content-Encoding: aes128gcm\0", 16)
    nonce = _expand(pseudorandom, b"Content-Encoding: nonce\0", 12)
    header = salt + RECORD_BYTES.to_bytes(4, "big") + bytes([len(own_public)]) + own_public
    # The byte 2 ends the last record.
    return header + AESGCM(key).encrypt(nonce, message + b"\x02", None)


def encode_base64url(data: bytes) -> str:
    """Base64 for URLs, without padding."""
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def decode_base64url(text: str) -> bytes:
    """Decode base64 for URLs; raise `InvalidPushKey`."""
    try:
        return urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except ValueError:
        raise InvalidPushKey from None


def _receiver_keys(p256dh: str, auth: str) -> tuple[ec.EllipticCurvePublicKey, bytes]:
    from cryptography.hazmat.primitives.asymmetric import ec

    public, secret = decode_base64url(p256dh), decode_base64url(auth)
    if len(public) != PUBLIC_KEY_BYTES or len(secret) != AUTH_BYTES:
        raise InvalidPushKey
    try:
        return ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), public), secret
    except ValueError:
        raise InvalidPushKey from None


def _private_key(private: bytes) -> ec.EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.derive_private_key(int.from_bytes(private, "big"), ec.SECP256R1())


def _public_bytes(key: ec.EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return key.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)


def _hmac(key: bytes, data: bytes) -> bytes:
    return hmac.new(key, data, sha256).digest()


def _expand(key: bytes, info: bytes, size: int) -> bytes:
    """One block of HKDF-Expand, which is enough here."""
    return _hmac(key, info + b"\x01")[:size]

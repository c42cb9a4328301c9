"""The keys of a browser that is subscribed to Web Push, which can read what it receives."""

from __future__ import annotations

import msgspec
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from evoclaw.core.messages import JSON
from evoclaw.trust.web_push import encode_base64url


class PushBrowser:
    """A browser with a push subscription, which can read what it gets."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint, self._auth = endpoint, b"0123456789abcdef"
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._public = self._key.public_key().public_bytes(
            Encoding.X962, PublicFormat.UncompressedPoint
        )

    @property
    def subscription(self) -> JSON:
        """As `PushSubscription.toJSON` gives it."""
        keys = {"p256dh": encode_base64url(self._public), "auth": encode_base64url(self._auth)}
        return {"endpoint": self.endpoint, "keys": keys}

    def read(self, data: bytes) -> JSON:
        """Decrypt a message as RFC 8291 says."""
        salt, size, sender = data[:16], data[20], data[21 : 21 + data[20]]
        point = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), sender)
        shared = self._key.exchange(ec.ECDH(), point)
        info = b"WebPush: info\0" + self._public + sender
        secret = HKDF(SHA256(), 32, self._auth, info).derive(shared)
        key = HKDF(SHA256(), 16, salt, b"Content-Encoding: aes128gcm\0").derive(secret)
        nonce = HKDF(SHA256(), 12, salt, b"Content-Encoding: nonce\0").derive(secret)
        plain = AESGCM(key).decrypt(nonce, data[21 + size :], None)
        assert plain.endswith(b"\x02")
        return msgspec.json.decode(plain[:-1])

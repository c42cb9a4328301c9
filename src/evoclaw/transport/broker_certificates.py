"""The certificate authority of a broker: its fingerprint, and how a joining edge fetches it."""

from __future__ import annotations

import socket
import ssl
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

from evoclaw.core.errors import ConfigError
from evoclaw.transport.address import Address

FETCH_TIMEOUT_S = 10.0
"""Timeout of the connection that reads the certificates of a broker."""
_DER_ENCODING = 2
"""The value of `_ssl.ENCODING_DER`."""


def file_fingerprint(ca_file: Path) -> str:
    """The SHA-256 of the first certificate in a PEM file, in hex."""
    try:
        text = ca_file.read_text(encoding="ascii", errors="replace")
        end = ssl.PEM_FOOTER
        return _fingerprint(ssl.PEM_cert_to_DER_cert(text.partition(end)[0].strip() + f"\n{end}\n"))
    except (OSError, ValueError) as problem:
        raise ConfigError(f"cannot load the CA file {str(ca_file)!r}: {problem}") from None


def fetch_authority(address: Address, fingerprint: str) -> str:
    """The authority with this fingerprint, as PEM, from the certificates that a broker shows.

    Nothing is sent to the broker: it is not trusted before the fingerprint was found.
    """
    where = f"{address.host}:{address.port}"
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with (
            socket.create_connection((address.host, address.port), FETCH_TIMEOUT_S) as plain,
            context.wrap_socket(plain, server_hostname=address.host) as connection,
        ):
            chain = _chain(connection)
    except OSError as problem:
        raise ConfigError(
            f"cannot read the certificate of the broker at {where}: {problem}; check that "
            "`evoclaw up --lan` runs there, and that no firewall blocks the port"
        ) from None
    for certificate in chain:
        if _fingerprint(certificate) == fingerprint.lower():
            return ssl.DER_cert_to_PEM_cert(certificate)
    raise ConfigError(
        f"the broker at {where} does not show the certificate authority that the invitation names: "
        "it may be another machine. Check the address and create a new invitation, or copy the "
        "CA file here and use --ca-file"
    )


def _fingerprint(certificate: bytes) -> str:
    return sha256(certificate).hexdigest()


def _chain(connection: ssl.SSLSocket) -> list[bytes]:
    """The certificates that the other side sent, unverified."""
    if sys.version_info >= (3, 13):
        return connection.get_unverified_chain()
    # Not public before Python 3.13; pip's `truststore` reads the chain in the same way.
    inner: Any = getattr(connection, "_sslobj", None)
    if not hasattr(inner, "get_unverified_chain"):
        raise ConfigError(
            "this Python cannot read the certificates of a broker; copy its CA file here and use "
            "--ca-file"
        )
    return [found.public_bytes(_DER_ENCODING) for found in inner.get_unverified_chain() or ()]

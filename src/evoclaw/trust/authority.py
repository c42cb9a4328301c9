"""The certificate authority of one orchestrator: it signs the certificate of its own broker.

Edges trust the authority, not the certificate: a new certificate, for another address or after the
old one has expired, needs no new pairing.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from evoclaw.core.errors import ConfigError

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

AUTHORITY_LIFETIME_DAYS = 3650
CERTIFICATE_LIFETIME_DAYS = 825
"""Issued again at every start of the broker; the longest that common TLS clients accept."""


class BrokerCertificate(Struct, frozen=True):
    """The PEM files of a broker's certificate."""

    cert: Path
    """The certificate, and the authority that signed it: joining edges read both."""
    key: Path
    ca: Path
    """The authority alone."""


def issue_certificate(folder: Path, hosts: Sequence[str]) -> BrokerCertificate:
    """Issue a certificate for these names and addresses; create the authority if there is none."""
    from cryptography.hazmat.primitives.asymmetric import ec

    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        ca, ca_key = _load_or_create_authority(folder)
        key = ec.generate_private_key(ec.SECP256R1())
        made = _sign(hosts[0], key, ca_key, CERTIFICATE_LIFETIME_DAYS, ca=ca, hosts=hosts)
        files = BrokerCertificate(folder / "broker.pem", folder / "broker.key", folder / "ca.pem")
        _write(files.key, _key_pem(key))
        _write(files.cert, _pem(made) + _pem(ca))
    except OSError as problem:
        raise ConfigError(
            f"the certificate of the broker cannot be written to {folder}: {problem.strerror}; "
            "make room there, or choose another data folder"
        ) from None
    return files


def _load_or_create_authority(folder: Path) -> tuple[x509.Certificate, EllipticCurvePrivateKey]:
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    cert_file, key_file = folder / "ca.pem", folder / "ca.key"
    if not cert_file.exists():
        key = ec.generate_private_key(ec.SECP256R1())
        made = _sign("EvoClaw", key, key, AUTHORITY_LIFETIME_DAYS)
        # The certificate last: an authority without its key would sign nothing.
        _write(key_file, _key_pem(key))
        _write(cert_file, _pem(made))
        return made, key
    try:
        certificate = x509.load_pem_x509_certificate(cert_file.read_bytes())
        loaded = serialization.load_pem_private_key(key_file.read_bytes(), password=None)
    except (OSError, ValueError) as problem:
        raise ConfigError(
            f"the certificate authority in {folder} cannot be read ({problem}); restore ca.pem and "
            "ca.key from a backup, or remove both and pair every edge again"
        ) from None
    if not isinstance(loaded, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"{key_file} is not the key of this authority; restore it from a backup")
    return certificate, loaded


def _sign(
    name: str,
    key: EllipticCurvePrivateKey,
    ca_key: EllipticCurvePrivateKey,
    days: int,
    *,
    ca: x509.Certificate | None = None,
    hosts: Sequence[str] = (),
) -> x509.Certificate:
    """A certificate of the authority, or one that the authority signs for these hosts."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509.oid import NameOID

    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])
    now, own = datetime.now(UTC), key.public_key()
    authority = ca is None
    usage = x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=authority,
        crl_sign=authority,
        encipher_only=False,
        decipher_only=False,
    )
    # Strict clients, such as Python 3.13, require the two key identifiers and the usage.
    above = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if ca is None else ca.subject)
        .public_key(own)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))  # the clock of an edge may be behind
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(own), critical=False)
        .add_extension(above, critical=False)
    )
    if hosts:
        names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
        builder = builder.add_extension(names, critical=False)
    return builder.sign(ca_key, hashes.SHA256())


def _general_name(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(certificate: x509.Certificate) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM)


def _key_pem(key: EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives import serialization

    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _write(path: Path, data: bytes) -> None:
    """Replace a file atomically, readable only by its owner."""
    draft = path.with_name(f"{path.name}.new")
    file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(file, "wb") as opened:
        opened.write(data)
        opened.flush()
        os.fsync(file)
    draft.replace(path)

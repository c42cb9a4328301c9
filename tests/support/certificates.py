"""A certificate authority for one test, a broker's certificate and a client's."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

Key = ec.EllipticCurvePrivateKey


@dataclass(frozen=True)
class Certificates:
    """Files in PEM."""

    ca: Path
    server_cert: Path
    server_key: Path
    client_cert: Path
    client_key: Path


def make_certificates(folder: Path) -> Certificates:
    """A broker on loopback, a client, and who vouches for both."""
    ca_key = ec.generate_private_key(ec.SECP256R1())
    ca_name = _name("test authority")
    files = Certificates(
        *(folder / f"{name}.pem" for name in ("ca", "server", "server-key", "client", "client-key"))
    )
    _write(files.ca, None, _certificate(ca_name, ca_name, ca_key, ca_key, authority=True))
    for cert, key_file, name in (
        (files.server_cert, files.server_key, "127.0.0.1"),
        (files.client_cert, files.client_key, "client"),
    ):
        key = ec.generate_private_key(ec.SECP256R1())
        _write(cert, None, _certificate(_name(name), ca_name, key, ca_key, authority=False))
        _write(key_file, key, None)
    return files


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: Key, ca_key: Key, *, authority: bool
) -> x509.Certificate:
    now = datetime.now(UTC)
    loopback = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    # Whoever checks strictly, as Python does from 3.13 on, wants these three as well.
    own = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    above = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
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
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        .add_extension(loopback, critical=False)
        .add_extension(own, critical=False)
        .add_extension(above, critical=False)
        .add_extension(usage, critical=True)
        .sign(ca_key, hashes.SHA256())
    )


def _write(path: Path, key: Key | None, certificate: x509.Certificate | None) -> None:
    pem = serialization.Encoding.PEM
    if certificate is not None:
        path.write_bytes(certificate.public_bytes(pem))
    if key is not None:
        plain = serialization.NoEncryption()
        path.write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))

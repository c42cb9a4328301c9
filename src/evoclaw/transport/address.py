"""The address and credentials of a broker, parsed without loading the MQTT library."""

from __future__ import annotations

import ssl
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from evoclaw.core.errors import ConfigError


class TlsSettings(Struct, frozen=True):
    """The trusted CA and the client certificate, as PEM files."""

    ca_file: str | None = None
    """The CA of the broker's certificate [default: the CAs that the system trusts]."""
    cert_file: str | None = None
    """The client certificate, for brokers that require it."""
    key_file: str | None = None
    """The key of the client certificate, unless it is in the same file."""

    def context(self) -> ssl.SSLContext:
        """Read the files; raise `ConfigError` if they cannot be used."""
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
        except (OSError, ValueError) as problem:
            raise ConfigError(f"cannot load the CA file {self.ca_file!r}: {problem}") from None
        if self.cert_file is None:
            if self.key_file is not None:
                raise ConfigError("a TLS key is set, but no certificate; set the certificate too")
            return context
        try:
            # An empty password: without it, OpenSSL prompts for a password on the terminal.
            context.load_cert_chain(self.cert_file, self.key_file, password="")
        except (OSError, ValueError) as problem:
            names = f"{self.cert_file!r} and {self.key_file or self.cert_file!r}"
            raise ConfigError(f"cannot load certificate and key {names}: {problem}") from None
        return context


class Address(Struct, frozen=True):
    """The address of a broker and the credentials for it."""

    host: str
    port: int = 1883
    tls: TlsSettings | None = None
    username: str = ""
    password: str = ""

    def __repr__(self) -> str:
        # The password must not appear in logs.
        user = f"{self.username}@" if self.username else ""
        return f"<Address {'mqtts' if self.tls else 'mqtt'}://{user}{self.host}:{self.port}>"


def parse_url(url: str, *, password: str = "", tls: TlsSettings | None = None) -> Address:
    """Read `mqtt://user@host:1883` or `mqtts://host:8883`; raise `ConfigError`."""
    wrong = ConfigError(
        "the broker's address must have the form mqtt://user@host:1883 or mqtts://host"
    )
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
        host.encode("idna")
    except ValueError:
        raise wrong from None
    if parts.password is not None:
        raise ConfigError(
            "the broker's address may not contain the password; configure it separately"
        )
    extra = parts.path.strip("/") or parts.query or parts.fragment
    if parts.scheme not in ("mqtt", "mqtts") or not host or port == 0 or extra:
        raise wrong
    user = unquote(parts.username or "")
    if password and not user:
        raise ConfigError("a password needs a user: mqtt://user@host")
    if parts.scheme == "mqtts":
        return Address(host, port or 8883, tls or TlsSettings(), user, password)
    if tls is not None:
        raise ConfigError(
            "TLS is configured, but the broker's address starts with mqtt:, not mqtts:"
        )
    return Address(host, port or 1883, None, user, password)

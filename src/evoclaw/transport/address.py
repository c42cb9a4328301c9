"""The address and credentials of a broker, parsed without loading the MQTT library."""

from __future__ import annotations

import ssl
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from evoclaw.core.errors import ConfigError


class TlsSettings(Struct, frozen=True):
    """Whom to trust and who we are; files in PEM."""

    ca_file: str | None = None
    """Who signed the broker's certificate; whom the system trusts if not given."""
    cert_file: str | None = None
    """Our own certificate, for brokers that want one."""
    key_file: str | None = None
    """Its key, unless it is in the same file."""

    def context(self) -> ssl.SSLContext:
        """Read the files; raise `ConfigError` if they cannot be used."""
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
        except (OSError, ValueError) as problem:
            raise ConfigError(f"the CA file {self.ca_file!r} is of no use: {problem}") from None
        if self.cert_file is None:
            if self.key_file is not None:
                raise ConfigError("a TLS key is set, but no certificate; set the certificate too")
            return context
        try:
            # An empty password, or OpenSSL would ask for one on the terminal.
            context.load_cert_chain(self.cert_file, self.key_file, password="")
        except (OSError, ValueError) as problem:
            names = f"{self.cert_file!r} and {self.key_file or self.cert_file!r}"
            raise ConfigError(f"certificate and key {names} are of no use: {problem}") from None
        return context


class Address(Struct, frozen=True):
    """Where the broker is and how to come in."""

    host: str
    port: int = 1883
    tls: TlsSettings | None = None
    username: str = ""
    password: str = ""

    def __repr__(self) -> str:
        # The password stays out of logs.
        user = f"{self.username}@" if self.username else ""
        return f"<Address {'mqtts' if self.tls else 'mqtt'}://{user}{self.host}:{self.port}>"


def parse_url(url: str, *, password: str = "", tls: TlsSettings | None = None) -> Address:
    """Read `mqtt://user@host:1883` or `mqtts://host:8883`; raise `ConfigError`."""
    wrong = ConfigError("the broker's address must be like mqtt://user@host:1883 or mqtts://host")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
        host.encode("idna")
    except ValueError:
        raise wrong from None
    if parts.password is not None:
        raise ConfigError("leave the password out of the broker's address, and give it apart")
    beside = parts.path.strip("/") or parts.query or parts.fragment
    if parts.scheme not in ("mqtt", "mqtts") or not host or port == 0 or beside:
        raise wrong
    user = unquote(parts.username or "")
    if password and not user:
        raise ConfigError("a password needs a user: mqtt://user@host")
    if parts.scheme == "mqtts":
        return Address(host, port or 8883, tls or TlsSettings(), user, password)
    if tls is not None:
        raise ConfigError("TLS is set up, but the broker's address begins with mqtt:, not mqtts:")
    return Address(host, port or 1883, None, user, password)

"""The `[broker]` settings: URL, TLS and password."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

from evoclaw.config.paths import read_text
from evoclaw.config.toml_document import TomlDocument
from evoclaw.core.errors import ConfigError
from evoclaw.transport.address import Address, TlsSettings, parse_url


class BrokerConfig(Struct, frozen=True, kw_only=True):
    """How to connect to the broker. `broker_password` reads the password, which is not here."""

    url: str = "mqtt://127.0.0.1:1883"
    """`mqtt://host:port`, or `mqtts://` for TLS; it may contain a user name, but no password."""
    username: str = ""
    """The user name on the broker."""
    password_file: Path | None = None
    """A file that contains only the password."""
    ca_file: Path | None = None
    """The CA certificates for the broker; default: those of the system."""
    cert_file: Path | None = None
    """The client certificate, for brokers that require one."""
    key_file: Path | None = None
    """The key of the client certificate, unless `cert_file` contains it."""
    keep_alive_s: Annotated[int, Meta(ge=1, le=65_535)] = 30
    """The MQTT keep-alive interval."""
    qos: Annotated[int, Meta(ge=0, le=1)] = 1
    """The QoS of subscriptions: 1 is acknowledged; 0 suits a NATS cluster. Messages are always
    published with QoS 1, and repeated until they are answered."""

    def address(self, password: str = "") -> Address:
        """The parsed address; `ConfigError` if the URL is invalid."""
        files = (self.ca_file, self.cert_file, self.key_file)
        names = (None if file is None else str(file) for file in files)
        found = parse_url(self.url, tls=TlsSettings(*names) if any(files) else None)
        if self.username and found.username not in ("", self.username):
            raise ConfigError("username and url name different users; remove one of them")
        user = self.username or found.username
        if password and not user:
            raise ConfigError("a password needs a username: set username in [broker]")
        return replace(found, username=user, password=password)

    @property
    def is_configured(self) -> bool:
        """Whether a broker is configured, not only `keep_alive_s` or `qos` of the default one."""
        default = BrokerConfig()
        return replace(self, keep_alive_s=default.keep_alive_s, qos=default.qos) != default

    @property
    def is_local(self) -> bool:
        """Whether the host is `localhost` or a loopback address; other names count as remote."""
        host = parse_url(self.url).host
        if host == "localhost":
            return True
        try:
            return ip_address(host).is_loopback
        except ValueError:
            return False


def broker_password(broker: BrokerConfig, env: Mapping[str, str], variable: str) -> str:
    """The password from the environment or `password_file`; empty if neither is set."""
    given = env.get(variable, "")
    if given or broker.password_file is None:
        return given
    if text := read_text(broker.password_file).rstrip("\r\n"):
        return text
    raise ConfigError(f"{broker.password_file} is empty; put the broker's password in it")


def check_broker(document: TomlDocument, broker: BrokerConfig) -> None:
    """Check the URL and the TLS files."""
    try:
        broker.address()
    except ConfigError as problem:
        raise document.error(("broker", "url"), f"broker.url: {problem}") from None
    if broker.key_file is not None and broker.cert_file is None:
        raise document.error(("broker", "key_file"), "broker.key_file needs a cert_file")

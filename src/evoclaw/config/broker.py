"""How the broker is reached, and with which password."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

from evoclaw.config.documents import Document
from evoclaw.config.places import read_text
from evoclaw.core.errors import ConfigError
from evoclaw.transport.address import Address, TlsSettings, parse_url


class BrokerConfig(Struct, frozen=True, kw_only=True):
    """How the broker is reached. The password is not part of it: see `broker_password`."""

    url: str = "mqtt://127.0.0.1:1883"
    """`mqtt://host:port`, or `mqtts://` for TLS; a user may be in it, a password not."""
    username: str = ""
    """The account there."""
    password_file: Path | None = None
    """Holds the password, and nothing else."""
    ca_file: Path | None = None
    """Who vouches for the broker; the system's authorities if not given."""
    cert_file: Path | None = None
    """Our own certificate, for brokers that want one."""
    key_file: Path | None = None
    """Unless it is in the same file."""
    keep_alive_s: Annotated[int, Meta(ge=1, le=65_535)] = 30
    """Seconds of silence after which the two sides look for each other."""
    qos: Annotated[int, Meta(ge=0, le=1)] = 1
    """How messages are handed to us: 1, acknowledged; 0, once, which is what a NATS cluster does
    well. We send with 1 always, and say again what was not answered."""

    def address(self, password: str = "") -> Address:
        """Where that is; raise `ConfigError` if it can be nowhere."""
        files = (self.ca_file, self.cert_file, self.key_file)
        names = (None if file is None else str(file) for file in files)
        found = parse_url(self.url, tls=TlsSettings(*names) if any(files) else None)
        if self.username and found.username not in ("", self.username):
            raise ConfigError("username and the url name two users; remove one of them")
        user = self.username or found.username
        if password and not user:
            raise ConfigError("a password needs a username")
        return replace(found, username=user, password=password)

    @property
    def is_named(self) -> bool:
        """Whether it says which broker, and not only how to speak with ours."""
        usual = BrokerConfig()
        return replace(self, keep_alive_s=usual.keep_alive_s, qos=usual.qos) != usual

    @property
    def is_here(self) -> bool:
        """Whether it is certainly on this machine: other spellings of that do not count."""
        host = parse_url(self.url).host
        if host == "localhost":
            return True
        try:
            return ip_address(host).is_loopback
        except ValueError:
            return False


def broker_password(broker: BrokerConfig, env: Mapping[str, str], variable: str) -> str:
    """The password, from the environment or its file; empty if there is neither."""
    given = env.get(variable, "")
    if given or broker.password_file is None:
        return given
    if text := read_text(broker.password_file).rstrip("\r\n"):
        return text
    raise ConfigError(f"{broker.password_file} is empty; put the broker's password in it")


def check_broker(document: Document, broker: BrokerConfig) -> None:
    """Refuse what cannot be connected to, or not as safely as it seems."""
    try:
        broker.address()
    except ConfigError as problem:
        raise document.error(("broker", "url"), f"broker.url: {problem}") from None
    if broker.key_file is not None and broker.cert_file is None:
        raise document.error(("broker", "key_file"), "broker.key_file needs a cert_file")

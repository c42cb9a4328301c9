"""What both settings files share: `[broker]`, `[[mcp]]`, value types and checks."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, TypeAlias

from msgspec import Meta, Struct
from msgspec.structs import replace

from evoclaw.config.paths import read_text
from evoclaw.config.toml_document import KeyPath, TomlDocument, closest_match
from evoclaw.core.errors import ConfigError
from evoclaw.core.hosts import is_loopback
from evoclaw.core.tools import ALL_PERMISSIONS
from evoclaw.executors.mcp.oauth_settings import McpOAuth
from evoclaw.transport.address import Address, TlsSettings, parse_url
from evoclaw.transport.topics import ID_RULE, is_agent_id

Milliseconds: TypeAlias = Annotated[int, Meta(ge=1, le=3_600_000)]
MaxRetries: TypeAlias = Annotated[int, Meta(ge=0, le=20)]
DEFAULT_MAX_RETRIES = 3
"""As `RetryPolicy` of the providers, which an edge without a model never loads."""
NonEmptyText: TypeAlias = Annotated[str, Meta(min_length=1, max_length=200)]
PERMISSIONS = (
    "file_read", "file_write", "shell", "network", "git", "session", "interact", "ui", "device",
    "device_write",
)  # fmt: skip
"""The permissions of the built-in tools; tools of skills may need others."""
REMOVED_KEYS: Mapping[KeyPath, str] = {
    ("audit", "hot"): "was removed: it sized a buffer that nothing read; delete the line",
}
"""Keys of older versions, in both files."""


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
        """Whether a broker is configured, not only how the own one is used."""
        default, own = BrokerConfig(), ("keep_alive_s", "qos")
        names = (name for name in BrokerConfig.__struct_fields__ if name not in own)
        return any(getattr(self, name) != getattr(default, name) for name in names)

    @property
    def is_local(self) -> bool:
        """Whether the host is `localhost` or a loopback address; other names count as remote."""
        return is_loopback(parse_url(self.url).host)


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


class Engine(StrEnum):
    """The sandbox engines."""

    BUBBLEWRAP = "bubblewrap"
    FIREJAIL = "firejail"
    PODMAN = "podman"
    NATIVE = "native"
    NONE = "none"


class McpConfig(Struct, frozen=True, kw_only=True):
    """`[[mcp]]`: an MCP server whose tools agents may use."""

    name: str
    """The name of the server in EvoClaw."""
    command: tuple[str, ...] = ()
    """The command that starts a local server."""
    url: str = ""
    """The URL of a streamable HTTP server, instead of a command."""
    env: dict[str, str] = {}
    """Extra environment variables of its process."""
    headers: dict[str, str] = {}
    """HTTP headers of every request to the URL."""
    permissions: frozenset[NonEmptyText] = frozenset({"network"})
    """The permissions that each of its tools needs."""
    trust_hints: bool = False
    """Trust the server's hints about its tools, such as read-only."""
    oauth: McpOAuth | None = None
    """How to sign in to the URL; without it, `evoclaw mcp login` registers a client by itself."""


def check_id(document: TomlDocument, keys: KeyPath, given: object) -> None:
    """Refuse an id that cannot be part of an MQTT topic."""
    if isinstance(given, str) and not is_agent_id(given):
        problem = f"{document.original_key(keys)}: {given[:80]!r} is not a valid id: {ID_RULE}"
        raise document.error(keys, problem)


def check_capabilities(document: TomlDocument, keys: KeyPath, held: frozenset[str]) -> None:
    """Refuse misspelt permissions, which would silently allow nothing.

    Other unknown names are permissions of people's own tools, such as `dice`.
    """
    for name in sorted(held.difference(PERMISSIONS, (ALL_PERMISSIONS,))):
        if meant := closest_match(name, PERMISSIONS, 0.81):
            problem = f"unknown capability {name!r}; did you mean {meant!r}?"
            raise document.error(keys, problem)

"""The configuration of one MCP server."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from evoclaw.core.errors import ConfigError
from evoclaw.executors.mcp.offers import SERVER_NAME


class McpServer(Struct, frozen=True):
    """A server to be used: a program to start, or an address to reach."""

    name: str
    """The first half of its tools' names."""
    command: tuple[str, ...] = ()
    """The program and its arguments; it uses stdin and stdout."""
    url: str = ""
    """Its streamable HTTP endpoint, instead of a command."""
    env: Mapping[str, str] = {}
    """The whole environment of the program, except `PATH`."""
    cwd: str = ""
    headers: Mapping[str, str] = {}
    """Sent with every HTTP request; here belongs a token."""
    permissions: frozenset[str] = frozenset({"network"})
    """What each of its tools needs."""
    trust_hints: bool = False
    """Trust its tool annotations: read-only, idempotent. Else all of its tools write."""
    timeout: float = 60.0
    max_timeout: float = 300.0
    start_timeout: float = 30.0
    """Seconds in which it must be connected, and in which it must list its tools."""

    def check(self) -> None:
        """Refuse what cannot work."""
        if not SERVER_NAME.fullmatch(self.name):
            raise ConfigError(
                f"the MCP server name {self.name[:80]!r} must be letters, digits and `-`, with "
                "single `_` between them, at most 32"
            )
        if bool(self.command) == bool(self.url):
            raise ConfigError(f"the MCP server {self.name!r} needs either a command or a url")
        if self.url and not self.url.startswith(("http://", "https://")):
            raise ConfigError(f"the url of the MCP server {self.name!r} must be http or https")
        if not 0 < self.timeout <= self.max_timeout or self.start_timeout <= 0:
            raise ConfigError(f"the timeouts of the MCP server {self.name!r} make no sense")

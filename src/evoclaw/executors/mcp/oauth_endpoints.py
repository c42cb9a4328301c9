"""Which addresses an MCP server's OAuth metadata may send us to: the server is not trusted."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

from evoclaw.core.errors import ToolFailure
from evoclaw.core.hosts import is_loopback
from evoclaw.executors.url_guard import (
    DENIED_NETWORKS,
    Resolve,
    UrlGuard,
    read_url,
    resolve_by_system,
)

if TYPE_CHECKING:
    from yarl import URL


class UnsafeEndpoint(Exception):
    """An address that tokens and secrets are not sent to; the message says why."""


def is_secure(url: str) -> bool:
    """Whether tokens may be sent to an address: https, or http on this machine."""
    try:
        read = read_url(url)
    except ToolFailure:
        return False
    return read.scheme == "https" or is_loopback(read.host or "")


class EndpointGuard:
    """Judges the addresses that discovery leads to, seen from one configured server.

    The public internet is allowed, and the kind of network that the configured server is in: only a
    server on this machine may name an authorization server on this machine. Since everything else
    is https, a name that is resolved differently a moment later fails the check of its certificate.
    """

    def __init__(self, server_url: str, *, resolve: Resolve | None = None) -> None:
        self._server_url, self._resolve = server_url, resolve or resolve_by_system

    async def check(self, url: str) -> None:
        """Raise `UnsafeEndpoint` for an address that must not be contacted."""
        try:
            read, server = read_url(url), read_url(self._server_url)
            local = is_loopback(server.host or "")
            if read.scheme != "https" and not (local and is_loopback(read.host or "")):
                raise UnsafeEndpoint(f"{_origin(read)} is not https")
            if read.origin() == server.origin():
                return
            await UrlGuard(await self._networks(server), resolve=self._resolve).target(url)
        except ToolFailure as refused:
            raise UnsafeEndpoint(refused.message) from None

    async def _networks(self, server: URL) -> list[str]:
        """The networks that are not public but hold the configured server."""
        host, port = server.raw_host or "", server.port or 0
        try:
            found = [ipaddress.ip_address(address) for address in await self._resolve(host, port)]
        except (OSError, ValueError):
            return []
        held = [
            str(network)
            for network, what in DENIED_NETWORKS
            if what != "a cloud's metadata" and any(address in network for address in found)
        ]
        # `localhost` and its addresses are the same machine.
        return [*held, "127.0.0.0/8", "::1/128"] if is_loopback(host) else held


def _origin(url: URL) -> str:
    return str(url.origin())

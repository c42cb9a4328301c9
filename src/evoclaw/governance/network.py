"""Which hosts tools and sandboxed commands may reach.

Tools may reach every host that is not denied; their executor refuses addresses that are not public
and not listed as `private`.
Commands may reach only the hosts listed for them, and only through the egress proxy.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)
from typing import cast
from urllib.parse import urlsplit

from msgspec import Struct

from evoclaw.core.errors import ConfigError
from evoclaw.core.messages import JSON
from evoclaw.core.ports import ALLOW, Deny, Policy, Verdict
from evoclaw.core.tools import Call

NETWORK = "network"
"""The permission of tools that reach other machines."""
ANY_HOST = "*"
MAX_ARGUMENT_DEPTH = 8
"""How deep URLs are searched in arguments; a call with deeper arguments is denied."""

_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_HOST = re.compile(rf"(?:\*\.)?{_LABEL}(?:\.{_LABEL})*")
_WEB = re.compile(r"\s*https?:", re.IGNORECASE)
_START = re.compile(r"https?://", re.IGNORECASE)
_PATH = re.compile(r"[/?#]")
_FORBIDDEN_CHARS = re.compile(r"[\x00-\x20\x7f-\xa0\\\u2028\u2029]")


class NetworkSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """`[network]` of the configuration. A host is `example.org`, `*.example.org` or `*`."""

    allow: tuple[str, ...] = (ANY_HOST,)
    """Hosts that tools may reach, if they are public."""
    private: tuple[str, ...] = ()
    """Addresses or networks that tools may reach although they are not public, such as the wiki of
    your own network: `192.168.1.20`, `10.1.0.0/16`. Commands never reach them."""
    deny: tuple[str, ...] = ()
    """Hosts that neither tools nor commands may reach; wins over `allow` and `commands`."""
    commands: tuple[str, ...] = ()
    """Hosts that commands may reach too; without any, commands have no network."""
    ports: tuple[int, ...] = (80, 443)
    """Ports that commands may reach."""


class Hosts:
    """A list of hosts: exact names, and names with everything below them."""

    def __init__(self, patterns: Iterable[str]) -> None:
        """Read the list; an invalid pattern is a `ConfigError`."""
        hosts = [_validated_host(pattern) for pattern in patterns]
        self._any = ANY_HOST in hosts
        self._exact = frozenset(host for host in hosts if not host.startswith("*"))
        self._below = tuple(host[1:] for host in hosts if host.startswith("*."))

    def __contains__(self, host: object) -> bool:
        if not isinstance(host, str):
            return False
        name = host.lower().removesuffix(".")
        return self._any or name in self._exact or name.endswith(self._below)


class NetworkPolicy(Policy):
    """Denies calls and connections to hosts that may not be reached.

    An argument names only the first host of a call: executors check `allows` again at every
    redirect, and the egress proxy checks `allows_for_commands` at every connection.
    """

    def __init__(self, settings: NetworkSettings | None = None) -> None:
        """Read the lists; an invalid host or port is a `ConfigError`."""
        self.use(settings or NetworkSettings())

    def use(self, settings: NetworkSettings) -> None:
        """Use other lists, also for connections that executors make with this policy."""
        allow, deny, commands = map(Hosts, (settings.allow, settings.deny, settings.commands))
        private = [_validated_network(network) for network in settings.private]
        for port in settings.ports:
            if not 0 < port < 65536:
                raise ConfigError(f"`ports` of [network]: {port} is not a port; use 1 to 65535")
        self._allow, self._deny, self._commands = allow, deny, commands
        self._private, self._ports = private, frozenset(settings.ports)
        self.commands_have_network = bool(settings.commands)
        """Whether commands may reach any host at all."""

    def allows(self, host: str) -> bool:
        """Whether tools may reach a host."""
        return host in self._allow and host not in self._deny

    def allows_address(self, address: IPv4Address | IPv6Address) -> bool:
        """Whether tools may reach an address that is not public."""
        return any(address in network for network in self._private)

    def allows_for_commands(self, host: str) -> bool:
        """Whether commands may reach a host; never one that tools may not reach."""
        return host in self._commands and self.allows(host)

    def allows_port(self, port: int) -> bool:
        """Whether commands may connect to a port."""
        return port in self._ports

    async def judge(self, call: Call) -> Verdict:
        """Deny a call whose arguments name a host that may not be reached."""
        if NETWORK not in call.tool.permissions:
            return ALLOW
        try:
            hosts = [_host(url) for url in _urls(call.arguments)]
        except ValueError as problem:
            reason = f"the address {problem}. Write it as http(s)://host/path."
            return Deny("network_address", reason, f"the address {problem}")
        for host in hosts:
            if not self.allows(host):
                reason = (
                    f"the network settings do not allow '{host}'. Do not try to reach it "
                    "in another "
                    "way; use another source, or explain this to the user."
                )
                return Deny("network_domain", reason, f"the host {host} is not allowed")
        return ALLOW


def _validated_host(pattern: str) -> str:
    text = pattern.strip().lower().removesuffix(".")
    if text == ANY_HOST or _HOST.fullmatch(text) or _is_address(text):
        return text
    raise ConfigError(
        f"{pattern!r} is not a host: write example.org, *.example.org for its subdomains, or an IP "
        "address; names in other alphabets in their xn-- form; no scheme, port or path"
    )


def _validated_network(text: str) -> IPv4Network | IPv6Network:
    try:
        return ip_network(text.strip())
    except ValueError as problem:
        raise ConfigError(
            f"`private` of [network]: {problem}; write an address such as 192.168.1.20, or a "
            "network such as 10.1.0.0/16"
        ) from None


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def _urls(value: JSON, depth: int = 0) -> Iterator[str]:
    """Every web address in the arguments."""
    if depth > MAX_ARGUMENT_DEPTH:
        raise ValueError("is nested too deeply in the arguments to be checked")
    if isinstance(value, str):
        if _WEB.match(value):
            yield value.strip(" \t\r\n")
    elif isinstance(value, dict):
        for child in cast("dict[str, JSON]", value).values():
            yield from _urls(child, depth + 1)
    elif isinstance(value, list):
        for child in cast("list[JSON]", value):
            yield from _urls(child, depth + 1)


def _host(url: str) -> str:
    """The host of an unambiguous address; `ValueError` for any other address."""
    if _FORBIDDEN_CHARS.search(url) or not _START.match(url):
        raise ValueError("has a space, a backslash or a control character, or no //")
    split = urlsplit(url)
    authority = _PATH.split(url.partition("://")[2], maxsplit=1)[0]
    host = (split.hostname or "").removesuffix(".")
    if "@" in authority or "%" in authority or not host:
        raise ValueError("has no plain host name")
    if host.isascii():
        return host
    try:
        return host.encode("idna").decode("ascii")
    except UnicodeError:
        raise ValueError("has an invalid host name") from None

"""Which hosts may be reached: by tools that know the web, and by commands in their sandbox.

Tools may reach every host that is not denied, for their executor refuses whatever is not public.
Commands may reach none unless it is listed, and then through the egress proxy alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from ipaddress import ip_address
from typing import cast
from urllib.parse import urlsplit

from msgspec import Struct

from evoclaw.core.errors import ConfigError
from evoclaw.core.messages import JSON
from evoclaw.core.ports import ALLOW, Deny, Policy, Verdict
from evoclaw.core.tools import Call

NETWORK = "network"
"""The permission that tools need to reach beyond this machine."""
ANY = "*"
DEEPEST = 8
"""How far into arguments URLs are looked for; what is deeper is refused."""

_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_HOST = re.compile(rf"(?:\*\.)?{_LABEL}(?:\.{_LABEL})*")
_WEB = re.compile(r"\s*https?:", re.IGNORECASE)
_START = re.compile(r"https?://", re.IGNORECASE)
_PATH = re.compile(r"[/?#]")
_UNFIT = re.compile(r"[\x00-\x20\x7f-\xa0\\\u2028\u2029]")


class NetworkSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """`[network]` of the configuration. A host is `example.org`, `*.example.org` or `*`."""

    allow: tuple[str, ...] = (ANY,)
    """Hosts that tools may reach, as far as they are public."""
    deny: tuple[str, ...] = ()
    """Hosts that nothing may reach, whatever allows them."""
    commands: tuple[str, ...] = ()
    """Hosts that commands may reach too; with none, commands have no network."""
    ports: tuple[int, ...] = (80, 443)
    """Ports that commands may reach."""


class Hosts:
    """A list of hosts: exact names, and names with everything below them."""

    def __init__(self, patterns: Iterable[str]) -> None:
        """Read the list; a pattern that means nothing is a `ConfigError`."""
        texts = [_checked(one) for one in patterns]
        self._any = ANY in texts
        self._exact = frozenset(one for one in texts if not one.startswith("*"))
        self._below = tuple(one[1:] for one in texts if one.startswith("*."))

    def __contains__(self, host: object) -> bool:
        if not isinstance(host, str):
            return False
        name = host.lower().removesuffix(".")
        return self._any or name in self._exact or name.endswith(self._below)


class Domains(Policy):
    """Denies calls and connections to hosts that may not be reached.

    An argument tells only where a call sets out to: executors ask `may` again at every redirect,
    and the egress proxy asks `commands_may` at every connection.
    """

    def __init__(self, settings: NetworkSettings | None = None) -> None:
        """Read the lists; what cannot be read is a `ConfigError`."""
        said = settings or NetworkSettings()
        self._allow, self._deny = Hosts(said.allow), Hosts(said.deny)
        self._commands = Hosts(said.commands)
        for port in said.ports:
            if not 0 < port < 65536:
                raise ConfigError(f"`ports` of [network]: {port} is no port.")
        self.ports = said.ports
        self.open_to_commands = bool(said.commands)
        """Whether commands may reach anything at all."""

    def may(self, host: str) -> bool:
        """Whether tools may reach a host."""
        return host in self._allow and host not in self._deny

    def commands_may(self, host: str) -> bool:
        """Whether commands may reach a host; what tools may not reach, they may not either."""
        return host in self._commands and self.may(host)

    async def judge(self, call: Call) -> Verdict:
        """Deny a call that says it will go where it may not."""
        if NETWORK not in call.tool.permissions:
            return ALLOW
        try:
            hosts = [_host(url) for url in _urls(call.arguments)]
        except ValueError as problem:
            reason = f"the address {problem}. Write it as http(s)://host/path."
            return Deny("network_address", reason, f"an address cannot be judged: {problem}")
        for host in hosts:
            if not self.may(host):
                reason = (
                    f"'{host}' may not be reached from here, by rule. Do not try another way to "
                    "it; use another source or explain this to the user."
                )
                return Deny("network_domain", reason, f"the host {host} is not allowed")
        return ALLOW


def _checked(pattern: str) -> str:
    text = pattern.strip().lower().removesuffix(".")
    if text == ANY or _HOST.fullmatch(text) or _is_address(text):
        return text
    raise ConfigError(
        f"{pattern!r} is no host: write example.org, *.example.org for all below it, or an "
        "address; names in other alphabets in their xn-- form; no scheme, port or path."
    )


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def _urls(value: JSON, depth: int = 0) -> Iterator[str]:
    """Every web address in some arguments."""
    if depth > DEEPEST:
        raise ValueError("lies too deep in the arguments to be judged")
    if isinstance(value, str):
        if _WEB.match(value):
            yield value.strip(" \t\r\n")
    elif isinstance(value, dict):
        for one in cast("dict[str, JSON]", value).values():
            yield from _urls(one, depth + 1)
    elif isinstance(value, list):
        for one in cast("list[JSON]", value):
            yield from _urls(one, depth + 1)


def _host(url: str) -> str:
    """The host of an address that can be read in one way only; else `ValueError`."""
    if _UNFIT.search(url) or not _START.match(url):
        raise ValueError("has a space, a backslash or a control character, or no //")
    split = urlsplit(url)
    authority = _PATH.split(url.partition("://")[2], maxsplit=1)[0]
    host = (split.hostname or "").removesuffix(".")
    if "@" in authority or "%" in authority or not host:
        raise ValueError("has no plain host")
    if host.isascii():
        return host
    try:
        return host.encode("idna").decode("ascii")
    except UnicodeError:
        raise ValueError("has a host that is no name") from None

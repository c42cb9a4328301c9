"""`UrlGuard`: which web addresses may be connected to.

A URL is parsed once, its host is resolved once, and every resulting address is judged; no
connection is made to an address that was not judged.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import TYPE_CHECKING, TypeAlias

from msgspec import Struct

from evoclaw.core.errors import ConfigError, ToolFailure
from evoclaw.core.messages import ErrorKind

if TYPE_CHECKING:
    from yarl import URL

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network
Resolve: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]
"""Resolves a host and a port to all addresses; `OSError` if there is none."""
MayReach: TypeAlias = Callable[[str], bool]
"""Whether a host may be reached; its name is ASCII, lower case, without a dot at the end."""

ANY_NETWORK = ("0.0.0.0/0", "::/0")
"""For an address that the operator configured, which a model cannot change."""
MAX_URL_CHARS = 8_000
"""Length of a URL."""
MAX_RESOLVED_ADDRESSES = 32

# The standard library's `is_global` admits tunnels, multicast and cloud metadata addresses.
DENIED_NETWORKS = tuple(
    (ipaddress.ip_network(text), what)
    for text, what in (
        ("0.0.0.0/8", "this host"),
        ("10.0.0.0/8", "a private network"),
        ("100.64.0.0/10", "a carrier's private network"),
        ("127.0.0.0/8", "this machine"),
        ("168.63.129.16/32", "a cloud's metadata"),
        ("169.254.169.254/32", "a cloud's metadata"),
        ("169.254.0.0/16", "the local link"),
        ("172.16.0.0/12", "a private network"),
        ("192.0.0.0/24", "reserved"),
        ("192.0.2.0/24", "for documentation only"),
        ("192.88.99.0/24", "an IPv6 tunnel"),
        ("192.168.0.0/16", "a private network"),
        ("198.18.0.0/15", "a test network"),
        ("198.51.100.0/24", "for documentation only"),
        ("203.0.113.0/24", "for documentation only"),
        ("224.0.0.0/4", "multicast"),
        ("240.0.0.0/4", "reserved"),
        ("::/128", "this host"),
        ("::1/128", "this machine"),
        ("2001::/32", "an IPv6 tunnel (Teredo)"),
        ("2001::/23", "reserved"),
        ("2001:db8::/32", "for documentation only"),
        ("2002::/16", "an IPv6 tunnel (6to4)"),
        ("3fff::/20", "for documentation only"),
        ("fc00::/7", "a private network"),
        ("fe80::/10", "the local link"),
        ("ff00::/8", "multicast"),
    )
)
GLOBAL_V6 = ipaddress.IPv6Network("2000::/3")
"""The global unicast IPv6 range; the rest is refused."""
NAT64 = ipaddress.IPv6Network("64:ff9b::/96")

_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_UNFIT = re.compile(r"[\x00-\x20\x7f-\xa0\\\u2028\u2029]")


class UrlTarget(Struct, frozen=True):
    """A URL that may be fetched, and the only addresses to connect to."""

    url: str
    """The normalised URL: host in ASCII, nothing ambiguous."""
    addresses: tuple[str, ...]


class UrlGuard:
    """Judges URLs by the addresses that their hosts resolve to."""

    def __init__(
        self,
        allowed: Iterable[str] = (),
        *,
        resolve: Resolve | None = None,
        may: MayReach | None = None,
        may_address: Callable[[Address], bool] | None = None,
    ) -> None:
        """Set exceptions to the rule that exactly the public internet may be reached.

        Args:
            allowed: Addresses or networks that may be reached although they are not public.
            resolve: The resolver; that of the system if not given.
            may: Which hosts may be reached at all; every host if not given. It is called before a
                name is resolved, again for each redirect and each resource of a page.
            may_address: Which addresses may be reached although they are not public; called for
                each address that a name resolves to.
        """
        self._may_address = may_address
        self._may = may
        self._allowed = tuple(_network(network) for network in allowed)
        self._resolve = resolve or resolve_by_system

    async def target(self, url: str) -> UrlTarget:
        """Parse a URL, resolve its host once, judge every address; raise `ToolFailure`."""
        read = read_url(url)
        host, port = read.raw_host or "", read.port or 0
        if self._may is not None and not self._may(host):
            raise ToolFailure(
                ErrorKind.PERMISSION_DENIED,
                f"'{host}' was not contacted: the network settings do not allow it. Do "
                "not try another way; use another source, or explain this to the user.",
            )
        literal = _literal(host)
        found = [str(literal)] if literal else await self._look_up(host, port)
        addresses = [_address(match) for match in found]
        for address in addresses:
            # One denied address denies the name: mixed answers suggest DNS rebinding.
            if why := self.objection(address):
                raise _refused(host, address, why)
        unique = dict.fromkeys(str(address) for address in addresses)
        return UrlTarget(str(read), tuple(unique)[:MAX_RESOLVED_ADDRESSES])

    def objection(self, address: Address) -> str:
        """Why an address must not be reached; empty if it may be."""
        inner = _unwrapped(address)
        if any(inner in network for network in self._allowed):
            return ""
        if self._may_address is not None and self._may_address(inner):
            return ""
        for network, what in DENIED_NETWORKS:
            if inner in network:
                return what
        if isinstance(inner, IPv6Address) and inner not in GLOBAL_V6:
            return "not on the public internet"
        return ""

    async def _look_up(self, host: str, port: int) -> Sequence[str]:
        try:
            found = await self._resolve(host, port)
        except (OSError, UnicodeError):
            found = ()
        if not found:
            raise ToolFailure(
                ErrorKind.EXECUTION_FAILED,
                f"The host '{host}' is unknown: it has no address. Check the URL.",
            )
        return found


async def resolve_by_system(host: str, port: int) -> Sequence[str]:
    """Ask the operating system for all addresses of a name."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


def read_url(url: str) -> URL:
    """Parse an http(s) URL into its normalised form."""
    from yarl import URL

    text = url.strip(" \t\r\n")
    if len(text) > MAX_URL_CHARS:
        raise _invalid(text, f"has more than {MAX_URL_CHARS:,} characters")
    if _UNFIT.search(text):
        raise _invalid(text, "has a space, a backslash or a control character in it")
    if not text.lower().startswith(("http://", "https://")):
        raise _invalid(text, "must start with http:// or https://")
    scheme, _, rest = text.partition("://")
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    path = rest[len(authority) :]
    if "@" in authority:
        raise _invalid(text, "must not contain a user name or a password")
    if "%" in authority:
        raise _invalid(text, "must not have '%' in its host")
    try:
        # An empty path is the same as `/`, and must look the same.
        slash = "" if path.startswith("/") else "/"
        read = URL(f"{scheme}://{authority}{slash}{path}").with_fragment(None)
        port = read.port
        host = (read.raw_host or "").removesuffix(".")
        _check_host(text, authority, host)
        if not port:
            raise _invalid(text, "has no usable port")
        return read.with_host(host)
    except (ValueError, UnicodeError):
        raise _invalid(text, "cannot be read") from None


def _check_host(text: str, authority: str, host: str) -> None:
    if "[" in authority or ":" in host:
        try:
            IPv6Address(host)
        except ValueError:
            raise _invalid(text, "has no valid IPv6 address between its brackets") from None
        return
    labels = host.split(".")
    if not host or len(host) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise _invalid(text, "has no valid host")
    if _NUMBER.fullmatch(labels[-1]):
        try:
            IPv4Address(host)
        except ValueError:
            # `127.1`, `2130706433`, `0x7f.1`: an address to the system, a name to a parser.
            raise _invalid(
                text, "has an IP address in an unusual form: write it as 4 decimal numbers"
            ) from None


def _literal(host: str) -> Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _address(text: str) -> Address:
    try:
        return ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        raise ToolFailure(
            ErrorKind.EXECUTION_FAILED, f"The host has an invalid address: {text[:80]!r}."
        ) from None


def _unwrapped(address: Address) -> Address:
    """The IPv4 address that is reached through an IPv6 address."""
    if isinstance(address, IPv4Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address in NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def _network(text: str) -> Network:
    try:
        return ipaddress.ip_network(text)
    except ValueError as problem:
        raise ConfigError(f"{text!r} is not an IP address or network: {problem}") from None


def _refused(host: str, address: Address, why: str) -> ToolFailure:
    where = f"'{host}'" if host == str(address) else f"'{host}' ({address})"
    return ToolFailure(
        ErrorKind.PERMISSION_DENIED,
        f"{where} was not contacted: its address is {why}. Only the public internet may be "
        "reached. Do not try another spelling or another way; explain this to the user.",
        address=str(address),
    )


def _invalid(text: str, problem: str) -> ToolFailure:
    shown = text if len(text) <= 200 else text[:200] + "…"
    # A password must not end up in a history.
    shown = re.sub(r"//[^/]*@", "//…@", shown)
    return ToolFailure(ErrorKind.INVALID_PARAMS, f"The URL {shown!r} {problem}.")

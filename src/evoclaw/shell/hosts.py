"""Normalises host names, so that a rule and a command mean the same host."""

from __future__ import annotations

import re
import socket

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_PATH = re.compile(r"[/?#]")
_ODD = re.compile(r"[\x00-\x20\x7f\\<>^`{|}]")
_NUMBER = re.compile(r"(0x[0-9a-f]*|[0-9]+)(\.(0x[0-9a-f]*|[0-9]+)){0,3}")
_PLAIN = re.compile(r"[a-z0-9_.-]+")
LOOPBACK = "localhost"


def host_of(url: str) -> str | None:
    """The host of a URL; empty if it is ambiguous, None if there is none."""
    found = _SCHEME.match(url)
    rest = url[found.end() :] if found else url
    if found and url[:5].lower() in ("file:", "data:") or url[:6].lower() == "about:":
        return None
    rest = rest.lstrip("/") if found else rest.removeprefix("//")
    authority = _PATH.split(rest, maxsplit=1)[0]
    if not authority:
        return ""
    return host_in(authority)


def host_in(authority: str) -> str:
    """The host of `user:password@host:port`; empty if it is ambiguous."""
    if _ODD.search(authority) or authority.count("@") > 1 or "%" in authority:
        return ""
    name = authority.rpartition("@")[2]
    if name.startswith("["):
        inside, bracket, _port = name[1:].partition("]")
        return canonical(inside) if bracket else ""
    if name.count(":") > 1:
        return canonical(name)
    return canonical(name.partition(":")[0])


def canonical(name: str) -> str:
    """The normal form of a host; empty if it is not a host."""
    name = name.lower().rstrip(".")
    if not name.isascii():
        try:
            name = name.encode("idna").decode().rstrip(".")
        except UnicodeError:
            return ""
    if ":" in name:
        return _six(name)
    if _NUMBER.fullmatch(name):
        try:
            # Also 127.1, 0x7f000001 and 2130706433, which the C library parses as addresses.
            return socket.inet_ntoa(socket.inet_aton(name))
        except OSError:
            return ""
    return name if _PLAIN.fullmatch(name) else ""


def _six(name: str) -> str:
    try:
        packed = socket.inet_pton(socket.AF_INET6, name.partition("%")[0])
    except (OSError, ValueError):
        return ""
    if packed[:12] in (b"\0" * 10 + b"\xff\xff", b"\0" * 12) and packed[12:] > b"\0\0\0\xff":
        return socket.inet_ntoa(packed[12:])
    return socket.inet_ntop(socket.AF_INET6, packed)

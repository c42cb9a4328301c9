"""Reading what a program inside a cage asks its proxy for: in one way, or not at all.

A head that two readers could read differently is how one request is smuggled behind another, so
nothing doubtful is repaired here: it is refused.
"""

from __future__ import annotations

import asyncio
import re

from msgspec import Struct

from evoclaw.executors.tunnels import Count

LONGEST_LINE = 8 << 10
_LINE = re.compile(rb"([A-Z]{1,20}) ([\x21-\x7e]+) HTTP/1\.[01]")
_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\x20-\x7e\x80-\xff\t]*)")
_AUTHORITY = re.compile(r"[^/?#@\\]+:[0-9]{1,5}")
_SIZE = re.compile(rb"([0-9a-fA-F]{1,8})[ \t]*(;[\x20-\x7e]*)?\r\n")


class Unreadable(Exception):
    """What was asked cannot be read in one way only."""


class Asked(Struct, frozen=True):
    """One request to the proxy."""

    url: str
    """Of a tunnel only its host and port."""
    tunnel: bool
    length: int = 0
    """Bytes of the body that follows; -1: it comes in chunks."""


def read_head(head: bytes) -> Asked:
    """Read a request's head; `Unreadable` says what is wrong with it."""
    lines = head[:-4].split(b"\r\n")
    first = _LINE.fullmatch(lines[0])
    if first is None:
        raise Unreadable("the first line is no request")
    headers = [_HEADER.fullmatch(line) for line in lines[1:]]
    pairs = [(one[1].lower(), one[2].strip()) for one in headers if one is not None]
    if len(pairs) != len(headers):
        raise Unreadable("a header line cannot be read")
    place = first[2].decode("ascii")
    if first[1] == b"CONNECT":
        if _AUTHORITY.fullmatch(place) is None:
            raise Unreadable("CONNECT needs a host and a port")
        return Asked(f"https://{place}/", tunnel=True)
    if not place.lower().startswith("http://"):
        raise Unreadable("this is a proxy: ask for a whole http:// URL, or CONNECT")
    authority = re.split(r"[/?#]", place[7:], maxsplit=1)[0]
    _check_host(authority, [value for name, value in pairs if name == b"host"])
    return Asked(place, tunnel=False, length=_length(pairs))


def _check_host(authority: str, said: list[bytes]) -> None:
    """The server goes by the Host header, we by the URL: they must say the same."""
    if len(said) > 1:
        raise Unreadable("there are two Host headers")
    if said and _plain(said[0].decode("latin-1")) != _plain(authority):
        raise Unreadable("the Host header names another host than the URL")


def _plain(authority: str) -> str:
    return authority.lower().removesuffix(":80").removesuffix(".")


def _length(pairs: list[tuple[bytes, bytes]]) -> int:
    lengths = [value for name, value in pairs if name == b"content-length"]
    codings = [value.lower() for name, value in pairs if name == b"transfer-encoding"]
    if codings:
        if codings != [b"chunked"] or lengths:
            raise Unreadable("the body's length is said in more than one way")
        return -1
    if not lengths:
        return 0
    if len(lengths) > 1 or not lengths[0].isdigit() or len(lengths[0]) > 15:
        raise Unreadable("the body's length cannot be read")
    return int(lengths[0])


async def carry_body(
    asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, count: Count
) -> None:
    """Carry exactly the body of one request: whatever follows it is another request's."""
    if asked.length >= 0:
        await _carry_exactly(asked.length, reader, writer, count)
        return
    while True:
        line = await reader.readuntil(b"\r\n")
        size = _SIZE.fullmatch(line)
        if size is None or len(line) > LONGEST_LINE:
            raise Unreadable("a chunk's size cannot be read")
        writer.write(size[1] + b"\r\n")
        length = int(size[1], 16)
        if length == 0:
            break
        if not await _carry_exactly(length, reader, writer, count):
            return
        if await reader.readexactly(2) != b"\r\n":
            raise Unreadable("a chunk is longer than it says")
        writer.write(b"\r\n")
    # Trailers are left out: nothing that is asked for here needs them.
    writer.write(b"\r\n")
    await writer.drain()


async def _carry_exactly(
    length: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, count: Count
) -> bool:
    while length:
        piece = await reader.read(min(length, 64 << 10))
        if not piece or not count(len(piece)):
            return False
        length -= len(piece)
        writer.write(piece)
        await writer.drain()
    return True

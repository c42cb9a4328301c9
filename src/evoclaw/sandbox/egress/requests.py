"""Parses requests to the egress proxy strictly, against request smuggling.

A head that two parsers could read differently is how one request is smuggled behind another, so
nothing ambiguous is repaired here: it is refused.
"""

from __future__ import annotations

import asyncio
import re

from msgspec import Struct

from evoclaw.executors.tunnels import Count

MAX_CHUNK_LINE_BYTES = 8 << 10
_LINE = re.compile(rb"([A-Z]{1,20}) ([\x21-\x7e]+) HTTP/1\.[01]")
_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\x20-\x7e\x80-\xff\t]*)")
_AUTHORITY = re.compile(r"[^/?#@\\]+:[0-9]{1,5}")
_SIZE = re.compile(rb"([0-9a-fA-F]{1,8})[ \t]*(;[\x20-\x7e]*)?\r\n")


class MalformedRequest(Exception):
    """The request is malformed or ambiguous."""


class ProxyRequest(Struct, frozen=True):
    """One request to the proxy."""

    url: str
    """The target; of a tunnel only its host and port."""
    tunnel: bool
    length: int = 0
    """Bytes of the body that follows; -1: it comes in chunks."""


def read_head(head: bytes) -> ProxyRequest:
    """Read a request's head; `MalformedRequest` says what is wrong with it."""
    lines = head[:-4].split(b"\r\n")
    first = _LINE.fullmatch(lines[0])
    if first is None:
        raise MalformedRequest("the first line is not an HTTP request")
    headers = [_HEADER.fullmatch(line) for line in lines[1:]]
    pairs = [(header[1].lower(), header[2].strip()) for header in headers if header is not None]
    if len(pairs) != len(headers):
        raise MalformedRequest("a header line is malformed")
    place = first[2].decode("ascii")
    if first[1] == b"CONNECT":
        if _AUTHORITY.fullmatch(place) is None:
            raise MalformedRequest("CONNECT needs a host and a port")
        return ProxyRequest(f"https://{place}/", tunnel=True)
    if not place.lower().startswith("http://"):
        raise MalformedRequest("this is a proxy: request a complete http:// URL, or use CONNECT")
    authority = re.split(r"[/?#]", place[7:], maxsplit=1)[0]
    _check_host(authority, [value for name, value in pairs if name == b"host"])
    return ProxyRequest(place, tunnel=False, length=_length(pairs))


def _check_host(authority: str, said: list[bytes]) -> None:
    """Require that Host header and URL agree: the server reads the header, the proxy the URL."""
    if len(said) > 1:
        raise MalformedRequest("there are two Host headers")
    if said and _plain(said[0].decode("latin-1")) != _plain(authority):
        raise MalformedRequest("the Host header and the URL name different hosts")


def _plain(authority: str) -> str:
    return authority.lower().removesuffix(":80").removesuffix(".")


def _length(pairs: list[tuple[bytes, bytes]]) -> int:
    lengths = [value for name, value in pairs if name == b"content-length"]
    codings = [value.lower() for name, value in pairs if name == b"transfer-encoding"]
    if codings:
        if codings != [b"chunked"] or lengths:
            raise MalformedRequest("the body's length is given in more than one way")
        return -1
    if not lengths:
        return 0
    if len(lengths) > 1 or not lengths[0].isdigit() or len(lengths[0]) > 15:
        raise MalformedRequest("the body's length is malformed")
    return int(lengths[0])


async def carry_body(
    request: ProxyRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, count: Count
) -> None:
    """Forward exactly the body of one request: what follows belongs to another request."""
    if request.length >= 0:
        await _carry_exactly(request.length, reader, writer, count)
        return
    while True:
        line = await reader.readuntil(b"\r\n")
        size = _SIZE.fullmatch(line)
        if size is None or len(line) > MAX_CHUNK_LINE_BYTES:
            raise MalformedRequest("a chunk's size is malformed")
        writer.write(size[1] + b"\r\n")
        length = int(size[1], 16)
        if length == 0:
            break
        if not await _carry_exactly(length, reader, writer, count):
            return
        if await reader.readexactly(2) != b"\r\n":
            raise MalformedRequest("a chunk is longer than its size says")
        writer.write(b"\r\n")
    # Trailers are dropped: no request needs them.
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

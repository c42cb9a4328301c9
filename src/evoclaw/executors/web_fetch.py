"""`WebFetcher`: fetches a URL, over judged addresses only and with limits on everything."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
import zlib
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ErrorKind
from evoclaw.core.web import FetchedPage
from evoclaw.executors.url_guard import UrlGuard, UrlTarget

if TYPE_CHECKING:
    from aiohttp import ClientResponse, TCPConnector

READ_BYTES = 64 << 10
"""Bytes that are decompressed at once."""
MAX_ERROR_BODY_BYTES = 64 << 10
"""Bytes that are read of a response with an error status."""
REDIRECT_STATUSES = (301, 302, 303, 307, 308)
REQUEST_HEADERS = {
    "User-Agent": "evoclaw",
    "Accept": "text/markdown, text/html, application/xhtml+xml, text/plain;q=0.9, */*;q=0.8",
    # Only encodings that `_Unpacker` decompresses piece by piece.
    "Accept-Encoding": "gzip, deflate",
}
_WINDOWS = {"gzip": 31, "x-gzip": 31, "deflate": 15}


class FetchLimits(Struct, frozen=True):
    """The limits of one fetch."""

    wire_bytes: int = 10 << 20
    """Compressed."""
    body_bytes: int = 20 << 20
    """Decompressed."""
    ratio: int = 100
    """Decompressed bytes for each received; checked above `small` bytes."""
    small: int = 1 << 20
    redirects: int = 5
    """How many to follow; with 0 the redirect response itself is returned."""
    seconds: float = 120.0
    """From the first lookup to the last byte, at most."""
    connect_seconds: float = 10.0


class WebFetcher:
    """Fetches pages; keeps nothing between two fetches: no connection, no cookie, no lookup."""

    def __init__(
        self,
        guard: UrlGuard | None = None,
        *,
        limits: FetchLimits | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Set the rules.

        Args:
            guard: Which addresses may be reached; only the public internet if not given.
            limits: The limits of one fetch.
            tls: The trusted authorities; those of the system if not given.
        """
        self._guard = guard or UrlGuard()
        self._limits = limits or FetchLimits()
        self._tls = tls

    async def fetch(
        self,
        url: str,
        *,
        seconds: float = 30.0,
        headers: Mapping[str, str] | None = None,
    ) -> FetchedPage:
        """Fetch a URL; raise `ToolFailure` if it is denied or fails.

        Args:
            url: An `http` or `https` URL.
            seconds: How long it may take in all.
            headers: Sent to this URL only, never to the target of a redirect.
        """
        import aiohttp

        limit = min(seconds, self._limits.seconds)
        try:
            async with asyncio.timeout(limit):
                return await self._follow(url, dict(headers or {}))
        except TimeoutError:
            raise ToolFailure(
                ErrorKind.TIMEOUT,
                f"'{url}' was aborted: the whole answer did not arrive within {limit:g} s "
                f"(or no connection within {self._limits.connect_seconds:g} s). "
                "Try another source, or again later.",
            ) from None
        except (aiohttp.ClientError, aiohttp.http.HttpProcessingError, OSError) as error:
            raise _broken(url, error) from None

    async def _follow(self, url: str, headers: dict[str, str]) -> FetchedPage:
        seen: set[str] = set()
        while True:
            target = await self._guard.target(url)
            if target.url in seen:
                raise _gone_astray(f"'{target.url}' redirects in a circle.")
            seen.add(target.url)
            async with self._asked(target, headers) as response:
                location = response.headers.get("Location", "")
                follows = response.status in REDIRECT_STATUSES and bool(location)
                if not follows or not self._limits.redirects:
                    return await self._page(target, response)
            if len(seen) > self._limits.redirects:
                raise _gone_astray(
                    f"More than {self._limits.redirects} redirects; the last led to '{target.url}'."
                )
            url, headers = _joined(target.url, location), {}

    @asynccontextmanager
    async def _asked(
        self, target: UrlTarget, headers: dict[str, str]
    ) -> AsyncGenerator[ClientResponse]:
        import aiohttp
        from yarl import URL

        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self._limits.connect_seconds)
        async with (
            aiohttp.ClientSession(
                connector=pinned(target, self._tls),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=timeout,
                auto_decompress=False,
                trust_env=False,
                read_bufsize=READ_BYTES,
            ) as session,
            session.get(
                URL(target.url, encoded=True),
                headers=REQUEST_HEADERS | headers,
                allow_redirects=False,
            ) as response,
        ):
            yield response

    async def _page(self, target: UrlTarget, response: ClientResponse) -> FetchedPage:
        refused = response.status >= 400
        body = bytearray()
        async with aclosing(self._unpacked(target.url, response)) as pieces:
            async for piece in pieces:
                body += piece
                if refused and len(body) >= MAX_ERROR_BODY_BYTES:
                    del body[MAX_ERROR_BODY_BYTES:]
                    break
        return FetchedPage(
            target.url,
            response.status,
            response.headers.get("Content-Type", ""),
            bytes(body),
            response.headers.get("Retry-After", ""),
        )

    async def _unpacked(self, url: str, response: ClientResponse) -> AsyncGenerator[bytes]:
        limits, wire, size = self._limits, 0, 0
        if (response.content_length or 0) > limits.wire_bytes and response.status < 400:
            what = f"it announces {response.content_length:,} bytes, more"
            raise _too_large(url, response, what, limits.wire_bytes)
        unpack = _unpacker(url, response.headers.get("Content-Encoding", ""))
        while data := await response.content.readany():
            wire += len(data)
            if wire > limits.wire_bytes:
                raise _too_large(url, response, "its body is longer", limits.wire_bytes)
            for piece in unpack.feed(data):
                size += len(piece)
                if size > limits.body_bytes:
                    raise _too_large(url, response, "its body unpacks to more", limits.body_bytes)
                if size > limits.small and size > limits.ratio * wire:
                    raise ToolFailure(
                        ErrorKind.TOO_LARGE,
                        f"'{url}' was aborted: its body unpacks to more than "
                        f"{limits.ratio} times its size, like a decompression bomb. Do "
                        "not fetch it again.",
                    )
                yield piece
        unpack.end()


def pinned(target: UrlTarget, tls: ssl.SSLContext | None = None) -> TCPConnector:
    """A connector that reaches the judged addresses of one target and nothing else."""
    import aiohttp
    from aiohttp.abc import AbstractResolver, ResolveResult

    allowed = frozenset(ipaddress.ip_address(address) for address in target.addresses)

    class PinnedResolver(AbstractResolver):
        async def resolve(
            self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
        ) -> list[ResolveResult]:
            return [_resolved(host, port, address) for address in target.addresses]

        async def close(self) -> None:
            pass

    def open_socket(info: Any) -> socket.socket:
        kind, how, proto, _, where = info
        # The last check before a connection, whatever the code path.
        if ipaddress.ip_address(where[0]) not in allowed:
            raise ToolFailure(
                ErrorKind.PERMISSION_DENIED,
                f"{where[0]} was not contacted: no policy has checked it.",
            )
        return socket.socket(kind, how, proto)

    return aiohttp.TCPConnector(
        resolver=PinnedResolver(),
        socket_factory=open_socket,
        use_dns_cache=False,
        force_close=True,
        ssl=tls or True,
    )


def _resolved(host: str, port: int, address: str) -> Any:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return {
        "hostname": host,
        "host": address,
        "port": port,
        "family": family,
        "proto": 0,
        "flags": socket.AI_NUMERICHOST,
    }


class _Unpacker:
    """Decompresses a body in pieces, so that a bomb is detected before it is in memory."""

    def __init__(self, url: str, encoding: str) -> None:
        self._url, self._window = url, _WINDOWS.get(encoding, 0)
        self._begun = False
        self._stream = zlib.decompressobj(self._window) if self._window else None

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Decompress some bytes from the wire."""
        if self._stream is None:
            yield data
            return
        while data:
            piece = self._step(data)
            self._begun = True
            if piece:
                yield piece
            if not self._stream.eof:
                data = self._stream.unconsumed_tail
                continue
            data = self._stream.unused_data
            # Only gzip bodies may continue with another member; data after others is ignored.
            if self._window != _WINDOWS["gzip"] or not data:
                return
            self._stream = zlib.decompressobj(self._window)

    def _step(self, data: bytes) -> bytes:
        assert self._stream is not None
        try:
            return self._stream.decompress(data, READ_BYTES)
        except zlib.error as error:
            if self._window == _WINDOWS["deflate"] and not self._begun:
                # Many servers leave out the zlib header that `deflate` requires.
                self._window = -zlib.MAX_WBITS
                self._stream = zlib.decompressobj(self._window)
                return self._step(data)
            raise _damaged(self._url, str(error)) from None

    def end(self) -> None:
        """Check that the body was complete."""
        if self._stream is not None and self._begun and not self._stream.eof:
            raise _damaged(self._url, "it breaks off")


def _unpacker(url: str, said: str) -> _Unpacker:
    encoding = said.strip().lower()
    if encoding not in ("", "identity", *_WINDOWS):
        raise ToolFailure(
            ErrorKind.EXECUTION_FAILED,
            f"'{url}' is compressed as {encoding[:40]!r}, which is not supported. "
            "Try another source.",
        )
    return _Unpacker(url, encoding)


def _joined(url: str, location: str) -> str:
    from yarl import URL

    try:
        return str(URL(url).join(URL(location)))
    except (ValueError, UnicodeError):
        raise _gone_astray(f"'{url}' redirects to something that is not a URL.") from None


def _gone_astray(said: str) -> ToolFailure:
    return ToolFailure(ErrorKind.EXECUTION_FAILED, f"{said} Use the final address, if you know it.")


def _too_large(url: str, response: ClientResponse, what: str, limit: int) -> ToolFailure:
    kind = response.headers.get("Content-Type", "unknown type").partition(";")[0][:80]
    return ToolFailure(
        ErrorKind.TOO_LARGE,
        f"'{url}' ({kind}) was aborted: {what} than the {limit:,} bytes allowed. "
        "Ask for a smaller page, or download it with a program, if you may run one.",
    )


def _damaged(url: str, why: str) -> ToolFailure:
    return ToolFailure(
        ErrorKind.EXECUTION_FAILED, f"The packed body of '{url}' is damaged: {why}. Try again once."
    )


def _broken(url: str, error: Exception) -> ToolFailure:
    import aiohttp

    reason = " ".join(str(error).split())[:200] or type(error).__name__
    if isinstance(error, aiohttp.ClientPayloadError):
        what = f"sent an incomplete or malformed answer: {reason}"
    elif isinstance(error, aiohttp.ClientConnectorCertificateError | aiohttp.ClientSSLError):
        what = f"cannot be trusted: {reason}"
    elif isinstance(error, aiohttp.ClientConnectorError):
        what = f"cannot be reached: {reason}"
    else:
        what = f"gave no valid answer: {reason}"
    return ToolFailure(ErrorKind.EXECUTION_FAILED, f"The server of '{url}' {what}.")

"""The HTTP client that all providers share, and its retry policy."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Mapping
from io import BytesIO
from time import time
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET, Struct, UnsetType

from evoclaw.core.errors import ProviderErrorKind
from evoclaw.providers.errors import AttemptFailed, error_response, one_line

if TYPE_CHECKING:
    from types import TracebackType

    from aiohttp import ClientResponse, ClientSession

MAX_REPLY_BYTES = 64 * 2**20
"""Of one reply; a stream of 200,000 chunks has about a third of it."""
MAX_ERROR_BODY_BYTES = 64 * 2**10
"""Bytes that are read of an error response."""
DRAIN_TIMEOUT_S = 0.2
"""How long to wait for the end of a finished stream, so that its connection can be reused."""

_MAX_INLINE_BODY_BYTES = (
    2**20
)  # aiohttp wants larger bodies as a file, so that sending does not block the event loop
_HEADERS = {
    "Content-Type": "application/json",
    # Compression would delay the pieces of a stream, and a small body could expand without limit.
    "Accept-Encoding": "identity",
    "User-Agent": "evoclaw",
}


class RetryPolicy(Struct, frozen=True):
    """When and how often to retry: exponential backoff with full jitter."""

    attempts: int = 4
    """Attempts in total, including the first."""
    base: float = 0.5
    """Seconds of the first wait; doubled with each attempt."""
    cap: float = 30.0
    """Seconds of the longest wait; if the server asks for more, there is no retry."""
    budget: float = 90.0
    """Seconds of all waits together."""

    def at_most(self, retries: int | UnsetType) -> RetryPolicy:
        """The same policy with at most so many retries."""
        if retries is UNSET or retries + 1 >= self.attempts:
            return self
        return msgspec.structs.replace(self, attempts=retries + 1)

    def wait(self, failure: AttemptFailed, attempt: int, waited: float) -> float | None:
        """Seconds to wait after failed attempt number `attempt`; None: do not retry."""
        if not failure.retryable or attempt >= self.attempts:
            return None
        backoff = random.uniform(0.0, min(self.cap, self.base * 2.0 ** (attempt - 1)))
        requested = failure.retry_after
        if requested is None:
            seconds = backoff
        elif requested > self.cap:
            return None
        else:
            # All clients got the same time: retry a little later, each at a different moment.
            seconds = requested + min(backoff, self.base)
        return seconds if waited + seconds <= self.budget else None


class Http:
    """An HTTP client with one session, created on first use; belongs to one event loop."""

    def __init__(self, *, connect_timeout: float = 10.0, read_timeout: float = 120.0) -> None:
        self.connect_timeout, self.read_timeout = connect_timeout, read_timeout
        self._session: ClientSession | None = None

    async def __aenter__(self) -> Http:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close every connection."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> ProviderResponse:
        """Send a JSON body; the caller closes the response. Raise `AttemptFailed` unless 2xx."""
        import aiohttp

        broken = (aiohttp.ClientError, OSError)
        session = self._session or self._open()
        try:
            response = await session.post(
                url,
                data=body if len(body) < _MAX_INLINE_BODY_BYTES else BytesIO(body),
                headers={**_HEADERS, **headers},
                # A redirect would send the key to a host that is not configured.
                allow_redirects=False,
            )
        except aiohttp.ConnectionTimeoutError:
            message = f"could not connect within {self.connect_timeout:g} s"
            raise AttemptFailed(ProviderErrorKind.TIMEOUT, message) from None
        except TimeoutError:
            raise _read_timeout_error(self.read_timeout) from None
        except aiohttp.InvalidURL:
            raise AttemptFailed(ProviderErrorKind.UNKNOWN, "the base URL is not valid") from None
        except (aiohttp.ClientSSLError, ValueError) as error:
            # An untrusted certificate, or an invalid header: a retry would fail too.
            message = f"the request cannot be sent: {one_line(str(error))}"
            raise AttemptFailed(ProviderErrorKind.UNKNOWN, message) from None
        except broken as error:
            raise _connection_error(error) from None
        answer = ProviderResponse(response, broken, self.read_timeout)
        if not 200 <= response.status < 300:
            await _raise_http_error(answer, response)
        return answer

    def _open(self) -> ClientSession:
        import aiohttp

        self._session = aiohttp.ClientSession(
            # No total timeout: a reply may take as long as data keeps arriving.
            timeout=aiohttp.ClientTimeout(
                total=None, connect=self.connect_timeout, sock_read=self.read_timeout
            ),
            connector=aiohttp.TCPConnector(limit=0),
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        return self._session


class ProviderResponse:
    """A response being read."""

    __slots__ = (
        "_broken",
        "_late",
        "_limit",
        "_loop",
        "_read",
        "_response",
        "_since",
        "_size",
        "_timer",
    )

    def __init__(
        self, response: ClientResponse, broken: tuple[type[Exception], ...], limit: float
    ) -> None:
        self._response, self._broken, self._limit = response, broken, limit
        self._read = response.content.readany
        self._size = 0
        self._since = 0.0  # when the wait for the next piece started; 0 while no read is waiting
        self._late = False
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(limit, self._check_read_timeout)
        connection = response.connection
        if connection is not None and connection.protocol is not None:
            # aiohttp would start a new timer for every piece; ours checks now and then.
            connection.protocol.read_timeout = None

    async def read(self) -> bytes:
        """The next piece; empty at the end. Raise `AttemptFailed` if the connection fails."""
        self._since = self._loop.time()
        try:
            data = await self._read()
        except TimeoutError:
            raise _read_timeout_error(self._limit) from None
        except self._broken as error:
            raise (
                _read_timeout_error(self._limit) if self._late else _connection_error(error)
            ) from None
        self._since = 0.0
        self._size += len(data)
        if self._size > MAX_REPLY_BYTES:
            raise AttemptFailed(
                ProviderErrorKind.UNKNOWN, f"the reply exceeds {MAX_REPLY_BYTES >> 20} MiB"
            )
        return data

    async def drain(self) -> None:
        """Read to the end of a finished reply, but only for a moment."""
        try:
            async with asyncio.timeout(DRAIN_TIMEOUT_S):
                while await self.read():
                    pass
        except (TimeoutError, AttemptFailed):
            return

    def close(self) -> None:
        """Release the connection; it is reused if the response was read to its end."""
        self._timer.cancel()
        self._response.close()

    def _check_read_timeout(self) -> None:
        left = self._since + self._limit - self._loop.time() if self._since else self._limit
        if left > 0:
            self._timer = self._loop.call_later(left, self._check_read_timeout)
        else:
            self._late = True
            self._response.close()


async def _raise_http_error(answer: ProviderResponse, response: ClientResponse) -> None:
    body = b""
    try:
        while len(body) < MAX_ERROR_BODY_BYTES and (data := await answer.read()):
            body += data
    except AttemptFailed:
        pass  # the status is enough
    finally:
        answer.close()
    if 300 <= response.status < 400:
        where = one_line(response.headers.get("Location", "elsewhere"))
        body = (
            f"it redirects to {where}; redirects are not followed, so correct the base URL".encode()
        )
    headers = response.headers
    requested = retry_after(headers.get("Retry-After", ""), headers.get("Retry-After-Ms", ""))
    raise error_response(response.status, body[:MAX_ERROR_BODY_BYTES], retry_after=requested)


def retry_after(value: str, milliseconds: str = "") -> float | None:
    """The server's requested wait in seconds, from seconds or a date; None if there is none."""
    for text, unit in ((milliseconds, 1000.0), (value, 1.0)):
        try:
            seconds = float(text) / unit
        except ValueError:
            continue
        return None if math.isnan(seconds) else max(0.0, seconds)
    if not value:
        return None
    from email.utils import parsedate_to_datetime

    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time())
    except (ValueError, OverflowError):
        return None


def _read_timeout_error(limit: float) -> AttemptFailed:
    return AttemptFailed(ProviderErrorKind.TIMEOUT, f"the server sent nothing for {limit:g} s")


def _connection_error(error: Exception) -> AttemptFailed:
    text = one_line(str(error)) or type(error).__name__
    return AttemptFailed(ProviderErrorKind.SERVER_ERROR, f"the connection failed: {text}")

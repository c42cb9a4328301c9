"""The HTTP client of chat services: JSON requests, downloads and web sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import msgspec

from evoclaw.core.messages import JSON, is_array, is_object
from evoclaw.core.redaction import Redactor
from evoclaw.orchestrator.channels.chat.messages import ServiceError
from evoclaw.orchestrator.sanitizing import one_line

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession, ClientWebSocketResponse

REQUEST_TIMEOUT_S = 30.0
MAX_RESPONSE_BYTES = 16 * 2**20
MAX_WEBSOCKET_BYTES = 16 * 2**20
HTTP_UNAUTHORIZED, HTTP_TOO_MANY_REQUESTS = 401, 429
FINAL_STATUSES = frozenset({400, 403, 404, 410, 413})
"""After which the same request would fail again."""


class ServiceHttp:
    """One service; its session is opened when it is first used."""

    def __init__(
        self,
        name: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        secrets: tuple[str, ...] = (),
        describe: Callable[[JSON], str] = lambda _: "",
    ) -> None:
        """Prepare to send requests.

        Args:
            name: The service, for error messages.
            url: What paths are appended to.
            headers: Of each request, such as the token.
            secrets: What error messages must not contain.
            describe: Finds the text for people in the body of an error response.
        """
        self._name, self._url, self._headers = name, url.rstrip("/"), dict(headers or {})
        self._redactor, self._describe = Redactor(secrets), describe
        self._session: ClientSession | None = None

    async def aclose(self) -> None:
        """Close all connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, JSON] | None = None,
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> dict[str, JSON]:
        """Send a request, and return the object of the response; raise `ServiceError` unless 2xx.

        Args:
            method: The HTTP method.
            path: Below the URL of the service.
            body: A JSON object to send.
            query: Query parameters.
            headers: Headers that replace those of the service.
            timeout_s: For the whole request.
        """
        found = await self._call(method, path, body, query, headers, timeout_s)
        if not is_object(found):
            raise ServiceError(f"{self._name} did not answer with a JSON object")
        return found

    async def call_list(self, method: str, path: str) -> Sequence[JSON]:
        """Send a request, and return the list of the response."""
        found = await self._call(method, path, None, None, None, REQUEST_TIMEOUT_S)
        return found if is_array(found) else ()

    async def _call(
        self,
        method: str,
        path: str,
        body: Mapping[str, JSON] | None,
        query: Mapping[str, str] | None,
        headers: Mapping[str, str] | None,
        timeout_s: float,
    ) -> JSON:
        data = None if body is None else msgspec.json.encode(body)
        sent = {"Content-Type": "application/json"} if data is not None else {}
        async with self._response(
            method, self._url + path, timeout_s, data=data, params=query,
            headers=self._headers | sent | dict(headers or {}),
        ) as response:  # fmt: skip
            content = await self._read(response, MAX_RESPONSE_BYTES)
            try:
                found: JSON = msgspec.json.decode(content) if content else {}
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                found = None
            if not 200 <= response.status < 300:
                raise self._status_error(response, found)
            return found

    async def download(
        self, url: str, limit: int, *, headers: Mapping[str, str] | None = None
    ) -> bytes:
        """The content of a URL; raise `ServiceError` if it is longer than the limit."""
        async with self._response(
            "GET", url, REQUEST_TIMEOUT_S, headers=dict(headers or {})
        ) as response:
            if response.status != 200:
                raise self._status_error(response, None)
            return await self._read(response, limit)

    @asynccontextmanager
    async def websocket(self, url: str) -> AsyncGenerator[ClientWebSocketResponse]:
        """A web socket; raise `ServiceError` if it cannot be opened."""
        import aiohttp

        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                socket = await self._open().ws_connect(
                    url, max_msg_size=MAX_WEBSOCKET_BYTES, heartbeat=REQUEST_TIMEOUT_S
                )
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as problem:
            raise self._unreachable(problem) from None
        try:
            yield socket
        finally:
            await socket.close()

    def _open(self) -> ClientSession:
        import aiohttp

        if self._session is None:
            self._session = aiohttp.ClientSession(
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"User-Agent": "evoclaw"},
                timeout=aiohttp.ClientTimeout(total=None),
            )
        return self._session

    @asynccontextmanager
    async def _response(
        self, method: str, url: str, timeout_s: float, **options: object
    ) -> AsyncGenerator[ClientResponse]:
        import aiohttp

        try:
            async with (
                asyncio.timeout(timeout_s),
                # A redirect would send the token to a host that is not configured.
                self._open().request(method, url, allow_redirects=False, **options) as response,  # type: ignore[arg-type]
            ):
                yield response
        except TimeoutError:
            raise ServiceError(f"{self._name} did not answer within {timeout_s:g} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as problem:
            raise self._unreachable(problem) from None

    async def _read(self, response: ClientResponse, limit: int) -> bytes:
        data = bytearray()
        async for piece in response.content.iter_any():
            data += piece
            if len(data) > limit:
                raise ServiceError(f"{self._name} sent more than {limit:,} bytes", final=True)
        return bytes(data)

    def _status_error(self, response: ClientResponse, body: JSON) -> ServiceError:
        status = response.status
        why = self._clean(self._describe(body)) if body is not None else ""
        text = f"{self._name} answered with status {status}" + (f": {why}" if why else "")
        return ServiceError(
            text,
            is_login=status == HTTP_UNAUTHORIZED,
            final=status in FINAL_STATUSES,
            retry_after=_seconds(response.headers.get("Retry-After", "")),
            status=status,
            body=body,
        )

    def _unreachable(self, problem: Exception) -> ServiceError:
        reason = self._clean(str(problem)) or type(problem).__name__
        return ServiceError(f"{self._name} cannot be reached: {reason}")

    def _clean(self, text: str) -> str:
        return one_line(self._redactor.text(text))


def _seconds(header: str) -> float | None:
    try:
        seconds = float(header)
    except ValueError:
        return None
    return seconds if 0 <= seconds < 1e9 else None


def text_at(found: JSON, *keys: str) -> str:
    """The text or the number below these keys, as text; empty if there is none."""
    for key in keys:
        found = found.get(key) if is_object(found) else None
    if isinstance(found, bool) or not isinstance(found, str | int):
        return ""
    return str(found)


def object_at(found: JSON, *keys: str) -> dict[str, JSON]:
    """The object below these keys; an empty one if there is none."""
    for key in keys:
        found = found.get(key) if is_object(found) else None
    return found if is_object(found) else {}

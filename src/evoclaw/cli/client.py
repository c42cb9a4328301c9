"""The HTTP client of the running service: finds it, sends requests, reads event streams."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from evoclaw.cli import exits
from evoclaw.cli.data_folder import data_folder, privacy_problem
from evoclaw.cli.progress import ProgressLine
from evoclaw.cli.terminal_text import one_line
from evoclaw.core.errors import ConfigError, EvoClawError
from evoclaw.core.hosts import is_loopback
from evoclaw.core.messages import JSON, is_object

if TYPE_CHECKING:
    from ssl import SSLContext

    from aiohttp import ClientResponse, ClientSession


MAX_EVENT_BYTES = 16 * 2**20
"""Bytes of one event."""


class ServerSentEvent(Struct, frozen=True):
    """One server-sent event."""

    event: str
    data: bytes
    id: str = ""
    """Set by the server; a client reconnects with the id of its last event."""


class SseParser:
    """Turns chunks of a body into events; skips comments, such as heartbeats."""

    __slots__ = ("_block", "_rest", "_size")

    def __init__(self) -> None:
        self._rest = b""
        self._block: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> list[ServerSentEvent]:
        """Add a chunk; returns the events that it completes."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        events: list[ServerSentEvent] = []
        for line in lines:
            line = line.removesuffix(b"\r")
            if line:
                self._block.append(line)
                self._size += len(line)
            elif self._block:
                if (event := _event(self._block)) is not None:
                    events.append(event)
                self._block, self._size = [], 0
        if self._size + len(self._rest) > MAX_EVENT_BYTES:
            raise EvoClawError(
                f"the service sent an event of more than {MAX_EVENT_BYTES >> 20} MiB"
            )
        return events


def _event(lines: list[bytes]) -> ServerSentEvent | None:
    name, number, data = "message", "", list[bytes]()
    for line in lines:
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            data.append(value)
        elif field == b"event":
            name = value.decode(errors="replace")
        elif field == b"id" and b"\0" not in value:
            number = value.decode(errors="replace")
    return ServerSentEvent(name, b"\n".join(data), number) if data else None


API_LOGIN_FILE = "api.json"
"""In the data folder: `evoclaw up` writes address and token of the service, for this user."""
CONNECT_TIMEOUT_S, RESPONSE_TIMEOUT_S, STREAM_IDLE_TIMEOUT_S = 5.0, 60.0, 45.0
"""Seconds to connect, for a whole response, and between two heartbeats of a stream."""
MAX_RESPONSE_BYTES = 64 * 2**20
"""Bytes of one response."""
RECONNECT_TIMEOUT_S = 60.0
"""Seconds for which a broken stream is reconnected."""
RECONNECT_DELAYS_S = (0.0, 0.1, 0.3, 1.0, 2.0)
_RECONNECT_EVENTS = ("dropped", "closing")
"""Events after which to reconnect: the client was too slow, or the service restarts."""
_NOT_RUNNING = "the service is not running: start it with `evoclaw up`"


class ServiceNotRunning(EvoClawError):
    """The service cannot be reached."""

    def __init__(self, why: str = "") -> None:
        super().__init__(f"{_NOT_RUNNING} ({why})" if why else _NOT_RUNNING)


class ServiceRefused(EvoClawError):
    """The service refused a request, with a reason."""

    def __init__(self, status: int, code: str, reason: str) -> None:
        super().__init__(reason)
        self.status, self.code = status, code


class ServiceAddress(Struct, frozen=True):
    """The address of the service, and the token of the caller."""

    url: str
    token: str = ""
    certificate: str = ""
    """The file of the service's own certificate, if it runs on this machine with TLS."""


class ServiceClient:
    """Sends requests to the service; belongs to one event loop."""

    def __init__(
        self,
        address: ServiceAddress,
        session: ClientSession,
        find: Callable[[], ServiceAddress] | None = None,
    ) -> None:
        """Send requests to a service.

        Args:
            address: Where it is.
            session: Sends them.
            find: Finds the service again after a restart, which may have changed its address.
        """
        self._address, self._session, self._find = address, session, find
        self.on_lost: Callable[[str], None] | None = None
        """Called with a note when a stream breaks, and is to be continued."""

    @property
    def url(self) -> str:
        """The address of the service."""
        return self._address.url.rstrip("/")

    def _headers(self) -> dict[str, str]:
        token = self._address.token
        return {"Authorization": f"Bearer {token}"} if token else {}

    def _find_again(self) -> None:
        """Look for the service where it says that it is now; it may still be starting."""
        if self._find is not None:
            with suppress(ServiceNotRunning):
                self._address = self._find()

    async def get(self, path: str, **query: str | float) -> JSON:
        """Send a GET request; returns the decoded body."""
        return await self.request("GET", path, query=query)

    async def post(self, path: str, body: JSON = None, *, key: str = "") -> JSON:
        """Send a POST request; the service runs two requests with one key only once."""
        return await self.request("POST", path, body, key=key)

    async def request(
        self,
        method: str,
        path: str,
        body: JSON = None,
        *,
        query: Mapping[str, str | float] | None = None,
        key: str = "",
        accepted_statuses: Sequence[int] = (),
    ) -> JSON:
        """Send a request; returns the decoded body, None if it is empty.

        Args:
            method: The HTTP method.
            path: The path below the service's address.
            body: Sent as JSON, unless it is None.
            query: The query parameters; empty ones are left out.
            key: The `Idempotency-Key`.
            accepted_statuses: Further status codes that are no refusal.
        """
        data = await self.request_bytes(
            method, path, body, query=query, key=key, accepted_statuses=accepted_statuses
        )
        if not data.strip():
            return None
        try:
            return msgspec.json.decode(data)
        except msgspec.DecodeError:
            raise EvoClawError(
                f"{self.url}{path} did not answer with JSON; is this an EvoClaw service?"
            ) from None

    async def request_bytes(
        self,
        method: str,
        path: str,
        body: JSON = None,
        *,
        query: Mapping[str, str | float] | None = None,
        key: str = "",
        accepted_statuses: Sequence[int] = (),
    ) -> bytes:
        """Send a request; returns the body as bytes."""
        import aiohttp

        headers = self._headers() | ({"Idempotency-Key": key} if key else {})
        if body is not None:
            headers["Content-Type"] = "application/json"
        line = ProgressLine()
        line.start(f"waiting for the service on {self.url}")
        try:
            async with self._session.request(
                method,
                self.url + path,
                data=None if body is None else msgspec.json.encode(body),
                params=_query_parameters(query),
                headers=headers,
                # A redirect would send the token to a host that the user did not name.
                allow_redirects=False,
            ) as response:
                if response.status not in accepted_statuses:
                    await _check(response)
                return await _body(response)
        except (aiohttp.ClientError, TimeoutError, OSError) as problem:
            raise _unreachable(self.url, problem) from None
        finally:
            line.stop()

    async def stream_events(
        self, path: str, *, after: str = "", **query: str | float
    ) -> AsyncGenerator[ServerSentEvent]:
        """Every event after the one with id `after`; reconnects and continues where it broke.

        It ends when the service ends the stream; the caller can close it earlier. A service that
        was restarted meanwhile is found again.
        """
        tries, last = 0, after
        loop = asyncio.get_running_loop()
        last_event_at = loop.time()
        while True:
            try:
                async with aclosing(self._connect_stream(path, last, query)) as events:
                    async for event in events:
                        tries, last_event_at = 0, loop.time()
                        last = event.id or last
                        if event.event in _RECONNECT_EVENTS:
                            last = _resume_position(event.data, last)
                            break
                        if event.event == "error":
                            raise _refusal(200, event.data)
                        yield event
                    else:
                        return
            except (ServiceNotRunning, ServiceRefused) as problem:
                known = self._address
                self._find_again()
                transient = (
                    self._address != known
                    or isinstance(problem, ServiceNotRunning)
                    or problem.status >= 500
                )
                if not transient or loop.time() - last_event_at > RECONNECT_TIMEOUT_S:
                    raise
                if tries == 1 and self.on_lost is not None:
                    self.on_lost("the service does not answer; reconnecting …")
            await asyncio.sleep(RECONNECT_DELAYS_S[min(tries, len(RECONNECT_DELAYS_S) - 1)])
            tries += 1

    async def _connect_stream(
        self, path: str, last: str, query: Mapping[str, str | float]
    ) -> AsyncGenerator[ServerSentEvent]:
        import aiohttp

        headers = {**self._headers(), "Accept": "text/event-stream"}
        if last:
            headers["Last-Event-ID"] = last
        stream = SseParser()
        try:
            async with self._session.get(
                self.url + path,
                params=_query_parameters(query),
                headers=headers,
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(
                    total=None, connect=CONNECT_TIMEOUT_S, sock_read=STREAM_IDLE_TIMEOUT_S
                ),
            ) as response:
                await _check(response)
                async for data in response.content.iter_any():
                    for event in stream.feed(data):
                        yield event
        except (aiohttp.ClientError, TimeoutError, OSError) as problem:
            raise _unreachable(self.url, problem) from None


@asynccontextmanager
async def open_client(env: Mapping[str, str]) -> AsyncGenerator[ServiceClient]:
    """A client of the service on this machine, or of the one at `EVOCLAW_URL`."""
    address = find_service(env)
    import aiohttp

    timeout = aiohttp.ClientTimeout(total=RESPONSE_TIMEOUT_S, connect=CONNECT_TIMEOUT_S)
    headers = {"User-Agent": "evoclaw-cli"}
    jar = aiohttp.DummyCookieJar()
    connector = None
    if address.certificate:
        connector = aiohttp.TCPConnector(ssl=_tls_context(address.certificate))
    async with aiohttp.ClientSession(
        timeout=timeout, headers=headers, cookie_jar=jar, connector=connector
    ) as session:
        yield ServiceClient(address, session, lambda: find_service(env))


def with_client(work: Callable[[ServiceClient], Awaitable[int | None]]) -> int:
    """Run a command with a client of the service; returns its exit code [default: OK]."""

    async def run() -> int:
        async with open_client(os.environ) as client:
            return await work(client) or exits.OK

    return asyncio.run(run())


def _tls_context(certificate: str) -> SSLContext:
    """A TLS context that trusts this certificate only, whatever host name it is for."""
    import ssl

    try:
        context = ssl.create_default_context(cafile=certificate)
    except (OSError, ssl.SSLError) as problem:
        raise ConfigError(f"cannot read the certificate {certificate}: {problem}") from None
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def find_service(env: Mapping[str, str]) -> ServiceAddress:
    """The address of the service; raises `ServiceNotRunning` if there is none."""
    if url := env.get("EVOCLAW_URL"):
        return _check_address(ServiceAddress(url, env.get("EVOCLAW_TOKEN", "")), "EVOCLAW_URL")
    path = data_folder(env) / API_LOGIN_FILE
    try:
        problem = privacy_problem(path)
        if problem:
            raise ConfigError(problem)
        login = msgspec.json.decode(path.read_bytes(), type=ServiceAddress)
    except FileNotFoundError:
        raise ServiceNotRunning from None
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}; restart `evoclaw up`") from None
    token = env.get("EVOCLAW_TOKEN") or login.token
    return _check_address(ServiceAddress(login.url, token, login.certificate), str(path))


def _check_address(address: ServiceAddress, source: str) -> ServiceAddress:
    """Refuse an address that would disclose the token."""
    try:
        parts = urlsplit(address.url)
        host = parts.hostname or ""
    except ValueError:
        parts, host = urlsplit(""), ""
    if parts.scheme not in ("http", "https") or not host:
        raise ConfigError(f"{source}: {address.url!r} is not a URL; write https://HOST:PORT")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ConfigError(
            f"{source}: the URL must be https://HOST:PORT only; put the token into EVOCLAW_TOKEN"
        )
    if parts.scheme == "http" and address.token and not is_loopback(host):
        raise ConfigError(
            f"{source}: http would send the token unencrypted to {host}; use https, or a tunnel to "
            "127.0.0.1"
        )
    return address


def _query_parameters(query: Mapping[str, str | float] | None) -> dict[str, str]:
    return {name: str(value) for name, value in (query or {}).items() if value != ""}


async def _check(response: ClientResponse) -> None:
    """Raise `ServiceRefused` if the status is an error."""
    if 200 <= response.status < 300:
        return
    raise _refusal(response.status, await _body(response))


def _refusal(status: int, body: bytes) -> ServiceRefused:
    """The error that a refused response describes."""
    reason, code = f"the service answered {status}", ""
    try:
        decoded = msgspec.json.decode(body)
    except msgspec.DecodeError:
        decoded = None
    error = decoded.get("error") if is_object(decoded) else None
    if is_object(error):
        code, reason = str(error.get("code", "")), one_line(str(error.get("message", reason)), 500)
    if status == 401:
        reason += "; set EVOCLAW_TOKEN to a token that `evoclaw token new` printed"
    return ServiceRefused(status, code, reason)


async def _body(response: ClientResponse) -> bytes:
    data = bytearray()
    async for piece in response.content.iter_any():
        data += piece
        if len(data) > MAX_RESPONSE_BYTES:
            raise EvoClawError(
                f"the response of the service is larger than {MAX_RESPONSE_BYTES >> 20} MiB"
            )
    return bytes(data)


def _unreachable(url: str, problem: Exception) -> ServiceNotRunning:
    why = "it does not answer" if isinstance(problem, TimeoutError) else one_line(str(problem))
    return ServiceNotRunning(f"{url}: {why or type(problem).__name__}")


def _resume_position(data: bytes, last: str) -> str:
    """The event id to resume after, when the service dropped a slow client."""
    try:
        decoded = msgspec.json.decode(data)
    except msgspec.DecodeError:
        return last
    return str(decoded.get("after", last)) if is_object(decoded) else last

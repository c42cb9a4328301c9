"""The running service as the commands reach it: found, asked, listened to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from ipaddress import ip_address
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from evoclaw.cli.clean import one_line
from evoclaw.cli.places import data_folder, why_not_private
from evoclaw.cli.stream import EventStream, Told
from evoclaw.core.errors import ConfigError, EvoClawError
from evoclaw.core.messages import JSON, is_object

if TYPE_CHECKING:
    from ssl import SSLContext

    from aiohttp import ClientResponse, ClientSession

FILE = "api.json"
"""In the data folder: `evoclaw up` says here where it is, for its owner alone."""
CONNECT, ANSWER, SILENCE = 5.0, 60.0, 45.0
"""Seconds for a connection, for an answer, and between two signs of life of a stream."""
MOST = 64 * 2**20
"""Bytes of one answer."""
PATIENCE = 60.0
"""Seconds that a broken stream is tried again before it is given up."""
_BACKOFF = (0.0, 0.1, 0.3, 1.0, 2.0)
_AGAIN = ("dropped", "closing")
"""Events that say: connect again, for we were too slow, or the service restarts."""
_NOT_UP = "the service is not up: start it with `evoclaw up`"


class NotUp(EvoClawError):
    """Nobody answers where the service should be."""

    def __init__(self, why: str = "") -> None:
        super().__init__(f"{_NOT_UP} ({why})" if why else _NOT_UP)


class Refused(EvoClawError):
    """The service did not do what it was asked, and said why."""

    def __init__(self, status: int, code: str, reason: str) -> None:
        super().__init__(reason)
        self.status, self.code = status, code


class Place(Struct, frozen=True):
    """Where the service is, and what shows who asks."""

    url: str
    token: str = ""
    certificate: str = ""
    """The file of the certificate that it shows, if it is on this machine and has one."""


class Client:
    """Asks the service; belongs to one event loop."""

    def __init__(self, place: Place, session: ClientSession) -> None:
        self._place, self._session = place, session
        self.url = place.url.rstrip("/")

    async def get(self, path: str, **query: str | float) -> JSON:
        """Read something."""
        return await self.ask("GET", path, query=query)

    async def post(self, path: str, body: JSON = None, *, key: str = "") -> JSON:
        """Have something done; the same key twice does it once."""
        return await self.ask("POST", path, body, key=key)

    async def ask(
        self,
        method: str,
        path: str,
        body: JSON = None,
        *,
        query: Mapping[str, str | float] | None = None,
        key: str = "",
        also: Sequence[int] = (),
    ) -> JSON:
        """Ask, and give back what the answer says.

        Args:
            method: Of HTTP.
            path: Below the service's address.
            body: Sent as JSON, if there is one.
            query: What is empty is left out.
            key: The `Idempotency-Key`.
            also: What status is an answer too, and no refusal.
        """
        data = await self.raw(method, path, body, query=query, key=key, also=also)
        if not data.strip():
            return None
        try:
            return msgspec.json.decode(data)
        except msgspec.DecodeError:
            raise EvoClawError(f"{self.url}{path} answered something that is no JSON") from None

    async def raw(
        self,
        method: str,
        path: str,
        body: JSON = None,
        *,
        query: Mapping[str, str | float] | None = None,
        key: str = "",
        also: Sequence[int] = (),
    ) -> bytes:
        """Ask, and give back the answer as it is."""
        import aiohttp

        headers = {"Idempotency-Key": key} if key else {}
        if body is not None:
            headers["Content-Type"] = "application/json"
        try:
            async with self._session.request(
                method,
                self.url + path,
                data=None if body is None else msgspec.json.encode(body),
                params=_filled(query),
                headers=headers,
                # A redirect would carry the token to a host that nobody named.
                allow_redirects=False,
            ) as response:
                if response.status not in also:
                    await _check(response)
                return await _body(response)
        except (aiohttp.ClientError, TimeoutError, OSError) as problem:
            raise _unreachable(self.url, problem) from None

    async def follow(
        self, path: str, *, after: str = "", **query: str | float
    ) -> AsyncGenerator[Told]:
        """Every event, from the one after `after`; a broken connection is taken up where it was.

        It ends when the service ends it. Whoever listens says by closing when it is enough.
        """
        tries, last = 0, after
        loop = asyncio.get_running_loop()
        heard = loop.time()
        while True:
            try:
                async with aclosing(self._listen(path, last, query)) as events:
                    async for told in events:
                        tries, heard = 0, loop.time()
                        last = told.id or last
                        if told.event in _AGAIN:
                            last = _resumes(told.data, last)
                            break
                        if told.event == "error":
                            raise _refusal(200, told.data)
                        yield told
                    else:
                        return
            except (NotUp, Refused) as problem:
                passing = isinstance(problem, NotUp) or problem.status >= 500
                if not passing or loop.time() - heard > PATIENCE:
                    raise
            await asyncio.sleep(_BACKOFF[min(tries, len(_BACKOFF) - 1)])
            tries += 1

    async def _listen(
        self, path: str, last: str, query: Mapping[str, str | float]
    ) -> AsyncGenerator[Told]:
        import aiohttp

        headers = {"Accept": "text/event-stream", **({"Last-Event-ID": last} if last else {})}
        stream = EventStream()
        try:
            async with self._session.get(
                self.url + path,
                params=_filled(query),
                headers=headers,
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=None, connect=CONNECT, sock_read=SILENCE),
            ) as response:
                await _check(response)
                async for data in response.content.iter_any():
                    for told in stream.feed(data):
                        yield told
        except (aiohttp.ClientError, TimeoutError, OSError) as problem:
            raise _unreachable(self.url, problem) from None


@asynccontextmanager
async def open_client(env: Mapping[str, str]) -> AsyncGenerator[Client]:
    """A client of the service that there is, on this machine or where `EVOCLAW_URL` says."""
    place = find(env)
    import aiohttp

    timeout = aiohttp.ClientTimeout(total=ANSWER, connect=CONNECT)
    headers = {"User-Agent": "evoclaw-cli"}
    if place.token:
        headers["Authorization"] = f"Bearer {place.token}"
    jar = aiohttp.DummyCookieJar()
    known = aiohttp.TCPConnector(ssl=_trusting(place.certificate)) if place.certificate else None
    async with aiohttp.ClientSession(
        timeout=timeout, headers=headers, cookie_jar=jar, connector=known
    ) as session:
        yield Client(place, session)


def _trusting(certificate: str) -> SSLContext:
    """Trusts one certificate and no other; whatever name it is for, it is the one we know."""
    import ssl

    try:
        context = ssl.create_default_context(cafile=certificate)
    except (OSError, ssl.SSLError) as problem:
        raise ConfigError(f"cannot read the certificate {certificate}: {problem}") from None
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def find(env: Mapping[str, str]) -> Place:
    """Where the service is; `NotUp` if nobody left word."""
    if url := env.get("EVOCLAW_URL"):
        return _checked(Place(url, env.get("EVOCLAW_TOKEN", "")), "EVOCLAW_URL")
    path = data_folder(env) / FILE
    try:
        problem = why_not_private(path)
        if problem:
            raise ConfigError(problem)
        left = msgspec.json.decode(path.read_bytes(), type=Place)
    except FileNotFoundError:
        raise NotUp from None
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}; restart `evoclaw up`") from None
    given = env.get("EVOCLAW_TOKEN")
    return _checked(Place(left.url, given or left.token, left.certificate), str(path))


def _checked(place: Place, source: str) -> Place:
    """Refuse an address that would give the token away."""
    try:
        parts = urlsplit(place.url)
        host = parts.hostname or ""
    except ValueError:
        parts, host = urlsplit(""), ""
    if parts.scheme not in ("http", "https") or not host:
        raise ConfigError(f"{source}: {place.url!r} is no address; say https://HOST:PORT")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ConfigError(f"{source}: an address only; a token goes into EVOCLAW_TOKEN")
    if parts.scheme == "http" and place.token and not _here(host):
        raise ConfigError(
            f"{source}: {host} is another machine, and http would show it the token unencrypted; "
            "use https, or a tunnel to 127.0.0.1"
        )
    return place


def _here(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _filled(query: Mapping[str, str | float] | None) -> dict[str, str]:
    return {name: str(value) for name, value in (query or {}).items() if value != ""}


async def _check(response: ClientResponse) -> None:
    """Raise what a refusal says."""
    if 200 <= response.status < 300:
        return
    raise _refusal(response.status, await _body(response))


def _refusal(status: int, body: bytes) -> Refused:
    """What a refusal says."""
    reason, code = f"the service answered {status}", ""
    try:
        said = msgspec.json.decode(body)
    except msgspec.DecodeError:
        said = None
    error = said.get("error") if is_object(said) else None
    if is_object(error):
        code, reason = str(error.get("code", "")), one_line(str(error.get("message", reason)), 500)
    if status == 401:
        reason += "; set EVOCLAW_TOKEN to one of `evoclaw token new`"
    return Refused(status, code, reason)


async def _body(response: ClientResponse) -> bytes:
    data = bytearray()
    async for piece in response.content.iter_any():
        data += piece
        if len(data) > MOST:
            raise EvoClawError(f"the service answered more than {MOST >> 20} MiB")
    return bytes(data)


def _unreachable(url: str, problem: Exception) -> NotUp:
    why = "it does not answer" if isinstance(problem, TimeoutError) else one_line(str(problem))
    return NotUp(f"{url}: {why or type(problem).__name__}")


def _resumes(data: bytes, last: str) -> str:
    """Where to go on after we were too slow."""
    try:
        said = msgspec.json.decode(data)
    except msgspec.DecodeError:
        return last
    return str(said.get("after", last)) if is_object(said) else last

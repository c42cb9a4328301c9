"""Posts messages to a URL over HTTP, only to network addresses that are allowed."""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
from collections.abc import Mapping, Sequence

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ErrorKind
from evoclaw.executors.url_guard import Resolve, UrlGuard, UrlTarget
from evoclaw.executors.web_fetch import pinned
from evoclaw.orchestrator.channels.inbound import Undelivered
from evoclaw.orchestrator.sanitizing import one_line

LOOPBACK_NETWORKS = ("127.0.0.0/8", "::1/128")
CALLBACK_TIMEOUT_S = 30.0
"""For the whole request."""
HTTP_GONE = 410
"""The only status after which a message is not retried."""
MAX_SHOWN_BODY_BYTES = 2_000
"""Of an error response, for the person who set up the URL."""


class Callback:
    """One callback URL; connections are not reused, and redirects are not followed."""

    def __init__(
        self,
        url: str,
        allow: Sequence[str] = (),
        *,
        name: str = "the callback URL",
        setting: str = "callback_url",
        loopback: bool = True,
        show_response: bool = False,
        resolve: Resolve | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Prepare to post to a URL.

        Args:
            url: An `https` URL, or an `http` URL on this machine or in an allowed network.
            allow: Non-public addresses or networks that may be reached.
            name: What the URL is, for error messages.
            setting: The setting that names it.
            loopback: Whether addresses of this machine may be reached.
            show_response: Whether errors quote the start of the response.
            resolve: Resolves host names; by default the system's resolver.
            tls: The TLS context; by default the system's certificate authorities.
        """
        self._url, self._tls, self._name, self._setting = url, tls, name, setting
        self._show_response = show_response
        networks = (*LOOPBACK_NETWORKS, *allow) if loopback else tuple(allow)
        self._guard = UrlGuard(networks, resolve=resolve)
        self._plain_http_networks = tuple(ipaddress.ip_network(network) for network in networks)

    async def post(self, body: bytes, headers: Mapping[str, str]) -> None:
        """Post a body; raise `Undelivered` unless the server answers with a 2xx status."""
        import aiohttp

        try:
            async with asyncio.timeout(CALLBACK_TIMEOUT_S):
                target = await self._guard.target(self._url)
                self._check(target)
                await self._post(target, body, headers)
        except ToolFailure as problem:
            final = problem.kind is not ErrorKind.EXECUTION_FAILED
            raise Undelivered(problem.message, final=final) from None
        except TimeoutError:
            raise Undelivered(
                f"{self._name} did not answer within {CALLBACK_TIMEOUT_S:g} s"
            ) from None
        except (aiohttp.ClientError, OSError) as problem:
            reason = " ".join(str(problem).split())[:200] or type(problem).__name__
            raise Undelivered(f"{self._name} cannot be reached: {reason}") from None

    def _check(self, target: UrlTarget) -> None:
        if target.url.startswith("https://"):
            return
        addresses = [ipaddress.ip_address(address) for address in target.addresses]
        if all(
            any(address in network for network in self._plain_http_networks)
            for address in addresses
        ):
            return
        raise Undelivered(
            f"{self._setting} must use https unless it is on this machine or in an allowed network",
            final=True,
        )

    async def _post(self, target: UrlTarget, body: bytes, headers: Mapping[str, str]) -> None:
        import aiohttp
        from yarl import URL

        async with (
            aiohttp.ClientSession(
                connector=pinned(target, self._tls),
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=False,
            ) as session,
            session.post(
                URL(target.url, encoded=True),
                data=body,
                headers={
                    "Content-Type": "application/json",
                    "User-Agent": "evoclaw",
                    **headers,
                },
                allow_redirects=False,
            ) as response,
        ):
            status, retry_after = response.status, response.headers.get("Retry-After", "")
            quoted = ""
            if self._show_response and not 200 <= status < 300:
                start = await response.content.read(MAX_SHOWN_BODY_BYTES)
                quoted = one_line(start.decode(errors="replace"))
        if not 200 <= status < 300:
            raise Undelivered(
                f"{self._name} answered with status {status}" + (f": {quoted}" if quoted else ""),
                final=status == HTTP_GONE,
                status=status,
                retry_after=float(retry_after)
                if retry_after.isdecimal() and len(retry_after) < 10
                else None,
            )

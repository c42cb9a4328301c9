"""Posts answers to the callback URL of a webhook, only to network addresses that are allowed."""

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

LOOPBACK_NETWORKS = ("127.0.0.0/8", "::1/128")
CALLBACK_TIMEOUT_S = 30.0
"""For the whole request."""
HTTP_GONE = 410
"""The only status after which an answer is not retried."""


class Callback:
    """One callback URL; connections are not reused, and redirects are not followed."""

    def __init__(
        self,
        url: str,
        allow: Sequence[str] = (),
        *,
        resolve: Resolve | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Prepare to post to a URL.

        Args:
            url: An `https` URL, or an `http` URL on this machine or in an allowed network.
            allow: Non-public addresses or networks that may be reached.
            resolve: Resolves host names; by default the system's resolver.
            tls: The TLS context; by default the system's certificate authorities.
        """
        self._url, self._tls = url, tls
        self._guard = UrlGuard((*LOOPBACK_NETWORKS, *allow), resolve=resolve)
        self._plain_http_networks = tuple(
            ipaddress.ip_network(network) for network in (*LOOPBACK_NETWORKS, *allow)
        )

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
                f"the callback URL did not answer within {CALLBACK_TIMEOUT_S:g} s"
            ) from None
        except (aiohttp.ClientError, OSError) as problem:
            reason = " ".join(str(problem).split())[:200] or type(problem).__name__
            raise Undelivered(f"the callback URL cannot be reached: {reason}") from None

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
            "callback_url must use https unless it is on this machine or in an allowed network",
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
        if not 200 <= status < 300:
            raise Undelivered(
                f"the callback URL answered with status {status}",
                final=status == HTTP_GONE,
                retry_after=float(retry_after)
                if retry_after.isdecimal() and len(retry_after) < 10
                else None,
            )

"""Posts an answer to a web address that the operator configured, over judged addresses only."""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
from collections.abc import Mapping, Sequence

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ErrorKind
from evoclaw.executors.url_guard import Resolve, UrlGuard, UrlTarget
from evoclaw.executors.web_fetch import pinned
from evoclaw.orchestrator.channels.letters import Undelivered

LOOPBACK = ("127.0.0.0/8", "::1/128")
SECONDS = 30.0
"""For all of it."""
GONE = 410
"""The one status that means: never again."""


class Callback:
    """One address; nothing is kept between two posts, and redirects are not followed."""

    def __init__(
        self,
        url: str,
        allow: Sequence[str] = (),
        *,
        resolve: Resolve | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Choose where.

        Args:
            url: Of `https`, or of `http` on this machine or in an allowed network.
            allow: Addresses or networks that may be reached though they are not public.
            resolve: How names become addresses; the system's way if not given.
            tls: Whom to trust; the system's authorities if not given.
        """
        self._url, self._tls = url, tls
        self._guard = UrlGuard((*LOOPBACK, *allow), resolve=resolve)
        self._in_the_clear = tuple(ipaddress.ip_network(one) for one in (*LOOPBACK, *allow))

    async def post(self, body: bytes, headers: Mapping[str, str]) -> None:
        """Post it; raise `Undelivered` unless the other side said that it has it."""
        import aiohttp

        try:
            async with asyncio.timeout(SECONDS):
                target = await self._guard.target(self._url)
                self._check(target)
                await self._post(target, body, headers)
        except ToolFailure as problem:
            final = problem.kind is not ErrorKind.EXECUTION_FAILED
            raise Undelivered(problem.message, final=final) from None
        except TimeoutError:
            raise Undelivered(f"there was no answer within {SECONDS:g} s") from None
        except (aiohttp.ClientError, OSError) as problem:
            said = " ".join(str(problem).split())[:200] or type(problem).__name__
            raise Undelivered(f"it cannot be reached: {said}") from None

    def _check(self, target: UrlTarget) -> None:
        if target.url.startswith("https://"):
            return
        addresses = [ipaddress.ip_address(one) for one in target.addresses]
        if all(any(one in network for network in self._in_the_clear) for one in addresses):
            return
        raise Undelivered("an answer goes over https only, unless it stays here", final=True)

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
            status, wish = response.status, response.headers.get("Retry-After", "")
        if not 200 <= status < 300:
            raise Undelivered(
                f"it was answered with the status {status}",
                final=status == GONE,
                retry_after=float(wish) if wish.isdecimal() and len(wish) < 10 else None,
            )

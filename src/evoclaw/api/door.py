"""ASGI middleware that authenticates and limits every request before routing.

It checks the `Host` header, the web origin, the size of the body, the token and the request rate.
Refused requests, here or in a route, are counted and written to the audit log.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from typing import cast

import msgspec
from litestar.types import ASGIApp, HTTPScope, Message, Receive, Scope, Send

from evoclaw.api.auth import OPEN, is_open, unknown_caller
from evoclaw.api.errors import Refused, refusal_of
from evoclaw.api.limits import BoundedBody, Rates, too_large
from evoclaw.api.needs import Parts, Refusal
from evoclaw.api.serving import own_origins
from evoclaw.core.errors import EvoClawError
from evoclaw.core.tracing import read_traceparent, standing
from evoclaw.orchestrator.people.access import Caller

LOG = logging.getLogger("evoclaw.api")
NOTED = frozenset({401, 403, 404, 421})
"""Statuses that are written to the audit log, because many of them may be an attack."""
ALWAYS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
)
"""Headers of every response that does not set them itself."""
METHODS = b"GET, POST, PATCH, DELETE"
ALLOWED = b"authorization, content-type, idempotency-key, last-event-id, traceparent"


class Door:
    """Authenticates requests, applies the limits, and records refused requests."""

    def __init__(self, app: ASGIApp, parts: Parts, hosts: frozenset[str] | None) -> None:
        """Wrap an application.

        Args:
            app: The application behind the gate.
            parts: Tokens, limits, and the callbacks for responses and refused requests.
            hosts: The accepted `Host` headers; None accepts any.
        """
        self._app, self._parts = app, parts
        self.hosts = hosts
        settings = parts.settings
        self._origins = frozenset(origin.lower().rstrip("/") for origin in settings.origins)
        self._rates = Rates(settings.requests_per_minute, settings.burst)
        self._failures = Rates(settings.failures_per_minute, settings.failures_per_minute)
        self.counts: Counter[int] = Counter()
        """The number of responses by status."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request to the application, or refuse it."""
        if scope["type"] != "http":
            return  # WebSockets are not supported
        settings = self._parts.settings
        scope["auth"], headers = None, dict(scope["headers"])
        body = BoundedBody(receive, settings.max_body_bytes, settings.body_seconds)
        sender = _Telling(self, scope, send, self._cors(headers))
        try:
            self._check(scope, headers)
            if _is_preflight(scope, headers):
                await sender.preflight()
                return
            scope["auth"] = await self._caller(scope, headers)
        except EvoClawError as problem:
            await sender.refuse(refusal_of(problem), body, has_body=_has_body(headers))
            return
        parent = headers.get(b"traceparent", b"").decode("latin-1")
        with standing(read_traceparent(parent)):
            await self._app(scope, cast("Receive", body), sender)

    def _check(self, scope: HTTPScope, headers: dict[bytes, bytes]) -> None:
        host = headers.get(b"host", b"").decode("latin-1").lower()
        if self.hosts is not None and host not in self.hosts:
            text = f"Unknown host name {host[:80]!r}. Add it to `names` in [server]."
            raise Refused(421, "unknown_host", text)
        origin = headers.get(b"origin")
        if origin is not None and not self._knows(origin):
            text = "This web origin is not allowed. Add it to `origins` in [server]."
            raise Refused(403, "unknown_origin", text)
        length = headers.get(b"content-length", b"0")
        max_bytes = self._parts.settings.max_body_bytes
        if not length.isdigit() or len(length) > 18 or int(length) > max_bytes:
            raise too_large(max_bytes)

    def _knows(self, origin: bytes) -> bool:
        shown = origin.decode("latin-1").lower()
        return shown in self._origins or shown in own_origins(self.hosts)

    def _cors(self, headers: dict[bytes, bytes]) -> tuple[tuple[bytes, bytes], ...]:
        origin = headers.get(b"origin")
        if origin is None or origin.decode("latin-1").lower() not in self._origins:
            return ()
        return ((b"access-control-allow-origin", origin), (b"vary", b"origin"))

    async def _caller(self, scope: HTTPScope, headers: dict[bytes, bytes]) -> Caller | None:
        if is_open(scope["path"]):
            if scope["path"] in OPEN and (wait := self._rates.take(f" {_address(scope)}")):
                raise _too_often(wait)
            return None
        kind, _, bearer = headers.get(b"authorization", b"").partition(b" ")
        shown = bearer.strip().decode("latin-1") if kind.lower() == b"bearer" else ""
        caller = await self._parts.access.caller(shown)
        if caller is None:
            if wait := self._failures.take(_address(scope)):
                raise _too_often(wait)
            raise unknown_caller()
        if wait := self._rates.take(f"{caller.tenant}/{caller.token}"):
            raise _too_often(wait)
        return caller

    def count(self, scope: HTTPScope, status: int, seconds: float) -> None:
        """Record the duration of a response by route pattern: raw paths are unbounded."""
        route = cast("dict[str, str]", scope).get("path_template", "none")
        self._parts.counted(scope["method"], route, status, seconds)

    def note(self, scope: HTTPScope, status: int, why: str = "") -> None:
        """Count a response, and report it to the audit log if its status is audited.

        Reports of unauthenticated requests are rate-limited by address, so that they cannot fill
        the disk.
        """
        self.counts[status] += 1
        caller = cast("Caller | None", scope["auth"])
        if status not in NOTED or (caller is None and self._is_flood(scope, status)):
            return
        principal = None if caller is None else caller.principal
        refusal = Refusal(
            status,
            scope["method"],
            scope["path"][:200],
            _address(scope),
            tenant="" if principal is None else principal.tenant,
            user="" if principal is None else principal.user,
            token="" if caller is None else caller.token,
            why=why,
        )
        LOG.info("request refused: %s", msgspec.json.encode(refusal).decode())
        self._parts.refused(refusal)

    def _is_flood(self, scope: HTTPScope, status: int) -> bool:
        # Requests with an invalid token were counted in `_authenticate`.
        return status != 401 and bool(self._failures.take(_address(scope)))


class _Telling:
    """Adds the shared headers to a response, and records it."""

    def __init__(
        self, door: Door, scope: HTTPScope, send: Send, more: tuple[tuple[bytes, bytes], ...]
    ) -> None:
        self._door, self._scope, self._send, self._more = door, scope, send, more
        self._why, self._began = "", time.monotonic()

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._door.count(self._scope, message["status"], time.monotonic() - self._began)
            self._door.note(self._scope, message["status"], self._why)
            present = {name.lower() for name, _ in message["headers"]}
            added = [pair for pair in ALWAYS if pair[0] not in present]
            message["headers"] = [*message["headers"], *added, *self._more]
        await self._send(message)

    async def preflight(self) -> None:
        """Answer a CORS preflight request."""
        headers = [
            (b"access-control-allow-methods", METHODS),
            (b"access-control-allow-headers", ALLOWED),
            (b"access-control-max-age", b"600"),
            (b"content-length", b"0"),
        ]
        await self({"type": "http.response.start", "status": 204, "headers": headers})
        await self._finish()

    async def refuse(self, refused: Refused, body: BoundedBody, *, has_body: bool) -> None:
        """Send an error response, and drain the request body so that the client reads it."""
        text, self._why = msgspec.json.encode(refused.body), refused.code
        headers = {
            **refused.headers,
            "content-type": "application/json",
            "content-length": str(len(text)),
        }
        if has_body:
            headers["connection"] = "close"
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        await self({"type": "http.response.start", "status": refused.status, "headers": raw})
        content = b"" if self._scope["method"] == "HEAD" else text
        await self({"type": "http.response.body", "body": content, "more_body": True})
        if has_body:
            await body.linger()
        await self._finish()

    async def _finish(self) -> None:
        await self({"type": "http.response.body", "body": b"", "more_body": False})


def _has_body(headers: dict[bytes, bytes]) -> bool:
    return headers.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in headers


def _is_preflight(scope: HTTPScope, headers: dict[bytes, bytes]) -> bool:
    return (
        scope["method"] == "OPTIONS"
        and b"origin" in headers
        and b"access-control-request-method" in headers
    )


def _address(scope: HTTPScope) -> str:
    client = scope["client"]
    return "" if client is None else client[0]


def _too_often(wait: float) -> Refused:
    text = f"Too many requests. Try again in {max(1, round(wait))} s."
    return Refused(429, "too_many_requests", text, retry_after=wait)

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

from evoclaw.api.auth import PUBLIC_PATHS, is_public, loggable_path, unauthorized
from evoclaw.api.dependencies import ApiDependencies
from evoclaw.api.errors import ApiError, to_api_error
from evoclaw.api.limits import BoundedBody, RequestRateLimiter, too_large
from evoclaw.api.server import own_origins
from evoclaw.core.errors import EvoClawError
from evoclaw.core.tracing import read_traceparent, use_trace
from evoclaw.observe.audit.service import RefusedRequest
from evoclaw.orchestrator.people.access import Caller

LOG = logging.getLogger("evoclaw.api")
AUDITED_STATUSES = frozenset({401, 403, 404, 421})
"""Statuses that are written to the audit log, because many of them may be an attack."""
SECURITY_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
)
"""Headers of every response that does not set them itself."""
CORS_METHODS = b"GET, POST, PATCH, DELETE"
CORS_REQUEST_HEADERS = b"authorization, content-type, idempotency-key, last-event-id, traceparent"


class RequestGate:
    """Authenticates requests, applies the limits, and records refused requests."""

    def __init__(self, app: ASGIApp, parts: ApiDependencies, hosts: frozenset[str] | None) -> None:
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
        self._rates = RequestRateLimiter(settings.requests_per_minute, settings.burst)
        self._failures = RequestRateLimiter(
            settings.failures_per_minute, settings.failures_per_minute
        )
        self.responses_by_status: Counter[int] = Counter()
        """The number of responses by status."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request to the application, or refuse it."""
        if scope["type"] != "http":
            return  # WebSockets are not supported
        settings = self._parts.settings
        scope["auth"], headers = None, dict(scope["headers"])
        max_bytes = settings.max_body_bytes_of(scope["path"])
        body = BoundedBody(receive, max_bytes, settings.body_seconds)
        sender = _ResponseSender(self, scope, send, self._cors_headers(headers))
        try:
            self._check(scope, headers)
            if _is_preflight(scope, headers):
                await sender.preflight()
                return
            scope["auth"] = await self._authenticate(scope, headers)
        except EvoClawError as problem:
            await sender.refuse(to_api_error(problem), body, has_body=_has_body(headers))
            return
        parent = headers.get(b"traceparent", b"").decode("latin-1")
        with use_trace(read_traceparent(parent)):
            await self._app(scope, cast("Receive", body), sender)

    def _check(self, scope: HTTPScope, headers: dict[bytes, bytes]) -> None:
        host = headers.get(b"host", b"").decode("latin-1").lower()
        if self.hosts is not None and host not in self.hosts:
            text = f"Unknown host name {host[:80]!r}. Add it to `names` in [server]."
            raise ApiError(421, "unknown_host", text)
        origin = headers.get(b"origin")
        if origin is not None and not self._is_known_origin(origin):
            text = "This web origin is not allowed. Add it to `origins` in [server]."
            raise ApiError(403, "unknown_origin", text)
        length = headers.get(b"content-length", b"0")
        max_bytes = self._parts.settings.max_body_bytes_of(scope["path"])
        if not length.isdigit() or len(length) > 18 or int(length) > max_bytes:
            raise too_large(max_bytes)

    def _is_known_origin(self, origin: bytes) -> bool:
        shown = origin.decode("latin-1").lower()
        own = own_origins(self.hosts) | {self._parts.settings.public_origin}
        return shown in self._origins or shown in own

    def _cors_headers(self, headers: dict[bytes, bytes]) -> tuple[tuple[bytes, bytes], ...]:
        origin = headers.get(b"origin")
        if origin is None or origin.decode("latin-1").lower() not in self._origins:
            return ()
        return ((b"access-control-allow-origin", origin), (b"vary", b"origin"))

    async def _authenticate(self, scope: HTTPScope, headers: dict[bytes, bytes]) -> Caller | None:
        if is_public(scope["path"]):
            if scope["path"] in PUBLIC_PATHS and (wait := self._rates.take(f" {_address(scope)}")):
                raise _too_many_requests(wait)
            return None
        kind, _, bearer = headers.get(b"authorization", b"").partition(b" ")
        shown = bearer.strip().decode("latin-1") if kind.lower() == b"bearer" else ""
        caller = await self._parts.access.authenticate(shown)
        if caller is None:
            if wait := self._failures.take(_address(scope)):
                raise _too_many_requests(wait)
            raise unauthorized()
        if wait := self._rates.take(f"{caller.tenant}/{caller.token}"):
            raise _too_many_requests(wait)
        return caller

    def record_duration(self, scope: HTTPScope, status: int, seconds: float) -> None:
        """Record the duration of a response by route pattern: raw paths are unbounded."""
        route = cast("dict[str, str]", scope).get("path_template", "none")
        self._parts.on_response(scope["method"], route, status, seconds)

    def record_response(self, scope: HTTPScope, status: int, code: str = "") -> None:
        """Count a response, and report it to the audit log if its status is audited.

        Reports of unauthenticated requests are rate-limited by address, so that they cannot fill
        the disk.
        """
        self.responses_by_status[status] += 1
        caller = cast("Caller | None", scope["auth"])
        if status not in AUDITED_STATUSES or (caller is None and self._is_flood(scope, status)):
            return
        principal = None if caller is None else caller.principal
        refusal = RefusedRequest(
            status,
            scope["method"],
            loggable_path(scope["path"]),
            _address(scope),
            tenant="" if principal is None else principal.tenant,
            user="" if principal is None else principal.user,
            token="" if caller is None else caller.token,
            why=code,
        )
        LOG.info("request refused: %s", msgspec.json.encode(refusal).decode())
        self._parts.on_refused(refusal)

    def _is_flood(self, scope: HTTPScope, status: int) -> bool:
        # Requests with an invalid token were counted in `_authenticate`.
        return status != 401 and bool(self._failures.take(_address(scope)))


class _ResponseSender:
    """Adds the shared headers to a response, and records it."""

    def __init__(
        self,
        gate: RequestGate,
        scope: HTTPScope,
        send: Send,
        cors_headers: tuple[tuple[bytes, bytes], ...],
    ) -> None:
        self._gate, self._scope, self._send, self._cors_headers = gate, scope, send, cors_headers
        self._error_code, self._started_at = "", time.monotonic()

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._gate.record_duration(
                self._scope, message["status"], time.monotonic() - self._started_at
            )
            self._gate.record_response(self._scope, message["status"], self._error_code)
            present = {name.lower() for name, _ in message["headers"]}
            added = [pair for pair in SECURITY_HEADERS if pair[0] not in present]
            message["headers"] = [*message["headers"], *added, *self._cors_headers]
        await self._send(message)

    async def preflight(self) -> None:
        """Answer a CORS preflight request."""
        headers = [
            (b"access-control-allow-methods", CORS_METHODS),
            (b"access-control-allow-headers", CORS_REQUEST_HEADERS),
            (b"access-control-max-age", b"600"),
            (b"content-length", b"0"),
        ]
        await self({"type": "http.response.start", "status": 204, "headers": headers})
        await self._finish()

    async def refuse(self, refused: ApiError, body: BoundedBody, *, has_body: bool) -> None:
        """Send an error response, and drain the request body so that the client reads it."""
        text, self._error_code = msgspec.json.encode(refused.body), refused.code
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
            await body.drain()
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


def _too_many_requests(wait: float) -> ApiError:
    text = f"Too many requests. Try again in {max(1, round(wait))} s."
    return ApiError(429, "too_many_requests", text, retry_after=wait)

"""The HTTP server: listening sockets, accepted host names, TLS and shutdown."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import AsyncGenerator, Generator, Iterable
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import uvicorn

from evoclaw.api.settings import ServerSettings
from evoclaw.core.errors import ConfigError
from evoclaw.core.hosts import is_loopback

if TYPE_CHECKING:
    from litestar import Litestar

LOG = logging.getLogger("evoclaw.api")
TCP_USER_TIMEOUT_MS = 30_000
"""After this time the kernel closes a connection whose peer acknowledges nothing."""
SEND_BUFFER_BYTES = 256 << 10
"""The kernel's send buffer of one connection."""
KEEP_ALIVE_TIMEOUT_S = 30
"""How long an idle connection stays open for its next request."""


@asynccontextmanager
async def serving(app: Litestar, settings: ServerSettings) -> AsyncGenerator[str]:
    """Serve the application of `create_app` while the block runs; yields the URL.

    On exit no request is accepted any more, event streams get a `closing` event, and open
    responses may finish within `stop_within_s`.
    """
    listening = listen(settings.host, settings.port)
    port: int = listening.getsockname()[1]
    app.state["request_gate"].hosts = allowed_hosts(
        settings.host, port, settings.names, settings.public_host
    )
    secure = settings.tls_cert is not None
    if not secure and not is_loopback(settings.host):
        LOG.warning(
            "tokens are sent to %s unencrypted: set tls_cert and tls_key in [server]", settings.host
        )
    # The application has nothing to start; Litestar would import a second event loop library.
    async with running_server(app, listening, settings, lifespan="off") as stopping:
        try:
            yield f"{'https' if secure else 'http'}://{url_host(settings.host)}:{port}"
        finally:
            stopping.should_exit = True
            app.state["watchers"].closing.set()
            await app.state["mcp"].close()


@asynccontextmanager
async def running_server(
    app: Any,
    listening: socket.socket,
    settings: ServerSettings,
    *,
    lifespan: Literal["on", "off"] = "on",
) -> AsyncGenerator[uvicorn.Server]:
    """Serve any ASGI application while the block runs."""
    from evoclaw.api.strict_http import StrictProtocol

    if settings.tls_key is not None and settings.tls_cert is None:
        listening.close()
        raise ConfigError("[server] sets tls_key but not tls_cert: set both, or neither")
    config = uvicorn.Config(
        app,
        http=StrictProtocol,
        log_config=None,
        access_log=False,
        lifespan=lifespan,
        ws="none",
        server_header=False,
        proxy_headers=False,
        limit_concurrency=settings.connections + 1,  # uvicorn refuses the one that reaches it
        timeout_keep_alive=KEEP_ALIVE_TIMEOUT_S,
        timeout_graceful_shutdown=max(1, round(settings.stop_within_s)),
        ssl_certfile=_path_text(settings.tls_cert),
        ssl_keyfile=_path_text(settings.tls_key),
    )
    try:
        config.load()
    except OSError as problem:
        listening.close()
        text = f"cannot load the TLS certificate or key of [server]: {problem}"
        raise ConfigError(text) from None
    server = _EmbeddedServer(config)
    task = asyncio.create_task(server.serve([listening]))
    up = asyncio.create_task(server.started_event.wait())
    try:
        await asyncio.wait((task, up), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
            raise ConfigError("the HTTP server could not start; see the log")
        yield server
    finally:
        up.cancel()
        server.should_exit = True
        await asyncio.wait([task], timeout=settings.stop_within_s + 2)
        task.cancel()
        await asyncio.wait([task])
        for connection in list(server.server_state.connections):
            connection.transport.abort()
        listening.close()


class _EmbeddedServer(uvicorn.Server):
    """Installs no signal handlers, and sets an event when it has started."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.started_event = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.started_event.set()


def _path_text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; `ConfigError` if the address cannot be used."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family)
    except OSError as problem:
        why = os.strerror(problem.errno) if problem.errno else problem.strerror
        raise ConfigError(
            f"cannot listen on {host}:{port}: {why}; "
            "stop the other program, or choose another address or port"
        ) from None
    # Inherited by every connection. asyncio sets TCP_NODELAY only on sockets that name their
    # protocol, and these do not: a response in two writes would wait 40 ms for the client's ACK.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # A client that reads nothing holds little memory, and only for a limited time.
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, TCP_USER_TIMEOUT_MS)
    return listening


def url_host(host: str) -> str:
    """A host as written in a URL."""
    return f"[{host}]" if ":" in host else host


def allowed_hosts(
    host: str, port: int, names: Iterable[str], public_host: str = ""
) -> frozenset[str] | None:
    """The accepted `Host` headers; None if they are unknown: then only the token protects."""
    accepted = {name.lower() for name in names}
    if host in ("0.0.0.0", "::", "") and not accepted:
        return None
    if is_loopback(host):
        accepted |= {"127.0.0.1", "localhost", "[::1]"}
    accepted |= {url_host(host).lower(), *([public_host] if public_host else [])}
    return frozenset(accepted | {f"{name}:{port}" for name in accepted})


def own_origins(hosts: frozenset[str] | None) -> frozenset[str]:
    """The web origins of this server itself."""
    return frozenset(f"{scheme}://{host}" for scheme in ("http", "https") for host in hosts or ())

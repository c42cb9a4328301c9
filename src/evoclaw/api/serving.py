"""Serving over real sockets: where to listen, under which names, and how to stop."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncGenerator, Generator, Iterable
from contextlib import asynccontextmanager, contextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvicorn

from evoclaw.api.settings import ServerSettings
from evoclaw.core.errors import ConfigError

if TYPE_CHECKING:
    from litestar import Litestar

LOG = logging.getLogger("evoclaw.api")
UNHEARD = 30_000
"""Milliseconds after which the kernel ends a connection whose other side takes nothing."""
BUFFER = 256 << 10
"""Bytes that the kernel keeps for one connection until they are taken."""
IDLE = 30
"""Seconds that a connection may wait for its next request."""


@asynccontextmanager
async def serving(app: Litestar, settings: ServerSettings) -> AsyncGenerator[str]:
    """Serve what `create_app` made while the block runs; gives the address.

    When the block ends nobody is let in any more, watchers are told, and what is being answered
    may end within the time that the settings allow.
    """
    listening = listen(settings.host, settings.port)
    port: int = listening.getsockname()[1]
    app.state["door"].hosts = hosts_of(settings.host, port, settings.names)
    secure = settings.tls_cert is not None
    if not secure and not is_loopback(settings.host):
        LOG.warning("tokens go to %s in the clear: set tls_cert and tls_key", settings.host)
    async with running(app, listening, settings) as stopping:
        try:
            yield f"{'https' if secure else 'http'}://{shown(settings.host)}:{port}"
        finally:
            stopping.should_exit = True
            app.state["watchers"].closing.set()


@asynccontextmanager
async def running(
    app: Any, listening: socket.socket, settings: ServerSettings
) -> AsyncGenerator[uvicorn.Server]:
    """Run any ASGI application while the block runs."""
    from evoclaw.api.strict import MOST_BYTES, StrictProtocol

    if settings.tls_key is not None and settings.tls_cert is None:
        listening.close()
        raise ConfigError("[server] has a tls_key, but no tls_cert: say both, or neither")
    config = uvicorn.Config(
        app,
        http=StrictProtocol,
        h11_max_incomplete_event_size=MOST_BYTES,
        log_config=None,
        access_log=False,
        lifespan="on",
        ws="none",
        server_header=False,
        proxy_headers=False,
        limit_concurrency=settings.connections,
        timeout_keep_alive=IDLE,
        timeout_graceful_shutdown=max(1, round(settings.stop_within_s)),
        ssl_certfile=_file(settings.tls_cert),
        ssl_keyfile=_file(settings.tls_key),
    )
    try:
        config.load()
    except OSError as problem:
        listening.close()
        raise ConfigError(f"the certificate or its key cannot be used: {problem}") from None
    server = _Quiet(config)
    task = asyncio.create_task(server.serve([listening]))
    up = asyncio.create_task(server.up.wait())
    try:
        await asyncio.wait((task, up), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
            raise ConfigError("the HTTP side could not start; the log says why")
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


class _Quiet(uvicorn.Server):
    """Leaves signals to whoever runs us, and says when it is up."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()


def _file(path: Path | None) -> str | None:
    return None if path is None else str(path)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; `ConfigError` if it cannot."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family)
    except OSError as problem:
        raise ConfigError(f"cannot listen on {host}:{port}: {problem.strerror}") from None
    # Inherited by every connection. asyncio sees to this one only for sockets that name their
    # protocol, and these do not: an answer of two pieces would wait 40 ms for the client's word.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # One that takes nothing keeps little, and not for ever.
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNHEARD)
    return listening


def shown(host: str) -> str:
    """A host as it stands in an address."""
    return f"[{host}]" if ":" in host else host


def hosts_of(host: str, port: int, names: Iterable[str]) -> frozenset[str] | None:
    """The `Host` headers that mean us; None if we cannot know: then the token must do."""
    named = {name.lower() for name in names}
    if host in ("0.0.0.0", "::", "") and not named:
        return None
    if is_loopback(host):
        named |= {"127.0.0.1", "localhost", "[::1]"}
    named.add(shown(host).lower())
    return frozenset(named | {f"{name}:{port}" for name in named})


def own_origins(hosts: frozenset[str] | None) -> frozenset[str]:
    """The web pages that are our own."""
    return frozenset(f"{scheme}://{host}" for scheme in ("http", "https") for host in hosts or ())

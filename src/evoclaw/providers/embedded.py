"""The models on this machine as providers: each is served by llama.cpp in a child process.

The server starts with the first request and stops when it was idle for a while. Runs share it; each
request gets a slot with a context of its own, and a conversation that continues finds its prompt in
the slot's cache.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING

from evoclaw.core.errors import ProviderError, ProviderErrorKind
from evoclaw.core.events import ReplyEvent, ReplyRetried
from evoclaw.core.ports import Provider, Request
from evoclaw.core.profile import Profile
from evoclaw.providers.embedded_server import EmbeddedServer, slot_context
from evoclaw.providers.embedded_settings import DEFAULT_EMBEDDED_SETTINGS, EmbeddedSettings
from evoclaw.providers.local_model import LocalModel
from evoclaw.providers.models.local import require_server

if TYPE_CHECKING:
    from evoclaw.providers.http import Http

_MAX_ATTEMPTS = 2


class EmbeddedProvider:
    """A model on this machine as a provider; its server starts with the first request."""

    def __init__(
        self,
        *,
        model: LocalModel,
        http: Http,
        settings: EmbeddedSettings = DEFAULT_EMBEDDED_SETTINGS,
    ) -> None:
        require_server()
        self._local, self._http, self._settings = model, http, settings
        self._profile = Profile(
            context_tokens=slot_context(model, settings),
            max_output_tokens=min(model.max_output_tokens, slot_context(model, settings) // 2),
        )
        self._server: EmbeddedServer | None = None
        self._client: Provider | None = None
        self._lock = asyncio.Lock()
        self._active = 0
        self._idle_timer: asyncio.TimerHandle | None = None
        self._idle_stop: asyncio.Task[None] | None = None

    @property
    def model(self) -> str:
        """The model's name, with its prefix."""
        return f"embedded/{self._local.name}"

    @property
    def profile(self) -> Profile:
        """The context of one slot; no images."""
        return self._profile

    @property
    def server(self) -> EmbeddedServer | None:
        """The server, while it runs."""
        return self._server if self._server is not None and self._server.running else None

    async def aclose(self) -> None:
        """Stop the server, if it was started."""
        self._cancel_idle_timer()
        if self._idle_stop is not None:
            await self._idle_stop
        async with self._lock:
            await self._close_server()

    async def stream(self, request: Request) -> AsyncGenerator[ReplyEvent, None]:
        """Request a reply; start the server if it is not running, and again if it crashes."""
        with self._in_use():
            for attempt in range(1, _MAX_ATTEMPTS + 1):
                server, client = await self._started()
                try:
                    async with aclosing(client.stream(request)) as pieces:
                        async for piece in pieces:
                            yield piece
                    return
                except ProviderError as error:
                    if error.kind is not ProviderErrorKind.SERVER_ERROR:
                        raise
                    if not (reason := await server.exit_reason()):
                        raise
                    message = f"{self.model}: its server stopped in the middle of a reply: {reason}"
                    if attempt == _MAX_ATTEMPTS:
                        raise ProviderError(
                            ProviderErrorKind.SERVER_ERROR,
                            f"{message}. Try again, or choose a smaller model",
                            usage=error.usage,
                        ) from None
                yield ReplyRetried(str(ProviderErrorKind.SERVER_ERROR), message, attempt, 0.0)

    async def _started(self) -> tuple[EmbeddedServer, Provider]:
        """The running server and its client."""
        from evoclaw.providers.http import RetryPolicy
        from evoclaw.providers.openai import OpenAIProvider

        async with self._lock:
            if self._server is not None and self._client is not None and self._server.running:
                return self._server, self._client
            await self._close_server()
            self._server = EmbeddedServer(self._local, self._settings)
            address = await self._server.start()
            self._client = OpenAIProvider(
                self._local.name,
                http=self._http,
                base_url=f"{address}/v1",
                api_key=self._server.key,
                # It closes the connection after a stream, despite its keep-alive header.
                headers={"Connection": "close"},
                name="embedded",
                profile=self._profile,
                price=_zero_price,
                # What fails here fails again, except for a crash, which `stream` sees to.
                retry=RetryPolicy(attempts=1),
            )
            return self._server, self._client

    async def _close_server(self) -> None:
        server, self._server, self._client = self._server, None, None
        if server is not None:
            await server.aclose()

    @contextmanager
    def _in_use(self) -> Generator[None]:
        """Keep the server running; afterwards it may become idle."""
        self._cancel_idle_timer()
        self._active += 1
        try:
            yield
        finally:
            self._active -= 1
            if not self._active and self._settings.idle_s:
                loop = asyncio.get_running_loop()
                self._idle_timer = loop.call_later(self._settings.idle_s, self._start_idle_stop)

    def _cancel_idle_timer(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None

    def _start_idle_stop(self) -> None:
        self._idle_timer = None
        self._idle_stop = asyncio.create_task(self._stop_if_idle())

    async def _stop_if_idle(self) -> None:
        async with self._lock:
            if not self._active:
                await self._close_server()


def _zero_price(model: str, usage: object) -> float:
    return 0.0

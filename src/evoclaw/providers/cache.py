"""The providers of a service: each one created once, when its model is first used."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from evoclaw.core.errors import ConfigError, ProviderError, ProviderErrorKind
from evoclaw.core.events import ReplyEvent
from evoclaw.core.ports import Provider, Request
from evoclaw.core.profile import Profile
from evoclaw.providers.fallback import Fallback
from evoclaw.providers.models.local import is_local_name, local_model_path
from evoclaw.providers.registry import (
    DEFAULT_OPTIONS,
    ProviderOptions,
    configured_provider,
    model_setup_help,
)
from evoclaw.providers.scripted import DIRECT_MODEL, DirectProvider
from evoclaw.providers.wrappers import Flush, WriteBarrierProvider, close

if TYPE_CHECKING:
    from evoclaw.providers.embeddings import EmbeddingServer
    from evoclaw.providers.http import Http

MAX_CACHED_MODELS = 256
"""Models whose provider is cached; callers may name any model."""


class ProviderCache:
    """The provider of each model; an unavailable model fails with the reason when it is used."""

    def __init__(
        self,
        http: Http,
        env: Mapping[str, str],
        default: str,
        stack: AsyncExitStack,
        flush: Flush,
        *,
        no_model: str = "",
        options: ProviderOptions = DEFAULT_OPTIONS,
    ) -> None:
        """Create an empty cache.

        Args:
            http: The HTTP client that the providers share.
            env: Where keys and addresses are.
            default: The model of requests that name none; empty if no model was found.
            stack: Closes the providers.
            flush: Waits until the store is on disk; awaited before every request.
            no_model: Why no model was found, and what to do.
            options: What the settings say about all providers.
        """
        self._http, self._env, self.default = http, env, default
        self._stack, self._flush, self._options = stack, flush, options
        self._no_model = no_model or model_setup_help()
        self._cached: dict[str, Provider] = {}
        self._local: dict[Path, Provider] = {}

    @property
    def max_retries(self) -> int | None:
        """How often a failed request is repeated; None: as often as `RetryPolicy` says."""
        return self._options.max_retries

    def get(self, name: str) -> Provider:
        """The provider of a model; `A,B` falls back to B."""
        name = name or self.default
        if (cached := self._cached.get(name)) is not None:
            return cached
        try:
            provider = self._make(name)
        except ConfigError as problem:
            # Not cached: the key may be set the next time.
            return UnavailableModel(name, str(problem))
        if len(self._cached) < MAX_CACHED_MODELS:
            self._cached[name] = provider
        return provider

    def problem(self, name: str = "") -> str:
        """Why a model is unavailable; empty if no problem is known."""
        provider = self.get(name)
        return provider.reason if isinstance(provider, UnavailableModel) else ""

    def embeddings(self, name: str) -> EmbeddingServer:
        """What makes embeddings with a model; raises `ConfigError`."""
        from evoclaw.providers.embeddings import EmbeddingServer

        return EmbeddingServer(name, self._http, self._env)

    def _make(self, name: str) -> Provider:
        if not name:
            raise ConfigError(self._no_model)
        if name == DIRECT_MODEL:
            return DirectProvider()
        providers = [self._provider_of(part.strip()) for part in name.split(",")]
        provider = providers[0] if len(providers) == 1 else Fallback(providers)
        return WriteBarrierProvider(provider, self._flush)

    def _provider_of(self, name: str) -> Provider:
        """The provider of one model. All names of a model file share one: it is a process."""
        if not is_local_name(name):
            return configured_provider(name, self._http, self._env, self._options)
        path = local_model_path(name, self._env)
        if path not in self._local:
            provider = configured_provider(name, self._http, self._env, self._options)
            self._stack.push_async_callback(close, provider)
            self._local[path] = provider
        return self._local[path]


class UnavailableModel:
    """The provider of a model that is unavailable: every request fails with the reason."""

    def __init__(self, name: str, reason: str) -> None:
        self._name, self.reason = name, reason

    @property
    def model(self) -> str:
        """The name of the model."""
        return self._name or "none"

    @property
    def profile(self) -> Profile:
        """The default profile."""
        return Profile()

    async def stream(self, request: Request) -> AsyncGenerator[ReplyEvent, None]:
        """Raise the reason."""
        raise ProviderError(ProviderErrorKind.MODEL_NOT_FOUND, self.reason)
        yield

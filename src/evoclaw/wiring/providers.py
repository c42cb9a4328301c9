"""Builds the providers of a service: each one once, when its model is first used."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, TypeAlias

from evoclaw.core.errors import ConfigError, ProviderError, ProviderErrorKind
from evoclaw.core.events import ReplyEvent
from evoclaw.core.ports import Provider, Request
from evoclaw.core.profile import Profile

Flush: TypeAlias = Callable[[], Awaitable[None]]
"""Returns when every earlier write of the store is on disk."""

MAX_CACHED_MODELS = 256
"""Models whose provider and price are cached; callers may name any model."""

if TYPE_CHECKING:
    from evoclaw.core.messages import Usage
    from evoclaw.governance.budget.cost_estimator import Price
    from evoclaw.providers.http import Http


class ProviderCache:
    """The provider of each model; an unavailable model fails with the reason when it is used."""

    def __init__(
        self,
        http: Http,
        env: Mapping[str, str],
        default: str,
        stack: AsyncExitStack,
        flush: Flush,
    ) -> None:
        """Create an empty cache.

        Args:
            http: The HTTP client that the providers share.
            env: Where keys and addresses are.
            default: The model of requests that name none; empty if no model was found.
            stack: Closes the providers.
            flush: Waits until the store is on disk; awaited before every request.
        """
        self._http, self._env, self.default = http, env, default
        self._stack, self._flush = stack, flush
        self._cached: dict[str, Provider] = {}
        self._embedded: Provider | None = None

    def get(self, name: str) -> Provider:
        """The provider of a model; `A,B` falls back to B."""
        name = name or self.default
        if (cached := self._cached.get(name)) is not None:
            return cached
        try:
            provider = self._make(name)
        except ConfigError as problem:
            return UnavailableModel(
                name, str(problem)
            )  # not cached: the key may be set the next time
        if len(self._cached) < MAX_CACHED_MODELS:
            self._cached[name] = provider
        return provider

    def problem(self, name: str = "") -> str:
        """Why a model is unavailable; empty if no problem is known."""
        provider = self.get(name)
        return provider.reason if isinstance(provider, UnavailableModel) else ""

    def _make(self, name: str) -> Provider:
        from evoclaw.providers import model_setup_help
        from evoclaw.providers.direct import DIRECT_MODEL, DirectProvider
        from evoclaw.providers.fallback import Fallback
        from evoclaw.providers.write_barrier import WriteBarrierProvider

        if not name:
            raise ConfigError(model_setup_help())
        if name == DIRECT_MODEL:
            return DirectProvider()
        providers = [self._provider_of(part.strip()) for part in name.split(",")]
        provider = providers[0] if len(providers) == 1 else Fallback(providers)
        return WriteBarrierProvider(provider, self._flush)

    def _provider_of(self, name: str) -> Provider:
        """The provider of one model. All embedded models share one provider: it is a process."""
        from evoclaw.providers import provider_for
        from evoclaw.providers.closable import close
        from evoclaw.providers.registry import LOCAL_MODEL

        if name.partition("/")[0] != LOCAL_MODEL:
            return provider_for(name, http=self._http, env=self._env)
        if self._embedded is None:
            self._embedded = provider_for(LOCAL_MODEL, http=self._http, env=self._env)
            self._stack.push_async_callback(close, self._embedded)
        return self._embedded


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


def price_of_any_model() -> Price:
    """The maximum price of a reply, for any model."""
    from evoclaw.wiring.budget import price_for

    known: dict[str, Price] = {}

    def price(model: str, usage: Usage) -> float | None:
        price_of_model = known.get(model) or price_for(model)
        if len(known) < MAX_CACHED_MODELS:
            known[model] = price_of_model
        return price_of_model(model, usage)

    return price

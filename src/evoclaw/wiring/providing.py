"""Builds the providers of a service: each one once, when its model is first used."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, TypeAlias

from evoclaw.core.errors import ConfigError, ProviderError, ProviderErrorKind
from evoclaw.core.events import ReplyEvent
from evoclaw.core.ports import Provider, Request
from evoclaw.core.profile import Profile

Settle: TypeAlias = Callable[[], Awaitable[None]]
"""Returns when every earlier write of the store is on disk."""

MOST_KEPT = 256
"""Models whose provider and price are cached; callers may name any model."""

if TYPE_CHECKING:
    from evoclaw.core.messages import Usage
    from evoclaw.governance.budget.foresight import Price
    from evoclaw.providers.http import Http


class Providers:
    """The provider of each model; an unavailable model fails with the reason when it is used."""

    def __init__(
        self,
        http: Http,
        env: Mapping[str, str],
        default: str,
        stack: AsyncExitStack,
        settle: Settle,
    ) -> None:
        """Create an empty cache.

        Args:
            http: The HTTP client that the providers share.
            env: Where keys and addresses are.
            default: The model of requests that name none; empty if no model was found.
            stack: Closes the providers.
            settle: Waits until the store is on disk; awaited before every request.
        """
        self._http, self._env, self.default = http, env, default
        self._stack, self._settle = stack, settle
        self._made: dict[str, Provider] = {}
        self._embedded: Provider | None = None

    def of(self, name: str) -> Provider:
        """The provider of a model; `A,B` falls back to B."""
        name = name or self.default
        if (cached := self._made.get(name)) is not None:
            return cached
        try:
            provider = self._make(name)
        except ConfigError as problem:
            return NoModel(name, str(problem))  # not cached: the key may be set the next time
        if len(self._made) < MOST_KEPT:
            self._made[name] = provider
        return provider

    def problem(self, name: str = "") -> str:
        """Why a model is unavailable; empty if no problem is known."""
        provider = self.of(name)
        return provider.why if isinstance(provider, NoModel) else ""

    def _make(self, name: str) -> Provider:
        from evoclaw.providers import how_to_get_a_model
        from evoclaw.providers.direct import NAME, Direct
        from evoclaw.providers.fallback import Fallback
        from evoclaw.providers.settled import Settled

        if not name:
            raise ConfigError(how_to_get_a_model())
        if name == NAME:
            return Direct()
        providers = [self._served(part.strip()) for part in name.split(",")]
        provider = providers[0] if len(providers) == 1 else Fallback(providers)
        return Settled(provider, self._settle)

    def _served(self, name: str) -> Provider:
        """The provider of one model. All embedded models share one provider: it is a process."""
        from evoclaw.providers import provider_for
        from evoclaw.providers.closing import close
        from evoclaw.providers.names import LOCAL

        if name.partition("/")[0] != LOCAL:
            return provider_for(name, http=self._http, env=self._env)
        if self._embedded is None:
            self._embedded = provider_for(LOCAL, http=self._http, env=self._env)
            self._stack.push_async_callback(close, self._embedded)
        return self._embedded


class NoModel:
    """The provider of a model that is unavailable: every request fails with the reason."""

    def __init__(self, name: str, why: str) -> None:
        self._name, self.why = name, why

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
        raise ProviderError(ProviderErrorKind.MODEL_NOT_FOUND, self.why)
        yield


def price_of_any() -> Price:
    """The maximum price of a reply, for any model."""
    from evoclaw.wiring.budget import price_for

    known: dict[str, Price] = {}

    def price(model: str, usage: Usage) -> float | None:
        price_of_model = known.get(model) or price_for(model)
        if len(known) < MOST_KEPT:
            known[model] = price_of_model
        return price_of_model(model, usage)

    return price

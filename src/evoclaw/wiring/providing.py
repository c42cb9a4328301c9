"""The models of a process that stays: each provider made once, the first time it is asked for."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, TypeAlias

from evoclaw.core.errors import ConfigError, ProviderError, ProviderErrorKind
from evoclaw.core.events import ReplyEvent
from evoclaw.core.ports import Provider, Request
from evoclaw.core.profile import Profile

Settle: TypeAlias = Callable[[], Awaitable[None]]
"""Returns when everything that was written before is on the disk."""

MOST_KEPT = 256
"""Models that are remembered; callers may name any, and one more is made anew each time."""

if TYPE_CHECKING:
    from evoclaw.core.messages import Usage
    from evoclaw.governance.budget.foresight import Price
    from evoclaw.providers.http import Http


class Providers:
    """Who serves each model; one that cannot be had fails when it is asked, and says why."""

    def __init__(
        self,
        http: Http,
        env: Mapping[str, str],
        default: str,
        stack: AsyncExitStack,
        settle: Settle,
    ) -> None:
        """Share a client.

        Args:
            http: The client.
            env: Where keys and addresses are.
            default: The model of whoever names none; empty if there is none at hand.
            stack: Closes them.
            settle: Waits for the disk; nothing is asked before.
        """
        self._http, self._env, self.default = http, env, default
        self._stack, self._settle = stack, settle
        self._made: dict[str, Provider] = {}
        self._embedded: Provider | None = None

    def of(self, name: str) -> Provider:
        """The provider of a model; `A,B` falls back on B."""
        name = name or self.default
        if (made := self._made.get(name)) is not None:
            return made
        try:
            provider = self._make(name)
        except ConfigError as problem:
            return NoModel(name, str(problem))  # not kept: a key may be there the next time
        if len(self._made) < MOST_KEPT:
            self._made[name] = provider
        return provider

    def problem(self, name: str = "") -> str:
        """Why a model cannot be asked; empty if nothing is known against it."""
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
        names = [one.strip() for one in name.split(",")]
        each = [self._served(one) for one in names]
        provider = each[0] if len(each) == 1 else Fallback(each)
        return Settled(provider, self._settle)

    def _served(self, name: str) -> Provider:
        """Who serves one model. The embedded one is the same by every name: it is a process."""
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
    """The provider of a model that cannot be had."""

    def __init__(self, name: str, why: str) -> None:
        self._name, self.why = name, why

    @property
    def model(self) -> str:
        """Its name."""
        return self._name or "none"

    @property
    def profile(self) -> Profile:
        """Of a model that nobody knows."""
        return Profile()

    async def stream(self, request: Request) -> AsyncGenerator[ReplyEvent, None]:
        """Say why."""
        raise ProviderError(ProviderErrorKind.MODEL_NOT_FOUND, self.why)
        yield


def price_of_any() -> Price:
    """What a reply costs at most, whichever model gives it."""
    from evoclaw.wiring.budget import price_for

    known: dict[str, Price] = {}

    def price(model: str, usage: Usage) -> float | None:
        found = known.get(model) or price_for(model)
        if len(known) < MOST_KEPT:
            known[model] = found
        return found(model, usage)

    return price

"""Fall back to other models: if one fails, the next answers; one that keeps failing is skipped."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from evoclaw.core.errors import ConfigError, ProviderError, ProviderErrorKind
from evoclaw.core.events import Replied, ReplyEvent, ReplyRetried
from evoclaw.core.messages import Usage
from evoclaw.core.ports import Provider, Request
from evoclaw.core.profile import CallStyle, Profile
from evoclaw.providers.wrappers import close

MAX_CONSECUTIVE_FAILURES = 3
"""Failures in a row after which a provider is degraded."""
COOLDOWN_S = 300.0
"""Seconds for which a degraded provider is skipped."""

_COUNTED_ERRORS = frozenset(
    {
        ProviderErrorKind.RATE_LIMITED,
        ProviderErrorKind.QUOTA_EXHAUSTED,
        ProviderErrorKind.TIMEOUT,
        ProviderErrorKind.SERVER_ERROR,
        ProviderErrorKind.MODEL_NOT_FOUND,
        ProviderErrorKind.AUTH_ERROR,
        ProviderErrorKind.TOOLS_UNSUPPORTED,
    }
)


@dataclass(slots=True)
class ProviderHealth:
    """The health of one provider."""

    model: str
    failures: int = 0
    """In a row."""
    skipped_until: float = 0.0
    """The provider is skipped before this time, on the clock of the `Fallback`."""


@dataclass(frozen=True, slots=True)
class _Failure:
    provider: Provider
    error: ProviderError


class Fallback:
    """Try providers in order.

    Only errors of the model or its server count and lead to the next provider: an invalid request
    is invalid everywhere. A prompt that is too long goes only to a model with a larger context.
    After its cooldown a provider gets one attempt: a failure starts the cooldown again, a success
    resets its count.

    The profile has the smallest limits of all: what fits them fits every provider.
    """

    def __init__(
        self,
        providers: Sequence[Provider],
        *,
        clock: Callable[[], float] = time.monotonic,
        failures: int = MAX_CONSECUTIVE_FAILURES,
        cool_down: float = COOLDOWN_S,
        health: Sequence[ProviderHealth] | None = None,
    ) -> None:
        """Try providers in this order.

        Args:
            providers: At least one.
            clock: The monotonic time in seconds.
            failures: Failures in a row after which a provider is skipped.
            cool_down: Seconds for which it is skipped.
            health: The health of each provider, shared with another fallback.
        """
        if not providers:
            raise ConfigError("a fallback needs at least one model; give one")
        self._providers = tuple(providers)
        found = health or [ProviderHealth(provider.model) for provider in providers]
        self._health = tuple(found)
        self._clock, self._failures, self._cool_down = clock, failures, cool_down
        self._profile = _shared_profile([provider.profile for provider in providers])

    @property
    def model(self) -> str:
        """The name of the first provider's model; a reply names the model that gave it."""
        return self._providers[0].model

    @property
    def profile(self) -> Profile:
        """What all of the providers can do."""
        return self._profile

    @property
    def health(self) -> tuple[ProviderHealth, ...]:
        """The health of each provider, in order."""
        return self._health

    def reordered(self, places: Sequence[int]) -> Fallback:
        """The providers at these places in this order; they keep their health."""
        return Fallback(
            [self._providers[place] for place in places],
            clock=self._clock,
            failures=self._failures,
            cool_down=self._cool_down,
            health=[self._health[place] for place in places],
        )

    async def aclose(self) -> None:
        """Close all providers."""
        for provider in self._providers:
            await close(provider)

    async def stream(self, request: Request) -> AsyncGenerator[ReplyEvent, None]:
        """Yield the first reply that succeeds, with `ReplyRetried` before each further attempt."""
        failed: list[_Failure] = []
        for index in self._order():
            provider = self._providers[index]
            if not _may_fit(provider, failed):
                continue
            if failed:
                last = failed[-1].error
                yield ReplyRetried(str(last.kind), str(last), len(failed), 0.0)
            try:
                async with aclosing(_pieces(provider, request)) as pieces:
                    async for piece in pieces:
                        if isinstance(piece, Replied):
                            self._succeeded(index)
                        yield piece
            except ProviderError as error:
                failed.append(_Failure(provider, error))
                if error.kind in _COUNTED_ERRORS:
                    self._count(index)
                elif error.kind is not ProviderErrorKind.CONTEXT_TOO_LONG:
                    break
            else:
                return
        raise _summary(failed)

    def _order(self) -> list[int]:
        now = self._clock()
        healthy = [i for i, health in enumerate(self._health) if health.skipped_until <= now]
        if healthy:
            return healthy
        return [min(range(len(self._health)), key=lambda i: self._health[i].skipped_until)]

    def _count(self, index: int) -> None:
        health = self._health[index]
        health.failures += 1
        if health.failures >= self._failures:
            health.skipped_until = self._clock() + self._cool_down

    def _succeeded(self, index: int) -> None:
        self._health[index].failures, self._health[index].skipped_until = 0, 0.0


async def _pieces(provider: Provider, request: Request) -> AsyncGenerator[ReplyEvent, None]:
    async with aclosing(provider.stream(request)) as pieces:
        async for piece in pieces:
            yield piece
            if isinstance(piece, Replied):
                return
    raise ProviderError(
        ProviderErrorKind.SERVER_ERROR,
        f"{provider.model} ended its stream before the reply was complete",
    )


def _may_fit(provider: Provider, failed: Sequence[_Failure]) -> bool:
    too_small = [
        failure.provider.profile.context_tokens
        for failure in failed
        if failure.error.kind is ProviderErrorKind.CONTEXT_TOO_LONG
    ]
    return provider.profile.context_tokens > max(too_small, default=0)


def _summary(failed: Sequence[_Failure]) -> ProviderError:
    last = failed[-1].error
    if len(failed) == 1:
        return last
    details = "; ".join(f"{failure.provider.model}: {failure.error}" for failure in failed)
    waits = [f.error.retry_after for f in failed if f.error.retry_after is not None]
    usage = sum((failure.error.usage for failure in failed), Usage())
    summary = ProviderError(
        last.kind,
        f"no model answered: {details}",
        retry_after=min(waits, default=None),
        usage=usage,
    )
    summary.__cause__ = last
    return summary


def _shared_profile(profiles: Sequence[Profile]) -> Profile:
    styles = [profile.calls for profile in profiles]
    weakest = next(
        (s for s in (CallStyle.NONE, CallStyle.TEXT, CallStyle.JSON) if s in styles),
        CallStyle.NATIVE,
    )
    return Profile(
        min(profile.context_tokens for profile in profiles),
        min(profile.max_output_tokens for profile in profiles),
        weakest,
        all(profile.images for profile in profiles),
    )

"""Several models in order: the next answers when one cannot; one that keeps failing is rested."""

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
from evoclaw.providers.closing import close

FAILURES = 3
"""This many in a row and a provider is degraded."""
COOL_DOWN = 300.0
"""Seconds a degraded provider is skipped."""

_COUNTED = frozenset(
    {
        ProviderErrorKind.RATE_LIMITED,
        ProviderErrorKind.QUOTA_EXHAUSTED,
        ProviderErrorKind.TIMEOUT,
        ProviderErrorKind.SERVER_ERROR,
        ProviderErrorKind.MODEL_NOT_FOUND,
        ProviderErrorKind.AUTH_ERROR,
    }
)


@dataclass(slots=True)
class Health:
    """How one of the providers is doing."""

    model: str
    failures: int = 0
    """In a row."""
    rested_until: float = 0.0
    """On the fallback's clock; it is skipped before then."""


@dataclass(frozen=True, slots=True)
class _Failure:
    provider: Provider
    error: ProviderError


class Fallback:
    """Try providers in order.

    Only errors that are the model's fault count and move on: a request that is wrong is wrong
    everywhere. A prompt that is too long moves on only to a model with a larger window. After its
    rest a provider gets one try; a failure rests it again, a success forgets the past.

    Its profile is the least of all: what fits there fits whichever of them answers.
    """

    def __init__(
        self,
        providers: Sequence[Provider],
        *,
        clock: Callable[[], float] = time.monotonic,
        failures: int = FAILURES,
        cool_down: float = COOL_DOWN,
    ) -> None:
        if not providers:
            raise ConfigError("a fallback needs at least one model; name one")
        self._providers = tuple(providers)
        self._health = tuple(Health(provider.model) for provider in providers)
        self._clock, self._failures, self._cool_down = clock, failures, cool_down
        self._profile = _least([provider.profile for provider in providers])

    @property
    def model(self) -> str:
        """The name of the first choice; a reply says which model gave it."""
        return self._providers[0].model

    @property
    def profile(self) -> Profile:
        """What every one of them can do."""
        return self._profile

    @property
    def health(self) -> tuple[Health, ...]:
        """How each is doing, in order."""
        return self._health

    async def aclose(self) -> None:
        """Close every provider that holds something."""
        for provider in self._providers:
            await close(provider)

    async def stream(self, request: Request) -> AsyncGenerator[ReplyEvent, None]:
        """Yield one provider's reply; `ReplyRetried` marks each move to the next."""
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
                if error.kind in _COUNTED:
                    self._count(index)
                elif error.kind is not ProviderErrorKind.CONTEXT_TOO_LONG:
                    break
            else:
                return
        raise _summary(failed)

    def _order(self) -> list[int]:
        now = self._clock()
        healthy = [i for i, health in enumerate(self._health) if health.rested_until <= now]
        if healthy:
            return healthy
        return [min(range(len(self._health)), key=lambda i: self._health[i].rested_until)]

    def _count(self, index: int) -> None:
        health = self._health[index]
        health.failures += 1
        if health.failures >= self._failures:
            health.rested_until = self._clock() + self._cool_down

    def _succeeded(self, index: int) -> None:
        self._health[index].failures, self._health[index].rested_until = 0, 0.0


async def _pieces(provider: Provider, request: Request) -> AsyncGenerator[ReplyEvent, None]:
    async with aclosing(provider.stream(request)) as pieces:
        async for piece in pieces:
            yield piece
            if isinstance(piece, Replied):
                return
    raise ProviderError(
        ProviderErrorKind.SERVER_ERROR, f"{provider.model} ended its reply without finishing it"
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
    told = "; ".join(f"{failure.provider.model}: {failure.error}" for failure in failed)
    waits = [f.error.retry_after for f in failed if f.error.retry_after is not None]
    usage = sum((failure.error.usage for failure in failed), Usage())
    summary = ProviderError(
        last.kind, f"no model answered: {told}", retry_after=min(waits, default=None), usage=usage
    )
    summary.__cause__ = last
    return summary


def _least(profiles: Sequence[Profile]) -> Profile:
    styles = [profile.calls for profile in profiles]
    weakest = next((s for s in (CallStyle.NONE, CallStyle.TEXT) if s in styles), CallStyle.NATIVE)
    return Profile(
        min(profile.context_tokens for profile in profiles),
        min(profile.max_output_tokens for profile in profiles),
        weakest,
        all(profile.images for profile in profiles),
    )

"""A provider that spends less when little is left: a shorter context first, then cheaper models."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence

from evoclaw.core.errors import ConfigError, ProviderError, ProviderErrorKind
from evoclaw.core.events import ReplyEvent
from evoclaw.core.ports import Provider, Request
from evoclaw.core.profile import CallStyle, Profile
from evoclaw.providers.closing import close

SHORTER = 0.3
"""Below this share of what there was, less of the conversation is sent …"""
CHEAPER = 0.15
"""… and below this one, a cheaper model answers."""
STEP = 0.1
"""The conversation is made shorter again each time that so much more is gone."""
WORTH = 8_000
"""Characters below which a conversation is not worth making shorter."""


class Thrifty:
    """The rungs before the end of a budget; the last one, asking a person, is the policy's.

    A shorter context is had by saying once that it is too long: the loop then trims what it shows,
    and its records say so. That way a recording of the run plays again without this provider.
    """

    def __init__(
        self,
        provider: Provider,
        left: Callable[[], float],
        cheaper: Sequence[Provider] = (),
        *,
        shorter_below: float = SHORTER,
        cheaper_below: float = CHEAPER,
    ) -> None:
        """Choose who answers.

        Args:
            provider: The first choice.
            left: The share of the budget that is left, from 1 to 0.
            cheaper: Other models, each cheaper than the one before.
            shorter_below: Where to begin to send less.
            cheaper_below: Where to begin to use the other models.
        """
        if any(one.profile.calls is CallStyle.NONE for one in cheaper):
            raise ConfigError(
                "a cheaper model that cannot call tools is no replacement; take one that can"
            )
        self._provider, self._left, self._cheaper = provider, left, tuple(cheaper)
        self._profile = _least(provider.profile, [one.profile for one in cheaper])
        self._shorter_below, self._cheaper_below = shorter_below, cheaper_below
        self._shortened_at = shorter_below + STEP

    @property
    def model(self) -> str:
        """The name of the first choice; a reply says which model gave it."""
        return self._provider.model

    @property
    def profile(self) -> Profile:
        """What every one of them can do."""
        return self._profile

    @property
    def answering(self) -> str:
        """The name of the model that would answer now: whose price counts."""
        return self._chosen(self._left()).model

    async def aclose(self) -> None:
        """Close every provider that holds something."""
        for provider in (self._provider, *self._cheaper):
            await close(provider)

    def stream(self, request: Request) -> AsyncGenerator[ReplyEvent, None]:
        """The reply of whoever should answer now."""
        left = self._left()
        if self._too_long(left, request):
            self._shortened_at = left
            return _too_long(left)
        return self._chosen(left).stream(request)

    def _too_long(self, left: float, request: Request) -> bool:
        due = left < self._shorter_below and left <= self._shortened_at - STEP
        # What is asked for without tools in sight, as a summary, is short as it is.
        return due and bool(request.tools) and request.history.size >= WORTH

    def _chosen(self, left: float) -> Provider:
        if left >= self._cheaper_below or not self._cheaper:
            return self._provider
        gone = 1 - max(0.0, left) / self._cheaper_below
        return self._cheaper[min(len(self._cheaper) - 1, int(gone * len(self._cheaper)))]


async def _too_long(left: float) -> AsyncGenerator[ReplyEvent, None]:
    text = f"{left:.0%} of the budget is left: less of the conversation is sent from here on"
    for piece in ():
        yield piece
    raise ProviderError(ProviderErrorKind.CONTEXT_TOO_LONG, text)


def _least(first: Profile, others: Sequence[Profile]) -> Profile:
    """What fits there fits whichever of them answers; and it is known from the start."""
    every = (first, *others)
    return Profile(
        min(profile.context_tokens for profile in every),
        min(profile.max_output_tokens for profile in every),
        first.calls,
        all(profile.images for profile in every),
    )

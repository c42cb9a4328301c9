"""Budget fallback: when the budget runs low, send a shorter context, then use cheaper models."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence

from evoclaw.core.errors import ConfigError, ProviderError, ProviderErrorKind
from evoclaw.core.events import ReplyEvent
from evoclaw.core.ports import Provider, Request
from evoclaw.core.profile import CallStyle, Profile
from evoclaw.providers.wrappers import close

SHORTEN_BELOW_SHARE = 0.3
"""Below this share of the budget, a shorter context is sent …"""
CHEAPER_BELOW_SHARE = 0.15
"""… and below this share, a cheaper model answers."""
SHORTEN_STEP_SHARE = 0.1
"""The context is shortened again each time that this share of the budget is spent."""
MIN_SHORTENED_CHARS = 8_000
"""A shorter conversation is not shortened."""


class BudgetFallback:
    """Reduces cost in steps before the budget is spent; the last step, an approval, is a policy's.

    It shortens the context by reporting once that it is too long: the loop then trims it and
    records that. So a recording of the run replays without this provider.
    """

    def __init__(
        self,
        provider: Provider,
        remaining_share: Callable[[], float],
        cheaper: Sequence[Provider] = (),
        *,
        shorter_below: float = SHORTEN_BELOW_SHARE,
        cheaper_below: float = CHEAPER_BELOW_SHARE,
    ) -> None:
        """Set up the fallback.

        Args:
            provider: The provider while the budget lasts.
            remaining_share: The share of the budget that is left, from 1 to 0.
            cheaper: Other models, each cheaper than the one before.
            shorter_below: The share below which a shorter context is sent.
            cheaper_below: The share below which the cheaper models answer.
        """
        if any(model.profile.calls is CallStyle.NONE for model in cheaper):
            raise ConfigError("a cheaper model must be able to call tools; choose one that can")
        self._provider, self._remaining_share, self._cheaper = (
            provider,
            remaining_share,
            tuple(cheaper),
        )
        self._profile = _shared_profile(provider.profile, [model.profile for model in cheaper])
        self._shorter_below, self._cheaper_below = shorter_below, cheaper_below
        self._shortened_at = shorter_below + SHORTEN_STEP_SHARE

    @property
    def model(self) -> str:
        """The name of the first provider's model; a reply names the model that gave it."""
        return self._provider.model

    @property
    def profile(self) -> Profile:
        """What all of the models can do."""
        return self._profile

    @property
    def current_model(self) -> str:
        """The name of the model that would answer now; its price counts."""
        return self._chosen(self._remaining_share()).model

    async def aclose(self) -> None:
        """Close all providers."""
        for provider in (self._provider, *self._cheaper):
            await close(provider)

    def stream(self, request: Request) -> AsyncGenerator[ReplyEvent, None]:
        """The reply of the model that is due at the current budget."""
        left = self._remaining_share()
        if self._should_shorten(left, request):
            self._shortened_at = left
            return _context_too_long(left)
        return self._chosen(left).stream(request)

    def _should_shorten(self, left: float, request: Request) -> bool:
        due = left < self._shorter_below and left <= self._shortened_at - SHORTEN_STEP_SHARE
        # A request without tools, such as for a summary, is short already.
        return due and bool(request.tools) and request.history.size >= MIN_SHORTENED_CHARS

    def _chosen(self, left: float) -> Provider:
        if left >= self._cheaper_below or not self._cheaper:
            return self._provider
        spent = 1 - max(0.0, left) / self._cheaper_below
        return self._cheaper[min(len(self._cheaper) - 1, int(spent * len(self._cheaper)))]


async def _context_too_long(left: float) -> AsyncGenerator[ReplyEvent, None]:
    text = f"{left:.0%} of the budget is left: from now on a shorter context is sent"
    for piece in ():
        yield piece
    raise ProviderError(ProviderErrorKind.CONTEXT_TOO_LONG, text)


def _shared_profile(first: Profile, others: Sequence[Profile]) -> Profile:
    """The smallest limits of all models: what fits them fits every model."""
    profiles = (first, *others)
    return Profile(
        min(profile.context_tokens for profile in profiles),
        min(profile.max_output_tokens for profile in profiles),
        first.calls,
        all(profile.images for profile in profiles),
    )

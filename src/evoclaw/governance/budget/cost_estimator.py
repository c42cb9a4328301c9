"""Estimates the most tokens and dollars that the next reply may cost, before it is requested."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import msgspec

from evoclaw.core.events import (
    CallFinished,
    Event,
    Prompted,
    Replied,
    RunResumed,
    RunStarted,
    ToolsChanged,
    TurnStarted,
)
from evoclaw.core.history import size_of
from evoclaw.core.ledgers import DOLLARS, TOKENS, UNITS_PER_KIND
from evoclaw.core.messages import Reply, Usage
from evoclaw.core.profile import Profile

Price = Callable[[str, Usage], float | None]
"""`provider/model`, usage -> US dollars, or None when the model has no known price."""

DEFAULT_CHARS_PER_TOKEN = 3.0
"""Characters per token before a provider has counted: lower than for most texts, to be safe."""
ESTIMATE_MARGIN, FRAMING_TOKENS = 1.1, 256
"""Added to an estimate: a tenth, and the tokens around messages."""


class CostEstimator:
    """Follows a run's events, and estimates its next reply in the worst case."""

    def __init__(self, price: Price | None = None) -> None:
        self._price = price
        self.model, self._profile, self._output = "", Profile(), Profile().max_output_tokens
        self._chars: int | None = None
        """The characters of the next request; None while unknown, as after a resume."""
        self._tools, self._sent, self._ratio = 0, 0, DEFAULT_CHARS_PER_TOKEN

    def observe(self, event: Event) -> None:
        """Update the estimate from an event."""
        match event:
            case RunStarted(messages=messages):
                self._chars = sum(size_of(message) for message in messages)
                self._start(event)
            case RunResumed():
                self._start(event)
            case ToolsChanged(tools):
                size = sum(
                    len(t.description) + len(msgspec.json.encode(t.parameters)) for t in tools
                )
                self._grow(size - self._tools)
                self._tools = size
            case TurnStarted(chars=chars):
                self._chars = self._sent = chars
            case Replied(reply):
                self._replied(reply)
            case CallFinished(result):
                self._grow(size_of(result))
            case Prompted(message):
                self._grow(size_of(message))
            case _:
                pass

    def _start(self, event: RunStarted | RunResumed) -> None:
        self.model, self._profile = event.model, event.profile
        self._output = event.settings.max_tokens or event.profile.max_output_tokens

    def _grow(self, chars: int) -> None:
        if self._chars is not None:
            self._chars += chars

    def _replied(self, reply: Reply) -> None:
        if reply.usage.input and self._sent:
            self._ratio = min(6.0, max(1.0, self._sent / reply.usage.input))
        self._grow(size_of(reply))

    @property
    def max_usage(self) -> Usage:
        """The most tokens that the next reply may use, as input and output."""
        context = self._profile.context_tokens
        if self._chars is None:
            return Usage(context, self._output)
        estimate = math.ceil(self._chars / self._ratio * ESTIMATE_MARGIN) + FRAMING_TOKENS
        return Usage(min(context, estimate), self._output)

    def max_tokens(self) -> int:
        """The most tokens of the next reply, input and output together."""
        usage = self.max_usage
        return usage.input + usage.output

    def max_cost(self) -> int | None:
        """The highest cost of the next reply, in microdollars; None without a known price."""
        if self._price is None:
            return None
        usage = self.max_usage
        # Some providers charge more for a prompt that is written to their cache.
        cached = Usage(usage.input, usage.output, cache_write=usage.input)
        costs = [self._price(self.model, case) for case in (usage, cached)]
        known = [cost for cost in costs if cost is not None]
        return to_microdollars(max(known)) if known else None

    def cost_of(self, usage: Usage) -> int | None:
        """The cost of the used tokens, in microdollars; None without a known price."""
        cost = None if self._price is None else self._price(self.model, usage)
        return None if cost is None else to_microdollars(cost)


def to_microdollars(dollars: float) -> int:
    """Dollars as microdollars, rounded up."""
    return max(0, math.ceil(round(dollars * UNITS_PER_KIND[DOLLARS], 6)))


def token_amounts(usage: Usage) -> dict[str, int]:
    """The tokens of a usage as a ledger amount."""
    return {TOKENS: usage.input + usage.output}


def highest_price(prices: Sequence[Price]) -> Price:
    """The price when any of several models may answer: the highest; None if one is unknown."""

    def price(model: str, usage: Usage) -> float | None:
        costs = [price_of(model, usage) for price_of in prices]
        known = [cost for cost in costs if cost is not None]
        return max(known) if known and len(known) == len(costs) else None

    return price

"""What the next reply may take at most, before it is asked for."""

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
from evoclaw.core.ledgers import DOLLARS, PARTS, TOKENS
from evoclaw.core.messages import Reply, Usage
from evoclaw.core.profile import Profile

Price = Callable[[str, Usage], float | None]
"""`provider/model`, usage -> US dollars, or None when the model has no known price."""

CAUTION = 3.0
"""Characters to a token, until a server has counted: less than most texts have."""
MARGIN, FRAME = 1.1, 256
"""On top of an estimate: a tenth, and what surrounds messages."""


class Foresight:
    """Follows a run, and says what its next reply takes in the worst case."""

    def __init__(self, price: Price | None = None) -> None:
        self._price = price
        self.model, self._profile, self._output = "", Profile(), Profile().max_output_tokens
        self._chars: int | None = None
        """Of what would be sent; None while not known, as when a run is resumed."""
        self._tools, self._sent, self._ratio = 0, 0, CAUTION

    def see(self, event: Event) -> None:
        """Take in what happened."""
        match event:
            case RunStarted(messages=messages):
                self._chars = sum(size_of(message) for message in messages)
                self._begin(event)
            case RunResumed():
                self._begin(event)
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

    def _begin(self, event: RunStarted | RunResumed) -> None:
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
    def usage(self) -> Usage:
        """The most that the next reply may take."""
        room = self._profile.context_tokens
        if self._chars is None:
            return Usage(room, self._output)
        estimate = math.ceil(self._chars / self._ratio * MARGIN) + FRAME
        return Usage(min(room, estimate), self._output)

    def tokens(self) -> int:
        """The most tokens."""
        usage = self.usage
        return usage.input + usage.output

    def dollars(self) -> int | None:
        """The most money, in its smallest parts; None if the model has no price."""
        if self._price is None:
            return None
        usage = self.usage
        # A prompt that is written to a cache costs more at some servers.
        cached = Usage(usage.input, usage.output, cache_write=usage.input)
        costs = [self._price(self.model, one) for one in (usage, cached)]
        known = [cost for cost in costs if cost is not None]
        return micros(max(known)) if known else None

    def cost_of(self, usage: Usage) -> int | None:
        """What tokens that were used cost."""
        cost = None if self._price is None else self._price(self.model, usage)
        return None if cost is None else micros(cost)


def micros(dollars: float) -> int:
    """Money in its smallest parts, never less than it is."""
    return max(0, math.ceil(round(dollars * PARTS[DOLLARS], 6)))


def used(usage: Usage) -> dict[str, int]:
    """The tokens of a usage as an amount."""
    return {TOKENS: usage.input + usage.output}


def dearest(prices: Sequence[Price]) -> Price:
    """The price of several models of which any may answer: that of the dearest, or none known."""

    def price(model: str, usage: Usage) -> float | None:
        costs = [one(model, usage) for one in prices]
        known = [cost for cost in costs if cost is not None]
        return max(known) if known and len(known) == len(costs) else None

    return price

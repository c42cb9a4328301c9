"""The cost of a reply, from a maintained price table that can be overridden.

The table is `genai-prices` (`pip install 'evoclaw[prices]'`). It is imported for the first reply
with a price: it takes a quarter of a second and 30 MB, and a free model never needs it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from typing import TYPE_CHECKING, TypeAlias

from msgspec import Struct

from evoclaw.core.messages import Usage

if TYPE_CHECKING:
    from genai_prices.types import PriceCalculation

Price: TypeAlias = Callable[[str, Usage], float | None]
"""Model name as served, usage -> US dollars, or None if the price is unknown."""

FREE_PREFIXES = frozenset(
    {"ollama", "embedded", "local", "lmstudio", "vllm", "llamacpp", "scripted"}
)
"""Prefixes of servers on the user's own machines."""

_TABLE_IDS = {"openai-responses": "openai", "gemini": "google", "xai": "x-ai"}
_PER_MILLION = 1_000_000
_DATED = re.compile(r"[-@]\d{4}-?\d{2}-?\d{2}$")


class TokenRate(Struct, frozen=True, omit_defaults=True):
    """US dollars per million tokens."""

    input: float
    """For input tokens."""
    output: float
    """For output tokens."""
    cache_read: float | None = None
    """For input read from a cache; default: the input rate."""
    cache_write: float | None = None
    """For input written to a cache; default: the input rate."""

    def cost(self, usage: Usage) -> float:
        """The cost of a usage: each token of the prompt is charged once, at its own rate."""
        usage = _consistent(usage)
        plain = usage.input - usage.cache_read - usage.cache_write
        read = self.input if self.cache_read is None else self.cache_read
        write = self.input if self.cache_write is None else self.cache_write
        total = plain * self.input + usage.output * self.output
        return (total + usage.cache_read * read + usage.cache_write * write) / _PER_MILLION


def price_function(name: str, overrides: Mapping[str, TokenRate] | None = None) -> Price:
    """The price function of one `prefix/model`.

    Args:
        name: The requested model, such as `openai/gpt-x`.
        overrides: Rates by `prefix/model`; they override the table, also for free prefixes.
    """
    prefix, _, requested = name.partition("/")
    rates = dict(overrides or {})

    def price(served: str, usage: Usage) -> float | None:
        rate = _override(rates, prefix, (served, requested))
        if rate is not None:
            return rate.cost(usage)
        if prefix in FREE_PREFIXES:
            return 0.0
        return _from_table(prefix, (served, requested), _consistent(usage))

    return price


def _override(
    rates: Mapping[str, TokenRate], prefix: str, models: tuple[str, ...]
) -> TokenRate | None:
    for model in models:
        for name in (model, _DATED.sub("", model)):
            rate = rates.get(f"{prefix}/{name}")
            if rate is not None:
                return rate
    return None


def _consistent(usage: Usage) -> Usage:
    """Limit the cached tokens to the prompt: no cost is negative, however a server counts."""
    read = min(usage.cache_read, usage.input)
    return Usage(usage.input, usage.output, read, min(usage.cache_write, usage.input - read))


def _from_table(prefix: str, models: tuple[str, ...], usage: Usage) -> float | None:
    calculate = _table()
    if calculate is None:
        return None
    for model in models:
        if _is_listed(_TABLE_IDS.get(prefix, prefix), model):
            return float(calculate(_TABLE_IDS.get(prefix, prefix), model, usage).total_price)
    return None


@lru_cache(maxsize=1_024)
def _is_listed(prefix: str, model: str) -> bool:
    """Whether the table has a model; cached, because a miss scans the whole table."""
    calculate = _table()
    if calculate is None:
        return False
    try:
        calculate(prefix, model, Usage(1, 1))
    except LookupError:
        return False
    return True


@cache
def _table() -> Callable[[str, str, Usage], PriceCalculation] | None:
    try:
        import genai_prices
    except ImportError:
        return None

    def calculate(prefix: str, model: str, usage: Usage) -> PriceCalculation:
        counted = genai_prices.Usage(
            input_tokens=usage.input,
            output_tokens=usage.output,
            cache_read_tokens=usage.cache_read,
            cache_write_tokens=usage.cache_write,
        )
        return genai_prices.calc_price(counted, model, provider_id=prefix)

    return calculate

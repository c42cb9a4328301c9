"""Compares a genome with the current one on the train cases, with as few runs as possible."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

from msgspec import Struct

from evoclaw.core.errors import ToolFailure
from evoclaw.core.genome import AGENT_TUNABLES, CONFIGURED, Genome
from evoclaw.core.genome_patches import merged
from evoclaw.core.messages import JSON
from evoclaw.evolution.evaluation import Attempt, Evaluation, summed_up
from evoclaw.evolution.proposals import Proposal, ProposerContext, SearchEnded

_log = logging.getLogger(__name__)
BATCH_CASES = 10
"""Cases that are run before it is decided whether to run more."""
SAVING_SHARE = 0.1
"""The part of the cost, or of the turns, that counts as a saving."""


class Comparison(Struct, frozen=True, kw_only=True):
    """A genome beside the current one, on the same train cases."""

    fixed: tuple[str, ...]
    """Cases that pass more often than before."""
    broken: tuple[str, ...]
    """Cases that pass less often than before."""
    gain: float
    """Passed cases more than before; negative: fewer."""
    saving: float
    """The share of the cost that is saved, or of the turns if a price is unknown or zero."""

    @property
    def is_better(self) -> bool:
        """It passes more cases, or the same ones for clearly less."""
        return self.gain > 0 or (self.gain == 0 and not self.broken and self.saving >= SAVING_SHARE)

    def words(self) -> str:
        """The result in words, for the reason of a proposal."""
        parts = [f"{self.gain:+g} passed train cases"]
        if self.fixed:
            parts.append(f"fixed {_listed(self.fixed)}")
        if self.broken:
            parts.append(f"broke {_listed(self.broken)}")
        if self.saving >= SAVING_SHARE:
            parts.append(f"{self.saving:.0%} cheaper")
        return ", ".join(parts)


Search: TypeAlias = Callable[[ProposerContext, list[tuple[Proposal, Comparison]]], Awaitable[None]]
"""Adds each proposal that it finds, with its comparison."""


async def best_first(context: ProposerContext, search: Search) -> list[Proposal]:
    """What a search finds before it ends, the best first; none without train cases."""
    found: list[tuple[Proposal, Comparison]] = []
    try:
        if context.cases:
            await search(context, found)
    except SearchEnded as ended:
        _log.info("a search for proposals ended early: %s", ended)
    found.sort(key=lambda pair: (pair[1].gain, pair[1].saving), reverse=True)
    return [proposal for proposal, _ in found]


class TrainScores:
    """The current genome on the train cases, and others beside it."""

    def __init__(self, context: ProposerContext) -> None:
        self._context = context
        self._names = tuple(case.name for case in context.cases)
        self._before: Evaluation | None = None

    async def before(self) -> Evaluation:
        """The current genome on all train cases; evaluated once."""
        if self._before is None:
            found = await self._context.evaluate(self._context.genome, self._names)
            self._before = found
        return self._before

    async def failed(self) -> Sequence[Attempt]:
        """The failed attempts of the current genome."""
        return [attempt for attempt in (await self.before()).attempts if not attempt.passed]

    async def compare(
        self, genome: Genome, *, screen: bool = True, above: float = 0.0
    ) -> Comparison | None:
        """Compare a genome with the current one.

        Cases that fail now are run first. With `screen`, None as soon as it cannot gain more than
        `above` any more: a case that always passes now can only get worse.
        """
        before = await self.before()
        failing = [name for name in self._names if before.cases[name].rate < 1]
        passing = [name for name in self._names if name not in failing]
        size = BATCH_CASES if screen else max(len(passing), 1)
        batches = [passing[first : first + size] for first in range(0, len(passing), size)]
        attempts: list[Attempt] = []
        for batch in [failing, *batches] if failing else batches:
            attempts += (await self._context.evaluate(genome, batch)).attempts
            if screen and failing and _compared(before, attempts).gain <= above:
                return None
        return _compared(before, attempts)


def patched(context: ProposerContext, patch: Mapping[str, JSON]) -> Genome | None:
    """The current genome with a patch; None if the patch is not allowed, or changes nothing."""
    try:
        genome = merged(context.genome, patch, CONFIGURED, AGENT_TUNABLES)
    except ToolFailure:
        return None  # longer than a genome may be, for example
    return genome if genome.digest != context.genome.digest else None


def _compared(before: Evaluation, attempts: Sequence[Attempt]) -> Comparison:
    """The cases of these attempts, beside how they went before."""
    after = summed_up(attempts)
    changes = {name: case.rate - before.cases[name].rate for name, case in after.cases.items()}
    return Comparison(
        fixed=tuple(name for name, change in changes.items() if change > 0),
        broken=tuple(name for name, change in changes.items() if change < 0),
        gain=round(sum(changes.values()), 6),
        saving=_saving(before, after),
    )


def _saving(before: Evaluation, after: Evaluation) -> float:
    if before.cost and after.cost is not None:
        return 1 - after.cost / before.cost
    turns = sum(attempt.turns for attempt in before.attempts)
    return 1 - sum(attempt.turns for attempt in after.attempts) / turns if turns else 0.0


def _listed(names: Iterable[str], most: int = 5) -> str:
    shown = list(names)
    more = f" and {len(shown) - most} more" if len(shown) > most else ""
    return ", ".join(shown[:most]) + more

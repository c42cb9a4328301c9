"""Plain search over the numbers of a genome and the order of models, inside the configured limits.

One setting after the other: the best value of each is kept for the next.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator, Sequence

from msgspec import UNSET, Struct

from evoclaw.core.agent import Agent
from evoclaw.core.events import StopReason
from evoclaw.core.genome import Genome
from evoclaw.core.messages import JSON, is_array
from evoclaw.evolution.evaluation import Attempt, Evaluation
from evoclaw.evolution.proposals import Proposal, ProposerContext, RunTrace, SearchEnded
from evoclaw.evolution.proposers.train_scores import Comparison, TrainScores, patched

TEMPERATURES = (0.0, 0.3, 0.7, 1.0)
LIMIT_SHARES = (0.75, 0.5, 0.25)
"""Of a configured limit."""
MAX_ERROR_LIMITS = 3
"""Values of `tool_error_limit` that are tried."""
DEFAULT_CALL_SECONDS = 60.0
"""What `call_seconds` is a share of, if no limit is configured."""

_log = logging.getLogger(__name__)


class _Setting(Struct, frozen=True):
    """A tunable, and the values to try."""

    name: str
    values: tuple[JSON, ...]
    is_limit: bool
    """A lower limit can only save cost: also cases that pass are run."""


class NumberSearch:
    """Proposes numbers and an order of models that do better on the train cases."""

    name = "numbers"

    async def propose(self, context: ProposerContext) -> AsyncIterator[Proposal]:
        """The best combination first, then those with fewer changes."""
        found: list[tuple[dict[str, JSON], Comparison]] = []
        try:
            await self._search(context, found)
        except SearchEnded as ended:
            _log.info("search over numbers ended early: %s", ended)
        for patch, comparison in reversed(found):
            changes = ", ".join(f"{name} = {_shown(value)}" for name, value in patch.items())
            yield Proposal(
                patch=patch,
                reason=f"{changes}: {comparison.words()}",
                fixed=comparison.fixed,
                broken=comparison.broken,
            )

    async def _search(
        self, context: ProposerContext, found: list[tuple[dict[str, JSON], Comparison]]
    ) -> None:
        if not context.cases:
            return
        scores = TrainScores(context)
        before = await scores.before()
        for setting in _settings(context, before):
            here, base = len(found), found[-1][0] if found else {}
            for value in setting.values:
                patch = {**base, setting.name: value}
                genome = patched(context, patch)
                if genome is None:
                    continue
                result = await scores.compare(genome, screen=not setting.is_limit)
                best = found[-1][1] if found else None
                if result is not None and result.is_better and _beats(result, best):
                    found[here:] = [(patch, result)]


def _beats(new: Comparison, old: Comparison | None) -> bool:
    return old is None or (new.gain, new.saving) > (old.gain, old.saving)


def _settings(context: ProposerContext, before: Evaluation) -> Iterator[_Setting]:
    agent, genome = context.agent, context.genome
    if any(not attempt.passed for attempt in before.attempts):
        yield _Setting("temperature", _temperatures(agent, genome), is_limit=False)
        yield _Setting("models", _model_orders(agent, genome), is_limit=False)
    yield _Setting("max_turns", _turn_limits(agent, genome, before.attempts), is_limit=True)
    if any(attempt.stop is StopReason.ERROR for attempt in before.attempts):
        lower = list(range(agent.settings.tool_error_limit - 1, 0, -1))[:MAX_ERROR_LIMITS]
        limits = _limits(genome.tool_error_limit, lower)
        yield _Setting("tool_error_limit", limits, is_limit=True)
    most = min(agent.settings.max_seconds, max(case.case.seconds for case in context.cases))
    took_all = any(attempt.stop is StopReason.DURATION_EXCEEDED for attempt in before.attempts)
    lower = [round(most * share, 3) for share in LIMIT_SHARES] if took_all else []
    yield _Setting("run_seconds", _limits(genome.run_seconds, lower), is_limit=True)
    if _has_timeouts(context.traces):
        limit = agent.settings.max_call_seconds
        most = DEFAULT_CALL_SECONDS if limit is UNSET else limit
        lower = [round(most * share, 3) for share in LIMIT_SHARES]
        yield _Setting("call_seconds", _limits(genome.call_seconds, lower), is_limit=True)


def _temperatures(agent: Agent, genome: Genome) -> tuple[JSON, ...]:
    configured = agent.settings.temperature
    now = configured if genome.temperature is None else genome.temperature
    return tuple(value for value in TEMPERATURES if value != now)


def _model_orders(agent: Agent, genome: Genome) -> tuple[JSON, ...]:
    """Each of the configured models as the first one."""
    configured = agent.model.split(",")
    now = next(iter(genome.models), configured[0])
    return tuple([model] for model in configured if model != now)


def _turn_limits(agent: Agent, genome: Genome, attempts: Sequence[Attempt]) -> tuple[JSON, ...]:
    """Limits that stop failing runs earlier and leave those that pass as they are."""
    needed = max((attempt.turns for attempt in attempts if attempt.passed), default=1)
    longest = max((attempt.turns for attempt in attempts), default=0)
    shares = (int(agent.settings.max_turns * share) for share in LIMIT_SHARES)
    return _limits(genome.max_turns, [n for n in shares if needed <= n < longest])


def _limits(now: float | None, lower: Sequence[float]) -> tuple[JSON, ...]:
    """Null, if the genome lowers the limit now, then lower ones."""
    values = [value for value in lower if value > 0 and (now is None or value < now)]
    return (*([] if now is None else [None]), *dict.fromkeys(values))


def _has_timeouts(traces: Sequence[RunTrace]) -> bool:
    return any(trace.outcome.errors.get("timeout") for trace in traces)


def _shown(value: JSON) -> str:
    if value is None:
        return "as configured"
    return ", ".join(map(str, value)) if is_array(value) else str(value)

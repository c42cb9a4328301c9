"""Draws the outcomes of validation runs directly, without the loop: a campaign in two minutes.

The lineage, the static and safety stages and the statistics are the same. What only the loop can
show is not measured: a cache in a workspace is taken to be empty.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from bench.evolution import campaign
from bench.evolution.world import AGENT, PRICES, opener, read_rules

from evoclaw.core.events import StopReason
from evoclaw.core.genome import Genome
from evoclaw.evolution.cases import CaseFile
from evoclaw.evolution.evaluation import Attempt, Evaluation, summed_up
from evoclaw.evolution.gate import validation
from evoclaw.orchestrator.agents.tuning import tune

TURNS = 2


class DirectRuns:
    """Knows how often a genome passes each case; it can prepare real runs, too."""

    def __init__(self, genome: Genome, seed: str, on_run: Callable[[], None]) -> None:
        agent, text = tune(AGENT, genome), genome.tools.get("lookup")
        told = (text.description, *text.examples) if text else ()
        self._rules = read_rules("\n".join((agent.prompt, *told)))
        self._model = agent.model.split(",")[0]
        self._chance, self._on_run = random.Random(seed), on_run
        self._open_run = opener(genome, seed, on_run)
        self._known: dict[str, float] = {}

    def __call__(self, *arguments: Any) -> Any:
        """Prepare a real run: the safety cases have them."""
        return self._open_run(*arguments)

    def attempts(self, case: CaseFile, repeat: int) -> list[Attempt]:
        """Draw the outcomes of a case."""
        if case.name not in self._known:
            code = str(getattr(case.case.checks[0], "contains", ""))
            self._known[case.name] = self._rules.chance(case.case.message, self._model, code)
        return [self._attempt(case) for _ in range(repeat)]

    def _attempt(self, case: CaseFile) -> Attempt:
        self._on_run()
        return Attempt(
            case=case.name, split=case.case.split, problems=(), stop=StopReason.COMPLETED,
            passed=self._chance.random() < self._known[case.name],
            turns=TURNS, calls=1, cost=TURNS * PRICES[self._model], coverage=1.0,
        )  # fmt: skip


async def evaluate_directly(
    cases: Sequence[CaseFile], runs: DirectRuns, *, repeat: int = 1, parallel: int = 1
) -> Evaluation:
    """Instead of `evaluate`."""
    return summed_up([attempt for case in cases for attempt in runs.attempts(case, repeat)])


def run_campaign_directly(seed: int, null: int, good: int, traps: int) -> campaign.CampaignResult:
    """Run a campaign in this process, which does nothing else."""
    campaign.opener = DirectRuns  # type: ignore[assignment]
    validation.evaluate = evaluate_directly  # type: ignore[assignment]
    return campaign.run_campaign(seed, null, good, traps)

"""What proposers may use: train cases, recent runs, one model, and the budget of the day."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import aclosing

from evoclaw.core.agent import Agent
from evoclaw.core.errors import EvoClawError
from evoclaw.core.events import Replied
from evoclaw.core.evolution_settings import AgentEvolution
from evoclaw.core.genome import Genome
from evoclaw.core.history import History
from evoclaw.core.messages import user
from evoclaw.core.ports import Provider, Request
from evoclaw.core.tools import Tool
from evoclaw.evolution.campaign import Spent, budget_problem, spent_today
from evoclaw.evolution.cases import CaseFile, Split
from evoclaw.evolution.engine import SpendingMeter
from evoclaw.evolution.evaluation import Evaluation, evaluate, total_scores
from evoclaw.evolution.lineage import GenomeLineage
from evoclaw.evolution.lineage_entries import OnEntry
from evoclaw.evolution.proposals import CampaignBudgetSpent, ProposerContext, ReflectionFailed
from evoclaw.evolution.real_runs import RealRuns
from evoclaw.evolution.stages import OpenRunner

MAX_UNANSWERED = 3
"""Questions in a row that the reflecting model may leave without an answer; then a search ends."""


class ProposerContexts:
    """Prepares what the proposers of one agent may use."""

    def __init__(
        self,
        agent: Agent,
        lineage: GenomeLineage,
        settings: Callable[[], AgentEvolution],
        *,
        provider: Callable[[str], Provider],
        tools: Callable[[], Sequence[Tool]],
        tool_prompt: Callable[[], str] = lambda: "",
        cases: Callable[[], Sequence[CaseFile]],
        open_runner: OpenRunner,
        real_runs: RealRuns,
        on_entry: OnEntry,
        clock: Callable[[], float],
    ) -> None:
        """Choose the parts.

        Args:
            agent: As configured, without a genome.
            lineage: Where evaluations and spending are recorded.
            settings: The settings of now.
            provider: The provider of a model; empty names the agent's.
            tools: What the model is offered, with their own descriptions.
            tool_prompt: What it reads instead of a genome's `tool_prompt`; empty: it ignores one.
            cases: The cases of the agent.
            open_runner: Prepares runs of cases with a genome.
            real_runs: The runs of real sessions.
            on_entry: Receives each entry that was added, for the audit.
            clock: The time in seconds since 1970.
        """
        self._agent, self._lineage, self._settings = agent, lineage, settings
        self._provider, self._tools, self._cases = provider, tools, cases
        self._tool_prompt = tool_prompt
        self._open_runner, self._real_runs = open_runner, real_runs
        self._on_entry, self._clock = on_entry, clock

    async def open(self, proposer: str, genome: Genome) -> tuple[ProposerContext, SpendingMeter]:
        """What a proposer may use, and what it has spent that no entry records yet."""
        meter = SpendingMeter()
        train = [case for case in self._cases() if case.case.split is Split.TRAIN]

        async def evaluate_train(tried: Genome, names: Sequence[str]) -> Evaluation:
            chosen = [case for case in train if not names or case.name in names]
            await self._check_budget(meter, len(chosen))
            async with self._open_runner(tried) as open_run:
                done = await evaluate(chosen, open_run)
            meter.add(Spent(len(done.attempts), done.cost))
            scores = total_scores(done) | meter.take().evidence()
            entry = await self._lineage.add_evaluation(self._agent.name, tried, scores, by=proposer)
            await self._on_entry(entry)
            return done

        unanswered = 0

        async def ask(prompt: str) -> str:
            nonlocal unanswered
            await self._check_budget(meter, 0)
            provider = self._provider(self._settings().model)
            try:
                text, cost = await _ask(provider, prompt)
            except EvoClawError as failed:
                unanswered += 1
                meter.ended = ReflectionFailed(
                    f"the reflecting model {provider.model!r} did not answer: {failed}"
                )
                if unanswered >= MAX_UNANSWERED:
                    raise meter.ended from None
                raise
            unanswered, meter.ended = 0, None
            meter.add(Spent(0, cost))
            return text

        context = ProposerContext(
            agent=self._agent,
            genome=genome,
            tools=self._tools(),
            cases=train,
            traces=await self._real_runs.traces(genome.digest),
            evaluate=evaluate_train,
            ask=ask,
            tool_prompt=self._tool_prompt(),
        )
        return context, meter

    async def _check_budget(self, meter: SpendingMeter, runs: int) -> None:
        entries = await self._lineage.history(self._agent.name)
        spent = spent_today(entries, self._clock()) + meter.spent
        if why := budget_problem(self._settings(), spent, runs):
            meter.ended = CampaignBudgetSpent(why, runs)
            raise meter.ended


async def _ask(provider: Provider, prompt: str) -> tuple[str, float | None]:
    """One reply of a model without tools, and its cost."""
    request = Request(History([user(prompt)]), offer_tools=False)
    async with aclosing(provider.stream(request)) as pieces:
        async for piece in pieces:
            if isinstance(piece, Replied):
                return piece.reply.text, piece.reply.cost
    raise EvoClawError(f"the model {provider.model!r} did not answer the proposer")

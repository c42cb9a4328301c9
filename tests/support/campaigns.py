"""A campaign of proposers without an engine: real evaluations, and models that follow rules."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from evoclaw.core.agent import Agent
from evoclaw.core.events import ReplyEvent
from evoclaw.core.genome import CONFIGURED, Genome
from evoclaw.core.messages import Message, Reply, SystemMessage, user
from evoclaw.core.ports import Ports, Progress, Request
from evoclaw.core.profile import CallStyle, Profile
from evoclaw.core.run import watch
from evoclaw.core.state import new_run
from evoclaw.core.tools import Call, Tool
from evoclaw.core.tuned_runs import GenomeTools
from evoclaw.evolution.cases import Case, CaseFile
from evoclaw.evolution.evaluation import CaseRun, Evaluation, evaluate
from evoclaw.evolution.outcomes import OutcomeFold
from evoclaw.evolution.proposals import (
    CampaignBudgetSpent,
    Proposal,
    Proposer,
    ProposerContext,
    RunTrace,
)
from evoclaw.evolution.recorded_results import RecordedResults
from evoclaw.governance.autonomy import Autonomy, Level
from evoclaw.orchestrator.agents.tuning import tune
from evoclaw.providers.scripted import Scripted
from evoclaw.providers.text_calls import Style, TextCallProvider, shipped_tool_prompt
from evoclaw.tools.fake import FakeOps

Rule: TypeAlias = Callable[[Request], Reply]
"""The reply of a model to a request."""


def case_of(name: str, **fields: Any) -> CaseFile:
    """A case that answers calls of the tool `weather` from its own text."""
    filled = {
        "message": f"Task {name}.",
        "tools": [{"name": "weather", "description": "The weather."}],
        "checks": [{"kind": "answer", "contains": "yes"}],
        **fields,
    }
    return CaseFile(name, Path(f"{name}.toml"), msgspec.convert(filled, Case))


class RuleModel:
    """A provider whose replies depend on the whole request: its tools, its temperature."""

    model, profile = "scripted/rules", Profile()

    def __init__(self, rule: Rule) -> None:
        self._rule = rule

    async def stream(self, request: Request) -> AsyncGenerator[ReplyEvent, None]:
        async for event in Scripted(self._rule(request)).stream(request):
            yield event


class _TunedResults:
    """Recorded results whose tools are described as a genome says."""

    def __init__(self, recorded: RecordedResults, genome: Genome) -> None:
        self._recorded, self._step = recorded, GenomeTools(genome.tools)

    def tools(self) -> Sequence[Tool]:
        return self._step.offer(self._recorded.tools())

    async def execute(self, call: Call, progress: Progress) -> Any:
        return await self._recorded.execute(call, progress)


def prompt_of(request: Request) -> str:
    """The instructions of a request."""
    return "".join(m.text for m in request.history if isinstance(m, SystemMessage))


def task_of(request: Request) -> str:
    """The name of the case of a request."""
    texts = [m.text for m in request.history if not isinstance(m, SystemMessage)]
    return texts[0].removeprefix("Task ").rstrip(".")


@dataclass
class Campaign:
    """An agent with train cases, a model, a reflecting model, and a budget of runs."""

    rule: Rule
    cases: Sequence[CaseFile]
    answer: Callable[[str], str] = lambda prompt: ""
    """Of the reflecting model."""
    agent: Agent = Agent("bob", "", "Help.")
    genome: Genome = CONFIGURED
    tools: Sequence[Tool] = ()
    traces: Sequence[RunTrace] = ()
    calls: CallStyle = CallStyle.NATIVE
    """Of the agent's model."""
    budget: int = 10_000
    """Runs of cases."""
    runs: int = 0
    prompts: list[str] = field(default_factory=list[str])
    """What the reflecting model was asked."""

    @property
    def context(self) -> ProposerContext:
        return ProposerContext(
            self.agent, self.genome, self.tools, self.cases, self.traces, self.evaluate, self.ask,
            tool_prompt=shipped_tool_prompt(self.calls),
        )  # fmt: skip

    async def evaluate(self, genome: Genome, names: Sequence[str]) -> Evaluation:
        chosen = [case for case in self.cases if not names or case.name in names]
        if self.runs + len(chosen) > self.budget:
            raise CampaignBudgetSpent("the runs of today are spent")
        self.runs += len(chosen)
        return await evaluate(chosen, lambda case, _: self._open(case, genome))

    async def ask(self, prompt: str) -> str:
        self.prompts.append(prompt)
        return self.answer(prompt)

    async def proposals(self, proposer: Proposer) -> list[Proposal]:
        return [proposal async for proposal in proposer.propose(self.context)]

    @asynccontextmanager
    async def _open(self, case: CaseFile, genome: Genome) -> AsyncGenerator[CaseRun]:
        agent, recorded = tune(self.agent, genome), RecordedResults(case)
        executor = _TunedResults(recorded, genome)
        model = RuleModel(self.rule)
        styles: dict[CallStyle, Style] = {CallStyle.JSON: "json", CallStyle.TEXT: "hermes"}
        style = styles.get(self.calls)
        provider = TextCallProvider(model, style) if style else model
        ports = Ports(provider, executor, Autonomy(Level.FULL))
        state = new_run([SystemMessage(agent.prompt), user(case.case.message)])
        yield CaseRun(state, ports, agent.settings, FakeOps(), recorded)


async def trace_of(
    run: str,
    message: str | Sequence[Message],
    executor: Any,
    *replies: Reply,
    rating: str = "",
) -> RunTrace:
    """A recorded run with these replies of the model."""
    ports = Ports(Scripted(*replies), executor, Autonomy(Level.FULL))
    records = tuple([record async for record in watch(message, ports)])
    fold = OutcomeFold()
    for record in records:
        fold.receive(record)
    return RunTrace(run=run, outcome=fold.outcome(), records=records, rating=rating)

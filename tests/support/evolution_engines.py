"""A small campaign: a proposer with fixed proposals, and stages that always pass."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

from evoclaw.core.agent import Agent
from evoclaw.core.evolution_settings import AgentEvolution, ProposerName
from evoclaw.core.genome import Genome
from evoclaw.evolution.candidates import STAGES, Candidate, Stage, StageResult
from evoclaw.evolution.engine import EvolutionEngine, SpendingMeter, StageCheck
from evoclaw.evolution.evaluation import Evaluation
from evoclaw.evolution.lineage import GenomeLineage
from evoclaw.evolution.lineage_entries import LineageEntry
from evoclaw.evolution.proposals import Proposal, ProposerContext
from evoclaw.store.genomes import SCHEMA, GenomeStore
from evoclaw.trust.receipts import DeviceKey
from tests.support.databases import Place

KEY, OTHER_KEY = DeviceKey(bytes(range(32))), DeviceKey(bytes(range(1, 33)))
AGENT = "helper"
BETTER = Proposal(patch={"prompt": "Answer in one word."}, reason="answers were long", runs=("r1",))
ON = AgentEvolution(proposers=(ProposerName.NUMBERS,), approver_keys=(OTHER_KEY.public_key,))


@asynccontextmanager
async def open_lineage(place: Place, start: float = 1_000.0) -> AsyncGenerator[GenomeLineage]:
    """A lineage whose clock counts seconds."""
    database = await place.open(SCHEMA)
    ticks = count(int(start))
    try:
        yield GenomeLineage(
            GenomeStore(database),
            KEY.public_key,
            KEY.sign_genome,
            clock=lambda: float(next(ticks)),
        )
    finally:
        await database.close()


class FixedProposer:
    """Proposes what it was given."""

    name = "numbers"

    def __init__(self, *proposals: Proposal) -> None:
        self.proposals = proposals or (BETTER,)
        self.rounds = 0

    async def propose(self, context: ProposerContext) -> AsyncIterator[Proposal]:
        """All of them, in order."""
        self.rounds += 1
        for proposal in self.proposals:
            yield proposal


async def passes(candidate: Candidate) -> StageResult:
    """A stage that everything passes."""
    return StageResult(passed=True, evidence={"spent": {"runs": 2, "cost": 0.25}})


async def never_broken(candidate: Candidate, since: float) -> str:
    """No bound is ever broken."""
    return ""


async def context_of(_: str, genome: Genome) -> tuple[ProposerContext, SpendingMeter]:
    """A context without cases, runs or a model."""

    async def evaluate(tried: Genome, names: Sequence[str]) -> Evaluation:
        raise AssertionError("no case")

    async def ask(prompt: str) -> str:
        raise AssertionError("no model")

    context = ProposerContext(
        agent=Agent(AGENT, "scripted/model"), genome=genome, tools=(), cases=(), traces=(),
        evaluate=evaluate, ask=ask,
    )  # fmt: skip
    return context, SpendingMeter()


def engine_of(
    lineage: GenomeLineage,
    *proposals: Proposal,
    settings: AgentEvolution = ON,
    checks: Mapping[Stage, StageCheck] | None = None,
    now: Callable[[], float] = lambda: 1_000.0,
    seen: list[LineageEntry] | None = None,
    **parts: Any,
) -> EvolutionEngine:
    """An engine whose stages pass, unless others are given."""
    judged: dict[Stage, StageCheck] = {
        stage: passes for stage in STAGES if stage is not Stage.APPROVAL
    }
    entries: list[LineageEntry] = [] if seen is None else seen

    async def note(entry: LineageEntry) -> None:
        entries.append(entry)

    chosen: dict[str, Any] = {
        "proposers": [FixedProposer(*proposals)],
        "open_context": context_of,
        "checks": {**judged, **(checks or {})},
        "watch": never_broken,
        "on_entry": note,
        "clock": now,
    }
    return EvolutionEngine(AGENT, lineage, lambda: settings, **(chosen | parts))

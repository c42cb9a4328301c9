"""The port of proposers: what suggests changes of a genome.

A proposer has no tool. It sees the train cases and the traces of runs, may evaluate genomes on the
train cases within the budget, and may ask one model for text.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from msgspec import Struct

from evoclaw.core.agent import Agent
from evoclaw.core.errors import EvoClawError
from evoclaw.core.events import Record
from evoclaw.core.genome import Genome
from evoclaw.core.messages import JSON
from evoclaw.core.tools import Tool
from evoclaw.evolution.cases import CaseFile, Split
from evoclaw.evolution.evaluation import Evaluation
from evoclaw.evolution.outcomes import RunOutcome

EvaluateTrain: TypeAlias = Callable[[Genome, Sequence[str]], Awaitable[Evaluation]]
"""Evaluates a genome on train cases by name, all if none is named; each run counts against the
budget. Raises `CampaignBudgetSpent`."""
AskModel: TypeAlias = Callable[[str], Awaitable[str]]
"""The answer of the reflecting model; its cost counts against the budget."""


class SearchEnded(EvoClawError):
    """A search for proposals cannot continue now; what it has found is still proposed."""


class CampaignBudgetSpent(SearchEnded):
    """The runs or the money of today are spent; the campaign continues tomorrow."""

    def __init__(self, why: str, runs: int = 0) -> None:
        super().__init__(why)
        self.runs = runs
        """How many runs were needed."""


class ReflectionFailed(SearchEnded):
    """The reflecting model did not answer."""


class Proposal(Struct, frozen=True, kw_only=True):
    """A suggested change of a genome."""

    patch: dict[str, JSON]
    """A merge patch of the current genome."""
    reason: str
    """Why, for people."""
    runs: tuple[str, ...] = ()
    """The runs that are the reason."""
    fixed: tuple[str, ...] = ()
    """Train cases that pass more often with it, by name."""
    broken: tuple[str, ...] = ()
    """Train cases that pass less often with it."""
    untrusted: bool = False
    """Whether it contains text of untrusted origin, such as of a tool's result."""


class RunTrace(Struct, frozen=True, kw_only=True):
    """A run of the agent that a proposer may learn from."""

    run: str
    """Its id."""
    outcome: RunOutcome
    records: tuple[Record, ...]
    rating: str = ""
    """What a person said of it: `good`, `bad`, or empty."""
    comment: str = ""
    """Why, in their words."""


@dataclass(frozen=True, slots=True)
class ProposerContext:
    """What a proposer may use, and nothing else."""

    agent: Agent
    """As configured, without a genome."""
    genome: Genome
    """The current one, which proposals are patches of."""
    tools: Sequence[Tool]
    """What the model is offered, with their own descriptions."""
    cases: Sequence[CaseFile]
    """Train cases only."""
    traces: Sequence[RunTrace]
    """Recent runs of the agent, the newest first."""
    evaluate: EvaluateTrain
    ask: AskModel
    tool_prompt: str = ""
    """What the agent's model reads instead of a genome's `tool_prompt`; empty: its calls are not
    text, and it would ignore one."""

    def __post_init__(self) -> None:
        if hidden := [case.name for case in self.cases if case.case.split is not Split.TRAIN]:
            raise ValueError(
                f"a proposer may see train cases only; {', '.join(hidden)} must be left out"
            )


class Proposer(Protocol):
    """Suggests changes of a genome."""

    @property
    def name(self) -> str:
        """Its name in settings and in the lineage."""
        ...

    def propose(self, context: ProposerContext) -> AsyncIterator[Proposal]:
        """Suggest changes, the best first; it ends when it has no more."""
        ...

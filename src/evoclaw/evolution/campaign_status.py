"""What the campaign of an agent does next, and a person's request for another round of proposers.

A request is an entry of the lineage, like everything that a campaign goes by: the process that
drives the campaign reads it there, also if the one that accepted it was killed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum

from msgspec import Struct

from evoclaw.core.errors import EvoClawError
from evoclaw.core.evolution_settings import AgentEvolution
from evoclaw.core.labels import LOCAL_PRINCIPAL
from evoclaw.evolution.campaign import (
    REQUESTED,
    CampaignStep,
    Judge,
    Promote,
    Propose,
    Wait,
    Watch,
    budget_problem,
    describe_next,
    next_steps,
    spent_today,
)
from evoclaw.evolution.candidates import CandidateState, Stage, fold_candidates
from evoclaw.evolution.cases import CaseFolder, Split
from evoclaw.evolution.lineage import GenomeLineage
from evoclaw.evolution.lineage_entries import LineageEntry

REQUEST_REASON = "a person asked for another round"


class RoundRefused(EvoClawError):
    """The proposers cannot be asked now: candidates are decided first, or the day is spent."""


class EvolutionOff(RoundRefused):
    """The agent does not evolve."""

    def __init__(self, agent: str) -> None:
        super().__init__(
            f"agent {agent!r} does not evolve: add [agents.evolution] with "
            'proposers = ["…"] to evoclaw.toml'
        )


class CampaignStopped(RoundRefused):
    """A person stopped the agent, or everything."""


class CampaignAction(StrEnum):
    """What a campaign does next."""

    PROMOTE = "promote"
    """It makes a candidate current that passed all stages."""
    JUDGE = "judge"
    """It has a stage judge a candidate."""
    PROPOSE = "propose"
    """It asks the proposers."""
    WAIT = "wait"
    """Nothing."""


class CampaignStatus(Struct, frozen=True, kw_only=True):
    """What the campaign of an agent does next, and what it may spend."""

    agent: str
    """The name of the agent."""
    on: bool
    """Whether the agent evolves."""
    next: CampaignAction
    """What is done next."""
    candidate: int | None
    """The candidate that it is about; null: none."""
    stage: Stage | None
    """The stage that judges the candidate; null: none does."""
    reason: str
    """Why nothing, or nothing else, is done now; empty: nothing holds the campaign."""
    summary: str
    """What is next and why nothing else is, in words."""
    runs: int
    """Runs of cases since midnight (UTC)."""
    max_runs: int
    """Their limit."""
    cost: float | None
    """What they cost, with the questions of proposers, in US dollars; null: a price is unknown."""
    max_cost: float | None
    """Its limit; null: none."""
    problems: tuple[str, ...]
    """Why proposers cannot be asked, missing cases, names in the settings that match nothing."""


class Campaigns:
    """The campaigns of the agents, seen from outside: another process may drive them."""

    def __init__(
        self,
        lineage: GenomeLineage,
        cases: CaseFolder,
        settings: Callable[[str], AgentEvolution],
        *,
        stopped: Callable[[str], str] = lambda agent: "",
        problem: Callable[[str], str] = lambda agent: "",
        has_sessions: Callable[[str], Awaitable[bool]],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Choose the parts.

        Args:
            lineage: The only record of the campaigns.
            cases: The cases.
            settings: The settings of an agent, as they are now.
            stopped: Says why a person stopped an agent; empty if none did.
            problem: Says why the proposers of an agent cannot be asked; empty if they can.
            has_sessions: Whether a tenant has any session.
            clock: The time in seconds since 1970.
        """
        self._lineage, self._cases, self._settings = lineage, cases, settings
        self._stopped, self._problem = stopped, problem
        self._has_sessions, self._clock = has_sessions, clock

    async def status(self, agent: str) -> CampaignStatus:
        """What is done next for an agent, or why nothing is."""
        settings, now = self._settings(agent), self._clock()
        entries = await self._lineage.history(agent)
        held = self._held(agent, settings)
        steps: list[CampaignStep] = (
            [Wait(str(held))] if held else next_steps(entries, settings, now)
        )
        action, candidate, stage = _described(steps)
        spent = spent_today(entries, now)
        return CampaignStatus(
            agent=agent,
            on=settings.is_on,
            next=action,
            candidate=candidate,
            stage=stage,
            reason=next((step.reason for step in steps if isinstance(step, Wait)), ""),
            summary=describe_next(steps),
            runs=spent.runs,
            max_runs=settings.max_runs_per_day,
            cost=spent.cost,
            max_cost=settings.max_cost_per_day,
            problems=await self._problems(agent, settings) if settings.is_on else (),
        )

    async def request_round(self, agent: str, *, by: str) -> LineageEntry:
        """Record that a person wants the proposers to be asked again.

        Raises `RoundRefused` if they cannot be now, and `GenomeChanged` if another entry was added
        at the same moment.
        """
        settings = self._settings(agent)
        if held := self._held(agent, settings):
            raise held
        entries = await self._lineage.history(agent)
        if why := round_problem(entries, settings, self._clock()):
            raise RoundRefused(f"the proposers of {agent!r} cannot be asked again now: {why}")
        return await self._lineage.add_campaign(
            agent, by=by, reason=REQUEST_REASON, evidence={REQUESTED: True}, after=len(entries)
        )

    def _held(self, agent: str, settings: AgentEvolution) -> RoundRefused | None:
        """Why nothing is done for an agent, whatever its lineage says."""
        if not settings.is_on:
            return EvolutionOff(agent)
        stopped = self._stopped(agent)
        return CampaignStopped(stopped) if stopped else None

    async def _problems(self, agent: str, settings: AgentEvolution) -> tuple[str, ...]:
        found, _ = await asyncio.to_thread(self._cases.read)
        own = {case.name: case.case.split for case in found if case.case.agent in ("", agent)}
        problems = [problem] if (problem := self._problem(agent)) else []
        problems += [
            f"agent {agent!r} has no {split} case: add some with "
            f"`evoclaw cases add RUN --split {split}`"
            for split in (Split.TRAIN, Split.VALIDATION)
            if split not in own.values()
        ]
        problems += [
            f"allowed_regressions of agent {agent!r} names {name!r}, which is none of its "
            "validation cases; see `evoclaw cases`"
            for name in settings.allowed_regressions
            if own.get(name) is not Split.VALIDATION
        ]
        problems += [
            f"tenants of agent {agent!r} names {tenant!r}, which has no session here; check the "
            "name in [agents.evolution]"
            for tenant in settings.tenants
            if tenant != LOCAL_PRINCIPAL.tenant and not await self._has_sessions(tenant)
        ]
        return tuple(problems)


def round_problem(entries: Sequence[LineageEntry], settings: AgentEvolution, now: float) -> str:
    """Why the proposers cannot be asked again now; empty if they can."""
    steps = next_steps(entries, settings, now)
    last = steps[-1]
    if not isinstance(last, Wait):
        return "a round is under way; see its candidates with `evoclaw evolve list`"
    states = {candidate.state for candidate in fold_candidates(entries).values()}
    if CandidateState.OPEN in states:
        return f"{last.reason}; a candidate is decided before others are proposed"
    return budget_problem(settings, spent_today(entries, now))


def _described(
    steps: Sequence[CampaignStep],
) -> tuple[CampaignAction, int | None, Stage | None]:
    """The first step that does something; a watch only looks."""
    for step in steps:
        match step:
            case Judge(candidate, stage):
                return CampaignAction.JUDGE, candidate.number, stage
            case Promote(candidate):
                return CampaignAction.PROMOTE, candidate.number, None
            case Propose():
                return CampaignAction.PROPOSE, None, None
            case Watch() | Wait():
                continue
    return CampaignAction.WAIT, None, None

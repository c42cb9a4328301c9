"""Drives the evolution of one agent: proposes genomes, has them judged, promotes and rolls back.

Each step reads the lineage, works, and adds one entry that names the number it read: if another
entry came first, nothing is added and the step is done again. So it can be killed anywhere, and
nothing is promoted twice.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

from msgspec.structs import replace

from evoclaw.core.errors import EvoClawError, ToolFailure
from evoclaw.core.evolution_settings import AgentEvolution
from evoclaw.core.genome import AGENT_TUNABLES, CONFIGURED, Genome
from evoclaw.core.genome_patches import merged
from evoclaw.core.messages import JSON
from evoclaw.evolution.campaign import (
    NEEDED_RUNS,
    UNANSWERED,
    CampaignStep,
    Judge,
    Promote,
    Propose,
    Spent,
    Wait,
    Watch,
    next_steps,
)
from evoclaw.evolution.candidates import (
    BROKEN,
    FIXED,
    Candidate,
    Stage,
    StageResult,
    fold_candidates,
)
from evoclaw.evolution.cases import CaseFile
from evoclaw.evolution.lineage import GenomeLineage
from evoclaw.evolution.lineage_entries import LineageEntry, OnEntry, ignore_entry
from evoclaw.evolution.proposals import (
    CampaignBudgetSpent,
    Proposal,
    Proposer,
    ProposerContext,
    ReflectionFailed,
    SearchEnded,
)
from evoclaw.store.genomes import GenomeChanged

logger = logging.getLogger(__name__)
T = TypeVar("T")

ENGINE = "evoclaw"
"""Who wrote an entry of the engine."""
POLL_INTERVAL_S = 1.0
"""Seconds between two looks at the lineage and at real runs, also during a long step."""
RETRY_DELAY_S = 60.0
"""Seconds after which a step that failed, such as an unreachable model, is tried again."""
STOP_POLL_INTERVAL_S = 0.25
MAX_PROPOSALS_PER_ROUND = 20
MAX_RECORDED_PROBLEM_CHARS = 500
MAX_NAMED_CASES = 100
"""Of those that a proposal changes, in its evidence."""

StageCheck: TypeAlias = Callable[[Candidate], Awaitable[StageResult]]
"""Judges a candidate at one stage; it may be called again until the stage has a verdict."""
WatchCheck: TypeAlias = Callable[[Candidate, float], Awaitable[str]]
"""The bound that a promoted candidate broke since a time; empty if none."""
OpenContext: TypeAlias = Callable[[str, Genome], Awaitable[tuple[ProposerContext, "SpendingMeter"]]]
"""What a proposer may use, given its name and the current genome; and what it has spent."""


class SpendingMeter:
    """What a proposer spent and no entry of the lineage records yet, and why it ended early."""

    def __init__(self) -> None:
        self._spent = Spent()
        self.ended: SearchEnded | None = None
        """Why it could not continue; proposers give what they have found, and do not raise it."""

    def add(self, spent: Spent) -> None:
        """Count more."""
        self._spent += spent

    @property
    def spent(self) -> Spent:
        """What is not recorded yet."""
        return self._spent

    def take(self) -> Spent:
        """What is to be recorded now; it is not counted again."""
        taken, self._spent = self._spent, Spent()
        return taken


class EvolutionStopped(EvoClawError):
    """A person stopped the agent, or everything."""


class EvolutionEngine:
    """The evolution of one agent."""

    def __init__(
        self,
        agent: str,
        lineage: GenomeLineage,
        settings: Callable[[], AgentEvolution],
        *,
        proposers: Sequence[Proposer],
        open_context: OpenContext,
        checks: Mapping[Stage, StageCheck],
        watch: WatchCheck,
        stopped: Callable[[], str] = lambda: "",
        problem: Callable[[], str] = lambda: "",
        on_entry: OnEntry = ignore_entry,
        recover: Callable[[], Awaitable[None]] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Choose the parts.

        Args:
            agent: Whose genome evolves.
            lineage: The only record of the campaign.
            settings: The settings of now; they may be reloaded.
            proposers: What suggests changes, in order.
            open_context: What a proposer may use.
            checks: What judges a candidate at each stage; `approval` has none.
            watch: Compares the runs after a promotion with those before.
            stopped: Why a person stopped the agent or everything; empty if not.
            problem: Why the proposers cannot be asked now; empty if they can. What was proposed is
                judged and watched all the same.
            on_entry: Receives each entry that was added, for the audit; it may refuse the next one
                by raising.
            recover: Audits the entries whose `on_entry` a killed or failing process missed; called
                before the first step, and again after a failure.
            clock: The time in seconds since 1970.
        """
        self._agent, self._lineage, self._settings = agent, lineage, settings
        self._proposers, self._open_context = proposers, open_context
        self._checks, self._watch = checks, watch
        self._stopped, self._on_entry, self._clock = stopped, on_entry, clock
        self._problem, self._problem_logged = problem, ""
        self._recover, self._is_recovered = recover, recover is None
        self._watched: set[int] = set()
        self._entries: Sequence[LineageEntry] = ()

    async def plan(self) -> list[CampaignStep]:
        """What would be done next, in order; the last one may be to wait."""
        return next_steps(await self._history(), self._settings(), self._clock())

    async def serve(self) -> None:
        """Drive the evolution for ever; failures are logged and tried again."""
        while True:
            delay = POLL_INTERVAL_S
            try:
                if await self.step():
                    continue
            except GenomeChanged:
                continue
            except EvolutionStopped as stop:
                logger.info("evolution of %s: %s", self._agent, stop)
            except EvoClawError as problem:
                logger.warning("evolution of %s: %s", self._agent, problem)
                delay, self._is_recovered = RETRY_DELAY_S, self._recover is None
            await self._rest(delay)

    async def run(self, *, again: bool = False) -> str:
        """Take steps until none is left, and return why.

        Args:
            again: Whether to ask the proposers although they were asked today; not if one of
                these steps was to ask them.
        """
        before = await self._lineage.last_number(self._agent)
        while True:
            try:
                if await self.step():
                    continue
                steps = await self.plan()
                why = next((step.reason for step in steps if isinstance(step, Wait)), "")
                entries = await self._history()
                is_asked = any(entry.kind == "campaign" for entry in entries[before:])
                if not again or is_asked or fold_open(entries):
                    return why
                await self._interruptible(self._propose())
            except GenomeChanged:
                continue

    async def step(self) -> bool:
        """Take the next step; False if there is nothing to do now.

        Raises `GenomeChanged` if another process added an entry meanwhile, and `EvolutionStopped`.
        """
        self._check_stopped()
        if self._recover is not None and not self._is_recovered:
            await self._recover()
            self._is_recovered = True
        entries = await self._history()
        number = len(entries)
        for step in next_steps(entries, self._settings(), self._clock()):
            if await self._interruptible(self._take(step, number)):
                return True
        return False

    async def _history(self) -> Sequence[LineageEntry]:
        """The lineage; it is read again only after a new entry."""
        if len(self._entries) != await self._lineage.last_number(self._agent):
            self._entries = await self._lineage.history(self._agent)
        return self._entries

    async def _take(self, step: CampaignStep, number: int) -> bool:
        match step:
            case Watch(candidate, since):
                return await self._look_after(candidate, since, number)
            case Judge(candidate, stage):
                return await self._judge(candidate, stage, number)
            case Promote(candidate):
                await self._promote(candidate, number)
                return True
            case Propose():
                if self._has_problem():
                    return False
                await self._propose()
                return True
            case Wait():
                return False

    async def _judge(
        self, candidate: Candidate, stage: Stage, number: int, *, rejects: bool = False
    ) -> bool:
        """Record the verdict of a stage, or only one that rejects the candidate."""
        result = await self._checks[stage](candidate)
        self._check_stopped()  # runs that a stop ended say nothing about the candidate
        if rejects and result.passed is not False:
            return False
        before = candidate.results.get(stage)
        if result.passed is None and before is not None and before.evidence == result.evidence:
            return False
        entry = await self._lineage.add_verdict(
            self._agent, candidate.proposal, stage, passed=result.passed, after=number, by=ENGINE,
            reason=result.reason, evidence=result.evidence,
        )  # fmt: skip
        await self._on_entry(entry)
        return True

    async def _promote(self, candidate: Candidate, number: int) -> None:
        try:
            promoted = await self._lineage.promote(
                self._agent, candidate.proposal, after=number, by=ENGINE,
                reason=candidate.proposal.reason,
            )  # fmt: skip
        except ToolFailure as refused:
            # The configuration changed since it was proposed, and does not allow it any more.
            entry = await self._lineage.add_verdict(
                self._agent, candidate.proposal, Stage.STATIC, passed=False, after=number,
                by=ENGINE, reason=refused.message,
            )  # fmt: skip
            await self._on_entry(entry)
            return
        await self._report_version(promoted.version)

    async def _look_after(self, candidate: Candidate, since: float, number: int) -> bool:
        """Take a promoted candidate back if its runs break a bound."""
        if candidate.number in self._watched:
            return False
        why = await self._watch(candidate, since)
        if not why:
            return False
        restored = await self._lineage.roll_back(
            self._agent, by=ENGINE, reason=why, candidate=candidate.number, after=number
        )
        self._watched.add(candidate.number)
        await self._report_version(restored.version)
        return True

    async def _report_version(self, version: int) -> None:
        entries = await self._lineage.history(self._agent)
        await self._on_entry(next(entry for entry in entries if entry.version == version))

    async def _propose(self) -> None:
        """One round of all proposers; each proposal is an entry as soon as it is made."""
        made, problems, left = 0, list[str](), Spent()
        needed, evidence = list[int](), dict[str, JSON]()
        for proposer in self._proposers:
            genome = await self._lineage.version(self._agent)
            context, meter = await self._open_context(proposer.name, genome)
            try:
                async for proposal in proposer.propose(context):
                    runs = await asyncio.to_thread(_runs_behind, context.cases, proposal)
                    proposal = replace(proposal, runs=runs)
                    made += await self._record(proposer.name, genome, proposal, meter)
                    if made >= MAX_PROPOSALS_PER_ROUND:
                        break
            except SearchEnded as problem:
                meter.ended = problem
            except ToolFailure as refused:
                problems.append(f"{proposer.name}: {refused.message}")
            if meter.ended is not None:
                problems.append(f"{proposer.name}: {meter.ended}")
            if isinstance(meter.ended, CampaignBudgetSpent):
                needed.append(meter.ended.runs)
            elif isinstance(meter.ended, ReflectionFailed):
                evidence[UNANSWERED] = self._settings().model
            left += meter.take()
        reason = "; ".join(problems)[:MAX_RECORDED_PROBLEM_CHARS]
        evidence |= {"proposals": made, **left.evidence()}
        if needed:
            evidence[NEEDED_RUNS] = min(needed)
        await self._on_entry(
            await self._lineage.add_campaign(
                self._agent, by=ENGINE, reason=reason, evidence=evidence
            )
        )

    async def _record(
        self, proposer: str, genome: Genome, proposal: Proposal, meter: SpendingMeter
    ) -> int:
        """Add a proposal, unless it was made before; how many were added."""
        entries = await self._lineage.history(self._agent)
        try:
            digest = merged(genome, proposal.patch, CONFIGURED, AGENT_TUNABLES).digest
        except ToolFailure as refused:
            logger.info("a proposal of %s was refused: %s", proposer, refused.message)
            return 0
        known = {
            c.proposal.digest
            for c in fold_candidates(entries).values()
            if c.proposal.parent == genome.digest
        }
        if digest in known or digest == genome.digest:
            return 0
        self._check_stopped()
        spent = meter.take()
        try:
            entry = await self._lineage.propose(
                self._agent, proposal.patch, by=proposer, reason=proposal.reason,
                runs=proposal.runs, untrusted=proposal.untrusted,
                evidence=_evidence(proposal, spent),
            )  # fmt: skip
        except ToolFailure as refused:
            meter.add(spent)
            logger.info("a proposal of %s was refused: %s", proposer, refused.message)
            return 0
        if entry is None:
            meter.add(spent)
            return 0
        await self._on_entry(entry)
        return 1

    def _has_problem(self) -> bool:
        """Whether the proposers cannot be asked; the log says so once, and the status always."""
        problem = self._problem()
        if problem and problem != self._problem_logged:
            logger.warning("evolution asks for no proposals: %s", problem)
        self._problem_logged = problem
        return bool(problem)

    def _check_stopped(self) -> None:
        if why := self._stopped():
            raise EvolutionStopped(why)

    async def _interruptible(self, work: Coroutine[Any, Any, T]) -> T:
        """Do some work; a person's stop cancels it, and so does a broken bound."""
        working, loop = asyncio.ensure_future(work), asyncio.get_running_loop()
        looked_at = loop.time()
        try:
            while not working.done():
                await asyncio.wait([working], timeout=STOP_POLL_INTERVAL_S)
                if working.done():
                    break
                self._check_stopped()
                if loop.time() - looked_at >= POLL_INTERVAL_S:
                    if await self._is_bound_broken():
                        raise GenomeChanged(self._agent)
                    looked_at = loop.time()
            return working.result()
        finally:
            if not working.done():
                self._is_recovered = self._recover is None  # perhaps it stored an entry
                working.cancel()
                await asyncio.wait([working])

    async def _rest(self, delay: float) -> None:
        """Wait before the next step, and look at real runs meanwhile."""
        loop = asyncio.get_running_loop()
        end = loop.time() + delay
        while (left := end - loop.time()) > 0:
            await asyncio.sleep(min(left, POLL_INTERVAL_S))
            try:
                if left > POLL_INTERVAL_S and not self._stopped() and await self._is_bound_broken():
                    return
            except EvoClawError as problem:
                logger.warning("evolution of %s: %s", self._agent, problem)

    async def _is_bound_broken(self) -> bool:
        """Take back, or reject at its canary, what breaks a bound; whether there was anything.

        It is done beside a step that may take hours, such as a round of proposers.
        """
        entries = await self._history()
        try:
            for step in next_steps(entries, self._settings(), self._clock()):
                match step:
                    case Watch(candidate, since):
                        if await self._look_after(candidate, since, len(entries)):
                            return True
                    case Judge(candidate, Stage.CANARY):
                        if await self._judge(candidate, Stage.CANARY, len(entries), rejects=True):
                            return True
                    case _:
                        pass
        except GenomeChanged:
            pass  # the step added an entry; the next look is a second later
        return False


def fold_open(entries: Sequence[LineageEntry]) -> list[Candidate]:
    """The candidates that are at one of the stages."""
    return [c for c in fold_candidates(entries).values() if c.stage is not None]


def _runs_behind(cases: Sequence[CaseFile], proposal: Proposal) -> tuple[str, ...]:
    """The runs that are the reason of a proposal; also those that the cases it fixes record."""
    found = dict.fromkeys(proposal.runs)
    for case in cases:
        if case.name in proposal.fixed[:MAX_NAMED_CASES]:
            found |= dict.fromkeys(record.run_id for record in case.records()[:1])
    return tuple(found)


def _evidence(proposal: Proposal, spent: Spent) -> dict[str, JSON] | None:
    """What a proposer spent until it found a proposal, and which train cases changed."""
    found: dict[str, JSON] = {} if spent == Spent() else spent.evidence()
    for key, names in ((FIXED, proposal.fixed), (BROKEN, proposal.broken)):
        if names:
            found[key] = list(names[:MAX_NAMED_CASES])
    return found or None

"""The stages of the gate as the engine calls them: each reads what it needs, and judges."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from evoclaw.core.events import Record, RunFinished
from evoclaw.core.evolution_settings import AgentEvolution
from evoclaw.core.genome import Genome
from evoclaw.core.messages import JSON
from evoclaw.evolution.campaign import Spent, budget_problem, spent_today
from evoclaw.evolution.candidates import Candidate, Stage, StageResult
from evoclaw.evolution.cases import Case, CaseFile
from evoclaw.evolution.engine import SpendingMeter, StageCheck
from evoclaw.evolution.evaluation import CaseRun, OpenRun, evaluate
from evoclaw.evolution.gate.safety import check_safety, safety_cases
from evoclaw.evolution.gate.sequential_test import campaign_level
from evoclaw.evolution.gate.validation import ValidationSettings, validate
from evoclaw.evolution.lineage import GenomeLineage
from evoclaw.evolution.lineage_entries import genome_of
from evoclaw.evolution.real_runs import RealRuns, first_input
from evoclaw.evolution.rollout import RunFigures, broken_bound, judge_canary

OpenRunner: TypeAlias = Callable[[Genome], AbstractAsyncContextManager[OpenRun]]
"""What prepares runs of cases with a genome; it ends with the block."""
StaticCheck: TypeAlias = Callable[[Candidate, Genome, Genome], StageResult]
"""Judges a candidate by its content, given the old and the new genome."""
_SHADOW_SECONDS = 600.0


class _BatchDone(Exception):
    def __init__(self, result: StageResult) -> None:
        super().__init__()
        self.result = result


def _stop_after_batch(result: StageResult) -> None:
    raise _BatchDone(result)


class GateStages:
    """Judges the candidates of one agent."""

    def __init__(
        self,
        agent: str,
        lineage: GenomeLineage,
        settings: Callable[[], AgentEvolution],
        *,
        static: StaticCheck,
        open_runner: OpenRunner,
        cases: Callable[[], Sequence[CaseFile]],
        real_runs: RealRuns,
        clock: Callable[[], float],
    ) -> None:
        """Choose the parts.

        Args:
            agent: Whose candidates.
            lineage: Where they are.
            settings: The thresholds of now.
            static: Judges the content.
            open_runner: Prepares runs of cases with a genome.
            cases: The cases of the agent, read again for each stage.
            real_runs: The runs of real sessions.
            clock: The time in seconds since 1970.
        """
        self._agent, self._lineage, self._settings = agent, lineage, settings
        self._static, self._open_runner, self._cases = static, open_runner, cases
        self._real_runs, self._clock = real_runs, clock
        self._baseline: tuple[tuple[int, float], RunFigures] | None = None
        """Of the promotion that is watched: the runs before it, which do not change any more."""

    def checks(self) -> Mapping[Stage, StageCheck]:
        """What judges a candidate at each stage; only people and keys approve."""
        return {
            Stage.STATIC: self._judge_static,
            Stage.VALIDATION: self._judge_validation,
            Stage.SAFETY: self._judge_safety,
            Stage.SHADOW: self._judge_shadow,
            Stage.CANARY: self._judge_canary,
        }

    async def watch(self, candidate: Candidate, since: float) -> str:
        """The bound that a promoted candidate broke since a time; empty if none."""
        settings = self._settings()
        if not settings.watch_runs:
            return ""
        seen = await self._real_runs.figures(
            candidate.proposal.digest, since=since, limit=settings.watch_runs
        )
        if not seen.runs:
            return ""
        if self._baseline is None or self._baseline[0] != (candidate.number, since):
            found = await self._real_runs.newest_figures(
                candidate.proposal.parent or "", until=since
            )
            self._baseline = (candidate.number, since), found
        return broken_bound(seen, self._baseline[1], settings, settings.watch_runs)

    async def _judge_static(self, candidate: Candidate) -> StageResult:
        return self._static(candidate, await self._old(candidate), genome_of(candidate.proposal))

    async def _judge_validation(self, candidate: Candidate) -> StageResult:
        """One batch of cases; the verdict stays open until the last one."""
        settings = self._settings()
        entries = await self._lineage.history(self._agent)
        level = campaign_level(entries, candidate.number, settings.error_rate)
        before = candidate.results.get(Stage.VALIDATION)
        if before is None:
            # The first verdict takes a share of the campaign's error rate, before any run.
            evidence: dict[str, JSON] = {"index": level.index, "level": level.level}
            return StageResult(passed=None, evidence=evidence)
        thresholds = ValidationSettings(
            error_rate=settings.error_rate,
            repeats=settings.repeats,
            max_cost_factor=1 + settings.max_cost_increase,
            min_coverage=settings.min_coverage,
            min_cases=settings.min_cases,
        )
        spent = spent_today(entries, self._clock())
        if budget_problem(settings, spent, settings.runs_of_case):
            return before
        affordable = (settings.max_runs_per_day - spent.runs) // settings.runs_of_case
        thresholds = replace(thresholds, batch=min(thresholds.batch, affordable))
        meter = SpendingMeter()
        async with self._both(candidate, meter) as (current, proposed):
            try:
                result = await validate(
                    self._cases(), digest=candidate.proposal.digest, level=level, current=current,
                    candidate=proposed, settings=thresholds, allowed=settings.allowed_regressions,
                    resume=before.evidence, on_progress=_stop_after_batch,
                )  # fmt: skip
            except _BatchDone as done:
                result = done.result
        return _with_spent(result, meter.take())

    async def _judge_safety(self, candidate: Candidate) -> StageResult:
        """One batch of cases; the verdict stays open until the last one."""
        before = candidate.results.get(Stage.SAFETY)
        meter = SpendingMeter()
        async with self._both(candidate, meter) as (current, proposed):
            try:
                result = await check_safety(
                    safety_cases(), current=current, candidate=proposed,
                    resume=before and before.evidence, on_progress=_stop_after_batch,
                )  # fmt: skip
            except _BatchDone as done:
                result = done.result
        return _with_spent(result, meter.take())

    async def _judge_shadow(self, candidate: Candidate) -> StageResult:
        """Repeat recent runs with the candidate; the record answers its calls."""
        settings = self._settings()
        wanted = settings.shadow_runs
        if not wanted:
            return StageResult(passed=True, evidence={"runs": 0})
        traces = await self._real_runs.traces(candidate.proposal.parent or "")
        chosen = [trace for trace in traces if first_input(trace.records)][:wanted]
        if len(chosen) < wanted:
            return StageResult(passed=None, evidence={"waits_for_runs": wanted})
        before = RunFigures(
            runs=len(chosen),
            failed=sum(t.outcome.stop not in ("completed", "cancelled") for t in chosen),
            denied=sum(t.outcome.denied for t in chosen),
            cost=sum(t.outcome.cost or 0.0 for t in chosen),
        )
        meter = SpendingMeter()
        async with self._open_runner(genome_of(candidate.proposal)) as open_run:
            with tempfile.TemporaryDirectory(prefix="evoclaw-shadow-") as folder:
                cases = [_recorded_case(Path(folder), t.run, t.records) for t in chosen]
                done = await evaluate(cases, _metered(open_run, meter))
        seen = RunFigures(
            runs=len(done.attempts),
            failed=sum(attempt.stop != "completed" for attempt in done.attempts),
            denied=sum(attempt.denied for attempt in done.attempts),
            cost=sum(attempt.cost or 0.0 for attempt in done.attempts),
        )
        why = broken_bound(seen, before, settings, len(chosen))
        evidence: dict[str, JSON] = {
            "candidate": seen.evidence(),
            "before": before.evidence(),
            "coverage": done.coverage,
            "runs": [trace.run for trace in chosen],
        }
        result = StageResult(passed=not why, reason=why, evidence=evidence)
        return _with_spent(result, meter.take())

    async def _judge_canary(self, candidate: Candidate) -> StageResult:
        """Compare the sessions that use the candidate with those that do not."""
        settings = self._settings()
        if not settings.canary_runs:
            return StageResult(passed=True, evidence={"runs": 0})
        before = candidate.results.get(Stage.CANARY)
        if before is None:
            return judge_canary(RunFigures(), RunFigures(), settings)
        proposal = candidate.proposal
        seen = await self._real_runs.figures(
            proposal.digest, since=await self._canary_start(candidate), limit=settings.canary_runs
        )
        if before.evidence.get("candidate") == seen.evidence():
            return before
        others = await self._real_runs.newest_figures(proposal.parent or "")
        return judge_canary(seen, others, settings)

    async def _canary_start(self, candidate: Candidate) -> float:
        entries = await self._lineage.history(self._agent)
        return next(
            entry.at
            for entry in entries
            if (entry.candidate, entry.stage) == (candidate.number, Stage.CANARY)
        )

    async def _old(self, candidate: Candidate) -> Genome:
        return await self._lineage.find(self._agent, candidate.proposal.parent or "")

    @asynccontextmanager
    async def _both(
        self, candidate: Candidate, meter: SpendingMeter
    ) -> AsyncGenerator[tuple[OpenRun, OpenRun]]:
        """What prepares runs with the current genome, and with the candidate."""
        async with (
            self._open_runner(await self._old(candidate)) as current,
            self._open_runner(genome_of(candidate.proposal)) as proposed,
        ):
            yield _metered(current, meter), _metered(proposed, meter)


class _CostSink:
    """Counts a run and its cost, as soon as it ends."""

    def __init__(self, meter: SpendingMeter) -> None:
        self._meter = meter

    def receive(self, record: Record) -> None:
        """Take the next record."""
        if isinstance(record.event, RunFinished):
            self._meter.add(Spent(1, record.event.cost))


def _metered(open_run: OpenRun, meter: SpendingMeter) -> OpenRun:
    """The same runs, counted."""

    @asynccontextmanager
    async def opened(case: CaseFile, workspace: Path) -> AsyncGenerator[CaseRun]:
        async with open_run(case, workspace) as run:
            ports = replace(run.ports, sinks=(*run.ports.sinks, _CostSink(meter)))
            yield CaseRun(run.state, ports, run.settings, run.exec, run.recorded)

    return opened


def _recorded_case(folder: Path, run: str, records: tuple[Record, ...]) -> CaseFile:
    """A case without checks that repeats a run: its record answers the calls."""
    name = f"{run}.jsonl"
    (folder / name).write_bytes(b"".join(msgspec.json.encode(r) + b"\n" for r in records))
    case = Case(message=first_input(records), checks=(), recording=name, seconds=_SHADOW_SECONDS)
    return CaseFile(run, folder / f"{run}.toml", case)


def _with_spent(result: StageResult, spent: Spent) -> StageResult:
    return replace(result, evidence={**result.evidence, **spent.evidence()})

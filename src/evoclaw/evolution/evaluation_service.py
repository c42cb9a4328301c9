"""Evaluations in the background of a service: progress, cancellation, one at a time per agent.

The result is an entry of the lineage that names the evaluation. What runs is in the store, renewed
by its owner: one that is not renewed any more is reported as interrupted.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from enum import StrEnum
from typing import TypeAlias
from uuid import uuid4

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from evoclaw.core.errors import ConfigError, EvoClawError
from evoclaw.core.genome import Genome
from evoclaw.evolution.cases import CaseFile, CaseFolder, Split, chosen_cases, has_sealed
from evoclaw.evolution.evaluation import Attempt, OpenRun, Rate, evaluate, lineage_scores
from evoclaw.evolution.lineage import GenomeLineage, GenomeNotFound
from evoclaw.evolution.lineage_entries import LineageEntry, OnEntry, genome_of, ignore_entry
from evoclaw.store.databases.database import StoreError
from evoclaw.store.evaluations import EvaluationStore, StoredEvaluation

logger = logging.getLogger(__name__)
RENEW_INTERVAL_S = 5.0
LEASE_S = 60.0
"""An evaluation that was not renewed for so long is interrupted: its process is dead."""
CANCEL_TIMEOUT_S = 20.0
"""For runs to end before the caller of a cancellation is answered."""
MAX_ATTEMPTS = 10_000
MAX_PROBLEMS = 50
MAX_PROBLEM_CHARS = 500
EVALUATION_KEY = "evaluation"
"""In the scores of the lineage: the id of the evaluation that they are of."""
INTERRUPTED_TEXT = "The service stopped before the evaluation ended. Start it again."

OpenRunner: TypeAlias = Callable[[str, Genome], AbstractAsyncContextManager[OpenRun]]
"""Prepares the runs of an agent with a genome."""


class EvaluationState(StrEnum):
    """Where an evaluation is."""

    RUNNING = "running"
    COMPLETED = "completed"
    """Its result is in the lineage."""
    FAILED = "failed"
    """It could not be run."""
    CANCELLED = "cancelled"
    """A person cancelled it; there is no result."""
    INTERRUPTED = "interrupted"
    """The service stopped before it ended; there is no result."""


class AttemptProblem(Struct, frozen=True):
    """Why a run of a case failed."""

    case: str
    """The name of the case."""
    problem: str
    """The first check that failed, or how the run ended."""


class EvaluationRequest(Struct, frozen=True, kw_only=True):
    """What to evaluate."""

    cases: tuple[str, ...] = ()
    """The cases by name; empty: all of the splits."""
    splits: tuple[Split, ...] = (Split.TRAIN, Split.VALIDATION)
    repeat: int = 1
    """How often each case is run."""
    parallel: int = 4
    """How many runs at the same time."""
    version: int | None = None
    """The version of the genome; null: the current one."""
    candidate: int | None = None
    """The candidate whose genome is evaluated instead of a version."""
    release: str = ""
    """The release that sealed cases are opened for."""


class BackgroundEvaluation(Struct, frozen=True, kw_only=True):
    """An evaluation that the service runs, or ran."""

    id: str
    """Identifies it among the evaluations of its agent."""
    agent: str
    """Whose genome is evaluated."""
    state: EvaluationState
    """Where it is."""
    by: str
    """Who started it."""
    version: int | None
    """The version of the genome; null: that of a candidate."""
    candidate: int | None
    """The candidate whose genome it is; null: a version."""
    digest: str
    """That of the genome; empty: as configured."""
    cases: tuple[str, ...]
    """The names of the cases."""
    repeat: int
    """How often each case is run."""
    runs: int
    """How many runs it has in all."""
    done: int
    """How many of them have ended."""
    passed: int
    """How many of those passed."""
    problems: tuple[AttemptProblem, ...]
    """Why runs failed; the first ones."""
    started_at: float
    """Unix time, seconds."""
    ended_at: float | None
    """Unix time, seconds; null: it runs, or was interrupted."""
    error: str
    """Why there is no result."""
    result: int | None
    """The number of the entry of the lineage that has the result; null: there is none."""


class EvaluationRunning(EvoClawError):
    """An evaluation of the agent runs already."""

    def __init__(self, agent: str) -> None:
        super().__init__(f"an evaluation of {agent!r} is running; wait until it ends, or cancel it")


class EvaluationNotFound(EvoClawError):
    """An agent has no evaluation of that id."""

    def __init__(self, agent: str, id: str) -> None:
        super().__init__(f"agent {agent!r} has no evaluation {id!r}; list its evaluations")


class EvaluationEnded(EvoClawError):
    """The evaluation to be cancelled has ended."""

    def __init__(self, state: EvaluationState) -> None:
        super().__init__(f"the evaluation is not running any more: it is {state}")


class EvaluationStopped(EvoClawError):
    """A person stopped the agent, or everything."""

    def __init__(self, why: str) -> None:
        super().__init__(f"no evaluation runs: {why}; release the stop first")


class _Active:
    """An evaluation that this process runs."""

    def __init__(self, view: BackgroundEvaluation) -> None:
        self.view = view
        self.ending: tuple[EvaluationState, str] | None = None
        """How it ends, if its work is cancelled."""
        self.work: asyncio.Task[None]
        self.driver: asyncio.Task[None]

    def count(self, attempt: Attempt) -> None:
        """Take the next attempt that has ended."""
        view, problems = self.view, self.view.problems
        if attempt.problems and len(problems) < MAX_PROBLEMS:
            text = attempt.problems[0][:MAX_PROBLEM_CHARS]
            problems = (*problems, AttemptProblem(attempt.case, text))
        self.view = replace(
            view, done=view.done + 1, passed=view.passed + attempt.passed, problems=problems
        )

    def end(self, state: EvaluationState, why: str) -> None:
        """Cancel its work, once."""
        if self.ending is None:
            self.ending = (state, why)
            self.work.cancel()


class EvaluationService:
    """Starts, shows and cancels the evaluations of a service."""

    def __init__(
        self,
        store: EvaluationStore,
        lineage: GenomeLineage,
        cases: CaseFolder,
        open_runner: OpenRunner,
        *,
        stopped: Callable[[str], str] = lambda agent: "",
        on_entry: OnEntry = ignore_entry,
        renew_interval_s: float = RENEW_INTERVAL_S,
        lease_s: float = LEASE_S,
    ) -> None:
        """Choose the parts.

        Args:
            store: Where the evaluations are.
            lineage: Where the genomes are, and the results.
            cases: The cases.
            open_runner: Prepares the runs of an agent.
            stopped: Says why a person stopped an agent; empty if none did.
            on_entry: Receives each entry that was added to a lineage, for the audit.
            renew_interval_s: How often a running evaluation is renewed.
            lease_s: After how long without that it is interrupted.
        """
        self._store, self._lineage, self._cases = store, lineage, cases
        self._open_runner, self._stopped, self._on_entry = open_runner, stopped, on_entry
        self._renew_interval_s, self._lease_s = renew_interval_s, lease_s
        self._owner = uuid4().hex
        self._active: dict[str, _Active] = {}
        self._is_serving = False

    @asynccontextmanager
    async def serving(self, *, alone: bool) -> AsyncGenerator[None]:
        """Accept evaluations until the block ends; those that run then are interrupted.

        Args:
            alone: Whether no other process uses the store, so that what is still marked as running
                is interrupted.
        """
        await self._store.interrupt(math.inf if alone else self._lapsed())
        self._is_serving = True
        try:
            yield
        finally:
            self._is_serving = False
            for active in self._active.values():
                active.end(EvaluationState.INTERRUPTED, INTERRUPTED_TEXT)
            if drivers := [active.driver for active in self._active.values()]:
                await asyncio.wait(drivers)

    async def start(self, agent: str, request: EvaluationRequest, *, by: str) -> str:
        """Start an evaluation; returns its id.

        Raises `EvaluationRunning`, `EvaluationStopped`, `GenomeNotFound`, or `ConfigError` if there
        is no such case.
        """
        if not self._is_serving:
            raise StoreError("the service is stopping; start the evaluation again when it is up")
        if why := self._stopped(agent):
            raise EvaluationStopped(why)
        genome = await self._genome(agent, request)
        found, _ = await asyncio.to_thread(self._cases.read)
        cases = chosen_cases(found, agent, request.cases, request.splits)
        if (runs := len(cases) * request.repeat) > MAX_ATTEMPTS:
            raise ConfigError(f"{runs} runs are too many; at most {MAX_ATTEMPTS} are possible")
        view = BackgroundEvaluation(
            id=uuid4().hex[:16],
            agent=agent,
            state=EvaluationState.RUNNING,
            by=by,
            version=None if request.candidate is not None else genome.version,
            candidate=request.candidate,
            digest=genome.digest,
            cases=tuple(case.name for case in cases),
            repeat=request.repeat,
            runs=runs,
            done=0,
            passed=0,
            problems=(),
            started_at=self._store.database.time(),
            ended_at=None,
            error="",
            result=None,
        )
        started = await self._store.start(
            view.id, agent, self._owner, msgspec.json.encode(view), lapsed_before=self._lapsed()
        )
        if not started:
            raise EvaluationRunning(agent)
        active = self._active[view.id] = _Active(view)
        work = self._evaluate(active, genome, cases, request)
        active.work = asyncio.create_task(work, name=f"evaluation {view.id}")
        active.driver = asyncio.create_task(self._drive(active), name=f"driver of {view.id}")
        return view.id

    async def list(
        self, agent: str, entries: Sequence[LineageEntry]
    ) -> Sequence[BackgroundEvaluation]:
        """The last evaluations of an agent, the newest first; `entries` is its lineage."""
        results = _results(entries)
        return [self._view(stored, results) for stored in await self._store.of_agent(agent)]

    async def get(self, agent: str, id: str) -> BackgroundEvaluation:
        """One evaluation; raises `EvaluationNotFound`."""
        stored = await self._store.get(agent, id)
        if stored is None:
            raise EvaluationNotFound(agent, id)
        return self._view(stored, _results(await self._lineage.history(agent)))

    async def cancel(self, agent: str, id: str, *, by: str) -> BackgroundEvaluation:
        """Cancel an evaluation; raises `EvaluationNotFound` or `EvaluationEnded`."""
        view = await self.get(agent, id)
        if view.state is not EvaluationState.RUNNING or not await self._store.cancel(agent, id):
            raise EvaluationEnded((await self.get(agent, id)).state)
        if (active := self._active.get(id)) is not None:
            active.end(EvaluationState.CANCELLED, f"Cancelled by {by}.")
            await asyncio.wait([active.driver], timeout=CANCEL_TIMEOUT_S)
        return await self.get(agent, id)

    def _lapsed(self) -> float:
        return self._store.database.time() - self._lease_s

    async def _genome(self, agent: str, request: EvaluationRequest) -> Genome:
        if request.candidate is None:
            return await self._lineage.version(agent, request.version)
        for entry in await self._lineage.history(agent):
            if entry.kind == "proposal" and entry.number == request.candidate:
                return genome_of(entry)
        raise GenomeNotFound(agent, f"candidate {request.candidate}")

    async def _evaluate(
        self,
        active: _Active,
        genome: Genome,
        cases: Sequence[CaseFile],
        request: EvaluationRequest,
    ) -> None:
        agent, by, opens_sealed = active.view.agent, active.view.by, has_sealed(cases)
        async with self._open_runner(agent, genome) as open_run:
            if opens_sealed:
                await self._on_entry(
                    await self._lineage.open_sealed(agent, genome, request.release, by=by)
                )
            done = await evaluate(
                cases,
                open_run,
                repeat=request.repeat,
                parallel=request.parallel,
                on_attempt=active.count,
            )
        if why := self._stopped(agent):
            raise EvaluationStopped(why)  # runs that were stopped say nothing about the genome
        release = request.release if opens_sealed else ""
        scores = lineage_scores(done, release) | {EVALUATION_KEY: active.view.id}
        await self._on_entry(await self._lineage.add_evaluation(agent, genome, scores, by=by))

    async def _drive(self, active: _Active) -> None:
        """Renew an evaluation until its work ends, and store how it ended."""
        try:
            while not active.work.done():
                await asyncio.wait([active.work], timeout=self._renew_interval_s)
                if not active.work.done() and active.ending is None:
                    await self._renew(active)
            view = _ended(active, self._store.database.time())
            encoded = msgspec.json.encode(view)
            await self._store.finish(view.id, self._owner, view.state, encoded)
        except StoreError as problem:
            logger.warning("the end of evaluation %s was not stored: %s", active.view.id, problem)
        finally:
            del self._active[active.view.id]

    async def _renew(self, active: _Active) -> None:
        if why := self._stopped(active.view.agent):
            active.end(EvaluationState.FAILED, str(EvaluationStopped(why)))
            return
        try:
            encoded = msgspec.json.encode(active.view)
            order = await self._store.renew(active.view.id, self._owner, encoded)
        except StoreError as problem:
            logger.warning("evaluation %s was not renewed: %s", active.view.id, problem)
            return
        if order == "cancel":
            active.end(EvaluationState.CANCELLED, "Cancelled.")
        elif order == "stop":
            active.end(EvaluationState.INTERRUPTED, INTERRUPTED_TEXT)

    def _view(
        self, stored: StoredEvaluation, results: Mapping[str, LineageEntry]
    ) -> BackgroundEvaluation:
        """What is known of an evaluation; the lineage decides whether it has a result."""
        active = self._active.get(stored.id)
        view = (
            active.view if active else msgspec.json.decode(stored.body, type=BackgroundEvaluation)
        )
        state = EvaluationState(stored.state)
        if (result := results.get(stored.id)) is not None:
            ended = view.ended_at or stored.renewed
            total = msgspec.convert(result.scores, Rate)
            return replace(
                view,
                state=EvaluationState.COMPLETED,
                done=total.attempts,  # the result is in the lineage before the last count is stored
                passed=total.passed,
                result=result.number,
                ended_at=ended,
                error="",
            )
        if state is EvaluationState.RUNNING and not active and stored.renewed < self._lapsed():
            state = EvaluationState.INTERRUPTED
        interrupted = state is EvaluationState.INTERRUPTED
        return replace(view, state=state, error=INTERRUPTED_TEXT if interrupted else view.error)


def _results(entries: Sequence[LineageEntry]) -> dict[str, LineageEntry]:
    """The entries with results, by the ids of the evaluations."""
    found = ((entry.scores.get(EVALUATION_KEY), entry) for entry in entries)
    return {id: entry for id, entry in found if isinstance(id, str)}


def _ended(active: _Active, now: float) -> BackgroundEvaluation:
    """The evaluation with how its work ended."""
    if active.work.cancelled():
        state, error = active.ending or (EvaluationState.INTERRUPTED, INTERRUPTED_TEXT)
    elif (failure := active.work.exception()) is None:
        state, error = EvaluationState.COMPLETED, ""
    else:
        state, error = EvaluationState.FAILED, str(failure)
        if not isinstance(failure, EvoClawError | OSError):
            logger.error("evaluation %s failed", active.view.id, exc_info=failure)
            error = "Internal error. See the server's log for the cause."
    return replace(active.view, state=state, error=error, ended_at=now)

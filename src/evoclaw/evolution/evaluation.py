"""Evaluates an agent: runs cases, checks each run, and sums up with intervals and coverage."""

from __future__ import annotations

import asyncio
import math
import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass
from pathlib import Path
from socket import gethostname
from typing import TypeAlias

import msgspec
from msgspec import Struct

from evoclaw.core.agent import LoopSettings
from evoclaw.core.deadline import Deadline
from evoclaw.core.errors import EvoClawError
from evoclaw.core.events import (
    ApprovalAnswered,
    CallFinished,
    CallJudged,
    CallStarted,
    Record,
    RunFinished,
    RunStarted,
    StopReason,
)
from evoclaw.core.loop import run_loop
from evoclaw.core.messages import JSON, ToolResult
from evoclaw.core.ops import ExecOps
from evoclaw.core.ports import Decision, Ports
from evoclaw.core.run import Bus, recorded
from evoclaw.core.state import RunState
from evoclaw.core.truncate import truncate_middle
from evoclaw.core.version import VERSION
from evoclaw.evolution.cases import CaseFile, Split
from evoclaw.evolution.checks import MadeCall, RunToCheck
from evoclaw.evolution.outcomes import OutcomeFold
from evoclaw.evolution.recorded_results import RecordedResults

CONFIDENCE_Z = 1.959964
"""Of a 95 % interval."""
MAX_TRANSCRIPT_LINES, MAX_LINE_CHARS, MAX_ANSWER_CHARS = 40, 300, 1_000
"""Of the transcript of an attempt."""


@dataclass(frozen=True, slots=True)
class CaseRun:
    """Everything that one run of a case needs."""

    state: RunState
    ports: Ports
    settings: LoopSettings
    exec: ExecOps
    """Runs the commands of checks, in the sandbox of the run."""
    recorded: RecordedResults | None
    """What answers its calls, if nothing is executed."""


OpenRun: TypeAlias = Callable[[CaseFile, Path], AbstractAsyncContextManager[CaseRun]]
"""Prepares a run of a case in a workspace; everything ends with the block."""


class Attempt(Struct, frozen=True, kw_only=True):
    """One run of a case."""

    case: str
    split: Split
    passed: bool
    """The run completed, and all checks passed."""
    problems: tuple[str, ...]
    """Why it failed."""
    stop: StopReason | None
    turns: int
    calls: int
    cost: float | None
    """In US dollars; null if the price is unknown."""
    coverage: float | None
    """The share of calls that were answered from the record; null if calls were executed, or if
    there was none."""
    recorded: bool = False
    """Whether a record answered the calls, so that none was executed."""
    denied: int = 0
    """Calls that a policy denied, or that needed an approval and got none."""
    refused: int = 0
    """Those that needed an approval and got none."""
    model: str = ""
    """The model that it was run with."""
    transcript: str = ""
    """What the run did, shortened: calls, the first words of errors, the answer."""


class Rate(Struct, frozen=True):
    """A share of attempts, with its 95 % interval (Wilson)."""

    passed: int
    """Attempts that passed."""
    attempts: int
    """All attempts."""
    rate: float
    """The share that passed."""
    low: float
    """The lower end of the interval."""
    high: float
    """The upper end of the interval."""


class Evaluation(Struct, frozen=True, kw_only=True):
    """The result of an evaluation."""

    attempts: tuple[Attempt, ...]
    total: Rate
    cases: dict[str, Rate]
    splits: dict[str, Rate]
    cost: float | None
    """Of all attempts; null if a price is unknown."""
    coverage: float | None
    """The share of recorded calls that were answered; null if no call was to be answered from a
    record."""
    recorded: int = 0
    """Attempts whose calls were to be answered from a record."""


class RecordedAnswers(Struct, frozen=True, array_like=True):
    """What records answered in some runs."""

    recorded: int = 0
    """Runs whose calls were to be answered from a record."""
    calls: int = 0
    """Calls of these runs."""
    answered: float = 0.0
    """Of them, those that the record could answer."""

    def __add__(self, other: RecordedAnswers) -> RecordedAnswers:
        return RecordedAnswers(
            self.recorded + other.recorded,
            self.calls + other.calls,
            self.answered + other.answered,
        )

    @property
    def coverage(self) -> float | None:
        """The share of calls that were answered; None without a call."""
        return self.answered / self.calls if self.calls else None

    def evidence(self) -> dict[str, JSON]:
        """How a rate has its coverage beside it."""
        return {"coverage": self.coverage, "recorded": self.recorded}


def recorded_answers(attempts: Sequence[Attempt]) -> RecordedAnswers:
    """What records answered in these attempts."""
    found = [(a.coverage, a.calls + a.refused) for a in attempts if a.coverage is not None]
    return RecordedAnswers(
        recorded=sum(attempt.recorded for attempt in attempts),
        calls=sum(calls for _, calls in found),
        answered=sum(coverage * calls for coverage, calls in found),
    )


def wilson(passed: int, attempts: int) -> Rate:
    """A rate with its Wilson score interval."""
    if not attempts:
        return Rate(0, 0, 0.0, 0.0, 1.0)
    share, z2 = passed / attempts, CONFIDENCE_Z**2
    centre = share + z2 / (2 * attempts)
    spread = CONFIDENCE_Z * math.sqrt((share * (1 - share) + z2 / (4 * attempts)) / attempts)
    scale = 1 + z2 / attempts
    low, high = (centre - spread) / scale, (centre + spread) / scale
    return Rate(passed, attempts, share, max(0.0, low), min(1.0, high))


async def evaluate(
    cases: Sequence[CaseFile],
    open_run: OpenRun,
    *,
    repeat: int = 1,
    parallel: int = 4,
    on_attempt: Callable[[Attempt], None] = lambda attempt: None,
) -> Evaluation:
    """Run each case so often, some at the same time; each run has a workspace of its own.

    The first run that cannot be prepared ends the evaluation with its error.
    """
    slots = asyncio.Semaphore(parallel)

    async def attempt(case: CaseFile) -> Attempt:
        async with slots:
            done = await _attempt(case, open_run)
        on_attempt(done)
        return done

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(attempt(case)) for case in cases for _ in range(repeat)]
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return summed_up([task.result() for task in tasks])


async def evaluate_both(
    cases: Sequence[CaseFile],
    current: OpenRun,
    candidate: OpenRun,
    *,
    repeat: int,
    parallel: int,
) -> tuple[Evaluation, Evaluation]:
    """Run cases with two genomes, at the same time; an error of one ends the runs of both."""
    try:
        async with asyncio.TaskGroup() as group:
            before, after = (
                group.create_task(evaluate(cases, opener, repeat=repeat, parallel=parallel))
                for opener in (current, candidate)
            )
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return before.result(), after.result()


def summed_up(attempts: Sequence[Attempt]) -> Evaluation:
    """The evaluation that some attempts amount to."""
    costs = [attempt.cost for attempt in attempts]
    known = [cost for cost in costs if cost is not None]
    answers = recorded_answers(attempts)
    return Evaluation(
        attempts=tuple(attempts),
        total=_rate(attempts),
        cases=_rates(attempts, lambda attempt: attempt.case),
        splits=_rates(attempts, lambda attempt: str(attempt.split)),
        cost=sum(known) if len(known) == len(costs) else None,
        coverage=answers.coverage,
        recorded=answers.recorded,
    )


def lineage_scores(done: Evaluation, release: str = "") -> dict[str, JSON]:
    """What the lineage records of an evaluation: the figures, not the runs."""
    scores = {**total_scores(done), "cases": msgspec.to_builtins(done.cases)}
    return scores | ({"release": release} if release else {})


def total_scores(done: Evaluation) -> dict[str, JSON]:
    """The figures of all cases together, and with what and where they were run."""
    models = dict.fromkeys(attempt.model for attempt in done.attempts if attempt.model)
    return {
        **msgspec.to_builtins(done.total),
        "splits": msgspec.to_builtins(done.splits),
        "cost": done.cost,
        "coverage": done.coverage,
        "recorded": done.recorded,
        "model": ", ".join(models),
        "host": gethostname(),
        "evoclaw_version": VERSION,
    }


def _rates(attempts: Sequence[Attempt], key: Callable[[Attempt], str]) -> dict[str, Rate]:
    names = dict.fromkeys(key(attempt) for attempt in attempts)
    return {name: _rate([a for a in attempts if key(a) == name]) for name in names}


def _rate(attempts: Iterable[Attempt]) -> Rate:
    outcomes = [attempt.passed for attempt in attempts]
    return wilson(sum(outcomes), len(outcomes))


async def _attempt(case: CaseFile, open_run: OpenRun) -> Attempt:
    folder = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="evoclaw-case-"))
    workspace = folder / "workspace"
    try:
        if (start := case.workspace) is not None:
            await asyncio.to_thread(shutil.copytree, start, workspace, symlinks=True)
        else:
            workspace.mkdir()
        async with open_run(case, workspace) as run:
            return await _run_and_check(case, run, workspace)
    finally:
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


class _RunLog:
    """What the checks and the attempt need to know of a run."""

    def __init__(self) -> None:
        self.answer = self.model = ""
        self.made: list[MadeCall] = []
        self.lines: list[str] = []
        self.refused: list[tuple[str, str]] = []
        """The tools of calls that needed an approval and got none, and why they needed one."""
        self._started: dict[str, CallStarted] = {}
        self._asked: dict[str, str] = {}
        self._refused: set[str] = set()

    def receive(self, record: Record) -> None:
        """Take the next record."""
        match record.event:
            case RunStarted(model=model):
                self.model = model
            case CallJudged(call_id, "ask", reason=reason):
                self._asked[call_id] = reason
            case ApprovalAnswered(call_id, Decision.DENY):
                self._refused.add(call_id)
            case CallStarted():
                self._started[record.event.call_id] = record.event
            case CallFinished(result):
                self._finished(result)
            case RunFinished(text=text):
                self.answer = text
            case _:
                pass

    def _finished(self, result: ToolResult) -> None:
        call = self._started.get(result.call_id)
        self.lines.append(_call_line(result, call))
        if call is not None:
            self.made.append(MadeCall(call.name, call.arguments, result.error is None))
        elif result.call_id in self._refused:
            self.refused.append((result.name, self._asked.get(result.call_id, "")))


async def _run_and_check(case: CaseFile, run: CaseRun, workspace: Path) -> Attempt:
    fold, log = OutcomeFold(), _RunLog()
    deadline = Deadline(min(case.case.seconds, run.settings.max_seconds))
    bus = Bus(run.state.run_id, run.ports.sinks)
    events = run_loop(run.state, run.ports, run.settings, deadline)
    async with aclosing(recorded(events, bus)) as records:
        async for record in records:
            fold.receive(record)
            log.receive(record)
    outcome = fold.outcome()
    seen = RunToCheck(log.answer, log.made, outcome.cost, workspace, run.exec)
    problems = await _problems(case, seen)
    if outcome.stop is not StopReason.COMPLETED:
        problems.insert(0, f"the run ended with {outcome.stop}")
    if bus.failures:
        problems.insert(0, f"the run could not be recorded: {bus.failures[0][1]}")
    if problems:
        problems = [*_refusals(case, log.refused), *problems]
    if run.recorded is not None:
        run.recorded.unanswered += len(log.refused)
    return Attempt(
        case=case.name, split=case.case.split, passed=not problems, problems=tuple(problems),
        stop=outcome.stop, turns=outcome.turns, calls=len(log.made), cost=outcome.cost,
        coverage=None if run.recorded is None else run.recorded.coverage,
        recorded=run.recorded is not None, denied=outcome.denied, refused=len(log.refused),
        model=log.model, transcript=_transcript(log.lines, log.answer),
    )  # fmt: skip


def _refusals(case: CaseFile, refused: Iterable[tuple[str, str]]) -> list[str]:
    """Which tools needed an approval and got none, and what to do about it."""
    if not case.attended:
        return []  # nothing is to be approved there
    found = dict(refused)
    names = ", ".join(f'"{name}"' for name in dict.fromkeys((*case.case.approve, *found)))
    advice = f"add approve = [{names}] to the case"
    if case.case.is_recorded:
        advice = "the record has no result for it"
    return [
        f"the call of {tool} needed an approval ({why}): {advice}" for tool, why in found.items()
    ]


def _call_line(result: ToolResult, call: CallStarted | None) -> str:
    """A call, and how it ended; the result of a call that succeeded is left out."""
    arguments = "" if call is None else msgspec.json.encode(call.arguments).decode()
    ended = "ok" if result.error is None else f"{result.error}: {' '.join(result.text.split())}"
    return truncate_middle(f"{result.name} {arguments} -> {ended}", MAX_LINE_CHARS)


def _transcript(lines: Sequence[str], answer: str) -> str:
    beyond = len(lines) - MAX_TRANSCRIPT_LINES
    more = [f"and {beyond} more calls"] if beyond > 0 else []
    said = f"answer: {truncate_middle(answer, MAX_ANSWER_CHARS)}"
    return "\n".join((*lines[:MAX_TRANSCRIPT_LINES], *more, said))


async def _problems(case: CaseFile, run: RunToCheck) -> list[str]:
    found: list[str] = []
    for check in case.case.checks:
        try:
            problem = await check.problem(run)
        except (EvoClawError, OSError) as failed:
            problem = f"the check {check.__struct_config__.tag} failed: {failed}"
        found += [problem] if problem else []
    return found

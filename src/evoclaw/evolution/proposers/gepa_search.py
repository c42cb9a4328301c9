"""Reflective search with a Pareto pool over the texts of a genome, by the package `gepa`.

`gepa` is synchronous: it runs in a thread, and its evaluations and questions run in the event loop.
Its own prompts are not used: they quote recorded text without naming it as data.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from threading import Lock
from typing import Any, TypeVar

from msgspec import Struct

from evoclaw.core.genome import Genome
from evoclaw.core.messages import JSON
from evoclaw.evolution.cases import CaseFile
from evoclaw.evolution.evaluation import Attempt
from evoclaw.evolution.proposals import Proposal, ProposerContext, SearchEnded
from evoclaw.evolution.proposers.genome_texts import NOTES, GenomeTexts
from evoclaw.evolution.proposers.reflection import (
    answered_text,
    ask_model,
    data_lines,
    is_outside_text,
)

MAX_RUNS = 1_000
"""Of cases in one search; the budget of the campaign may end it before."""
MAX_ROUNDS_WITHOUT_GAIN = 40
MINIBATCH_CASES = 3
"""Cases that a change is tried on before it is tried on all."""
MAX_PROPOSALS = 3
_TASK = """You improve one text of an agent that works with tools. The text is {what}.

The text now:
{text}

The agent had it in these runs:
{data}

Write a better text. Say what helps with tasks of this kind in general: do not name single tasks,
and do not give their answers. Keep what works. At most {limit} characters.

Answer with the new text between <text> and </text>."""
_LINE_TASK = """You improve one text of an agent that works with tools, by one line. The text is
{what}.

Its lines now:
{text}

The agent had it in these runs:
{data}

Write one line that would have prevented the mistakes: a sentence that tells the agent what to do.
It must help with other tasks of this kind, too: do not name single tasks, and do not give their
answers. At most {limit} characters.

Answer with the line between <line> and </line>. To replace a line, put its number and a colon
first; without a number, it is added."""
MAX_LINE_CHARS = 400
_NUMBERED_LINE = re.compile(r"(?:(\d{1,4})\s*:\s*)?((?!\d+\s*:?\s*$)\S.*)")
_Result = TypeVar("_Result")

_log = logging.getLogger(__name__)


class GepaSearch:
    """Proposes the texts of the best genomes that `gepa` finds on the train cases."""

    name = "gepa"

    def __init__(self, *, max_runs: int = MAX_RUNS, seed: int = 0) -> None:
        """`seed` decides which cases and genomes the search looks at next."""
        self._max_runs, self._seed = max_runs, seed

    async def propose(self, context: ProposerContext) -> AsyncIterator[Proposal]:
        """The genomes that pass more train cases, the best first."""
        if not context.cases:
            return
        texts = await asyncio.to_thread(GenomeTexts, context)
        search = _Search(context, texts, self._max_runs, self._seed)
        await search.run()
        for proposal in search.proposals():
            yield proposal


class _SearchStopped(BaseException):
    """Ends gepa from inside; not an `Exception`, which gepa would catch and ignore."""


class _Bridge:
    """Runs coroutines of an event loop for a thread, until it is stopped."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self._lock = loop, Lock()
        self._pending: Future[Any] | None = None
        self._is_stopped = False

    def wait(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """The result of a coroutine; raises `_SearchStopped` once the bridge is stopped."""
        with self._lock:
            if self._is_stopped:
                work.close()
                raise _SearchStopped
            pending = self._pending = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return pending.result()
        except CancelledError:
            raise _SearchStopped from None
        except SearchEnded as ended:
            _log.info("gepa ended early: %s", ended)
            raise _SearchStopped from None

    def stop(self) -> None:
        """Cancel what runs, and refuse the rest."""
        with self._lock:
            self._is_stopped = True
            if self._pending is not None:
                self._pending.cancel()


class _CaseRuns(Struct, frozen=True):
    """A case, and its runs with one genome."""

    case: CaseFile
    attempts: tuple[Attempt, ...]


class _Found(Struct, frozen=True):
    """A genome that was run on all train cases."""

    texts: dict[str, str]
    scores: Sequence[float]
    """The share of passed runs of each train case."""

    @property
    def score(self) -> float:
        """The share of passed runs."""
        return sum(self.scores) / len(self.scores)


class _Search:
    """One search: the adapter, the callbacks and the logger of gepa in one."""

    def __init__(
        self, context: ProposerContext, texts: GenomeTexts, max_runs: int, seed: int
    ) -> None:
        self._context, self._texts = context, texts
        self._max_runs, self._seed = max_runs, seed
        self._bridge = _Bridge(asyncio.get_running_loop())
        self._found: list[_Found] = []
        self._round_of_gain = 0
        self._runs = 0
        self._asked: Counter[str] = Counter()
        """How often the reflecting model was asked for each part."""
        self._is_untrusted = False

    async def run(self) -> None:
        """Search until nothing better is found; a cancellation ends the thread too."""
        work = asyncio.ensure_future(asyncio.to_thread(self._optimize))
        try:
            await asyncio.shield(work)
        finally:
            self._bridge.stop()
            if not work.done():
                await asyncio.wait([work])
                work.exception()

    def proposals(self) -> list[Proposal]:
        """What was found, the best first."""
        if not self._found:
            return []
        total, first = len(self._context.cases), self._found[0]
        before = first.score
        better = sorted(
            (found for found in self._found[1:] if found.score > before),
            key=lambda found: -found.score,
        )
        return [
            Proposal(
                patch=self._texts.patch(found.texts),
                reason=(
                    f"{found.score * total:g} instead of {before * total:g} of {total} train "
                    f"cases pass; changed {', '.join(self._texts.changed(found.texts))} "
                    f"({self._runs} runs)"
                ),
                untrusted=self._is_untrusted,
                fixed=self._risen(first.scores, found.scores),
                broken=self._risen(found.scores, first.scores),
            )
            for found in better[:MAX_PROPOSALS]
        ]

    def _risen(self, old: Sequence[float], new: Sequence[float]) -> tuple[str, ...]:
        """The cases whose score is higher in the new scores, by name."""
        scored = zip(self._context.cases, old, new, strict=True)
        return tuple(case.name for case, before, after in scored if after > before)

    def _optimize(self) -> None:
        from gepa.api import optimize  # pyright: ignore[reportUnknownVariableType]

        adapter: Any = self
        try:
            optimize(
                seed_candidate=dict(self._texts.now),
                trainset=list(self._context.cases),
                adapter=adapter,
                reflection_minibatch_size=min(MINIBATCH_CASES, len(self._context.cases)),
                max_metric_calls=self._max_runs,
                module_selector=adapter._next_part,
                stop_callbacks=adapter._is_done,
                callbacks=[adapter],
                logger=adapter,
                track_best_outputs=False,
                seed=self._seed,
            )
        except _SearchStopped:
            return

    def _is_done(self, gepa_state: Any) -> bool:
        is_stuck = gepa_state.i - self._round_of_gain > MAX_ROUNDS_WITHOUT_GAIN
        return is_stuck or any(found.score >= 1 for found in self._found)

    def _next_part(
        self,
        state: Any,
        trajectories: Sequence[_CaseRuns],
        scores: Sequence[float],
        candidate_index: int,
        candidate: Mapping[str, str],
    ) -> list[str]:
        """Selector of gepa: the parts in turn, without those that no case of these runs reads."""
        turns: list[int] = state.named_predictor_id_to_update_next_for_program_candidate
        parts: list[str] = state.list_of_named_predictors
        cases = {run.case.name for run in trajectories}
        first = turns[candidate_index]
        for step in range(len(parts)):
            part = parts[(first + step) % len(parts)]
            if self._texts.is_read_by(part, cases):
                turns[candidate_index] = (first + step + 1) % len(parts)
                return [part]
        return []

    def log(self, message: str) -> None:
        """Logger of gepa."""
        _log.debug("%s", message[:1_000])

    def on_valset_evaluated(self, event: Mapping[str, Any]) -> None:
        """Callback of gepa: a genome was run on all train cases."""
        scores: Mapping[int, float] = event["scores_by_val_id"]
        found = _Found(dict(event["candidate"]), [scores[n] for n in range(len(scores))])
        if self._found and found.score > max(other.score for other in self._found):
            self._round_of_gain = int(event["iteration"])
        self._found.append(found)

    def evaluate(
        self, batch: list[CaseFile], candidate: dict[str, str], capture_traces: bool = False
    ) -> Any:
        """Adapter of gepa: run cases with a genome."""
        from gepa.core.adapter import EvaluationBatch

        trajectories = [_CaseRuns(case, ()) for case in batch]
        scores = [0.0 for _ in batch]
        genome = self._texts.genome(candidate)
        if genome is not None:
            names = list(dict.fromkeys(case.name for case in batch))
            done = self._bridge.wait(self._evaluate(genome, names))
            self._runs += len(done)
            of_case = {name: tuple(a for a in done if a.case == name) for name in names}
            trajectories = [_CaseRuns(case, of_case[case.name]) for case in batch]
            scores = [_rate(of_case[case.name]) for case in batch]
        return EvaluationBatch(outputs=list(scores), scores=scores, trajectories=trajectories)

    async def _evaluate(self, genome: Genome, names: Sequence[str]) -> tuple[Attempt, ...]:
        return (await self._context.evaluate(genome, names)).attempts

    def make_reflective_dataset(
        self, candidate: dict[str, str], eval_batch: Any, components_to_update: list[str]
    ) -> Mapping[str, Sequence[Mapping[str, JSON]]]:
        """Adapter of gepa: what the reflecting model is shown, the failed runs first."""
        shown: list[dict[str, JSON]] = []
        seen: list[_CaseRuns] = eval_batch.trajectories
        for trajectory in seen:
            case = trajectory.case
            for attempt in trajectory.attempts:
                self._is_untrusted |= is_outside_text(case, attempt.calls)
                shown.append(
                    {
                        "task": case.case.message,
                        "passed": attempt.passed,
                        "problems": list(attempt.problems),
                        "what the agent did": attempt.transcript,
                    }
                )
        shown.sort(key=lambda item: bool(item["passed"]))
        return dict.fromkeys(components_to_update, shown)

    def propose_new_texts(
        self,
        candidate: dict[str, str],
        reflective_dataset: Mapping[str, Sequence[Mapping[str, JSON]]],
        components_to_update: list[str],
        *,
        metadata: Mapping[str, Any] | None = None,
    ) -> dict[str, str]:
        """Adapter of gepa: ask the reflecting model for new texts."""
        new: dict[str, str] = {}
        for name in components_to_update:
            changed = self._changed(name, candidate[name], reflective_dataset[name])
            if changed and changed != candidate[name]:
                new[name] = changed
        return new

    def _changed(self, name: str, text: str, runs: Sequence[Mapping[str, JSON]]) -> str:
        """A part as the reflecting model wants it; empty if it has no usable answer.

        Notes change by one line. Other texts of several lines are written again, or change by one
        line, in turn: a small model writes a good line, and cannot write a long text again.
        """
        lines, limit = text.splitlines(), self._texts.max_chars(name)
        is_by_line = name == NOTES or (len(lines) > 1 and self._asked[name] % 2 == 1)
        self._asked[name] += 1
        what, data = self._texts.meaning(name), data_lines(runs)
        if not is_by_line:
            prompt = _TASK.format(what=what, text=text or "(empty)", data=data, limit=limit)
            return answered_text(self._ask(prompt), "text", limit)
        numbered = "\n".join(f"{n}: {line}" for n, line in enumerate(lines, 1)) or "(none)"
        prompt = _LINE_TASK.format(what=what, text=numbered, data=data, limit=MAX_LINE_CHARS)
        changed = with_line(lines, answered_text(self._ask(prompt), "line", MAX_LINE_CHARS))
        return changed if len(changed) <= limit else ""

    def _ask(self, prompt: str) -> str:
        return self._bridge.wait(ask_model(self._context, prompt))


def with_line(lines: Sequence[str], answer: str) -> str:
    """The lines with the one of an answer: `3: Be brief.` replaces the third, `Be brief.` is added.

    Empty if the answer is none of these.
    """
    found = _NUMBERED_LINE.fullmatch(answer)
    if found is None:
        return ""
    number = int(found[1] or len(lines) + 1)
    return "\n".join((*lines[: number - 1], found[2], *lines[number:])) if number > 0 else ""


def _rate(attempts: Sequence[Attempt]) -> float:
    return sum(attempt.passed for attempt in attempts) / len(attempts) if attempts else 0.0

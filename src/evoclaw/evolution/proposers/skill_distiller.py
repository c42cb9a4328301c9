"""Drafts a skill from several successful runs of the same kind.

The text is the reflecting model's. Without its answer nothing is proposed.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence

from msgspec import Struct

from evoclaw.core.events import CallFinished, CallStarted, RunFinished, RunStarted, StopReason
from evoclaw.core.messages import JSON, UserMessage
from evoclaw.evolution.proposals import Proposal, ProposerContext, RunTrace
from evoclaw.evolution.proposers.reflection import answered_text, ask_model, data_lines
from evoclaw.evolution.proposers.train_scores import Comparison, TrainScores, best_first, patched

MIN_RUNS = 3
"""Of the same kind."""
MIN_TOOLS = 2
"""Different calls in a row; a single call needs no instructions."""
MIN_SHARED_WORDS = 0.2
"""The share of the words of two messages that are in both."""
MAX_KINDS = 3
"""That are drafted at a time, those with the most runs."""
MAX_RUNS_SHOWN, MAX_CALLS_SHOWN, MAX_SHOWN_ANSWER_CHARS = 5, 30, 500
MAX_INSTRUCTIONS_CHARS, MAX_SUMMARY_CHARS = 16_000, 300
_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+){0,7}")
_WORD = re.compile(r"\w{3,}")
_TASK = """You write down how an agent does a kind of task, so that it does the next one of that
kind well. The runs below succeeded. Write a skill: what the task is, the steps with the tools in
their order, which arguments matter, what to check. Say only what the runs show. Leave out names,
paths, numbers and answers that belong to single runs.

{data}

Answer with three parts:
<name>a short name of a-z, 0-9 and hyphens</name>
<description>when to use it, one line, at most {summary} characters</description>
<instructions>the instructions in Markdown, at most {limit} characters</instructions>"""


class SuccessfulRun(Struct, frozen=True, kw_only=True):
    """A run that did what was asked, and how."""

    run: str
    message: str
    calls: tuple[CallStarted, ...]
    """Those that succeeded."""
    answer: str

    @property
    def tools(self) -> tuple[str, ...]:
        """The names of the calls in their order, repetitions in a row once."""
        names = [call.name for call in self.calls]
        return tuple(n for n, before in zip(names, ["", *names], strict=False) if n != before)


class SkillDistiller:
    """Proposes new skills of instructions only."""

    name = "skills"

    async def propose(self, context: ProposerContext) -> AsyncIterator[Proposal]:
        """The skills that do better on the train cases, the best first."""
        for proposal in await best_first(context, self._search):
            yield proposal

    async def _search(
        self, context: ProposerContext, found: list[tuple[Proposal, Comparison]]
    ) -> None:
        scores = TrainScores(context)
        for runs in kinds_of_runs(context.traces)[:MAX_KINDS]:
            patch = await _drafted(context, runs)
            genome = patched(context, patch) if patch else None
            if genome is None:
                continue
            result = await scores.compare(genome, screen=False)
            if result is None or not result.is_better:
                continue
            proposal = Proposal(
                patch=patch,
                reason=(
                    f"{len(runs)} successful runs used {', '.join(runs[0].tools)}: {result.words()}"
                ),
                runs=tuple(run.run for run in runs),
                untrusted=True,  # arguments and answers repeat what tools returned
                fixed=result.fixed,
                broken=result.broken,
            )
            found.append((proposal, result))


def kinds_of_runs(traces: Sequence[RunTrace]) -> list[list[SuccessfulRun]]:
    """Successful runs with the same tools in the same order and similar messages.

    Those with the most runs first; a kind with fewer than three runs is left out.
    """
    kinds: list[list[SuccessfulRun]] = []
    for trace in traces:
        run = _successful(trace)
        if run is None or len(run.tools) < MIN_TOOLS:
            continue
        same = next((kind for kind in kinds if _is_same_kind(kind[0], run)), None)
        if same is None:
            kinds.append([run])
        else:
            same.append(run)
    return sorted((k for k in kinds if len(k) >= MIN_RUNS), key=lambda kind: -len(kind))


def _successful(trace: RunTrace) -> SuccessfulRun | None:
    """The run, if it completed and no person corrected it or said that it is bad."""
    outcome = trace.outcome
    if outcome.stop is not StopReason.COMPLETED or outcome.corrections or trace.rating == "bad":
        return None
    message = answer = ""
    started: dict[str, CallStarted] = {}
    calls: list[CallStarted] = []
    for record in trace.records:
        event = record.event
        if isinstance(event, RunStarted):
            said = [m.text for m in event.messages if isinstance(m, UserMessage)]
            message = said[-1] if said else ""
        elif isinstance(event, CallStarted):
            started[event.call_id] = event
        elif isinstance(event, CallFinished):
            call = started.get(event.result.call_id)
            if call is not None and event.result.error is None:
                calls.append(call)
        elif isinstance(event, RunFinished):
            answer = event.text
    return SuccessfulRun(run=trace.run, message=message, calls=tuple(calls), answer=answer)


def _is_same_kind(one: SuccessfulRun, other: SuccessfulRun) -> bool:
    if one.tools != other.tools:
        return False
    first, second = (set(_WORD.findall(run.message.lower())) for run in (one, other))
    either = first | second
    return not either or len(first & second) / len(either) >= MIN_SHARED_WORDS


async def _drafted(context: ProposerContext, runs: Sequence[SuccessfulRun]) -> dict[str, JSON]:
    """A patch with the new skill; empty if the model gives no usable one."""
    shown: list[dict[str, JSON]] = [
        {
            "task": run.message,
            "calls": [
                {"tool": call.name, "arguments": call.arguments}
                for call in run.calls[:MAX_CALLS_SHOWN]
            ],
            "answer": run.answer[:MAX_SHOWN_ANSWER_CHARS],
        }
        for run in runs[:MAX_RUNS_SHOWN]
    ]
    prompt = _TASK.format(
        data=data_lines(shown), summary=MAX_SUMMARY_CHARS, limit=MAX_INSTRUCTIONS_CHARS
    )
    answer = await ask_model(context, prompt)
    name = answered_text(answer, "name", 64)
    description = " ".join(answered_text(answer, "description", MAX_SUMMARY_CHARS).split())
    instructions = answered_text(answer, "instructions", MAX_INSTRUCTIONS_CHARS)
    if not (_NAME.fullmatch(name) and description and instructions):
        return {}
    if name in context.genome.new_skills:
        return {}  # a text that passed the gate is not replaced by a draft
    return {"new_skills": {name: {"description": description, "instructions": instructions}}}

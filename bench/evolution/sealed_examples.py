"""A proposer of examples: requests of train entries with their right calls.

A model whose calls are JSON in its text reads them at the end of its tool prompt, in the form in
which it writes calls; others read them as notes.
"""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass

from bench.evolution.sealed_entries import CATEGORIES, Entry, first_value, question_of, tool_name

from evoclaw.core.genome import Genome
from evoclaw.core.messages import JSON
from evoclaw.evolution.evaluation import Evaluation
from evoclaw.evolution.proposals import Proposal, ProposerContext
from evoclaw.evolution.proposers.train_scores import patched

MAX_NOTE_CHARS = 1_000
FIRST_ENTRIES = 16
"""Train entries that each set is scored on; the better third is then scored on all others."""
ANSWER = "{answer}"
"""Stands for the name of the call with which a model answers."""
REFUSAL = "None of the tools can do that."
HEAD = "\n\nExamples of other requests, which had other tools:"


@dataclass
class _Set:
    """Some examples, and how the train entries went with them so far."""

    patch: dict[str, JSON]
    genome: Genome
    others: list[str]
    """Train entries that are no example, the categories in turn."""
    scored: int = 0
    right: int = 0
    before: int = 0
    """Of the scored ones, right without examples."""

    @property
    def gain(self) -> int:
        return self.right - self.before

    async def score(self, context: ProposerContext, before: Evaluation, count: int) -> None:
        """Score the next entries."""
        names = self.others[self.scored : count]
        if not names:
            return
        after = await context.evaluate(self.genome, names)
        self.scored += len(names)
        self.right += after.total.passed
        self.before += sum(before.cases[name].passed for name in names)


class ExampleSets:
    """Proposes the best of some sets of examples, one of each category.

    A set is scored on the other train entries only.
    """

    name = "examples"

    def __init__(self, entries: Sequence[Entry], sets: int, seed: int = 0) -> None:
        self._entries, self._sets, self._chance = entries, sets, random.Random(seed)

    async def propose(self, context: ProposerContext) -> AsyncIterator[Proposal]:
        """The best set, if it is better than no examples."""
        if not (sets := [found for _ in range(self._sets) if (found := self._draw(context))]):
            return
        before = await context.evaluate(context.genome, ())
        for found in sets:
            await found.score(context, before, FIRST_ENTRIES)
        sets.sort(key=lambda found: -found.gain)
        finalists = sets[: -(-len(sets) // 3)]
        for found in finalists:
            await found.score(context, before, len(found.others))
        best = max(finalists, key=lambda found: found.gain)
        if best.gain > 0:
            reason = (
                f"examples: {best.right} instead of {best.before} of {best.scored} other train "
                "entries are right"
            )
            yield Proposal(patch=best.patch, reason=reason)

    def _draw(self, context: ProposerContext) -> _Set | None:
        """One entry of each category, whose example is short enough for a note."""
        short = [entry for entry in self._entries if len(example_of(entry)) <= MAX_NOTE_CHARS]
        groups = [[e for e in short if e["category"] == category] for category in CATEGORIES]
        shown = [self._chance.choice(group) for group in groups if group]
        patch = patch_of(context, shown)
        genome = patched(context, patch)
        others = _in_turn([entry for entry in self._entries if entry not in shown])
        return _Set(patch, genome, others) if genome is not None and others else None


def patch_of(context: ProposerContext, entries: Sequence[Entry]) -> dict[str, JSON]:
    """The patch that shows these entries as examples."""
    prompt = context.genome.tool_prompt or context.tool_prompt
    if ANSWER in prompt:
        return {"tool_prompt": f"{prompt}{HEAD}{''.join(map(written_example, entries))}"}
    return {"notes": [example_of(entry) for entry in entries]}


def written_example(entry: Entry) -> str:
    """A request and its right calls, as a model with JSON calls writes them."""
    question = " ".join(question_of(entry).split())
    calls = _calls(entry) or [{"name": ANSWER, "arguments": {"text": REFUSAL}}]
    lines = "\n".join(json.dumps(call, ensure_ascii=False) for call in calls)
    return f"\nRequest: {question}\n```json\n{lines}\n```"


def example_of(entry: Entry) -> str:
    """A request and its right calls, in one line."""
    question = " ".join(question_of(entry).split())
    if not entry.get("answer"):
        return f"Example: {question} -> no function fits: call none, and say so."
    return f"Example: {question} -> {json.dumps(_calls(entry), ensure_ascii=False)}"


def _calls(entry: Entry) -> list[Mapping[str, JSON]]:
    return [
        {"name": tool_name(name), "arguments": first_value(arguments)}
        for call in entry.get("answer") or ()
        for name, arguments in call.items()
    ]


def _in_turn(entries: Sequence[Entry]) -> list[str]:
    """The ids, the categories in turn."""
    groups = [[e["id"] for e in entries if e["category"] == category] for category in CATEGORIES]
    longest = max(map(len, groups), default=0)
    return [group[at] for at in range(longest) for group in groups if at < len(group)]

"""A proposer of examples: requests of train entries with their right calls, as notes."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator, Sequence

from bench.evolution.sealed_entries import CATEGORIES, Entry, first_value, question_of

from evoclaw.core.messages import JSON
from evoclaw.evolution.proposals import Proposal, ProposerContext
from evoclaw.evolution.proposers.train_scores import patched

MAX_NOTE_CHARS = 1_000


class ExampleSets:
    """Proposes the best of some sets of examples: a request of each category, and its right calls.

    A set is scored on the other train entries only.
    """

    name = "examples"

    def __init__(self, entries: Sequence[Entry], sets: int, seed: int = 0) -> None:
        self._entries, self._sets, self._chance = entries, sets, random.Random(seed)

    async def propose(self, context: ProposerContext) -> AsyncIterator[Proposal]:
        """The best set, if it is better than no examples."""
        before = await context.evaluate(context.genome, ())
        best: tuple[int, Proposal] | None = None
        for _ in range(self._sets):
            shown = self._draw()
            patch: dict[str, JSON] = {"notes": [example_of(entry) for entry in shown]}
            genome = patched(context, patch)
            others = [
                case.name
                for case in context.cases
                if case.name not in {entry["id"] for entry in shown}
            ]
            if genome is None or not others:
                continue
            after = await context.evaluate(genome, others)
            old = sum(before.cases[name].passed for name in others)
            gain = after.total.passed - old
            if gain > (best[0] if best else 0):
                reason = (
                    f"examples: {after.total.passed} instead of {old} of {len(others)} other train "
                    f"entries are right with {len(shown)} examples"
                )
                best = gain, Proposal(patch=patch, reason=reason)
        if best is not None:
            yield best[1]

    def _draw(self) -> list[Entry]:
        """One entry of each category, whose example is short enough for a note."""
        short = [entry for entry in self._entries if len(example_of(entry)) <= MAX_NOTE_CHARS]
        groups = [[e for e in short if e["category"] == category] for category in CATEGORIES]
        return [self._chance.choice(group) for group in groups if group]


def example_of(entry: Entry) -> str:
    """A request and its right calls, in one line."""
    question = " ".join(question_of(entry).split())
    if not entry.get("answer"):
        return f"Example: {question} -> no function fits: call none, and say so."
    calls = [
        {"name": name, "arguments": first_value(arguments)}
        for call in entry["answer"]
        for name, arguments in call.items()
    ]
    return f"Example: {question} -> {json.dumps(calls, ensure_ascii=False)}"

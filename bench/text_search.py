"""The proposer `gepa` beside plain hill climbing, at the same runs; ends with one JSON object.

An agent passes a case if its texts have the rule of the case: 95 % of the time with it, 10 %
without. The reflecting model sees three runs, adds the rule of a failed one, and forgets one of the
other rules in 30 % of its answers. In the world `shortcut`, one rule solves half of the cases of
the first half at once, and while the texts have it, no case of the second half passes. `score` is
the share of cases that the best texts solve without chance. Every search has the same cases, runs
and reflecting model; the figures are means over the seeds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import msgspec

from evoclaw.core.agent import Agent
from evoclaw.core.events import StopReason
from evoclaw.core.genome import CONFIGURED, Genome
from evoclaw.evolution.cases import Case, CaseFile, Split
from evoclaw.evolution.evaluation import Attempt, Evaluation, summed_up
from evoclaw.evolution.proposals import CampaignBudgetSpent, ProposerContext
from evoclaw.evolution.proposers.gepa_search import GepaSearch

RULES, CASES_PER_RULE, SHOWN = 12, 2, 3
PASS_WITH, PASS_WITHOUT, FORGETS = 0.95, 0.1, 0.3
CASES = [
    CaseFile(
        f"c{rule}-{n}",
        Path("x.toml"),
        msgspec.convert({"message": f"Task {rule}.", "checks": [{"kind": "answer"}]}, Case),
    )
    for rule in range(RULES)
    for n in range(CASES_PER_RULE)
]


SHORTCUT = 50
SHORTCUT_SHARE = 0.3
"""Of the answers, if the runs invite it."""


def solved(rules: Sequence[int], *, shortcut: bool) -> set[int]:
    """The rules whose cases pass with these."""
    known = set(rules) & set(range(RULES))
    if not shortcut or SHORTCUT not in rules:
        return known
    return {rule for rule in known if rule < RULES // 2} | set(range(RULES // 4))


def rules_in(prompt: str) -> list[int]:
    return [int(number) for number in re.findall(r"R(\d+)", prompt)]


class World:
    """Cases, a model and a reflecting model, with a budget of runs."""

    def __init__(self, seed: int, budget: int, *, shortcut: bool) -> None:
        self.shortcut = shortcut
        self.chance, self.budget, self.runs, self.questions = random.Random(seed), budget, 0, 0

    async def evaluate(self, genome: Genome, names: Sequence[str]) -> Evaluation:
        chosen = [case for case in CASES if not names or case.name in names]
        self.runs += len(chosen)
        if self.runs > self.budget:
            raise CampaignBudgetSpent("spent")
        return summed_up([self._attempt(case, genome) for case in chosen])

    def solves(self, genome: Genome) -> set[int]:
        return solved(rules_in(" ".join((genome.prompt, *genome.notes))), shortcut=self.shortcut)

    def _attempt(self, case: CaseFile, genome: Genome) -> Attempt:
        rule = int(case.name[1:].partition("-")[0])
        share = PASS_WITH if rule in self.solves(genome) else PASS_WITHOUT
        passed = self.chance.random() < share
        return Attempt(
            case=case.name, split=Split.TRAIN, passed=passed, problems=() if passed else ("no",),
            stop=StopReason.COMPLETED, turns=1, calls=0, cost=0.0, coverage=None,
        )  # fmt: skip

    async def ask(self, prompt: str) -> str:
        self.questions += 1
        text = re.search(r"The text now:\n(.*?)\n\nThe agent", prompt, re.S)
        failed = re.findall(r'"task":"Task (\d+)\.","passed":false', prompt)
        return f"<text>{self.rewritten(text[1] if text else '', [int(n) for n in failed])}</text>"

    def rewritten(self, text: str, failed: Sequence[int]) -> str:
        kept = rules_in(text)
        if kept and self.chance.random() < FORGETS:
            kept.remove(self.chance.choice(kept))
        new = [rule for rule in failed if rule not in kept][:1]
        invited = self.shortcut and any(rule < RULES // 2 for rule in failed)
        if invited and SHORTCUT not in kept and self.chance.random() < SHORTCUT_SHARE:
            new = [SHORTCUT]
        return " ".join(f"R{rule}" for rule in [*kept, *new]) or "R99"


async def gepa(world: World, seed: int) -> Genome:
    context = ProposerContext(
        Agent("x", "", "Start."), CONFIGURED, (), CASES, (), world.evaluate, world.ask
    )
    async for proposal in GepaSearch(max_runs=world.budget, seed=seed).propose(context):
        return msgspec.convert(proposal.patch, Genome)
    return CONFIGURED


async def climb(world: World, seed: int, *, screen: bool) -> Genome:
    """Change the best prompt, run all cases, keep the change if more pass.

    With `screen`, all cases are run only if more of the three shown ones pass.
    """
    world.chance.seed(seed)
    best, score = "", -1
    try:
        score = (await world.evaluate(Genome(prompt="Start."), ())).total.passed
        while True:
            names = [case.name for case in world.chance.sample(CASES, SHOWN)]
            shown = await world.evaluate(Genome(prompt=best or "Start."), names)
            failed = [int(a.case[1:].partition("-")[0]) for a in shown.attempts if not a.passed]
            if not failed:
                continue
            world.questions += 1
            child = world.rewritten(best, failed)
            if screen:
                again = await world.evaluate(Genome(prompt=child), names)
                if again.total.passed <= shown.total.passed:
                    continue
            new = (await world.evaluate(Genome(prompt=child), ())).total.passed
            if new > score:
                best, score = child, new
    except CampaignBudgetSpent:
        return Genome(prompt=best)


async def measure(seeds: int, budget: int, *, shortcut: bool) -> dict[str, Any]:
    searches = {
        "gepa": gepa,
        "climb": lambda world, seed: climb(world, seed, screen=False),
        "climb_screened": lambda world, seed: climb(world, seed, screen=True),
    }
    found: dict[str, Any] = {}
    for name, search in searches.items():
        scores: list[float] = []
        questions: list[int] = []
        started = time.process_time()
        for seed in range(seeds):
            world = World(seed, budget, shortcut=shortcut)
            scores.append(len(world.solves(await search(world, seed))) / RULES)
            questions.append(world.questions)
        found[name] = {
            "score": round(mean(scores), 3),
            "worst": round(min(scores), 3),
            "questions": round(mean(questions), 1),
            "cpu_ms": round((time.process_time() - started) / seeds * 1_000, 1),
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=40)
    parser.add_argument("--budgets", type=int, nargs="+", default=[150, 300, 600])
    options = parser.parse_args()
    result: dict[str, Any] = {}
    for world in ("plain", "shortcut"):
        for budget in options.budgets:
            rows = asyncio.run(measure(options.seeds, budget, shortcut=world == "shortcut"))
            result.setdefault(world, {})[budget] = rows
            for name, row in rows.items():
                print(f"{world:<9} {budget:>5} runs  {name:<15} {row}")
    print(json.dumps(result))


if __name__ == "__main__":
    main()

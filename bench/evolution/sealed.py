"""Real text, real small model: evolve texts on BFCL entries, and open the sealed entries once.

Proposers see the train entries only: the shipped search over rules, sets of examples made from
train entries, and `gepa`, with a model on this machine that reflects. Their candidates pass the
static stage and the validation of the real gate, on entries that no proposer has seen. Then the
sealed entries are run before and after, with the evolved model and with another one.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import math
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

from bench.evolution.sealed_entries import (
    AGENT,
    ALL_ENTRIES,
    CATEGORIES,
    SIZES,
    Entry,
    EntryJudge,
    EntryRuns,
    JudgedRun,
    StoredRuns,
    case_of,
    digest_of,
    recurring_tools,
    reply_of,
    split_entries,
)
from bench.evolution.sealed_examples import ExampleSets
from bench.suite.subjects import CannotMeasure
from bench.tasks.bfcl import open_judge
from bench.tasks.models import MeasuredModel, gguf_path, open_model, result_name
from tests.support.weights import CODER_05B, CODER_15B, find_model

from evoclaw.core.errors import EvoClawError
from evoclaw.core.genome import AGENT_TUNABLES, CONFIGURED, Genome
from evoclaw.core.genome_patches import merged
from evoclaw.core.history import History
from evoclaw.core.messages import JSON, is_array, user
from evoclaw.core.ports import Provider, Request
from evoclaw.evolution.candidates import StageResult
from evoclaw.evolution.cases import CaseFile, Split
from evoclaw.evolution.evaluation import wilson
from evoclaw.evolution.gate.leaks import LeakCheck
from evoclaw.evolution.gate.sequential_test import level_of
from evoclaw.evolution.gate.static import NEEDS_PERSON, static_result
from evoclaw.evolution.gate.validation import ValidationSettings, validate
from evoclaw.evolution.proposals import Proposal, Proposer, ProposerContext
from evoclaw.evolution.proposers.gepa_search import GepaSearch
from evoclaw.evolution.proposers.rule_search import RuleSearch
from evoclaw.orchestrator.agents.tuning import check_genome
from evoclaw.providers.registry import ProviderOptions, open_provider

STORE = Path(__file__).with_name("sealed_runs.jsonl")
"""In the project: the figures come from it, and an interrupted measurement continues there."""
MAX_GEPA_RUNS = 600
EXAMPLE_SETS = 6
PROPOSERS = ("rules", "examples", "gepa")
"""The cheap ones first: candidates are validated until one passes."""
SEARCHED_TOOLS = 2
MAX_REFLECTION_TOKENS = 512
REFLECTION_TEMPERATURE = 0.7
"""Of the measured model; another reflecting model has its own."""
VALIDATION = ValidationSettings(repeats=1, rechecks=5, batch=20)
"""A run at temperature 0 is not repeated: a further run of an entry is the stored one."""
OpenJudge: TypeAlias = Callable[[int], AbstractAsyncContextManager[EntryJudge]]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this part; the option that chooses the part has the sealed entries."""
    group = parser.add_argument_group("sealed")
    add = group.add_argument
    add("--model", help="GGUF file to evolve texts for [the test weights of 0.5B]")
    add("--other", help="GGUF file that the result is tried with, too [those of 1.5B]")
    add("--server", help="URL of a running server of --model, instead of starting one")
    add("--other-server", help="URL of a running server of --other")
    add("--other-sealed", type=int, help="Sealed entries that the other model runs [all]")
    add("--reflect", help="Model that writes new texts: GGUF file or PROVIDER/MODEL [--model]")
    for split in (Split.TRAIN, Split.VALIDATION):
        add(f"--{split}", type=int, default=SIZES[split], help=f"Entries [{SIZES[split]}]")
    how = f"What searches, in this order [{' '.join(PROPOSERS)}]"
    add("--proposers", nargs="+", choices=PROPOSERS, default=PROPOSERS, metavar="NAME", help=how)
    add("--runs", type=int, default=MAX_GEPA_RUNS, help=f"Runs of gepa [{MAX_GEPA_RUNS}]")
    add("--examples", type=int, default=EXAMPLE_SETS, help=f"Example sets [{EXAMPLE_SETS}]")
    add("--parallel", type=int, default=1, help="Requests at the same time [1]")
    add("--threads", type=int, help="Threads of a started server [all processors]")
    closed = "Search and validate only: the sealed entries stay closed, so that a person can decide"
    add("--keep-closed", action="store_true", help=closed)
    add("--allow", nargs="*", default=[], help="Entries that a person allows to get worse, by id")


def measure_sealed(
    chosen: argparse.Namespace, open_judge: OpenJudge = open_judge, store: Path = STORE
) -> dict[str, Any]:
    """Run this part; no figures if there is no model, or no judge."""
    if chosen.model is None and chosen.server is None:
        known = [find_model(name) for name in (CODER_05B, CODER_15B)]
        if known[0] is None:
            print("sealed: not run: name a GGUF file with --model, or run `make test-weights`")
            return {}
        chosen.model = str(known[0].path)
        chosen.other = chosen.other or (known[1] and str(known[1].path))
    if find_spec("xllamacpp") is None and not chosen.server and gguf_path(chosen.model or ""):
        print("sealed: not run: no llama.cpp to serve the model; name a running one with --server")
        return {}
    if chosen.model is None or (chosen.other_server and chosen.other is None):
        raise SystemExit("a server needs --model (or --other): the file or the name that it serves")
    try:
        return asyncio.run(_measure(chosen, open_judge, StoredRuns(store)))
    except CannotMeasure as problem:
        print(f"sealed: not run: bfcl-eval {problem}")
        return {}
    except EvoClawError as problem:
        raise SystemExit(
            f"sealed: stopped: {problem}; start it again, judged runs are stored"
        ) from None


async def _measure(
    chosen: argparse.Namespace, open_judge: OpenJudge, store: StoredRuns
) -> dict[str, Any]:
    sizes = {split: getattr(chosen, split) for split in SIZES}
    other_sizes = sizes | {Split.SEALED: chosen.other_sealed or chosen.sealed}
    async with open_judge(ALL_ENTRIES) as judge:
        splits, other_splits = (split_entries(judge.entries, s) for s in (sizes, other_sizes))
        async with open_runs(chosen.model, chosen.server, chosen, judge, store) as (runs, provider):
            async with open_reflection(chosen, provider, store) as ask:
                outcome = await evolve(chosen, splits, runs, ask)
            outcome.print()
            if chosen.keep_closed:
                print("the sealed entries were not opened")
                return {}
            if outcome.best is not None:
                _record_opening(store, outcome.best)
            opened = [await _open(chosen.model, runs, outcome, splits[Split.SEALED])]
        if chosen.other:
            async with open_runs(chosen.other, chosen.other_server, chosen, judge, store) as (
                runs,
                _,
            ):
                entries = other_splits[Split.SEALED]
                opened.append(await _open(chosen.other, runs, outcome, entries))
    for found in opened:
        found.print(outcome)
    return _figures(outcome, opened)


async def _open(spec: str, runs: EntryRuns, outcome: Outcome, entries: Sequence[Entry]) -> Opened:
    """Run sealed entries, each without and with the best candidate."""
    genomes = [CONFIGURED, *([outcome.best.genome] if outcome.best else ())]
    found = await runs.run_all(genomes, entries)
    return Opened(result_name(spec), entries, found[0], found[-1])


@dataclass
class Candidate:
    """A proposed genome, and how far it came."""

    genome: Genome
    proposal: Proposal
    proposer: str
    stage: str
    """The last one."""
    result: StageResult
    """Of that stage."""
    needs_person: list[JSON]
    """Why a person would have to approve it: none is asked here."""

    @property
    def e_value(self) -> float:
        """Of the validation."""
        return _number(self.result, "e_value")


@dataclass
class Outcome:
    """What the search and the gate came to."""

    candidates: list[Candidate] = field(default_factory=list[Candidate])
    promoted: Candidate | None = None

    @property
    def best(self) -> Candidate | None:
        """The promoted candidate, or the one with the largest e-value."""
        validated = [found for found in self.candidates if found.stage == "validation"]
        return self.promoted or max(validated, key=lambda found: found.e_value, default=None)

    def print(self) -> None:
        """Print each candidate and its verdict."""
        for number, found in enumerate(self.candidates, 1):
            print(f"candidate {number} by {found.proposer}: {found.proposal.reason}")
            for key, text in found.proposal.patch.items():
                print(f"    {key}: {json.dumps(text, ensure_ascii=False)}")
            print(f"    {_verdict_line(found)}")
        if not self.candidates:
            print("no proposer found a genome that is better on the train entries")


@dataclass
class Opened:
    """The sealed entries with one model, without and with the best candidate."""

    model: str
    entries: Sequence[Entry]
    before: list[JudgedRun]
    after: list[JudgedRun]

    @property
    def shares(self) -> tuple[float, float]:
        """Of right entries, before and after."""
        return _share(self.before), _share(self.after)

    @property
    def interval(self) -> list[float]:
        """Of the difference."""
        pairs = [(b.right, a.right) for b, a in zip(self.before, self.after, strict=True)]
        return [round(bound, 4) for bound in paired_interval(pairs)]

    def print(self, outcome: Outcome) -> None:
        """Print the shares, also of each category."""
        entries = self.entries
        (before, after), (low, high) = self.shares, self.interval
        state = "promoted" if outcome.promoted else "not promoted"
        if outcome.best is None:
            print(f"{self.model}: {before:.1%} of {len(entries)} sealed entries are right")
        else:
            print(
                f"{self.model}: {before:.1%} before, {after:.1%} with the candidate ({state}), of "
                f"{len(entries)} sealed entries; difference {100 * (after - before):+.1f} points, "
                f"95 % interval {100 * low:+.1f} to {100 * high:+.1f}: {_direction(low, high)}"
            )
        for category in CATEGORIES:
            at = [n for n, entry in enumerate(entries) if entry["category"] == category]
            right = [sum(runs[n].right for n in at) for runs in (self.before, self.after)]
            print(f"    {category}: {right[0]} -> {right[1]} of {len(at)}")
        tokens = [sum(run.tokens for run in runs) for runs in (self.before, self.after)]
        print(f"    tokens of a run: {' -> '.join(f'{n / len(entries):.0f}' for n in tokens)}")


async def evolve(
    chosen: argparse.Namespace,
    splits: dict[Split, list[Entry]],
    runs: EntryRuns,
    ask: Callable[[str], Any],
) -> Outcome:
    """Search on train entries, and take what was found through the gate, the best first."""
    searched = recurring_tools(splits[Split.TRAIN], SEARCHED_TOOLS)
    cases = [case_of(e, split, searched) for split, entries in splits.items() for e in entries]
    train = [case for case in cases if case.case.split is Split.TRAIN]

    async def evaluate(genome: Genome, names: Sequence[str]) -> Any:
        return await runs.evaluate(genome, names or [case.name for case in train])

    context = ProposerContext(
        AGENT, CONFIGURED, (), train, (), evaluate, ask, tool_prompt=runs.tool_prompt
    )
    outcome, validated = Outcome(), 0
    leaks = LeakCheck(cases)
    proposers: dict[str, Proposer] = {
        "rules": RuleSearch(),
        "examples": ExampleSets(splits[Split.TRAIN], chosen.examples),
        "gepa": GepaSearch(max_runs=chosen.runs),
    }
    for proposer in (proposers[name] for name in chosen.proposers):
        async for proposal in proposer.propose(context):
            genome = merged(CONFIGURED, proposal.patch, CONFIGURED, AGENT_TUNABLES)
            static = _static(genome, proposal, leaks, runs.tool_prompt)
            needs = static.evidence[NEEDS_PERSON]
            assert is_array(needs)
            found = Candidate(genome, proposal, proposer.name, "static", static, needs)
            outcome.candidates.append(found)
            if not static.passed:
                continue
            validated += 1
            found.stage = "validation"
            found.result = await _validation(cases, genome, validated, runs, chosen)
            if found.result.passed and not needs:
                outcome.promoted = found
                return outcome
    return outcome


def _static(genome: Genome, proposal: Proposal, leaks: LeakCheck, tool_prompt: str) -> StageResult:
    return static_result(
        AGENT, (), CONFIGURED, genome, digest=genome.digest, untrusted=proposal.untrusted,
        skills={}, check=lambda new: check_genome(AGENT, new, skills=(), default_model=""),
        leaks=leaks, tool_prompt=tool_prompt,
    )  # fmt: skip


async def _validation(
    cases: Sequence[CaseFile],
    genome: Genome,
    index: int,
    runs: EntryRuns,
    chosen: argparse.Namespace,
) -> StageResult:
    return await validate(
        cases,
        digest=genome.digest,
        level=level_of(index, 0, VALIDATION.error_rate),
        current=runs.opener(CONFIGURED),
        candidate=runs.opener(genome),
        settings=VALIDATION,
        allowed=chosen.allow,
    )


@asynccontextmanager
async def open_runs(
    spec: str, server: str | None, chosen: argparse.Namespace, judge: EntryJudge, store: StoredRuns
) -> AsyncGenerator[tuple[EntryRuns, Provider]]:
    """Runs with a model, which is served while the block runs."""
    digest = digest_of(result_name(spec), gguf_path(spec))
    async with (
        _served(spec, server, chosen.threads) as model,
        open_provider(model.spec, dict(model.env), ProviderOptions(max_retries=1)) as provider,
    ):
        yield EntryRuns(provider, digest, judge, store, chosen.parallel), provider


@asynccontextmanager
async def _served(
    spec: str, server: str | None, threads: int | None
) -> AsyncGenerator[MeasuredModel]:
    if server is None:
        async with open_model(spec, threads) as model:
            yield model
        return
    name, url = result_name(spec), f"{server.rstrip('/').removesuffix('/v1')}/v1"
    yield MeasuredModel(name, f"llamacpp/{name}", {"LLAMACPP_BASE_URL": url}, url)


@asynccontextmanager
async def open_reflection(
    chosen: argparse.Namespace, provider: Provider, store: StoredRuns
) -> AsyncGenerator[Callable[[str], Any]]:
    """What asks the reflecting model; its answers are stored, too."""
    name = result_name(chosen.reflect or chosen.model)

    temperature = REFLECTION_TEMPERATURE if chosen.reflect is None else None
    times: Counter[str] = Counter()
    """How often each prompt was asked: the same prompt again asks for another text."""

    def asking(reflecting: Provider) -> Callable[[str], Any]:
        async def ask(prompt: str) -> str:
            digest = hashlib.sha256(prompt.encode()).hexdigest()[:16]
            times[digest] += 1
            key = "answer", name, digest, str(times[digest])
            if (stored := store.get(*key)) is not None:
                return stored
            request = Request(
                History([user(prompt)]), temperature=temperature, max_tokens=MAX_REFLECTION_TOKENS
            )
            text = (await reply_of(reflecting, request)).text
            store.put(text, *key)
            return text

        return ask

    if chosen.reflect is None:
        yield asking(provider)
        return
    async with (
        open_model(chosen.reflect, chosen.threads) as model,
        open_provider(model.spec, dict(model.env)) as reflecting,
    ):
        yield asking(reflecting)


def paired_interval(pairs: Sequence[tuple[bool, bool]]) -> tuple[float, float]:
    """The 95 % interval of the difference of two paired shares, the second minus the first.

    Newcombe's hybrid score interval for paired data (1998, method 10).
    """
    count = len(pairs)
    both = sum(a and b for a, b in pairs)
    first, second = sum(a for a, _ in pairs), sum(b for _, b in pairs)
    old, new = wilson(first, count), wilson(second, count)
    neither = count - first - second + both
    product = both * neither - (first - both) * (second - both)
    if product > 0:
        product = max(product - count / 2, 0)
    scale = math.sqrt(first * (count - first) * second * (count - second))
    phi = product / scale if scale else 0.0

    def spread(up: float, down: float) -> float:
        return math.sqrt(max(0.0, up * up - 2 * phi * up * down + down * down))

    difference = new.rate - old.rate
    return (
        difference - spread(new.rate - new.low, old.high - old.rate),
        difference + spread(new.high - new.rate, old.rate - old.low),
    )


def _record_opening(store: StoredRuns, best: Candidate) -> None:
    """Record that the sealed entries are opened, once for each candidate."""
    known = store.keys("opening")
    if store.get("opening", best.genome.digest) is None:
        store.put({"promoted": bool(best.result.passed)}, "opening", best.genome.digest)
        if known:
            print(
                f"the sealed entries were opened before, with {len(known)} other candidates: they "
                "are no longer unseen",
                file=sys.stderr,
            )


def _verdict_line(found: Candidate) -> str:
    result = found.result
    verdict = "passed" if result.passed else f"rejected: {result.reason}"
    if found.needs_person:
        verdict += f"; a person must approve: {'; '.join(map(str, found.needs_person))}"
    if found.stage == "static":
        return f"static: {verdict}"
    worse = result.evidence.get("worse", ())
    return (
        f"validation: {verdict} ({_number(result, 'cases'):g} of {_number(result, 'of'):g} "
        f"entries, gain {100 * _number(result, 'gain'):+.1f} points, e-value {found.e_value:.3g}, "
        f"{len(worse) if is_array(worse) else 0} entries worse)"
    )


def _number(result: StageResult, name: str) -> float:
    found = result.evidence.get(name)
    return float(found) if isinstance(found, int | float) else 0.0


def _share(runs: Sequence[JudgedRun]) -> float:
    return sum(run.right for run in runs) / len(runs)


def _direction(low: float, high: float) -> str:
    if low > 0:
        return "better"
    return "worse" if high < 0 else "no difference is shown"


def _figures(outcome: Outcome, opened: Sequence[Opened]) -> dict[str, Any]:
    """The figures; a candidate that was not promoted changes nothing, and is named beside."""
    promoted, best = outcome.promoted, outcome.best
    figures: dict[str, Any] = {"sealed_promoted": promoted.proposal.patch if promoted else None}
    beside: dict[str, Any] = {}
    for prefix, found in zip(("sealed", "sealed_other"), opened, strict=False):
        before, after = found.shares
        figures |= {
            f"{prefix}_model": found.model,
            f"{prefix}_cases": len(found.entries),
            f"{prefix}_before": round(before, 4),
            f"{prefix}_after": round(after if promoted else before, 4),
            f"{prefix}_interval": found.interval if promoted else [0.0, 0.0],
        }
        beside |= {f"{prefix}_after": round(after, 4), f"{prefix}_interval": found.interval}
    if best is not None and promoted is None:
        figures["sealed_not_promoted"] = {
            "patch": best.proposal.patch, "reason": best.result.reason, **beside,
        }  # fmt: skip
    return figures

"""A campaign: edits, one after the other, through the real lineage and the real stages."""

from __future__ import annotations

import asyncio
import gc
import re
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
from bench.evolution.edits import BASE, Edit, make_edits
from bench.evolution.world import AGENT, SKILLS, TOOLS, make_cases, opener

from evoclaw.core.errors import ToolFailure
from evoclaw.core.genome import Genome
from evoclaw.evolution.candidates import Stage, StageResult
from evoclaw.evolution.cases import CaseFile, Split
from evoclaw.evolution.evaluation import evaluate
from evoclaw.evolution.gate.leaks import LeakCheck
from evoclaw.evolution.gate.safety import check_safety, safety_cases
from evoclaw.evolution.gate.sequential_test import campaign_level
from evoclaw.evolution.gate.static import NEEDS_PERSON, static_result
from evoclaw.evolution.gate.validation import ValidationSettings, validate
from evoclaw.evolution.lineage import GenomeLineage
from evoclaw.evolution.lineage_entries import LineageEntry, genome_of
from evoclaw.orchestrator.agents.tuning import check_genome
from evoclaw.store.databases.migrations import open_database
from evoclaw.store.genomes import SCHEMA, GenomeStore
from evoclaw.trust.receipts import DeviceKey

PROGRESS_EDITS = 50
SETTINGS = ValidationSettings(batch=12, parallel=1)


class CampaignResult(msgspec.Struct, kw_only=True):
    """What became of the edits."""

    edits: int
    ends: dict[str, dict[str, int]]
    """Of each kind of edit: how many ended where."""
    promoted: dict[str, int]
    """How many of each truth."""
    runs: int
    seconds: float
    cpu_seconds: float
    unexpected: list[str]
    """Edits that ended otherwise than they should have."""


class Campaign:
    """The gate of one agent, in the order of its stages."""

    def __init__(self, lineage: GenomeLineage, seed: int) -> None:
        self._lineage, self._seed = lineage, seed
        self.cases = make_cases(seed)
        self._safety = [case for case in safety_cases() if case.case.is_recorded]
        self._leaks = LeakCheck(self.cases)
        self._entries: list[LineageEntry] = []
        self.runs = 0

    async def start(self) -> None:
        """Make the genome that all candidates are compared with."""
        await self._lineage.change(AGENT.name, BASE, by="bench", reason="the start")
        self._entries = list(await self._lineage.history(AGENT.name))

    async def submit(self, edit: Edit) -> str:
        """Take an edit through the gate; where it ended."""
        try:
            candidate = await self._lineage.propose(
                AGENT.name, edit.patch, by="bench", untrusted=edit.untrusted
            )
        except ToolFailure:
            return "refused"
        if candidate is None:
            return "no change"
        self._entries.append(candidate)
        old, new = await self._lineage.version(AGENT.name), genome_of(candidate)
        if edit.evaluated:
            await self._evaluate(new)
        result = self._static(candidate, old, new)
        needs_person = bool(result.evidence[NEEDS_PERSON])
        await self._record(candidate, Stage.STATIC, result)
        if not result.passed:
            return Stage.STATIC
        result = await self._validation(candidate, old, new)
        await self._record(candidate, Stage.VALIDATION, result)
        if not result.passed:
            return f"{Stage.VALIDATION}: {re.split('[:;]', result.reason)[0]}"
        result = await self._check_safety(candidate, old, new)
        await self._record(candidate, Stage.SAFETY, result)
        if not result.passed:
            return Stage.SAFETY
        if needs_person or edit.untrusted:
            return Stage.APPROVAL
        await self._promote(candidate)
        return "promoted"

    def _static(self, candidate: LineageEntry, old: Genome, new: Genome) -> StageResult:
        return static_result(
            AGENT, TOOLS, old, new, digest=candidate.digest, untrusted=candidate.untrusted,
            skills=SKILLS, check=check, leaks=self._leaks,
        )  # fmt: skip

    async def _validation(self, candidate: LineageEntry, old: Genome, new: Genome) -> StageResult:
        await self._record(candidate, Stage.VALIDATION, StageResult(passed=None))
        level = campaign_level(self._entries, candidate.number, SETTINGS.error_rate)
        current, proposed = self._openers(candidate, old, new, "validation")
        return await validate(
            self.cases, digest=candidate.digest, level=level, current=current, candidate=proposed,
            settings=SETTINGS,
        )  # fmt: skip

    async def _check_safety(self, candidate: LineageEntry, old: Genome, new: Genome) -> StageResult:
        current, proposed = self._openers(candidate, old, new, "safety")
        return await check_safety(self._safety, current=current, candidate=proposed)

    async def _evaluate(self, new: Genome) -> None:
        """Evaluate as a person may do at any time: it must leave nothing behind."""
        cases: list[CaseFile] = [c for c in self.cases if c.case.split is Split.VALIDATION]
        await evaluate(cases, opener(new, f"{self._seed} evaluation", self._count), parallel=1)

    def _openers(self, candidate: LineageEntry, old: Genome, new: Genome, stage: str):
        name = f"{self._seed} {candidate.number} {stage}"
        return (
            opener(old, f"{name} current", self._count),
            opener(new, f"{name} candidate", self._count),
        )

    async def _record(self, candidate: LineageEntry, stage: Stage, result: StageResult) -> None:
        entry = await self._lineage.add_verdict(
            AGENT.name, candidate, stage, passed=result.passed, after=self._entries[-1].number,
            by="gate", reason=result.reason, evidence=result.evidence,
        )  # fmt: skip
        self._entries.append(entry)

    async def _promote(self, candidate: LineageEntry) -> None:
        """Promote, then go back: all edits are compared with the same genome."""
        last = self._entries[-1].number
        await self._lineage.promote(AGENT.name, candidate, after=last, by="gate")
        await self._lineage.roll_back(AGENT.name, 1, by="bench", reason="the next edit")
        self._entries = list(await self._lineage.history(AGENT.name))

    def _count(self) -> None:
        self.runs += 1


def check(genome: Genome) -> None:
    """Refuse a genome that the configuration of the agent does not allow."""
    check_genome(AGENT, genome, skills=list(SKILLS), default_model="")


async def call_at_once(function: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Instead of `asyncio.to_thread`: a thread for each small file would be half of a short run."""
    return function(*args, **kwargs)


def run_campaign(seed: int, null: int, good: int, traps: int) -> CampaignResult:
    """Run a campaign in this process, which does nothing else."""
    asyncio.to_thread = call_at_once
    gc.set_threshold(50_000)
    return asyncio.run(_run_campaign(seed, null, good, traps))


async def _run_campaign(seed: int, null: int, good: int, traps: int) -> CampaignResult:
    key = DeviceKey(bytes(range(32)))
    ends: dict[str, Counter[str]] = {}
    promoted: Counter[str] = Counter()
    done: Counter[str] = Counter()
    unexpected: list[str] = []
    started, cpu_started = time.monotonic(), time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        database = await open_database(Path(folder) / "lineage.db", (SCHEMA,))
        try:
            lineage = GenomeLineage(
                GenomeStore(database), key.public_key, key.sign_genome,
                check=lambda _, genome: check(genome),
            )  # fmt: skip
            campaign = Campaign(lineage, seed)
            await campaign.start()
            edits = make_edits(seed, campaign.cases, null=null, good=good, traps=traps)
            for number, edit in enumerate(edits, 1):
                end = await campaign.submit(edit)
                ends.setdefault(edit.kind, Counter())[str(end)] += 1
                is_promoted = end == "promoted"
                promoted[edit.truth] += is_promoted
                if is_promoted != (edit.truth == "good"):
                    unexpected.append(f"{edit.kind}: {end}")
                done[edit.truth] += 1
                if number % PROGRESS_EDITS == 0:
                    counts = ", ".join(f"{promoted[t]} of {done[t]} {t}" for t in sorted(done))
                    print(f"seed {seed}: {number} edits; promoted {counts}", file=sys.stderr)
        finally:
            await database.close()
    return CampaignResult(
        edits=null + good + traps,
        ends={kind: dict(found) for kind, found in sorted(ends.items())},
        promoted=dict(promoted),
        runs=campaign.runs,
        seconds=time.monotonic() - started,
        cpu_seconds=time.process_time() - cpu_started,
        unexpected=unexpected,
    )

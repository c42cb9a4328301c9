"""The engine: from a proposal to a promoted genome, with a person or a key in between."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from evoclaw import verify
from evoclaw.core.errors import EvoClawError
from evoclaw.core.events import Record, TextDelta
from evoclaw.core.genome import Genome
from evoclaw.core.messages import JSON
from evoclaw.evolution.approval import ApprovalRefused, approve, approve_by_key, reject
from evoclaw.evolution.candidates import (
    BROKEN,
    FIXED,
    Candidate,
    CandidateState,
    Stage,
    StageResult,
    changed_cases,
    fold_candidates,
)
from evoclaw.evolution.cases import CaseFile
from evoclaw.evolution.engine import EvolutionEngine, EvolutionStopped, SpendingMeter
from evoclaw.evolution.lineage import GenomeLineage
from evoclaw.evolution.lineage_entries import LineageEntry, entry_hash
from evoclaw.evolution.proposals import Proposal, ProposerContext
from evoclaw.store.genomes import GenomeChanged
from evoclaw.store.sessions.recordings import encode_record
from tests.support.campaigns import case_of
from tests.support.databases import Place
from tests.support.evolution_engines import (
    AGENT,
    BETTER,
    KEY,
    ON,
    OTHER_KEY,
    FixedProposer,
    context_of,
    engine_of,
    open_lineage,
    passes,
)
from tests.support.waiting import until


async def problems(lineage: GenomeLineage) -> list[str]:
    """What the stand-alone verifier finds."""
    lines = [json.dumps(line) for line in await lineage.export(AGENT)]
    return verify.verify(verify.read_bundle("\n".join(lines).encode()), {})[1]


async def candidates(lineage: GenomeLineage) -> list[Candidate]:
    return list(fold_candidates(await lineage.history(AGENT)).values())


async def test_a_campaign_ends_with_a_promotion_that_anyone_can_verify(place: Place) -> None:
    seen: list[LineageEntry] = []
    async with open_lineage(place) as lineage:
        engine = engine_of(lineage, seen=seen)
        assert await engine.run() == "candidate 1 waits for an approval"
        await approve(lineage, AGENT, 1, by="ann", reason="short is good")
        assert await lineage.current(AGENT) == "", "not yet"
        await engine.run()
        genome = await lineage.version(AGENT)
        assert (genome.prompt, genome.version) == ("Answer in one word.", 1)
        assert await lineage.current(AGENT) == genome.digest
        kinds = [(entry.kind, entry.stage, entry.by) for entry in await lineage.history(AGENT)]
        assert kinds == [
            ("proposal", "", "numbers"), ("campaign", "", "evoclaw"),
            ("verdict", "static", "evoclaw"), ("verdict", "validation", "evoclaw"),
            ("verdict", "safety", "evoclaw"), ("verdict", "approval", "ann"),
            ("verdict", "shadow", "evoclaw"), ("verdict", "canary", "evoclaw"),
            ("change", "", "evoclaw"), ("campaign", "", "evoclaw"),
        ]  # fmt: skip
        recorded = [entry.number for entry in seen]
        assert recorded == [1, 2, 3, 4, 5, 7, 8, 9, 10], "each step of the engine is audited once"
        assert await problems(lineage) == []
        (only,) = await candidates(lineage)
        assert only.state is CandidateState.PROMOTED


async def test_a_stage_that_fails_rejects_the_candidate_with_its_reason(place: Place) -> None:
    async def worse(candidate: Candidate) -> StageResult:
        return StageResult(passed=False, reason="three cases fail now")

    async with open_lineage(place) as lineage:
        await engine_of(lineage, checks={Stage.VALIDATION: worse}).run()
        (only,) = await candidates(lineage)
        assert only.state is CandidateState.REJECTED
        assert only.results[Stage.VALIDATION].reason == "three cases fail now"
        with pytest.raises(ApprovalRefused, match="rejected"):
            await approve(lineage, AGENT, 1, by="ann")
        assert await problems(lineage) == []


async def test_a_person_rejects_and_the_same_proposal_is_not_made_again(place: Place) -> None:
    async with open_lineage(place) as lineage:
        engine = engine_of(lineage)
        await engine.run()
        await reject(lineage, AGENT, 1, by="ann", reason="too rude")
        await engine.run(again=True)
        (only,) = await candidates(lineage)
        assert only.state is CandidateState.REJECTED
        with pytest.raises(ApprovalRefused, match="is rejected already"):
            await reject(lineage, AGENT, 1, by="ann", reason="again")
        with pytest.raises(ApprovalRefused, match="no candidate 7"):
            await approve(lineage, AGENT, 7, by="ann")


@pytest.mark.parametrize("is_asked_before", [False, True])
async def test_a_campaign_asks_the_proposers_once_also_if_they_find_nothing(
    place: Place, is_asked_before: bool
) -> None:
    proposer = FixedProposer(Proposal(patch={"budget": 5}, reason="more money"))
    async with open_lineage(place) as lineage:
        engine = engine_of(lineage, proposers=[proposer])
        if is_asked_before:
            await engine.run()
        rounds = proposer.rounds
        await engine.run(again=True)
        assert proposer.rounds == rounds + 1
        kinds = [entry.kind for entry in await lineage.history(AGENT)]
        assert kinds == ["campaign"] * (rounds + 1)


async def test_the_proposers_are_asked_once_what_keeps_them_from_it_is_over(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    problems = ["the model is unknown"]
    async with open_lineage(place) as lineage:
        engine = engine_of(lineage, problem=lambda: "".join(problems))
        assert not await engine.step() and not await engine.step()
        assert await lineage.history(AGENT) == []
        assert caplog.text.count("evolution asks for no proposals: the model is unknown") == 1
        problems.clear()
        assert await engine.step()
        assert [entry.kind for entry in await lineage.history(AGENT)][-1] == "campaign"


async def test_a_proposal_names_the_cases_that_it_changes_and_the_runs_that_they_were_made_of(
    place: Place, tmp_path: Path
) -> None:
    first = Record("run_1", 1, 100.0, TextDelta("Tea is ready."))
    (tmp_path / "tea.jsonl").write_bytes(encode_record(first))
    tea = case_of("tea", recording="tea.jsonl")
    cases = [CaseFile("tea", tmp_path / "tea.toml", tea.case), case_of("cake"), case_of("wine")]

    async def open_context(name: str, genome: Genome) -> tuple[ProposerContext, SpendingMeter]:
        context, meter = await context_of(name, genome)
        return dataclasses.replace(context, cases=cases), meter

    proposal = replace(BETTER, fixed=("tea", "cake"), broken=("wine",))
    async with open_lineage(place) as lineage:
        await engine_of(lineage, proposal, open_context=open_context).run()
        (entry, *_) = await lineage.history(AGENT)
    assert entry.runs == (*BETTER.runs, "run_1")
    assert changed_cases(entry, FIXED) == ("tea", "cake")
    assert changed_cases(entry, BROKEN) == ("wine",)


async def test_a_candidate_cannot_be_approved_before_its_turn(place: Place) -> None:
    async with open_lineage(place) as lineage:
        await lineage.propose(AGENT, BETTER.patch, by="numbers")
        with pytest.raises(ApprovalRefused, match="at the stage static"):
            await approve(lineage, AGENT, 1, by="ann")


async def test_a_configured_key_approves_and_the_orchestrators_never_does(place: Place) -> None:
    accepted = (OTHER_KEY.public_key, KEY.public_key)
    async with open_lineage(place) as lineage:
        engine = engine_of(lineage)
        await engine.run()
        digest = entry_hash((await lineage.history(AGENT))[0])

        async def by(key: Any, signed: str, keys: tuple[str, ...] = accepted) -> None:
            await approve_by_key(
                lineage, AGENT, 1, key=key.public_key, signature=signed, accepted=keys
            )

        with pytest.raises(ApprovalRefused, match="not one of the approver_keys"):
            await by(OTHER_KEY, OTHER_KEY.sign_approval(digest), ())
        with pytest.raises(ApprovalRefused, match="key of the orchestrator"):
            await by(KEY, KEY.sign_approval(digest))
        with pytest.raises(ApprovalRefused, match="the signature is not one"):
            await by(OTHER_KEY, OTHER_KEY.sign_approval("0" * 64))
        await by(OTHER_KEY, OTHER_KEY.sign_approval(digest))
        await engine.run()
        assert (await lineage.version(AGENT)).version == 1
        assert await problems(lineage) == []


@pytest.mark.parametrize("why", ["untrusted", "static"])
async def test_untrusted_text_needs_a_person(place: Place, why: str) -> None:
    async def static(candidate: Candidate) -> StageResult:
        needed: list[JSON] = ["a text contains a new address"] if why == "static" else []
        return StageResult(passed=True, evidence={"needs_person": needed})

    proposal = replace(BETTER, untrusted=why == "untrusted")
    async with open_lineage(place) as lineage:
        engine = engine_of(lineage, proposal, checks={Stage.STATIC: static})
        await engine.run()
        digest = entry_hash((await lineage.history(AGENT))[0])
        with pytest.raises(ApprovalRefused, match="only a person can approve"):
            await approve_by_key(
                lineage, AGENT, 1, key=OTHER_KEY.public_key,
                signature=OTHER_KEY.sign_approval(digest), accepted=ON.approver_keys,
            )  # fmt: skip
        await approve(lineage, AGENT, 1, by="ann")
        await engine.run()
        assert (await lineage.version(AGENT)).version == 1


async def test_a_change_by_a_person_outdates_the_candidates(place: Place) -> None:
    async with open_lineage(place) as lineage:
        engine = engine_of(lineage)
        await engine.run()
        await lineage.change(AGENT, {"notes": ["Be kind."]}, by="ann")
        with pytest.raises(ApprovalRefused, match="superseded"):
            await approve(lineage, AGENT, 1, by="ann")
        await engine.run()
        states = [candidate.state for candidate in await candidates(lineage)]
        assert states == [CandidateState.SUPERSEDED, CandidateState.OPEN], "compared again"


async def test_a_verdict_on_an_outdated_lineage_is_not_recorded(place: Place) -> None:
    async with open_lineage(place) as lineage:

        async def slow(candidate: Candidate) -> StageResult:
            await lineage.change(AGENT, {"notes": ["Be kind."]}, by="ann")
            return StageResult(passed=True)

        engine = engine_of(lineage, checks={Stage.STATIC: slow})
        await engine.step()
        with pytest.raises(GenomeChanged):
            await engine.step()
        assert [entry.kind for entry in await lineage.history(AGENT)][-1] == "change"


async def test_two_engines_promote_once(place: Place) -> None:
    async with open_lineage(place) as lineage, open_lineage(place) as other:
        engines = [engine_of(lineage), engine_of(other)]
        await engines[0].run()
        number = (await candidates(lineage))[0].number
        await approve(lineage, AGENT, number, by="ann")
        await asyncio.gather(*(engine.run() for engine in engines))
        changes = [entry for entry in await lineage.history(AGENT) if entry.kind == "change"]
        assert len(changes) == 1
        assert await problems(lineage) == []


async def test_a_stop_ends_a_stage_at_once_and_records_nothing(place: Place) -> None:
    stopped = [""]
    started = asyncio.Event()

    async def endless(candidate: Candidate) -> StageResult:
        started.set()
        await asyncio.Event().wait()
        raise AssertionError("never")

    async with open_lineage(place) as lineage:
        engine = engine_of(lineage, checks={Stage.VALIDATION: endless}, stopped=lambda: stopped[0])
        running = asyncio.ensure_future(engine.run())
        await asyncio.wait_for(started.wait(), 60)
        number = len(await lineage.history(AGENT))
        stopped[0] = "a person stopped everything"
        with pytest.raises(EvolutionStopped, match="a person stopped everything"):
            await asyncio.wait_for(running, 60)
        with pytest.raises(EvolutionStopped):
            await engine.step()
        assert len(await lineage.history(AGENT)) == number


async def test_a_stage_that_goes_on_is_recorded_when_its_evidence_changes(place: Place) -> None:
    batches = iter([1, 1, 2, 2])

    async def batch(candidate: Candidate) -> StageResult:
        number = next(batches, 3)
        return StageResult(passed=True if number == 3 else None, evidence={"batch": number})

    async with open_lineage(place) as lineage:
        engine = engine_of(lineage, checks={Stage.VALIDATION: batch})
        await engine.step()
        taken = [await engine.step() for _ in range(6)]
        assert taken == [True, True, False, True, False, True]
        found = [e.scores["batch"] for e in await lineage.history(AGENT) if "batch" in e.scores]
        assert found == [1, 2, 3]


async def test_a_broken_bound_takes_a_promotion_back_with_its_reason(place: Place) -> None:
    broken = [""]

    async def watch(candidate: Candidate, since: float) -> str:
        return broken[0]

    async with open_lineage(place) as lineage:
        engine = engine_of(lineage, watch=watch)
        await engine.run()
        await approve(lineage, AGENT, 1, by="ann")
        await engine.run()
        assert (await lineage.version(AGENT)).prompt
        broken[0] = "4 of 10 runs failed, 0 of 50 before"
        await engine.run()
        genome = await lineage.version(AGENT)
        assert (genome.prompt, genome.restored) == ("", 0)
        last = [entry for entry in await lineage.history(AGENT) if entry.version is not None][-1]
        assert (last.kind, last.candidate) == ("rollback", 1)
        assert last.reason == "4 of 10 runs failed, 0 of 50 before"
        (first, *_) = await candidates(lineage)
        assert first.state is CandidateState.ROLLED_BACK
        assert await problems(lineage) == []


class Stuck:
    """A step that begins, and does not end by itself."""

    def __init__(self) -> None:
        self.started, self.is_cancelled = asyncio.Event(), False

    async def judge(self, candidate: Candidate) -> StageResult:
        self.started.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.is_cancelled = True
        raise AssertionError("never")


@asynccontextmanager
async def serving(engine: EvolutionEngine) -> AsyncGenerator[None]:
    """Serve until the block ends."""
    task = asyncio.create_task(engine.serve())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def wait_for_entry(lineage: GenomeLineage, kind: str, **fields: Any) -> LineageEntry:
    """The first entry like this; wait until there is one."""
    found: list[LineageEntry] = []

    async def there() -> bool:
        found[:] = [
            entry
            for entry in await lineage.history(AGENT)
            if entry.kind == kind and all(getattr(entry, n) == v for n, v in fields.items())
        ]
        return bool(found)

    await until(there, 30, f"a {kind}")
    return found[0]


async def test_a_bound_that_breaks_during_a_long_step_is_not_kept_waiting(place: Place) -> None:
    broken, stuck = [""], Stuck()
    audited: list[LineageEntry] = []

    async def watch(candidate: Candidate, since: float) -> str:
        return broken[0]

    async with open_lineage(place) as lineage:
        engine = engine_of(lineage, watch=watch, seen=audited)
        await engine.run()
        await approve(lineage, AGENT, 1, by="ann")
        await engine.run()
        await lineage.propose(AGENT, {"prompt": "Answer in two words."}, by="numbers")
        stages = {Stage.VALIDATION: stuck.judge}
        async with serving(engine_of(lineage, watch=watch, checks=stages, seen=audited)):
            await asyncio.wait_for(stuck.started.wait(), 60)
            broken[0] = "4 of 10 runs failed, 0 of 50 before"
            entry = await wait_for_entry(lineage, "rollback")
            assert entry.reason == broken[0]
            await until(lambda: stuck.is_cancelled, 30)
        assert entry in audited
        assert (await candidates(lineage))[1].state is CandidateState.SUPERSEDED
        assert await problems(lineage) == []


async def test_a_canary_is_rejected_while_another_candidate_is_validated(place: Place) -> None:
    broken, stuck = [False], Stuck()

    async def canary(candidate: Candidate) -> StageResult:
        share: dict[str, JSON] = {"share": 0.5}
        if broken[0]:
            return StageResult(passed=False, reason="2 of 2 runs failed", evidence=share)
        return StageResult(passed=None, evidence=share)

    async def validation(candidate: Candidate) -> StageResult:
        return await (stuck.judge(candidate) if candidate.number > 1 else passes(candidate))

    async with open_lineage(place) as lineage:
        stages = {Stage.CANARY: canary, Stage.VALIDATION: validation}
        engine = engine_of(lineage, checks=stages)
        await engine.run()
        await approve(lineage, AGENT, 1, by="ann")
        await engine.run()
        await lineage.propose(AGENT, {"prompt": "Answer in two words."}, by="numbers")
        async with serving(engine):
            await asyncio.wait_for(stuck.started.wait(), 60)
            broken[0] = True
            entry = await wait_for_entry(lineage, "verdict", stage="canary", passed=False)
            assert (entry.candidate, entry.reason) == (1, "2 of 2 runs failed")
        states = [candidate.state for candidate in await candidates(lineage)]
        assert states == [CandidateState.REJECTED, CandidateState.OPEN]


async def test_a_bound_that_breaks_while_a_failed_step_waits_is_seen(place: Place) -> None:
    broken = [""]

    async def watch(candidate: Candidate, since: float) -> str:
        return broken[0]

    async def unreachable(candidate: Candidate) -> StageResult:
        broken[0] = "4 of 10 runs failed, 0 of 50 before"
        raise EvoClawError("the model is unreachable")

    async with open_lineage(place) as lineage:
        engine = engine_of(lineage, watch=watch)
        await engine.run()
        await approve(lineage, AGENT, 1, by="ann")
        await engine.run()
        await lineage.propose(AGENT, {"prompt": "Answer in two words."}, by="numbers")
        async with serving(engine_of(lineage, watch=watch, checks={Stage.STATIC: unreachable})):
            await wait_for_entry(lineage, "rollback")


async def test_a_proposal_that_is_not_allowed_is_skipped(place: Place) -> None:
    wrong = Proposal(patch={"budget": 5}, reason="more money")
    async with open_lineage(place) as lineage:
        await engine_of(lineage, wrong, BETTER).run()
        assert [c.proposal.reason for c in await candidates(lineage)] == [BETTER.reason]


async def promoted_without(lineage: GenomeLineage, *stages: Stage, proof: Any = None) -> list[str]:
    """Promote a candidate after these stages only; what the verifier finds."""
    proposal = await lineage.propose(AGENT, BETTER.patch, by="numbers")
    assert proposal is not None
    for after, stage in enumerate(stages, 1):
        evidence = {"approval": "person"} if proof is None else proof(proposal)
        await lineage.add_verdict(
            AGENT, proposal, stage, passed=True, after=after, by="x",
            evidence=evidence if stage is Stage.APPROVAL else None,
        )  # fmt: skip
    await lineage.promote(AGENT, proposal, after=len(stages) + 1, by="x")
    return await problems(lineage)


async def test_the_verifier_finds_a_promotion_that_skipped_a_stage(place: Place) -> None:
    async with open_lineage(place) as lineage:
        stages = [stage for stage in Stage if stage is not Stage.SAFETY]
        found = await promoted_without(lineage, *stages)
        assert any("did not pass safety" in problem for problem in found), found


async def test_the_verifier_finds_stages_in_another_order(place: Place) -> None:
    async with open_lineage(place) as lineage:
        one, two, *rest = Stage
        found = await promoted_without(lineage, two, one, *rest)
        assert any("out of order" in problem for problem in found), found


def no_proof(proposal: LineageEntry) -> dict[str, JSON]:
    return {}


def signed_by_the_orchestrator(proposal: LineageEntry) -> dict[str, JSON]:
    signature = KEY.sign_approval(entry_hash(proposal))
    return {"approval": "key", "key": KEY.public_key, "signature": signature}


def signed_for_another(proposal: LineageEntry) -> dict[str, JSON]:
    signature = OTHER_KEY.sign_approval("0" * 64)
    return {"approval": "key", "key": OTHER_KEY.public_key, "signature": signature}


@pytest.mark.parametrize(
    ("proof", "problem"),
    [
        (no_proof, "neither a person's nor a key's"),
        (signed_by_the_orchestrator, "the key that signs the lineage"),
        (signed_for_another, "signature of the approval is wrong"),
    ],
)
async def test_the_verifier_finds_an_approval_that_is_none(
    place: Place, proof: Any, problem: str
) -> None:
    async with open_lineage(place) as lineage:
        found = await promoted_without(lineage, *Stage, proof=proof)
        assert any(problem in text for text in found), found


async def test_the_verifier_finds_a_promotion_after_a_rejection(place: Place) -> None:
    async with open_lineage(place) as lineage:
        proposal = await lineage.propose(AGENT, BETTER.patch, by="numbers")
        assert proposal is not None
        await lineage.add_verdict(AGENT, proposal, "static", passed=False, after=1, by="x")
        await lineage.promote(AGENT, proposal, after=2, by="x")
        found = await problems(lineage)
        assert any("which was rejected" in problem for problem in found), found


async def test_a_share_of_sessions_uses_a_canary_and_keeps_to_it(place: Place) -> None:
    async with open_lineage(place) as lineage:

        async def canary(candidate: Candidate) -> StageResult:
            return StageResult(passed=None, evidence={"share": 0.25})

        engine = engine_of(lineage, checks={Stage.CANARY: canary, Stage.SHADOW: passes})
        await engine.run()
        await approve(lineage, AGENT, 1, by="ann")
        await engine.run()
        digest = (await candidates(lineage))[0].proposal.digest
        drawn = [await lineage.current(AGENT, f"session {n}") for n in range(400)]
        assert drawn == [await lineage.current(AGENT, f"session {n}") for n in range(400)]
        assert 60 < drawn.count(digest) < 140
        assert await lineage.current(AGENT) == "", "without a session: the current genome"
        assert (await lineage.find(AGENT, digest)).prompt == "Answer in one word."
        await reject(lineage, AGENT, 1, by="ann", reason="no")
        assert {await lineage.current(AGENT, f"session {n}") for n in range(50)} == {""}

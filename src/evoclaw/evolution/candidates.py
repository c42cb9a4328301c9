"""Candidates: proposed genomes on their way through the gate.

The state of a candidate is a fold over the lineage, which is the only record of it. So a process
that was killed anywhere reads where it was, and continues.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from evoclaw.core.messages import JSON, is_array
from evoclaw.evolution.lineage_entries import LineageEntry


class Stage(StrEnum):
    """The stages of the gate, in their order."""

    STATIC = "static"
    """It asks for nothing that the old genome does not have."""
    VALIDATION = "validation"
    """It is better on cases that no proposer has seen, and no case got worse."""
    SAFETY = "safety"
    """Calls that must be denied are denied; instructions in results are not followed."""
    APPROVAL = "approval"
    """A person approves it, or a key that is not the proposer's signs it."""
    SHADOW = "shadow"
    """Beside real sessions, it proposes calls that are not executed."""
    CANARY = "canary"
    """A share of the new sessions uses it."""


STAGES = tuple(Stage)


FIXED, BROKEN = "fixed", "broken"
"""The keys of the train cases that changed, in the evidence of a proposal."""


class CandidateState(StrEnum):
    """Where a candidate is."""

    OPEN = "open"
    """At one of the stages."""
    REJECTED = "rejected"
    """A stage failed."""
    PASSED = "passed"
    """All stages passed; it is about to become current."""
    PROMOTED = "promoted"
    """It became the current genome."""
    ROLLED_BACK = "rolled_back"
    """It was current, and was taken back."""
    SUPERSEDED = "superseded"
    """The genome that it was compared with is no longer current."""


class StageResult(Struct, frozen=True, kw_only=True):
    """The verdict of a stage."""

    passed: bool | None
    """Null: the stage has started and has no verdict yet."""
    reason: str = ""
    """Why it failed, for people."""
    evidence: dict[str, JSON] = {}
    """The figures that it rests on."""


class Candidate(Struct, frozen=True, kw_only=True):
    """A proposed genome, and what the gate has said so far."""

    proposal: LineageEntry
    """Its number identifies the candidate."""
    results: dict[Stage, StageResult] = {}
    """The last verdict of each stage that has started."""
    state: CandidateState = CandidateState.OPEN

    @property
    def number(self) -> int:
        """What identifies it among the candidates of its agent."""
        return self.proposal.number

    @property
    def stage(self) -> Stage | None:
        """The stage that it is at; None if it is at none."""
        if self.state is not CandidateState.OPEN:
            return None
        return next(s for s in STAGES if s not in self.results or not self.results[s].passed)


def fold_candidates(entries: Iterable[LineageEntry]) -> dict[int, Candidate]:
    """The candidates of a lineage by their numbers, the oldest first."""
    found: dict[int, Candidate] = {}
    for entry in entries:
        if entry.kind == "proposal":
            found[entry.number] = Candidate(proposal=entry)
        elif entry.kind == "verdict" and entry.candidate in found:
            found[entry.candidate] = _judged(found[entry.candidate], entry)
        elif entry.kind in ("change", "rollback"):
            found = {n: _after_change(candidate, entry) for n, candidate in found.items()}
    return found


def _judged(candidate: Candidate, entry: LineageEntry) -> Candidate:
    stage = Stage(entry.stage)
    result = StageResult(passed=entry.passed, reason=entry.reason, evidence=entry.scores)
    results = {**candidate.results, stage: result}
    state = candidate.state
    if entry.passed is False:
        state = CandidateState.REJECTED
    elif all(s in results and results[s].passed for s in STAGES):
        state = CandidateState.PASSED
    return replace(candidate, results=results, state=state)


def _after_change(candidate: Candidate, entry: LineageEntry) -> Candidate:
    """A new current genome promotes, takes back or outdates a candidate."""
    if entry.candidate == candidate.number:
        promoted = entry.kind == "change"
        state = CandidateState.PROMOTED if promoted else CandidateState.ROLLED_BACK
        return replace(candidate, state=state)
    if candidate.state is CandidateState.PROMOTED and entry.kind == "rollback":
        return replace(candidate, state=CandidateState.ROLLED_BACK)
    if candidate.state in (CandidateState.OPEN, CandidateState.PASSED):
        return replace(candidate, state=CandidateState.SUPERSEDED)
    return candidate


def changed_cases(proposal: LineageEntry, key: str) -> tuple[str, ...]:
    """The train cases that pass more (`FIXED`) or less often (`BROKEN`) with a proposed genome."""
    found = proposal.scores.get(key)
    return tuple(map(str, found)) if is_array(found) else ()

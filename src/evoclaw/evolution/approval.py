"""The approval of a candidate: by a person, or by a key that the settings name."""

from __future__ import annotations

from collections.abc import Sequence

from evoclaw.core.errors import EvoClawError
from evoclaw.core.messages import JSON, is_array
from evoclaw.evolution.candidates import Candidate, CandidateState, Stage, fold_candidates
from evoclaw.evolution.lineage import GenomeLineage
from evoclaw.evolution.lineage_entries import LineageEntry, entry_hash
from evoclaw.trust.receipts import is_approval_valid

NEEDS_PERSON = "needs_person"
"""The evidence of the static stage that says why only a person can approve a candidate."""
BY_PERSON: dict[str, JSON] = {"approval": "person"}
"""The evidence of a person's approval."""


class ApprovalRefused(EvoClawError):
    """A candidate cannot be approved or rejected, or not in this way."""


class SignatureRefused(ApprovalRefused):
    """A key, or its signature, cannot approve this candidate."""


async def approve(
    lineage: GenomeLineage, agent: str, number: int, *, by: str, reason: str = ""
) -> LineageEntry:
    """Approve a candidate as a person; the caller has checked that it is one."""
    candidate, last = await _find(lineage, agent, number)
    _check_stage(agent, candidate)
    return await lineage.add_verdict(
        agent, candidate.proposal, Stage.APPROVAL, passed=True, after=last, by=by, reason=reason,
        evidence=BY_PERSON,
    )  # fmt: skip


async def approve_by_key(
    lineage: GenomeLineage,
    agent: str,
    number: int,
    *,
    key: str,
    signature: str,
    accepted: Sequence[str],
    reason: str = "",
) -> LineageEntry:
    """Approve a candidate by the signature of one of the accepted keys.

    The key of the orchestrator is never accepted: it signs what the proposers suggest.
    """
    candidate, last = await _find(lineage, agent, number)
    _check_stage(agent, candidate)
    proposal = candidate.proposal
    if key not in accepted:
        raise SignatureRefused(
            f"the key {key[:80]!r} is not one of the approver_keys of agent {agent!r}; add it to "
            "[agents.evolution], or approve as a person"
        )
    if key == proposal.key:
        raise SignatureRefused(
            "the key of the orchestrator cannot approve what the orchestrator proposed; sign with "
            "another key"
        )
    if why := person_needed(candidate):
        raise SignatureRefused(
            f"only a person can approve candidate {number}: {why}; use `evoclaw evolve approve`"
        )
    if not is_approval_valid(key, signature, entry_hash(proposal)):
        raise SignatureRefused(
            f"the signature is not one of candidate {number} by that key; sign its hash with "
            "`evoclaw evolve sign`"
        )
    evidence: dict[str, JSON] = {"approval": "key", "key": key, "signature": signature}
    return await lineage.add_verdict(
        agent, proposal, Stage.APPROVAL, passed=True, after=last, by=f"key {key[:8]}",
        reason=reason, evidence=evidence,
    )  # fmt: skip


async def reject(
    lineage: GenomeLineage, agent: str, number: int, *, by: str, reason: str
) -> LineageEntry:
    """Reject a candidate as a person, at whatever stage it is."""
    candidate, last = await _find(lineage, agent, number)
    stage = candidate.stage
    if stage is None:
        raise ApprovalRefused(f"candidate {number} of {agent!r} is {candidate.state} already")
    return await lineage.add_verdict(
        agent, candidate.proposal, stage, passed=False, after=last, by=by,
        reason=reason or "a person rejected it", evidence=BY_PERSON,
    )  # fmt: skip


def person_needed(candidate: Candidate) -> str:
    """Why only a person can approve a candidate; empty if a key can, too."""
    if candidate.proposal.untrusted:
        return "it contains text of untrusted origin"
    static = candidate.results.get(Stage.STATIC)
    found = static.evidence.get(NEEDS_PERSON) if static is not None else None
    return "; ".join(str(why) for why in found) if is_array(found) else ""


async def _find(lineage: GenomeLineage, agent: str, number: int) -> tuple[Candidate, int]:
    entries = await lineage.history(agent)
    found = fold_candidates(entries).get(number)
    if found is None:
        raise ApprovalRefused(
            f"agent {agent!r} has no candidate {number}; see `evoclaw evolve list {agent}`"
        )
    return found, len(entries)


def _check_stage(agent: str, candidate: Candidate) -> None:
    if candidate.stage is Stage.APPROVAL:
        return
    where = (
        f"at the stage {candidate.stage}"
        if candidate.state is CandidateState.OPEN
        else str(candidate.state)
    )
    raise ApprovalRefused(
        f"candidate {candidate.number} of {agent!r} is {where}; it can be approved when it is at "
        "the stage approval"
    )

"""Routes of candidates: proposed genomes on their way through the gate, and people's decisions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Literal

from litestar import get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import JSONBody, PathParameter
from msgspec import Meta, Struct

from evoclaw.api.auth import InjectedCaller, InjectedDependencies
from evoclaw.api.errors import ApiError, not_found, require
from evoclaw.api.routes.genomes import (
    TAGS,
    check_agent,
    check_audited,
    editable_lineage,
    lineage_for,
    user_of,
)
from evoclaw.api.routes.parameters import AgentName, Reason
from evoclaw.core.genome import CONFIGURED
from evoclaw.core.messages import JSON
from evoclaw.evolution.approval import approve, approve_by_key, person_needed, reject
from evoclaw.evolution.candidates import (
    BROKEN,
    FIXED,
    STAGES,
    Candidate,
    CandidateState,
    Stage,
    changed_cases,
    fold_candidates,
)
from evoclaw.evolution.lineage import GenomeChanged
from evoclaw.evolution.lineage_entries import (
    LineageEntry,
    changes_between,
    entry_hash,
    genome_of,
)
from evoclaw.orchestrator.people.access import TokenScope

CandidateNumber = Annotated[
    int, PathParameter(ge=1, le=1_000_000_000, description="The number of the candidate.")
]


class StageView(Struct, frozen=True):
    """The last verdict of a stage of the gate."""

    stage: Stage
    """The stage."""
    passed: bool | None
    """Null: the stage has started and has no verdict yet."""
    by: str
    """Who judged: a user, or a program."""
    at: float
    """Unix time, seconds."""
    reason: str
    """Why, for people."""
    evidence: dict[str, JSON]
    """The figures that it rests on."""


class CandidateView(Struct, frozen=True, kw_only=True):
    """A proposed genome, and what the gate has said so far."""

    number: int
    """Identifies it among the candidates of its agent."""
    state: CandidateState
    """Where it is."""
    stage: Stage | None
    """The stage that it is at; null: it is at none."""
    at: float
    """When it was proposed: Unix time, seconds."""
    by: str
    """Who proposed it."""
    reason: str
    """Why, for people."""
    runs: tuple[str, ...]
    """The runs that are the reason."""
    fixed: tuple[str, ...]
    """Train cases that passed more often with it when it was proposed, by name."""
    broken: tuple[str, ...]
    """Train cases that passed less often with it."""
    untrusted: bool
    """Whether it contains text of untrusted origin: only a person can approve it."""
    digest: str
    """That of its genome."""
    parent: str
    """That of the genome that it was proposed to replace; empty: the configuration."""
    parent_version: int
    """The version that was current then."""
    version: int | None
    """The version that it became; null: it was not promoted."""
    stages: tuple[StageView, ...]
    """The stages that have started, in their order."""
    hash: str
    """That of its proposal: what a key signs to approve it."""
    person_needed: str
    """Why only a person can approve it; empty: a key can, too."""


class CandidateList(Struct, frozen=True):
    """The candidates of an agent."""

    items: tuple[CandidateView, ...]
    """The newest first."""
    last: int
    """The number of the last entry of the lineage, for `after` of a decision."""


class CandidateDetail(Struct, frozen=True, kw_only=True):
    """A candidate with what it would change."""

    candidate: CandidateView
    """The candidate."""
    last: int
    """The number of the last entry of the lineage, for `after` of a decision."""
    before: dict[str, JSON]
    """What the genome sets that it was proposed to replace."""
    genome: dict[str, JSON]
    """What its genome sets."""
    changes: dict[str, JSON]
    """The merge patch that turns one into the other; null goes back to the configuration."""


class CandidateDecision(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A person's decision on a candidate."""

    decision: Literal["approve", "reject"]
    """`approve` moves it to the next stage; `reject` ends it."""
    reason: Reason = ""
    """Why, for people; a rejection needs one."""
    signature: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{43}:[A-Za-z0-9_-]{86}$")] | None = None
    """`KEY:SIGNATURE` of one of the `approver_keys` over the hash of the candidate, as `evoclaw
    evolve sign` prints it; it approves instead of a person. Null: a person decides."""
    after: Annotated[int, Meta(ge=0, le=1_000_000_000)] | None = None
    """The number of the last entry of the lineage that you saw; another one is refused. Null:
    any."""


@get("/v1/agents/{name:str}/candidates", scope=TokenScope.EVOLUTION_READ, tags=TAGS)
async def list_candidates(
    parts: InjectedDependencies, caller: InjectedCaller, name: AgentName
) -> CandidateList:
    """List the candidates for the genome of an agent, with what the gate has said of them."""
    lineage = lineage_for(parts, caller)
    check_agent(parts, name)
    entries = await lineage.history(name)
    found = fold_candidates(entries).values()
    views = [_view(candidate, entries) for candidate in reversed(found)]
    return CandidateList(tuple(views), len(entries))


@get(
    "/v1/agents/{name:str}/candidates/{number:int}",
    scope=TokenScope.EVOLUTION_READ,
    tags=TAGS,
)
async def show_candidate(
    parts: InjectedDependencies,
    caller: InjectedCaller,
    name: AgentName,
    number: CandidateNumber,
) -> CandidateDetail:
    """Show a candidate, and what it would change."""
    lineage = lineage_for(parts, caller)
    check_agent(parts, name)
    entries = await lineage.history(name)
    return _detail(_find(entries, number), entries)


@post(
    "/v1/agents/{name:str}/candidates/{number:int}/decision",
    scope=TokenScope.EVOLUTION_WRITE,
    tags=TAGS,
    status_code=200,
)
async def decide_candidate(
    parts: InjectedDependencies,
    caller: InjectedCaller,
    name: AgentName,
    number: CandidateNumber,
    data: JSONBody[CandidateDecision],
) -> CandidateView:
    """Approve a candidate that waits for a person, or reject one at any stage.

    Only a person may, so the token also needs the scope `human`; not for an approval with a
    `signature`.
    """
    if data.signature is None:
        lineage = editable_lineage(parts, caller)
    else:
        lineage = lineage_for(parts, caller)
        check_audited(parts)
    check_agent(parts, name)
    _check_decision(data)
    entries = await lineage.history(name)
    if data.after is not None and data.after != len(entries):
        raise GenomeChanged(name)
    _find(entries, number)
    if data.signature is None:
        decide, by = approve if data.decision == "approve" else reject, user_of(caller)
        entry = await decide(lineage, name, number, by=by, reason=data.reason)
    else:
        key, _, signed = data.signature.partition(":")
        accepted = require(parts.conversations, "agents").agents[name].evolution.approver_keys
        entry = await approve_by_key(
            lineage, name, number, key=key, signature=signed, accepted=accepted, reason=data.reason
        )
    if parts.lineage_audit is not None:
        await parts.lineage_audit.record(entry, caller.principal)
    entries = await lineage.history(name)
    return _view(_find(entries, number), entries)


def _check_decision(data: CandidateDecision) -> None:
    if data.decision == "approve":
        return
    if data.signature is not None:
        text = "A signature approves a candidate: a person rejects it, without `signature`."
        raise ApiError(422, "invalid", text)
    if not data.reason.strip():
        raise ApiError(422, "invalid", "A rejection needs a reason: say why in `reason`.")


def _find(entries: Iterable[LineageEntry], number: int) -> Candidate:
    found = fold_candidates(entries).get(number)
    if found is None:
        raise not_found("candidate")
    return found


def _view(candidate: Candidate, entries: Sequence[LineageEntry]) -> CandidateView:
    proposal, number = candidate.proposal, candidate.number
    verdicts = {
        entry.stage: entry
        for entry in entries
        if entry.kind == "verdict" and entry.candidate == number
    }
    promoted = [e for e in entries if e.kind == "change" and e.candidate == number]
    before = [e.version for e in entries if e.number < number and e.version is not None]
    return CandidateView(
        number=number,
        state=candidate.state,
        stage=candidate.stage,
        at=proposal.at,
        by=proposal.by,
        reason=proposal.reason,
        runs=proposal.runs,
        fixed=changed_cases(proposal, FIXED),
        broken=changed_cases(proposal, BROKEN),
        untrusted=proposal.untrusted,
        digest=proposal.digest,
        parent=proposal.parent or "",
        parent_version=before[-1] if before else 0,
        version=promoted[-1].version if promoted else None,
        stages=tuple(_stage(verdicts[stage]) for stage in STAGES if stage in verdicts),
        hash=entry_hash(proposal),
        person_needed=person_needed(candidate),
    )


def _stage(entry: LineageEntry) -> StageView:
    return StageView(
        Stage(entry.stage), entry.passed, entry.by, entry.at, entry.reason, entry.scores
    )


def _detail(candidate: Candidate, entries: Sequence[LineageEntry]) -> CandidateDetail:
    parent = candidate.proposal.parent
    known = (genome_of(entry) for entry in entries if parent and entry.digest == parent)
    before, after = next(known, CONFIGURED), genome_of(candidate.proposal)
    return CandidateDetail(
        candidate=_view(candidate, entries),
        last=len(entries),
        before=before.content(),
        genome=after.content(),
        changes=changes_between(before, after),
    )


ROUTES: tuple[HTTPRouteHandler, ...] = (list_candidates, show_candidate, decide_candidate)

"""Routes of evaluations: start, watch and cancel them; their results; cases from recorded runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import aclosing
from typing import Annotated

import msgspec
from litestar import get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import JSONBody
from msgspec import Meta, Struct

from evoclaw.api.auth import InjectedCaller, InjectedDependencies
from evoclaw.api.dependencies import ApiDependencies
from evoclaw.api.errors import ApiError, require
from evoclaw.api.routes.genomes import (
    TAGS,
    CaseView,
    Version,
    case_view,
    check_agent,
    check_audited,
    lineage_for,
    user_of,
)
from evoclaw.api.routes.parameters import ID_PATTERN, AgentName, ShortText, path_id
from evoclaw.api.routes.runs import own_run, renumbered_records
from evoclaw.core.evolution_settings import AgentEvolution, ProposerName
from evoclaw.core.messages import JSON
from evoclaw.core.record_encoding import record_json
from evoclaw.evolution.campaign import describe_next, next_steps
from evoclaw.evolution.candidates import CandidateState, Stage, fold_candidates
from evoclaw.evolution.cases import CaseFolder, Split, case_from_run
from evoclaw.evolution.evaluation import Rate
from evoclaw.evolution.evaluation_service import (
    EVALUATION_KEY,
    BackgroundEvaluation,
    EvaluationRequest,
    EvaluationState,
)
from evoclaw.evolution.lineage_entries import LineageEntry
from evoclaw.orchestrator.people.access import Caller, TokenScope

MAX_CASES, MAX_REPEAT, MAX_PARALLEL = 1_000, 1_000, 32
CaseName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")]
EvaluationId = Annotated[str, path_id("The id of the evaluation.")]


class EvaluationResult(Struct, frozen=True, kw_only=True):
    """The result of an evaluation, as the lineage has it."""

    number: int
    """Its position in the lineage."""
    at: float
    """Unix time, seconds."""
    by: str
    """Who evaluated."""
    version: int | None
    """The version of the genome; null: that of a candidate, or one that a proposer tried."""
    candidate: int | None
    """The candidate whose genome it is; null: it is none, or a proposer tried it."""
    digest: str
    """That of the genome; empty: as configured."""
    evaluation: str
    """The id of the evaluation; empty: `evoclaw eval` ran it."""
    release: str
    """The release that sealed cases were opened for; empty: none."""
    total: Rate
    """How many runs passed."""
    cases: dict[str, Rate]
    """The same by the names of the cases."""
    splits: dict[str, Rate]
    """The same by split."""
    cost: float | None
    """In US dollars; null if a price is unknown."""
    coverage: float | None
    """The share of recorded calls that were answered; null if no call was to be answered from a
    record."""
    recorded: int | None
    """How many of the runs had a record to answer their calls; null: that was not stored."""
    model: str = ""
    """The model that it was run with; empty: not known."""
    host: str = ""
    """The name of the machine that ran it; empty: not known."""
    evoclaw_version: str = ""
    """The version of EvoClaw that ran it; empty: not known."""


class EvaluationList(Struct, frozen=True):
    """The evaluations of an agent."""

    items: tuple[BackgroundEvaluation, ...]
    """Those that this service runs or ran last, the newest first."""
    results: tuple[EvaluationResult, ...]
    """All results in the lineage, the oldest first."""


class NewEvaluation(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An evaluation to start."""

    cases: Annotated[tuple[CaseName, ...], Meta(max_length=MAX_CASES)] = ()
    """Cases by name; empty: all of the splits."""
    splits: Annotated[tuple[Split, ...], Meta(min_length=1, max_length=3)] = (
        Split.TRAIN,
        Split.VALIDATION,
    )
    """Only cases of these splits; `sealed` needs a release and a person."""
    repeat: Annotated[int, Meta(ge=1, le=MAX_REPEAT)] = 1
    """How often each case is run."""
    parallel: Annotated[int, Meta(ge=1, le=MAX_PARALLEL)] = 4
    """How many runs at the same time."""
    version: Version | None = None
    """The version of the genome; null: the current one."""
    candidate: Annotated[int, Meta(ge=1, le=1_000_000_000)] | None = None
    """The candidate whose genome to evaluate instead of a version."""
    release: ShortText = ""
    """The release that sealed cases are opened for; once for each."""


class NewCase(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A case to make from a recorded run."""

    run: Annotated[str, Meta(pattern=ID_PATTERN)]
    """The id of the run: its calls and results are recorded, and its calls are expected."""
    name: CaseName | None = None
    """The name of the case; null: the id of the run."""
    split: Split = Split.TRAIN
    """Who may see it."""


class EvolutionStatus(Struct, frozen=True, kw_only=True):
    """Where the genome of an agent is."""

    agent: str
    """The name of the agent."""
    version: int
    """The current version; 0: the configuration."""
    candidates: int
    """How many candidates are at a stage of the gate."""
    waiting: tuple[int, ...]
    """The candidates that wait for a person, by number."""
    evaluating: bool
    """Whether an evaluation runs."""
    status: str
    """What its evolution waits for, or does next; empty: it does not evolve."""
    result: EvaluationResult | None
    """The last result of the current genome, not of a proposer; null: it was not evaluated."""


class EvolutionOverview(Struct, frozen=True):
    """Where the genomes of all agents are."""

    items: tuple[EvolutionStatus, ...]
    """One for each agent."""


@get("/v1/evolution", scope=TokenScope.EVOLUTION_READ, tags=TAGS)
async def show_evolution(parts: InjectedDependencies, caller: InjectedCaller) -> EvolutionOverview:
    """Show where the genome of each agent is: its version, candidates and last evaluation."""
    lineage, service = lineage_for(parts, caller), require(parts.evaluations, "evaluations")
    items: list[EvolutionStatus] = []
    for name, agent in require(parts.conversations, "agents").agents.items():
        entries = await lineage.history(name)
        evaluations = await service.list(name, entries)
        items.append(_evolution(name, entries, evaluations, agent.evolution))
    return EvolutionOverview(tuple(items))


def _evolution(
    name: str,
    entries: Sequence[LineageEntry],
    evaluations: Sequence[BackgroundEvaluation],
    settings: AgentEvolution,
) -> EvolutionStatus:
    candidates = fold_candidates(entries).values()
    versions = [entry for entry in entries if entry.version is not None]
    digest = versions[-1].digest if versions else ""
    results = [
        one
        for one in evaluation_results(entries)
        if one.digest == digest and one.version is not None
    ]
    return EvolutionStatus(
        agent=name,
        version=(versions[-1].version or 0) if versions else 0,
        candidates=sum(candidate.state is CandidateState.OPEN for candidate in candidates),
        waiting=tuple(c.number for c in candidates if c.stage is Stage.APPROVAL),
        evaluating=any(one.state is EvaluationState.RUNNING for one in evaluations),
        status=describe_next(next_steps(entries, settings, time.time())) if settings.is_on else "",
        result=results[-1] if results else None,
    )


@get("/v1/agents/{name:str}/evaluations", scope=TokenScope.EVOLUTION_READ, tags=TAGS)
async def list_evaluations(
    parts: InjectedDependencies, caller: InjectedCaller, name: AgentName
) -> EvaluationList:
    """List the evaluations of an agent: those that run or ran here, and all results."""
    lineage = lineage_for(parts, caller)
    check_agent(parts, name)
    entries = await lineage.history(name)
    items = await require(parts.evaluations, "evaluations").list(name, entries)
    return EvaluationList(tuple(items), tuple(evaluation_results(entries)))


@post(
    "/v1/agents/{name:str}/evaluations",
    scope=TokenScope.EVOLUTION_WRITE,
    tags=TAGS,
    status_code=202,
)
async def start_evaluation(
    parts: InjectedDependencies,
    caller: InjectedCaller,
    name: AgentName,
    data: JSONBody[NewEvaluation],
) -> BackgroundEvaluation:
    """Start an evaluation of an agent in the background; one at a time for each agent.

    It continues when the caller disconnects. Its result becomes an entry of the lineage.
    """
    _check_writable(parts, caller, name)
    if data.version is not None and data.candidate is not None:
        raise ApiError(422, "invalid", "Name a version or a candidate, not both.")
    if Split.SEALED in data.splits:
        if not data.release:
            text = "Sealed cases are opened once for each release: name it in `release`."
            raise ApiError(422, "invalid", text)
        _check_person(caller, "open sealed cases")
    service = require(parts.evaluations, "evaluations")
    request = msgspec.convert(data, EvaluationRequest, from_attributes=True)
    started = await service.start(name, request, by=user_of(caller))
    _audit(parts, caller, name, started, "start")
    return await service.get(name, started)


@get("/v1/agents/{name:str}/evaluations/{id:str}", scope=TokenScope.EVOLUTION_READ, tags=TAGS)
async def show_evaluation(
    parts: InjectedDependencies, caller: InjectedCaller, name: AgentName, id: EvaluationId
) -> BackgroundEvaluation:
    """Show an evaluation that this service runs or ran: its progress, or how it ended."""
    lineage_for(parts, caller)
    check_agent(parts, name)
    return await require(parts.evaluations, "evaluations").get(name, id)


@post(
    "/v1/agents/{name:str}/evaluations/{id:str}/cancel",
    scope=TokenScope.EVOLUTION_WRITE,
    tags=TAGS,
    status_code=200,
)
async def cancel_evaluation(
    parts: InjectedDependencies, caller: InjectedCaller, name: AgentName, id: EvaluationId
) -> BackgroundEvaluation:
    """Cancel an evaluation that runs; it has no result then."""
    _check_writable(parts, caller, name)
    service = require(parts.evaluations, "evaluations")
    cancelled = await service.cancel(name, id, by=user_of(caller))
    _audit(parts, caller, name, id, "cancel")
    return cancelled


@post("/v1/cases", scope=TokenScope.EVOLUTION_WRITE, tags=TAGS, status_code=201)
async def add_case(
    parts: InjectedDependencies, caller: InjectedCaller, data: JSONBody[NewCase]
) -> CaseView:
    """Make a case from a recorded run: its successful calls are expected.

    Only a person may: the token also needs the scope `human`.
    """
    lineage_for(parts, caller)
    _check_person(caller, "add cases")
    check_audited(parts)
    folder = require(parts.cases, "cases")
    run = await own_run(parts, caller, data.run)
    name = data.name or run.run_id
    async with aclosing(renumbered_records(parts, caller.tenant, run.run_id)) as stream:
        records = [record async for record in stream]
    text = case_from_run(records, name, run.agent, data.split)
    recording = b"".join(record_json(record) + b"\n" for record in records)
    view = await asyncio.to_thread(_write_case, folder, name, text, recording)
    if parts.audit is not None:
        parts.audit.record_evolution(
            caller.principal, run.agent, what="case", case=name, run_id=run.run_id
        )
    return view


def _write_case(folder: CaseFolder, name: str, text: str, recording: bytes) -> CaseView:
    folder.add(name, text, recording)
    return case_view(folder.find(name))


def _check_writable(parts: ApiDependencies, caller: Caller, name: str) -> None:
    lineage_for(parts, caller)
    check_agent(parts, name)
    check_audited(parts)


def _check_person(caller: Caller, what: str) -> None:
    if not caller.may(TokenScope.HUMAN):
        text = f"Only a person may {what}: the token needs the scope 'human'."
        raise ApiError(403, "forbidden", text)


def _audit(
    parts: ApiDependencies, caller: Caller, agent: str, evaluation: str, decision: str
) -> None:
    if parts.audit is not None:
        parts.audit.record_evolution(
            caller.principal, agent, what="evaluation", evaluation=evaluation, decision=decision
        )


def evaluation_results(entries: Sequence[LineageEntry]) -> list[EvaluationResult]:
    """The results in a lineage, the oldest first."""
    found = [e for e in entries if e.kind == "evaluation" and "rate" in e.scores]
    return [_result(entry, entries) for entry in found]


def _result(entry: LineageEntry, entries: Sequence[LineageEntry]) -> EvaluationResult:
    scores = entry.scores
    same = [known for known in entries if known.digest == entry.digest]
    versions = [0] if not entry.digest else [e.version for e in same if e.version is not None]
    proposals = [known.number for known in same if known.kind == "proposal"]
    if entry.by in tuple(ProposerName) and EVALUATION_KEY not in scores:
        # Some train cases of a search: they say little about the genome.
        versions, proposals = [], []
    version = versions[0] if versions else None
    return EvaluationResult(
        number=entry.number,
        at=entry.at,
        by=entry.by,
        version=version,
        candidate=proposals[0] if version is None and proposals else None,
        digest=entry.digest,
        evaluation=_text(scores.get(EVALUATION_KEY)),
        release=_text(scores.get("release")),
        total=msgspec.convert(scores, Rate),
        cases=msgspec.convert(scores.get("cases", {}), dict[str, Rate]),
        splits=msgspec.convert(scores.get("splits", {}), dict[str, Rate]),
        cost=scores.get("cost"),
        coverage=scores.get("coverage"),
        recorded=scores.get("recorded"),
        model=_text(scores.get("model")),
        host=_text(scores.get("host")),
        evoclaw_version=_text(scores.get("evoclaw_version")),
    )


def _text(value: JSON) -> str:
    return value if isinstance(value, str) else ""


ROUTES: tuple[HTTPRouteHandler, ...] = (
    show_evolution,
    list_evaluations,
    start_evaluation,
    show_evaluation,
    cancel_evaluation,
    add_case,
)

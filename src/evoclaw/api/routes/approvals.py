"""Routes of approvals and questions: list them, and answer them by id or by run."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Literal

from litestar import get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import JSONBody
from msgspec import Meta, Struct

from evoclaw.api.auth import InjectedCaller, InjectedDependencies
from evoclaw.api.dependencies import ApiDependencies
from evoclaw.api.errors import ApiError, not_found, require
from evoclaw.api.routes.parameters import (
    OptionalId,
    Reason,
    RunFilter,
    RunId,
    Text,
    id_filter,
    path_id,
)
from evoclaw.api.routes.runs import is_own, own_run
from evoclaw.core.messages import JSON
from evoclaw.core.ports import Decision
from evoclaw.orchestrator.overview.sources import owners_of
from evoclaw.orchestrator.people.access import Caller, TokenScope
from evoclaw.orchestrator.people.approvals import ApprovalCase
from evoclaw.orchestrator.people.questions import Question, UserAnswer
from evoclaw.orchestrator.runs.requests import RunNotFound, RunView

TAGS = ["approvals"]
RUN_TAGS = ["runs"]
ApprovalId = Annotated[str, path_id("The id of the approval.")]


class ApprovalView(Struct, frozen=True, omit_defaults=True):
    """A tool call that waits, or waited, for a person's approval."""

    id: str
    """The id of the approval."""
    standing: str
    """`waiting`, `once`, `session`, `denied`, `used`, `expired` or `closed`."""
    run_id: str
    """The run that waits for it."""
    request_id: str
    """The request id of the call."""
    user: str
    """The user on whose behalf the call runs."""
    agent: str
    """The agent that makes the call."""
    tool: str
    """The tool to call."""
    arguments: dict[str, JSON]
    """The arguments of the call, without secrets, and truncated."""
    sha256: str
    """The hash of the full arguments: an approval holds only for these."""
    code: str
    """Why the call needs an approval, as a short code."""
    reason: str
    """Why the call needs an approval."""
    covers: str
    """The calls that an approval for the session would cover."""
    asked_at: float
    """When it was requested, in Unix seconds."""
    expires_at: float
    """When it expires, in Unix seconds."""
    decision: str = ""
    """The answer: `once`, `session` or `deny`; empty: none yet."""
    answered_by: str = ""
    """Who answered."""
    answered_at: float | None = None
    """When it was answered, in Unix seconds."""
    answer_reason: str = ""
    """The reason that the person gave."""
    edited: bool = False
    """Whether the person changed the arguments with which the call ran."""
    uses: int = 0
    """How many calls have used the approval."""
    machine: str = ""
    """The machine that the call would run on; empty: that of its run."""
    covers_step: str = ""
    """What the decision `step` would cover; empty if no step of a workflow makes the call."""


class ApprovalList(Struct, frozen=True):
    """The approvals that wait, oldest first, then those in force for a session."""

    items: tuple[ApprovalView, ...]
    """The approvals."""


class ApprovalDecision(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A person's decision on a call that waits."""

    decision: Literal["once", "session", "step", "deny"]
    """`step`: once, and this step of its workflow from now on, as `covers_step` says."""
    reason: Reason = ""
    """Sent to the model, and recorded."""
    arguments: dict[str, JSON] | None = None
    """With `once`: run the call with these arguments instead; they are checked like the model's."""


class ApproveRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Approves a call that a run waits for."""

    approval_id: OptionalId = ""
    """Optional if the run waits for only one approval."""
    for_session: bool = False
    """Approve all calls that `covers` describes, for the session."""
    reason: Reason = ""
    """Why; the audit log stores it."""


class DenyRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Denies a call that a run waits for."""

    approval_id: OptionalId = ""
    """Optional if the run waits for only one approval."""
    reason: Reason = ""
    """Why; the model reads it."""


class QuestionAnswer(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A person's answer to a question."""

    question_id: OptionalId = ""
    """Optional if the run waits for only one question."""
    chosen: Annotated[tuple[Text, ...], Meta(max_length=100)] = ()
    """The chosen options."""
    text: Text = ""
    """A free-text answer."""


class QuestionView(Struct, frozen=True, omit_defaults=True):
    """A question of a run to its user."""

    id: str
    """The id of the question."""
    session_id: str
    """The session of the run."""
    run_id: str
    """The run that waits for the answer."""
    text: str
    """The question."""
    options: tuple[str, ...] = ()
    """The options to choose from; none: free text only."""
    multiple: bool = False
    """Whether several options may be chosen."""
    own_words: bool = True
    """Whether free text is accepted instead of an option."""


class QuestionList(Struct, frozen=True):
    """The questions that wait for an answer, oldest first."""

    items: tuple[QuestionView, ...]
    """The questions."""


def approval_view(case: ApprovalCase) -> ApprovalView:
    """The view of an approval."""
    asking, answer = case.request, case.answer
    return ApprovalView(
        id=asking.id,
        standing=str(case.status),
        run_id=asking.run_id,
        request_id=asking.request_id,
        user=asking.scope.user,
        agent=asking.scope.agent,
        tool=asking.scope.tool,
        arguments=asking.arguments,
        sha256=asking.sha256,
        code=asking.scope.code,
        reason=asking.reason,
        covers=asking.scope.description,
        asked_at=asking.asked_at,
        expires_at=asking.expires_at,
        decision="" if answer is None else str(answer.decision),
        answered_by="" if answer is None else answer.by.name,
        answered_at=None if answer is None else answer.at,
        answer_reason="" if answer is None else answer.reason,
        edited=answer is not None and answer.arguments is not None,
        uses=case.uses,
        machine=asking.scope.machine,
        covers_step="" if asking.step_scope is None else asking.step_scope.description,
    )


async def _own_approval(parts: ApiDependencies, caller: Caller, id_: str) -> ApprovalCase:
    """An approval that the caller may see; `ApiError` 404 for any other."""
    found = await require(parts.approvals, "approvals").get(id_, caller.tenant)
    if found is None or not is_own(caller, found.request.scope.user):
        raise not_found("approval")
    return found


async def _decide(
    parts: ApiDependencies,
    caller: Caller,
    id_: str,
    decision: Decision | None,
    reason: str,
    arguments: dict[str, JSON] | None = None,
) -> ApprovalView:
    """Record a person's decision, and resume the run that waits; None approves its step too."""
    approvals = require(parts.approvals, "approvals")
    case = await _own_approval(parts, caller, id_)
    problem = (
        await approvals.approve_step(id_, caller.answerer(), reason)
        if decision is None
        else await approvals.answer(id_, decision, caller.answerer(), reason, arguments)
    )
    if problem:
        raise ApiError(409, "not_waiting", problem)
    await _resume(parts, caller.tenant, case.request.run_id)
    return approval_view(await _own_approval(parts, caller, id_))


def check_step_approver(caller: Caller) -> None:
    """Refuse a caller who may not approve a step of a workflow for the runs of all users."""
    if not caller.may(TokenScope.ADMIN):
        raise ApiError(
            403,
            "forbidden",
            "An approval of a step from now on covers the runs of all users: the token needs the "
            "scope 'admin' too.",
        )


async def _resume(parts: ApiDependencies, tenant: str, run_id: str) -> None:
    """Resume the run that waits, if there is one."""
    if parts.runs is not None:
        with suppress(RunNotFound):
            await parts.runs.resume(tenant, run_id)


@get("/v1/approvals", scope=TokenScope.APPROVALS_READ, tags=TAGS)
async def list_approvals(
    parts: InjectedDependencies, caller: InjectedCaller, run_id: RunFilter = ""
) -> ApprovalList:
    """List the tool calls that wait for your approval, and the approvals for a session.

    An admin sees those of the whole tenant.
    """
    approvals = require(parts.approvals, "approvals")
    waiting, wide = (
        await approvals.waiting(caller.tenant),
        await approvals.session_approvals(caller.tenant),
    )
    cases = [
        case
        for case in (*waiting, *wide)
        if run_id in ("", case.request.run_id) and is_own(caller, case.request.scope.user)
    ]
    return ApprovalList(tuple(approval_view(case) for case in cases))


@get("/v1/approvals/{approval_id:str}", scope=TokenScope.APPROVALS_READ, tags=TAGS)
async def show_approval(
    parts: InjectedDependencies, caller: InjectedCaller, approval_id: ApprovalId
) -> ApprovalView:
    """Show one approval: the call, and what an approval for the session would cover."""
    return approval_view(await _own_approval(parts, caller, approval_id))


@post("/v1/approvals/{approval_id:str}/answer", scope=TokenScope.HUMAN, tags=TAGS, status_code=200)
async def answer_approval(
    parts: InjectedDependencies,
    caller: InjectedCaller,
    approval_id: ApprovalId,
    data: JSONBody[ApprovalDecision],
) -> ApprovalView:
    """Approve or deny a call. Only a person may; the first answer counts."""
    decision = None if data.decision == "step" else Decision(data.decision)
    if decision is None:
        check_step_approver(caller)
    if data.arguments is not None and decision is not Decision.ONCE:
        raise ApiError(422, "invalid", "Edited arguments need the decision 'once'.")
    return await _decide(parts, caller, approval_id, decision, data.reason, data.arguments)


@post(
    "/v1/approvals/{approval_id:str}/withdraw", scope=TokenScope.HUMAN, tags=TAGS, status_code=200
)
async def withdraw_approval(
    parts: InjectedDependencies, caller: InjectedCaller, approval_id: ApprovalId
) -> ApprovalView:
    """Withdraw an approval that is still in force."""
    await _own_approval(parts, caller, approval_id)
    approvals = require(parts.approvals, "approvals")
    if problem := await approvals.withdraw(approval_id, caller.answerer()):
        raise ApiError(409, "not_in_force", problem)
    return approval_view(await _own_approval(parts, caller, approval_id))


async def _waiting_approval(parts: ApiDependencies, caller: Caller, view: RunView, id_: str) -> str:
    waiting = await require(parts.approvals, "approvals").waiting(caller.tenant)
    ids = [case.request.id for case in waiting if case.request.run_id == view.run_id]
    return _select_waiting(ids, id_, "approval")


def _select_waiting(ids: list[str], wanted: str, what: str) -> str:
    """The id that the request names, or the only one that waits."""
    if wanted:
        if wanted not in ids:
            raise not_found(f"waiting {what} of this run")
        return wanted
    if not ids:
        raise ApiError(409, "nothing_waits", f"The run does not wait for any {what}.")
    if len(ids) > 1:
        text = f"The run waits for several {what}s. Name one as {what}_id."
        raise ApiError(409, "several_wait", text, details={f"{what}_ids": ids})
    return ids[0]


@post("/v1/runs/{run_id:str}/approve", scope=TokenScope.HUMAN, tags=RUN_TAGS, status_code=200)
async def approve_in_run(
    parts: InjectedDependencies,
    caller: InjectedCaller,
    run_id: RunId,
    data: JSONBody[ApproveRequest],
) -> ApprovalView:
    """Approve the call that a run waits for."""
    view = await own_run(parts, caller, run_id)
    id_ = await _waiting_approval(parts, caller, view, data.approval_id)
    decision = Decision.SESSION if data.for_session else Decision.ONCE
    return await _decide(parts, caller, id_, decision, data.reason)


@post("/v1/runs/{run_id:str}/deny", scope=TokenScope.HUMAN, tags=RUN_TAGS, status_code=200)
async def deny_in_run(
    parts: InjectedDependencies, caller: InjectedCaller, run_id: RunId, data: JSONBody[DenyRequest]
) -> ApprovalView:
    """Deny the call that a run waits for."""
    view = await own_run(parts, caller, run_id)
    id_ = await _waiting_approval(parts, caller, view, data.approval_id)
    return await _decide(parts, caller, id_, Decision.DENY, data.reason)


@get("/v1/questions", scope=TokenScope.APPROVALS_READ, tags=TAGS)
async def list_questions(
    parts: InjectedDependencies,
    caller: InjectedCaller,
    session_id: Annotated[str, id_filter("Only questions of this session; empty: all.")] = "",
) -> QuestionList:
    """List the questions that your runs wait for; an admin sees those of the whole tenant."""
    talks = require(parts.conversations, "sessions").of(caller.tenant)
    found = await talks.questions.waiting(session_id)
    owners = await owners_of(talks, {session for session, _ in found})
    return QuestionList(
        tuple(question_view(at, question) for at, question in found if is_own(caller, owners[at]))
    )


def question_view(session_id: str, question: Question) -> QuestionView:
    """The view of a question."""
    return QuestionView(
        question.id,
        session_id,
        run_id_of(question.id),
        question.text,
        question.options,
        question.multiple,
        question.own_words,
    )


def run_id_of(request_id: str) -> str:
    """The run id in a request id, which adds turn, call and attempt to it."""
    return request_id.rsplit(".", 3)[0]


@post("/v1/runs/{run_id:str}/answer", scope=TokenScope.HUMAN, tags=RUN_TAGS, status_code=200)
async def answer_in_run(
    parts: InjectedDependencies,
    caller: InjectedCaller,
    run_id: RunId,
    data: JSONBody[QuestionAnswer],
) -> RunView:
    """Answer a question of a run; the run continues with the answer."""
    view = await own_run(parts, caller, run_id)
    questions = require(parts.conversations, "sessions").of(caller.tenant).questions
    waiting = await questions.waiting(view.session_id)
    ids = [question.id for _, question in waiting if run_id_of(question.id) == view.run_id]
    id_ = _select_waiting(ids, data.question_id, "question")
    if problem := await questions.answer(id_, UserAnswer(data.chosen, data.text)):
        raise ApiError(409, "cannot_answer", problem)
    await _resume(parts, caller.tenant, view.run_id)
    return await own_run(parts, caller, run_id)


ROUTES: tuple[HTTPRouteHandler, ...] = (
    list_approvals,
    show_approval,
    answer_approval,
    withdraw_approval,
    approve_in_run,
    deny_in_run,
    list_questions,
    answer_in_run,
)

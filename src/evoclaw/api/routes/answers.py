"""What people answer: approvals and questions, by themselves or by the run that waits."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Literal

from litestar import get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import JSONBody, QueryParameter
from msgspec import Meta, Struct

from evoclaw.api.auth import Need, Who
from evoclaw.api.errors import Refused, given, not_found
from evoclaw.api.needs import Parts
from evoclaw.api.routes.runs import is_own, own_run
from evoclaw.api.routes.shapes import Id, IdOrNone, Name, Reason, Text
from evoclaw.core.messages import JSON
from evoclaw.core.ports import Decision
from evoclaw.orchestrator.errands import NoRun, RunView
from evoclaw.orchestrator.overview.sources import owners_of
from evoclaw.orchestrator.people.access import Caller, Scope
from evoclaw.orchestrator.people.approvals import Case
from evoclaw.orchestrator.people.questions import Answer, Question

TAGS = ["approvals"]
RUNS = ["runs"]


class ApprovalView(Struct, frozen=True, omit_defaults=True):
    """A call that waits, or waited, for a person."""

    id: str
    standing: str
    """`waiting`, `once`, `session`, `denied`, `used`, `expired` or `closed`."""
    run_id: str
    request_id: str
    user: str
    agent: str
    tool: str
    arguments: dict[str, JSON]
    """What would be run, without secrets, and cut where it is long."""
    sha256: str
    """Of all of it: an approval holds for this alone."""
    code: str
    reason: str
    """Why it is asked."""
    covers: str
    """What an approval for the session would cover."""
    asked_at: float
    expires_at: float
    decision: str = ""
    answered_by: str = ""
    answered_at: float | None = None
    answer_reason: str = ""
    uses: int = 0


class ApprovalList(Struct, frozen=True):
    """What waits for an answer, in the order asked, then what holds for a session."""

    items: tuple[ApprovalView, ...]


class Verdict(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A person's answer to a call that waits."""

    decision: Literal["once", "session", "deny"]
    reason: Reason = ""
    """Told to the model, and kept."""


class Approving(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A yes to what a run waits for."""

    approval_id: Name = ""
    """Which one; may be left out if only one waits."""
    for_session: bool = False
    """And to others like it, as `covers` says."""
    reason: Reason = ""


class Denying(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A no to what a run waits for."""

    approval_id: Name = ""
    reason: Reason = ""


class Answering(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A person's answer to a question."""

    question_id: Name = ""
    """Which one; may be left out if only one waits."""
    chosen: Annotated[tuple[Text, ...], Meta(max_length=100)] = ()
    """Of the options."""
    text: Text = ""
    """In the person's own words."""


class QuestionView(Struct, frozen=True, omit_defaults=True):
    """Something that a run asks its person."""

    id: str
    session_id: str
    run_id: str
    text: str
    options: tuple[str, ...] = ()
    multiple: bool = False
    own_words: bool = True


class QuestionList(Struct, frozen=True):
    """What is asked and not answered yet, in the order asked."""

    items: tuple[QuestionView, ...]


def shown(case: Case) -> ApprovalView:
    """An asking as it is shown."""
    asking, said = case.asking, case.answered
    return ApprovalView(
        id=asking.id,
        standing=str(case.standing),
        run_id=asking.run_id,
        request_id=asking.request_id,
        user=asking.scope.user,
        agent=asking.scope.agent,
        tool=asking.scope.tool,
        arguments=asking.arguments,
        sha256=asking.sha256,
        code=asking.scope.code,
        reason=asking.reason,
        covers=asking.scope.text,
        asked_at=asking.asked_at,
        expires_at=asking.expires_at,
        decision="" if said is None else str(said.decision),
        answered_by="" if said is None else said.by.name,
        answered_at=None if said is None else said.at,
        answer_reason="" if said is None else said.reason,
        uses=case.uses,
    )


async def _case(parts: Parts, caller: Caller, id_: str) -> Case:
    """An asking that the caller may see; for any other it is as if there were none."""
    found = await given(parts.approvals, "approvals").look(id_, caller.tenant)
    if found is None or not is_own(caller, found.asking.scope.user):
        raise not_found("approval")
    return found


async def _decide(
    parts: Parts, caller: Caller, id_: str, decision: Decision, reason: str
) -> ApprovalView:
    """Answer for a person, and have the run go on that waited for it."""
    approvals = given(parts.approvals, "approvals")
    case = await _case(parts, caller, id_)
    if problem := await approvals.answer(id_, decision, caller.answerer(), reason):
        raise Refused(409, "not_waiting", problem)
    await wake(parts, caller.tenant, case.asking.run_id)
    return shown(await _case(parts, caller, id_))


async def wake(parts: Parts, tenant: str, run_id: str) -> None:
    """Have whatever waits go on: a run, a step of a workflow, or neither."""
    if parts.runs is not None:
        with suppress(NoRun):
            await parts.runs.wake(tenant, run_id)
    if parts.workflows is not None:
        await parts.workflows.wake(tenant, run_id)


@get("/v1/approvals", scope=Scope.APPROVALS_READ, tags=TAGS)
async def list_approvals(parts: Need, caller: Who, run_id: IdOrNone = "") -> ApprovalList:
    """What your agents want to do and wait for, and what was approved for a session.

    An admin sees what waits in the whole tenant.
    """
    approvals = given(parts.approvals, "approvals")
    waiting, wide = await approvals.waiting(caller.tenant), await approvals.in_force(caller.tenant)
    cases = [
        case
        for case in (*waiting, *wide)
        if run_id in ("", case.asking.run_id) and is_own(caller, case.asking.scope.user)
    ]
    return ApprovalList(tuple(shown(case) for case in cases))


@get("/v1/approvals/{approval_id:str}", scope=Scope.APPROVALS_READ, tags=TAGS)
async def show_approval(parts: Need, caller: Who, approval_id: Id) -> ApprovalView:
    """One call: all of it that is kept, and what an approval would cover."""
    return shown(await _case(parts, caller, approval_id))


@post("/v1/approvals/{approval_id:str}/answer", scope=Scope.HUMAN, tags=TAGS, status_code=200)
async def answer_approval(
    parts: Need, caller: Who, approval_id: Id, data: JSONBody[Verdict]
) -> ApprovalView:
    """Approve or deny a call; only a person may, and the first answer counts."""
    return await _decide(parts, caller, approval_id, Decision(data.decision), data.reason)


@post("/v1/approvals/{approval_id:str}/withdraw", scope=Scope.HUMAN, tags=TAGS, status_code=200)
async def withdraw_approval(parts: Need, caller: Who, approval_id: Id) -> ApprovalView:
    """Take back an approval that was not used up."""
    await _case(parts, caller, approval_id)
    approvals = given(parts.approvals, "approvals")
    if problem := await approvals.withdraw(approval_id, caller.answerer()):
        raise Refused(409, "not_in_force", problem)
    return shown(await _case(parts, caller, approval_id))


async def _only_approval(parts: Parts, caller: Caller, view: RunView, id_: str) -> str:
    waiting = await given(parts.approvals, "approvals").waiting(caller.tenant)
    ids = [case.asking.id for case in waiting if case.asking.run_id == view.run_id]
    return _only(ids, id_, "approval")


def _only(ids: list[str], wanted: str, what: str) -> str:
    """The one that is meant: named, or the only one that waits."""
    if wanted:
        if wanted not in ids:
            raise not_found(f"{what} of this run that waits")
        return wanted
    if not ids:
        raise Refused(409, "nothing_waits", f"the run waits for no {what}")
    if len(ids) > 1:
        text = f"several wait: say which as {what}_id"
        raise Refused(409, "several_wait", text, details={f"{what}_ids": ids})
    return ids[0]


@post("/v1/runs/{run_id:str}/approve", scope=Scope.HUMAN, tags=RUNS, status_code=200)
async def approve_in_run(
    parts: Need, caller: Who, run_id: Id, data: JSONBody[Approving]
) -> ApprovalView:
    """Let the call run that a run waits for."""
    view = await own_run(parts, caller, run_id)
    id_ = await _only_approval(parts, caller, view, data.approval_id)
    wide = Decision.SESSION if data.for_session else Decision.ONCE
    return await _decide(parts, caller, id_, wide, data.reason)


@post("/v1/runs/{run_id:str}/deny", scope=Scope.HUMAN, tags=RUNS, status_code=200)
async def deny_in_run(
    parts: Need, caller: Who, run_id: Id, data: JSONBody[Denying]
) -> ApprovalView:
    """Refuse the call that a run waits for."""
    view = await own_run(parts, caller, run_id)
    id_ = await _only_approval(parts, caller, view, data.approval_id)
    return await _decide(parts, caller, id_, Decision.DENY, data.reason)


@get("/v1/questions", scope=Scope.APPROVALS_READ, tags=TAGS)
async def list_questions(
    parts: Need,
    caller: Who,
    session_id: Annotated[IdOrNone, QueryParameter(description="Only those of this session.")] = "",
) -> QuestionList:
    """What your runs ask and wait for; an admin sees what those of the whole tenant ask."""
    talks = given(parts.talks, "sessions").of(caller.tenant)
    found = await talks.questions.waiting(session_id)
    owners = await owners_of(talks, {session for session, _ in found})
    return QuestionList(
        tuple(asked(at, question) for at, question in found if is_own(caller, owners[at]))
    )


def asked(session_id: str, question: Question) -> QuestionView:
    """A question as it is shown."""
    return QuestionView(
        question.id,
        session_id,
        run_of(question.id),
        question.text,
        question.options,
        question.multiple,
        question.own_words,
    )


def run_of(request_id: str) -> str:
    """The run that a call belongs to: its id is what stands before turn, call and attempt."""
    return request_id.rsplit(".", 3)[0]


@post("/v1/runs/{run_id:str}/answer", scope=Scope.HUMAN, tags=RUNS, status_code=200)
async def answer_in_run(parts: Need, caller: Who, run_id: Id, data: JSONBody[Answering]) -> RunView:
    """Answer what a run asks; it goes on with the answer."""
    view = await own_run(parts, caller, run_id)
    questions = given(parts.talks, "sessions").of(caller.tenant).questions
    waiting = await questions.waiting(view.session_id)
    ids = [question.id for _, question in waiting if run_of(question.id) == view.run_id]
    id_ = _only(ids, data.question_id, "question")
    if problem := await questions.answer(id_, Answer(data.chosen, data.text)):
        raise Refused(409, "cannot_answer", problem)
    await wake(parts, caller.tenant, view.run_id)
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

"""Approvals of calls by people: stored until answered, also after the run ended."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from msgspec import Struct

from evoclaw.core.errors import ConfigError
from evoclaw.core.messages import JSON
from evoclaw.core.ports import Approval, Approver, Ask, Decision
from evoclaw.core.redaction import Redactor
from evoclaw.core.tools import Call
from evoclaw.governance.approvals import (
    DEFAULT_REDACTOR,
    HUMAN_SCOPE,
    NEVER_EXPIRES_AT,
    Answerer,
    ApprovalAnswer,
    ApprovalRequest,
    ApprovalScope,
    ApprovalSettings,
    WorkflowStepRef,
    call_digest,
    displayed_arguments,
    scope_of,
    step_scope_of,
)
from evoclaw.store.governance.approvals import (
    ApprovalClaim,
    ApprovalStatus,
    ApprovalStore,
    StoredApproval,
)

ANSWER_POLL_INTERVAL_S = 0.5
"""Between two checks for an answer that another process received."""

_PROBLEMS = {
    ApprovalStatus.UNKNOWN: "there is no such approval; `evoclaw approvals` lists those that wait",
    ApprovalStatus.EXPIRED: "it has expired; the agent must ask again",
    ApprovalStatus.CLOSED: "its run no longer waits for the answer",
    ApprovalStatus.DENIED: "it was already denied",
    ApprovalStatus.ONCE: "it was already approved",
    ApprovalStatus.SESSION: "it was already approved for the session",
    ApprovalStatus.USED: "it was already approved and used",
}


class ApprovalCase(Struct, frozen=True):
    """A request for approval, its status, and the answer if there is one."""

    request: ApprovalRequest
    status: ApprovalStatus
    answer: ApprovalAnswer | None
    uses: int


class CallApprovals:
    """Asks people to approve calls, at the terminal, the dashboard or the API."""

    def __init__(
        self,
        store: ApprovalStore,
        settings: ApprovalSettings | None = None,
        *,
        local_approver: Approver | None = None,
        redactor: Redactor = DEFAULT_REDACTOR,
        absence_reason: str = "no one is available to approve it",
    ) -> None:
        """Choose how people are asked.

        Args:
            store: Where requests and answers are stored.
            settings: How long to wait for an answer, and what applies if there is none.
            local_approver: Asks the person at the terminal; others may answer first.
            redactor: Removes secrets from what is stored to be shown.
            absence_reason: The reason of a denial because no person can be asked.
        """
        self._store, self._local_approver, self._redactor = store, local_approver, redactor
        self.settings, self._absence_reason = settings or ApprovalSettings(), absence_reason
        self._owner = secrets.token_hex(8)
        self._prompt_lock = asyncio.Lock()
        self._pending: dict[str, asyncio.Event] = {}

    def approver(self, session_id: str = "", step: WorkflowStepRef | None = None) -> Approver:
        """The approver of a session; without a session, each run is one of its own.

        Args:
            session_id: The session.
            step: The step of a workflow whose run makes the calls, if one does.
        """
        return _SessionApprover(self, session_id, step)

    async def waiting(self, tenant: str = "local") -> Sequence[ApprovalCase]:
        """The unanswered requests of a tenant, the oldest first."""
        return [self._case(row) for row in await self._store.waiting(tenant)]

    async def session_approvals(self, tenant: str = "local") -> Sequence[ApprovalCase]:
        """The approvals for a session that are still valid."""
        return [self._case(row) for row in await self._store.session_approvals(tenant)]

    async def get(self, id_: str, tenant: str = "local") -> ApprovalCase | None:
        """The request with an id, and its status."""
        row = await self._store.get(id_, tenant)
        return None if row is None else self._case(row)

    async def answer(
        self,
        id_: str,
        decision: Decision,
        by: Answerer,
        reason: str = "",
        arguments: dict[str, JSON] | None = None,
    ) -> str:
        """Answer a request; return the problem, or an empty text. The first answer counts.

        Args:
            id_: Of the request.
            decision: Once, for the session, or no.
            by: Who answers; only a person of the request's tenant may.
            reason: For the model, and for the audit.
            arguments: Those with which the call is to run instead; only once.
        """
        if decision is Decision.PENDING:
            return "the answer must be to approve or to deny"
        if arguments is not None and decision is not Decision.ONCE:
            return "edited arguments are approved once; answer with the decision 'once'"
        if problem := by.refusal_reason(by.tenant):
            return problem
        answered = ApprovalAnswer(decision, by, self._store.now(), reason, arguments)
        status, is_first = await self._store.answer(
            id_, by.tenant, str(decision), msgspec.json.encode(answered)
        )
        if is_first:
            self._wake(id_)
            return ""
        return _PROBLEMS.get(status, f"it is {status}")

    async def withdraw(self, id_: str, by: Answerer) -> str:
        """Withdraw an unused approval; return the problem, or an empty text."""
        if problem := by.refusal_reason(by.tenant):
            return problem
        if not await self._store.close(id_, by.tenant):
            return "there is no such approval, or it was already used or denied"
        self._wake(id_)
        return ""

    async def approve_step(self, id_: str, by: Answerer, reason: str = "") -> str:
        """Approve a waiting call, and its step in all runs of its workflow from now on.

        Returns the problem, or an empty text.
        """
        case = await self.get(id_, by.tenant)
        if case is None or case.request.step_scope is None:
            return "this call is not a step of a workflow; approve it once"
        scope = case.request.step_scope
        if problem := await self.answer(id_, Decision.ONCE, by, reason):
            return problem
        await self.add_step_approval(scope, case.request.arguments, by, reason)
        return ""

    async def add_step_approval(
        self, scope: ApprovalScope, arguments: dict[str, JSON], by: Answerer, reason: str = ""
    ) -> ApprovalCase:
        """Approve the calls of a step of a workflow, before they are made.

        Args:
            scope: Which calls, with their step. Raises `ConfigError` if `by` may not approve them.
            arguments: The arguments to show, without secrets.
            by: Who approves them.
            reason: For the audit.
        """
        if problem := by.refusal_reason(scope.tenant):
            raise ConfigError(problem)
        assert scope.step is not None
        id_, now = secrets.token_hex(5), self._store.now()
        request = ApprovalRequest(
            id=id_,
            run_id="",
            request_id=f"step-{id_}",
            scope=scope,
            sha256=scope.step.sha256,
            arguments=arguments,
            reason="approved beforehand",
            asked_at=now,
            expires_at=NEVER_EXPIRES_AT,
        )
        answer = ApprovalAnswer(Decision.SESSION, by, now, reason)
        row = StoredApproval(
            id_,
            scope.tenant,
            request.request_id,
            request.sha256,
            scope.key,
            msgspec.json.encode(request),
            request.expires_at,
            str(Decision.SESSION),
            msgspec.json.encode(answer),
        )
        stored = await self._store.add_standing(row)
        for case in await self.waiting(scope.tenant):
            if (wider := case.request.step_scope) is not None and wider.key == scope.key:
                await self.answer(case.request.id, Decision.ONCE, by, reason)
        return self._case(stored)

    async def step_approver(self, scope: ApprovalScope) -> str:
        """Who approved a step that only asks a person, from now on; empty without an approval."""
        row = await self._store.use_standing(scope.key, scope.tenant)
        case = None if row is None else self._case(row)
        if case is None or case.answer is None or not _has_decision(case, Decision.SESSION):
            return ""
        return case.answer.by.name if case.request.scope.key == scope.key else ""

    async def decide(
        self, session_id: str, call: Call, ask: Ask, step: WorkflowStepRef | None = None
    ) -> Approval:
        """Use an existing approval, or ask a person and wait as the settings say."""
        asks = (
            self._local_approver is not None
            or self.settings.nobody == "wait"
            or self.settings.patience_s
        )
        claim = self._claim(session_id, call, ask, step, store_request=bool(asks))
        status, row = await self._store.claim(claim)
        if status is ApprovalStatus.WAITING and row is not None:
            if self._local_approver is not None or self.settings.patience_s:
                # A request from before keeps its id: its answer may be under way.
                await self._wait_for(row.id, call, ask)
                status, row = await self._store.claim(claim)
            if (
                status is ApprovalStatus.WAITING
                and row is not None
                and self.settings.nobody != "wait"
            ):
                await self._store.close(row.id, row.tenant)
                status, row = await self._store.claim(claim)
        return self._approval(status, row, claim)

    def _claim(
        self,
        session_id: str,
        call: Call,
        ask: Ask,
        step: WorkflowStepRef | None,
        *,
        store_request: bool,
    ) -> ApprovalClaim:
        scope, now = scope_of(call, ask, session_id, self._redactor), self._store.now()
        wider = None if step is None else step_scope_of(call, ask, step, self._redactor)
        request = ApprovalRequest(
            id=secrets.token_hex(5),
            run_id=call.run_id,
            request_id=call.request_id,
            scope=scope,
            sha256=call_digest(call),
            arguments=displayed_arguments(call, self._redactor),
            reason=ask.for_people or ask.reason,
            asked_at=now,
            expires_at=now + self.settings.expires_s,
            step_scope=wider,
        )
        row = StoredApproval(
            request.id,
            scope.tenant,
            call.request_id,
            request.sha256,
            scope.key,
            msgspec.json.encode(request),
            request.expires_at,
        )
        return ApprovalClaim(
            row,
            call.epoch,
            self._owner,
            call.resumed,
            store_request,
            self.settings.most,
            "" if wider is None else wider.key,
        )

    async def _wait_for(self, id_: str, call: Call, ask: Ask) -> None:
        """Wait until a person has answered, or the time is over."""
        tenant = call.context.principal.tenant
        woken = self._pending[id_] = asyncio.Event()
        prompting = asyncio.create_task(self._ask_locally(id_, call, ask))
        waking = asyncio.create_task(woken.wait())
        loop = asyncio.get_running_loop()
        until = None if self._local_approver is not None else loop.time() + self.settings.patience_s
        try:
            while not (prompting.done() or waking.done()):
                remaining_s = (
                    ANSWER_POLL_INTERVAL_S
                    if until is None
                    else min(ANSWER_POLL_INTERVAL_S, until - loop.time())
                )
                if remaining_s <= 0:
                    break
                await asyncio.wait(
                    (prompting, waking), timeout=remaining_s, return_when=asyncio.FIRST_COMPLETED
                )
                row = await self._store.get(id_, tenant)
                if row is None or row.status(self._store.now()) is not ApprovalStatus.WAITING:
                    break
            if prompting.done():
                prompting.result()
        finally:
            self._pending.pop(id_, None)
            for task in (prompting, waking):
                task.cancel()
            await asyncio.wait((prompting, waking))

    async def _ask_locally(self, id_: str, call: Call, ask: Ask) -> None:
        if self._local_approver is None:
            await asyncio.Event().wait()
            return
        async with self._prompt_lock:
            approval = await self._local_approver.approve(call, ask)
        principal = call.context.principal
        by = Answerer(
            "person",
            principal.user or "at the terminal",
            principal.tenant,
            frozenset({HUMAN_SCOPE}),
        )
        await self.answer(id_, approval.decision, by, approval.reason, approval.arguments)

    def _approval(
        self, status: ApprovalStatus, row: StoredApproval | None, claim: ApprovalClaim
    ) -> Approval:
        case = None if row is None else self._case(row)
        if case is not None and not _matches_claim(case, row, claim, status):
            return Approval(Decision.DENY, "the approval is for another call")
        reason = "" if case is None or case.answer is None else case.answer.reason
        validity = _duration(self.settings.expires_s)
        match status:
            case ApprovalStatus.ONCE:
                edited = None if case is None or case.answer is None else case.answer.arguments
                return Approval(Decision.ONCE, reason, edited)
            case ApprovalStatus.SESSION:
                return Approval(Decision.SESSION, reason or _in_force(case))
            case ApprovalStatus.DENIED:
                return Approval(Decision.DENY, reason or "the user said no")
            case ApprovalStatus.EXPIRED:
                return Approval(Decision.DENY, f"it was not approved and started within {validity}")
            case ApprovalStatus.USED:
                return Approval(Decision.DENY, "its approval was for one use, and was already used")
            case ApprovalStatus.FULL:
                return Approval(Decision.DENY, "too many calls already wait for an approval")
            case ApprovalStatus.WAITING if case is not None:
                return Approval(Decision.PENDING, _instructions(case.request))
            case ApprovalStatus.CLOSED if case is not None and case.answer is not None:
                return Approval(Decision.DENY, "its approval was withdrawn")
            case _:
                return Approval(Decision.DENY, self._absence_reason)

    def _case(self, row: StoredApproval) -> ApprovalCase:
        request = msgspec.json.decode(row.asked, type=ApprovalRequest)
        answered = (
            None if row.answer is None else msgspec.json.decode(row.answer, type=ApprovalAnswer)
        )
        return ApprovalCase(request, row.status(self._store.now()), answered, row.uses)

    def _wake(self, id_: str) -> None:
        if (answered := self._pending.get(id_)) is not None:
            answered.set()


def _matches_claim(
    case: ApprovalCase, row: StoredApproval | None, claim: ApprovalClaim, status: ApprovalStatus
) -> bool:
    """Check at use that the stored, sealed request and answer are for this call."""
    request, claimed = case.request, claim.row
    if status is ApprovalStatus.SESSION and (row is None or row.request_id != claimed.request_id):
        covered = request.scope.key in (claimed.scope, claim.step_scope)
        return covered and _has_decision(case, Decision.SESSION)
    same = (request.request_id, request.sha256) == (claimed.request_id, claimed.sha256)
    if status in (ApprovalStatus.ONCE, ApprovalStatus.SESSION):
        same = same and _has_decision(case, Decision(str(status)))
    return same


def _has_decision(case: ApprovalCase, decision: Decision) -> bool:
    answered = case.answer
    return (
        answered is not None
        and answered.decision is decision
        and not answered.by.refusal_reason(case.request.scope.tenant)
    )


def _in_force(case: ApprovalCase | None) -> str:
    step = None if case is None else case.request.scope.step
    if step is None:
        return "approved for this session"
    return f"step {step.step!r} of workflow {step.workflow!r} is approved"


def _instructions(request: ApprovalRequest) -> str:
    return (
        f"{request.scope.tool} needs an approval: `evoclaw approvals approve {request.id}` "
        "or deny, "
        f"within {_duration(request.expires_at - request.asked_at)}"
    )


def _duration(seconds: float) -> str:
    for size, name in ((3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:g} {name}"
    return f"{seconds:g} s"


@dataclass(frozen=True, slots=True)
class _SessionApprover:
    approvals: CallApprovals
    session_id: str
    step: WorkflowStepRef | None

    async def approve(self, call: Call, ask: Ask) -> Approval:
        return await self.approvals.decide(self.session_id, call, ask, self.step)

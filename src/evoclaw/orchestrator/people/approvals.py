"""Approvals of calls by people: stored until answered, also after the run ended."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from msgspec import Struct

from evoclaw.core.ports import Approval, Approver, Ask, Decision
from evoclaw.core.redaction import Redactor
from evoclaw.core.tools import Call
from evoclaw.governance.approvals import (
    HUMAN,
    NO_SECRETS_KNOWN,
    Answered,
    Answerer,
    ApprovalSettings,
    Asking,
    call_digest,
    scope_of,
    shown,
)
from evoclaw.store.governing.approvals import ApprovalStore, Claim, Standing, StoredApproval

POLL = 0.5
"""Between two checks for an answer that another process received."""

_TOO_LATE = {
    Standing.UNKNOWN: "there is no such approval; `evoclaw approvals` lists those that wait",
    Standing.EXPIRED: "it has expired; the agent must ask again",
    Standing.CLOSED: "its run no longer waits for the answer",
    Standing.DENIED: "it was denied already",
    Standing.ONCE: "it was approved already",
    Standing.SESSION: "it was approved for the session already",
    Standing.USED: "it was approved and used already",
}


class Case(Struct, frozen=True):
    """A request for approval, its status, and the answer if there is one."""

    asking: Asking
    standing: Standing
    answered: Answered | None
    uses: int


class Approvals:
    """Asks people to approve calls, at the terminal, the dashboard or the API."""

    def __init__(
        self,
        store: ApprovalStore,
        settings: ApprovalSettings | None = None,
        *,
        face: Approver | None = None,
        redactor: Redactor = NO_SECRETS_KNOWN,
        absent: str = "nobody is there to approve it",
    ) -> None:
        """Choose how people are asked.

        Args:
            store: Where requests and answers are stored.
            settings: How long to wait for an answer, and what applies if there is none.
            local_approver: Asks the person at the terminal; others may answer first.
            redactor: Removes secrets from what is stored to be shown.
            absence_reason: The reason of a denial because no person can be asked.
        """
        self._store, self._face, self._redactor = store, face, redactor
        self.settings, self._absent = settings or ApprovalSettings(), absent
        self._holder = secrets.token_hex(8)
        self._one_at_a_time = asyncio.Lock()
        self._waiters: dict[str, asyncio.Event] = {}

    def approver(self, session_id: str = "") -> Approver:
        """The approver of a session; without a session, each run is one of its own."""
        return _ApproverOf(self, session_id)

    async def waiting(self, tenant: str = "local") -> Sequence[Case]:
        """The unanswered requests of a tenant, the oldest first."""
        return [self._case(row) for row in await self._store.waiting(tenant)]

    async def in_force(self, tenant: str = "local") -> Sequence[Case]:
        """The approvals for a session that are still valid."""
        return [self._case(row) for row in await self._store.in_force(tenant)]

    async def look(self, id_: str, tenant: str = "local") -> Case | None:
        """The request with an id, and its status."""
        row = await self._store.get(id_, tenant)
        return None if row is None else self._case(row)

    async def answer(self, id_: str, decision: Decision, by: Answerer, reason: str = "") -> str:
        """Answer a request; return the problem, or an empty text. The first answer counts.

        Args:
            id_: Of the request.
            decision: Once, for the session, or no.
            by: Who answers; only a person of the request's tenant may.
            reason: For the model, and for the audit.
        """
        if decision is Decision.PENDING:
            return "the answer must be to approve or to deny"
        if problem := by.why_not(by.tenant):
            return problem
        answered = Answered(decision, by, self._store.now(), reason)
        status, is_first = await self._store.answer(
            id_, by.tenant, str(decision), msgspec.json.encode(answered)
        )
        if is_first:
            self._wake(id_)
            return ""
        return _TOO_LATE.get(status, f"it is {status}")

    async def withdraw(self, id_: str, by: Answerer) -> str:
        """Withdraw an unused approval; return the problem, or an empty text."""
        if problem := by.why_not(by.tenant):
            return problem
        if not await self._store.close(id_, by.tenant):
            return "there is no such approval, or it was used or denied already"
        self._wake(id_)
        return ""

    async def decide(self, session_id: str, call: Call, ask: Ask) -> Approval:
        """Use an existing approval, or ask a person and wait as the settings say."""
        asks = self._face is not None or self.settings.nobody == "wait" or self.settings.patience_s
        claim = self._claim(session_id, call, ask, keep=bool(asks))
        status, row = await self._store.claim(claim)
        if status is Standing.WAITING and row is not None:
            if self._face is not None or self.settings.patience_s:
                # A request from before keeps its id: its answer may be under way.
                await self._wait_for(row.id, call, ask)
                status, row = await self._store.claim(claim)
            if status is Standing.WAITING and row is not None and self.settings.nobody != "wait":
                await self._store.close(row.id, row.tenant)
                status, row = await self._store.claim(claim)
        return self._approval(status, row, claim)

    def _claim(self, session_id: str, call: Call, ask: Ask, *, keep: bool) -> Claim:
        scope, now = scope_of(call, ask, session_id), self._store.now()
        request = Asking(
            id=secrets.token_hex(5),
            run_id=call.run_id,
            request_id=call.request_id,
            scope=scope,
            sha256=call_digest(call),
            arguments=shown(call, self._redactor),
            reason=ask.for_people or ask.reason,
            asked_at=now,
            expires_at=now + self.settings.expires_s,
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
        return Claim(row, call.epoch, self._holder, call.resumed, keep, self.settings.most)

    async def _wait_for(self, id_: str, call: Call, ask: Ask) -> None:
        """Wait until a person has answered, or the time is over."""
        tenant = call.context.principal.tenant
        woken = self._waiters[id_] = asyncio.Event()
        prompting = asyncio.create_task(self._ask_face(id_, call, ask))
        waking = asyncio.create_task(woken.wait())
        loop = asyncio.get_running_loop()
        until = None if self._face is not None else loop.time() + self.settings.patience_s
        try:
            while not (prompting.done() or waking.done()):
                left = POLL if until is None else min(POLL, until - loop.time())
                if left <= 0:
                    break
                await asyncio.wait(
                    (prompting, waking), timeout=left, return_when=asyncio.FIRST_COMPLETED
                )
                row = await self._store.get(id_, tenant)
                if row is None or row.standing(self._store.now()) is not Standing.WAITING:
                    break
            if prompting.done():
                prompting.result()
        finally:
            self._waiters.pop(id_, None)
            for task in (prompting, waking):
                task.cancel()
            await asyncio.wait((prompting, waking))

    async def _ask_face(self, id_: str, call: Call, ask: Ask) -> None:
        if self._face is None:
            await asyncio.Event().wait()
            return
        async with self._one_at_a_time:
            approval = await self._face.approve(call, ask)
        who = call.context.principal
        by = Answerer("person", who.user or "at the terminal", who.tenant, frozenset({HUMAN}))
        await self.answer(id_, approval.decision, by, approval.reason)

    def _approval(self, standing: Standing, row: StoredApproval | None, claim: Claim) -> Approval:
        case = None if row is None else self._case(row)
        if case is not None and not _bound(case, row, claim, standing):
            return Approval(Decision.DENY, "the approval was given for something else")
        reason = "" if case is None or case.answered is None else case.answered.reason
        validity = _span(self.settings.expires_s)
        match standing:
            case Standing.ONCE:
                return Approval(Decision.ONCE, reason)
            case Standing.SESSION:
                return Approval(Decision.SESSION, reason or "approved for this session")
            case Standing.DENIED:
                return Approval(Decision.DENY, reason or "the user said no")
            case Standing.EXPIRED:
                return Approval(Decision.DENY, f"it was not approved and started within {validity}")
            case Standing.USED:
                return Approval(Decision.DENY, "its approval was for one use, and was used already")
            case Standing.FULL:
                return Approval(Decision.DENY, "too many calls wait for an approval already")
            case Standing.WAITING if case is not None:
                return Approval(Decision.PENDING, _how(case.asking))
            case Standing.CLOSED if case is not None and case.answered is not None:
                return Approval(Decision.DENY, "its approval was withdrawn")
            case _:
                return Approval(Decision.DENY, self._absent)

    def _case(self, row: StoredApproval) -> Case:
        request = msgspec.json.decode(row.asked, type=Asking)
        answered = None if row.answer is None else msgspec.json.decode(row.answer, type=Answered)
        return Case(request, row.standing(self._store.now()), answered, row.uses)

    def _wake(self, id_: str) -> None:
        if (answered := self._waiters.get(id_)) is not None:
            answered.set()


def _bound(case: Case, row: StoredApproval | None, claim: Claim, standing: Standing) -> bool:
    """Check at use that the stored, sealed request and answer are for this call."""
    request, claimed = case.asking, claim.row
    if standing is Standing.SESSION and (row is None or row.request_id != claimed.request_id):
        return request.scope.key == claimed.scope and _says(case, Decision.SESSION)
    same = (request.request_id, request.sha256) == (claimed.request_id, claimed.sha256)
    if standing in (Standing.ONCE, Standing.SESSION):
        same = same and _says(case, Decision(str(standing)))
    return same


def _says(case: Case, decision: Decision) -> bool:
    answered = case.answered
    return (
        answered is not None
        and answered.decision is decision
        and not answered.by.why_not(case.asking.scope.tenant)
    )


def _how(asking: Asking) -> str:
    return (
        f"{asking.scope.tool} waits for a person: `evoclaw approvals approve {asking.id}` or deny, "
        f"within {_span(asking.expires_at - asking.asked_at)}"
    )


def _span(seconds: float) -> str:
    for size, name in ((3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:g} {name}"
    return f"{seconds:g} s"


@dataclass(frozen=True, slots=True)
class _ApproverOf:
    approvals: Approvals
    session_id: str

    async def approve(self, call: Call, ask: Ask) -> Approval:
        return await self.approvals.decide(self.session_id, call, ask)

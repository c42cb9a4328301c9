"""Asks for approvals in a conversation, and takes the answers."""

from __future__ import annotations

import hmac
import logging
import re
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec
from msgspec import Struct

from evoclaw.core.ports import Decision
from evoclaw.core.redaction import Redactor
from evoclaw.governance.approvals import HUMAN_SCOPE, Answerer
from evoclaw.orchestrator.channels.chat.messages import Button
from evoclaw.orchestrator.channels.inbound import InboundMessage
from evoclaw.orchestrator.notifications.answer_tokens import (
    BUTTON_TOKEN,
    CODE_CHARS,
    DIGEST_CHARS,
    AnswerTokens,
    OneTapAnswer,
    OneTapDecision,
)
from evoclaw.orchestrator.people.approvals import ApprovalCase, CallApprovals
from evoclaw.orchestrator.runs.requests import RunNotFound
from evoclaw.orchestrator.runs.runs import Runs
from evoclaw.orchestrator.sanitizing import plain_text
from evoclaw.store.governance.approvals import ApprovalStatus

logger = logging.getLogger(__name__)
ANSWER_VALIDITY_S = 900
"""For which a button can be pressed; a code is valid for at least this time, and at most twice."""
MAX_ARGUMENTS_CHARS = 1_200
"""Of a call, that are shown."""
TYPED_ANSWER = re.compile(rf"(approve|deny)\s+([a-z2-7]{{{CODE_CHARS}}})[.!]?", re.IGNORECASE)


class ApprovalCard(Struct, frozen=True):
    """A call that waits for an approval, as it is shown in a conversation."""

    id: str
    text: str
    buttons: tuple[Button, ...]


class ChatApprovals:
    """The approvals of runs that people started in conversations."""

    def __init__(
        self,
        tokens: AnswerTokens,
        approvals: CallApprovals,
        runs: Runs,
        redactor: Redactor,
        clock: Callable[[], float],
    ) -> None:
        self._tokens, self._approvals, self._runs = tokens, approvals, runs
        self._redactor, self._clock = redactor, clock

    async def cards(
        self, message: InboundMessage, run_id: str, *, has_buttons: bool
    ) -> Sequence[ApprovalCard]:
        """What asks the sender of a message about the calls of its run that wait.

        Args:
            message: The message; its sender must be named in the settings, or be paired.
            run_id: The run that answers it.
            has_buttons: Whether the answer is a button; else it is a code.
        """
        if message.untrusted:
            return ()
        return [
            self._card(message, case, has_buttons=has_buttons)
            for case in await self._approvals.waiting(message.tenant)
            if case.request.run_id == run_id and case.request.scope.user == message.user
        ]

    async def answer(self, message: InboundMessage) -> str:
        """Answer by a button or a code, once; what to tell the sender."""
        text = message.text.strip()
        found = await self._by_button(message, text) or await self._by_code(message, text)
        if found is None:
            return "This answer is not valid, or no longer valid. Send /status to be asked again."
        case, chosen = found
        if case.status is not ApprovalStatus.WAITING:
            return "This call no longer waits for an answer."
        decision = Decision(chosen)
        verb = "denied" if decision is Decision.DENY else "approved"
        by = Answerer("person", message.user, message.tenant, frozenset({HUMAN_SCOPE}))
        reason = f"{verb} by {message.user} in the channel {message.channel!r}"
        if problem := await self._approvals.answer(case.request.id, decision, by, reason):
            return f"This did not change anything: {problem}."
        logger.info("approval %s %s", case.request.id, reason)
        with suppress(RunNotFound):
            await self._runs.resume(message.tenant, case.request.run_id)
        return f"The call was {verb}."

    async def _by_button(
        self, message: InboundMessage, token: str
    ) -> tuple[ApprovalCase, OneTapDecision] | None:
        match = BUTTON_TOKEN.fullmatch(token)
        case = None if match is None else await self._approvals.get(match[1], message.tenant)
        if match is None or case is None or message.untrusted:
            return None
        expires_at = int(match[2], 16)
        decision: OneTapDecision = "once" if match[3] == "o" else "deny"
        expected = self._tokens.button(_answer(message, case, decision, expires_at))
        if not hmac.compare_digest(expected, token) or expires_at <= self._clock():
            return None
        return case, decision

    async def _by_code(
        self, message: InboundMessage, text: str
    ) -> tuple[ApprovalCase, OneTapDecision] | None:
        match = TYPED_ANSWER.fullmatch(text)
        if match is None or message.untrusted:
            return None
        decision: OneTapDecision = "once" if match[1].lower() == "approve" else "deny"
        for case in await self._approvals.waiting(message.tenant):
            for age in (0, 1):
                expected = self._code(message, case, age)
                if hmac.compare_digest(expected, match[2].lower()):
                    return case, decision
        return None

    def _card(
        self, message: InboundMessage, case: ApprovalCase, *, has_buttons: bool
    ) -> ApprovalCard:
        request, expires_at = case.request, int(self._clock()) + ANSWER_VALIDITY_S
        scope = request.scope
        arguments = msgspec.json.format(msgspec.json.encode(request.arguments)).decode()
        shown = self._redactor.text(arguments, 4 * MAX_ARGUMENTS_CHARS)
        block = plain_text(shown, MAX_ARGUMENTS_CHARS).replace("```", "'''")
        where = f" on {scope.machine}" if scope.machine else ""
        lines = [
            f"Approval needed: {scope.agent or 'an agent'} wants to use {scope.tool}{where}.",
            f"```\n{block}\n```",
            self._redactor.text(plain_text(request.reason, MAX_ARGUMENTS_CHARS)),
        ]
        buttons: tuple[Button, ...] = ()
        if has_buttons:
            choices: tuple[tuple[str, OneTapDecision], ...] = (
                ("Approve", "once"),
                ("Deny", "deny"),
            )
            buttons = tuple(
                Button(label, self._tokens.button(_answer(message, case, decision, expires_at)))
                for label, decision in choices
            )
        else:
            code = self._code(message, case, 0)
            lines.append(f"Reply with `approve {code}` or `deny {code}`.")
        return ApprovalCard(request.id, "\n".join(line for line in lines if line), buttons)

    def _code(self, message: InboundMessage, case: ApprovalCase, age: int) -> str:
        """The code of a call in the present time slot, or in an earlier one."""
        slot = int(self._clock()) // ANSWER_VALIDITY_S - age
        return self._tokens.code(_answer(message, case, "once", slot))


def _answer(
    message: InboundMessage, case: ApprovalCase, decision: OneTapDecision, expires_at: int
) -> OneTapAnswer:
    return OneTapAnswer(
        message.tenant,
        case.request.id,
        case.request.sha256[:DIGEST_CHARS],
        decision,
        f"channel:{message.channel}",
        message.sender,
        expires_at,
    )

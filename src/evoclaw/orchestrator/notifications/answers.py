"""Answers approvals by the links of notifications."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from enum import StrEnum

from msgspec import Struct

from evoclaw.core.ports import Decision
from evoclaw.governance.approvals import HUMAN_SCOPE, Answerer, ApprovalRequest
from evoclaw.orchestrator.notifications.answer_tokens import (
    DIGEST_CHARS,
    AnswerTokens,
    OneTapAnswer,
    OneTapDecision,
)
from evoclaw.orchestrator.notifications.messages import NotificationLink, NotificationSubject
from evoclaw.orchestrator.notifications.settings import NotifySettings
from evoclaw.orchestrator.people.approvals import ApprovalCase, CallApprovals
from evoclaw.orchestrator.runs.requests import RunNotFound
from evoclaw.orchestrator.runs.runs import Runs
from evoclaw.store.governance.approvals import ApprovalStatus

logger = logging.getLogger(__name__)
ANSWER_PATH = "/v1/answers/"


class AnswerProblem(StrEnum):
    """Why a link cannot answer."""

    INVALID = "invalid"
    """It was not made here, or its notifier no longer sends such links."""
    EXPIRED = "expired"
    ANSWERED = "answered"
    """The call no longer waits."""


class AnswerPage(Struct, frozen=True):
    """What a link shows."""

    problem: AnswerProblem | None
    text: str
    """The problem, or what the answer did."""
    decision: str = ""
    """`once` or `deny`."""
    request: ApprovalRequest | None = None
    """The call, if the link is valid."""


class OneTapAnswers:
    """Makes the links of notifications, shows what they answer, and answers."""

    def __init__(
        self,
        tokens: AnswerTokens,
        approvals: CallApprovals,
        runs: Runs,
        notifiers: Mapping[str, NotifySettings],
        person_of: Callable[[NotifySettings, str], Awaitable[str | None]],
        *,
        public_url: str,
        clock: Callable[[], float],
    ) -> None:
        """Prepare to answer.

        Args:
            tokens: Signs the links.
            approvals: What is answered.
            runs: Resumed after an answer.
            notifiers: The configured notifiers by name; only their links count.
            person_of: The name of the person behind a receiver; None if it may not answer.
            public_url: What links start with; empty: there are none.
            clock: Unix seconds.
        """
        self._tokens, self._approvals, self._runs = tokens, approvals, runs
        self._notifiers, self._person_of = notifiers, person_of
        self._url, self._clock = public_url.rstrip("/"), clock

    async def links(
        self, notifier: NotifySettings, target: str, subject: NotificationSubject
    ) -> tuple[NotificationLink, ...]:
        """The links that answer a call; none if the notifier has none, or nothing waits."""
        if not (self._url and subject.approval_id and notifier.sends_answers):
            return ()
        if await self._person_of(notifier, target) is None:
            return ()
        expires_at = int(self._clock()) + notifier.answer_s
        choices: tuple[tuple[str, OneTapDecision], ...] = (("Approve", "once"), ("Deny", "deny"))
        return tuple(
            NotificationLink(
                label,
                f"{self._url}{ANSWER_PATH}"
                + self._tokens.sign(
                    OneTapAnswer(
                        subject.tenant,
                        subject.approval_id,
                        subject.sha256[:DIGEST_CHARS],
                        decision,
                        notifier.name,
                        target,
                        expires_at,
                    )
                ),
            )
            for label, decision in choices
        )

    async def show(self, token: str) -> AnswerPage:
        """What a link would answer; changes nothing."""
        return (await self._check(token))[0]

    async def answer(self, token: str) -> AnswerPage:
        """Answer the approval of a link, once; the run continues."""
        page, chosen, person = await self._check(token)
        if chosen is None or page.request is None:
            return page
        decision = Decision(chosen.decision)
        verb = "denied" if decision is Decision.DENY else "approved"
        by = Answerer("person", person, chosen.tenant, frozenset({HUMAN_SCOPE}))
        reason = f"{verb} by {person} with the link of the notifier {chosen.notifier!r}"
        problem = await self._approvals.answer(chosen.approval_id, decision, by, reason)
        if problem:
            return AnswerPage(AnswerProblem.ANSWERED, f"This did not change anything: {problem}.")
        logger.info("approval %s %s", chosen.approval_id, reason)
        with suppress(RunNotFound):
            await self._runs.resume(chosen.tenant, page.request.run_id)
        return AnswerPage(None, f"The call was {verb}.", chosen.decision, page.request)

    async def _check(self, token: str) -> tuple[AnswerPage, OneTapAnswer | None, str]:
        chosen = self._tokens.read(token)
        notifier = None if chosen is None else self._notifiers.get(chosen.notifier)
        if chosen is None or notifier is None:
            return _problem(AnswerProblem.INVALID)
        person = await self._person_of(notifier, chosen.target)
        if not notifier.sends_answers or notifier.tenant != chosen.tenant or person is None:
            return _problem(AnswerProblem.INVALID)
        if chosen.expires_at <= self._clock():
            return _problem(AnswerProblem.EXPIRED)
        case = await self._approvals.get(chosen.approval_id, chosen.tenant)
        if case is None or not _same_call(case, chosen):
            return _problem(AnswerProblem.INVALID)
        if case.status is not ApprovalStatus.WAITING:
            why = _STATUS_WORDS.get(case.status, "its run has ended")
            return _problem(AnswerProblem.ANSWERED, why)
        return AnswerPage(None, "", chosen.decision, case.request), chosen, person


def _same_call(case: ApprovalCase, chosen: OneTapAnswer) -> bool:
    digest = case.request.sha256[:DIGEST_CHARS]
    return hmac.compare_digest(digest.encode(), chosen.digest.encode())


_TEXTS = {
    AnswerProblem.INVALID: "This link is not valid. Answer in the dashboard instead.",
    AnswerProblem.EXPIRED: "This link has expired. Answer in the dashboard instead.",
    AnswerProblem.ANSWERED: "This call no longer waits for an answer",
}


_STATUS_WORDS = {
    ApprovalStatus.ONCE: "it was already approved",
    ApprovalStatus.SESSION: "it was already approved",
    ApprovalStatus.USED: "it was already approved",
    ApprovalStatus.DENIED: "it was already denied",
    ApprovalStatus.EXPIRED: "it has expired, and the agent must ask again",
}


def _problem(problem: AnswerProblem, why: str = "") -> tuple[AnswerPage, None, str]:
    text = _TEXTS[problem] + (f": {why}." if why else "")
    return AnswerPage(problem, text), None, ""

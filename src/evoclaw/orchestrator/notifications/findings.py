"""Finds in the store what is worth a notification, so that a restart misses nothing."""

from __future__ import annotations

import platform
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from msgspec import Struct

from evoclaw.core import wording
from evoclaw.core.events import StopReason
from evoclaw.core.redaction import Redactor
from evoclaw.orchestrator.notifications.messages import NotificationSubject
from evoclaw.orchestrator.notifications.settings import NotifySettings
from evoclaw.orchestrator.overview.sources import owners_of
from evoclaw.orchestrator.people.approvals import ApprovalCase, CallApprovals
from evoclaw.orchestrator.runs.requests import RunView
from evoclaw.orchestrator.runs.views import RunViews
from evoclaw.orchestrator.sanitizing import one_line
from evoclaw.orchestrator.sessions.conversations import Conversations
from evoclaw.store.databases.notices import run_id_of
from evoclaw.store.governance.approvals import ApprovalStatus
from evoclaw.store.sessions.sessions import SessionStore, StoredRun
from evoclaw.tools.question import Question

MAX_REASON_CHARS = 300
MAX_TASK_CHARS = 80
ENDED_RUNS_PER_PAGE = 200
MAX_KNOWN_VIEWS = 2_000
"""Of ended runs."""
NO_FAILURE = frozenset({StopReason.COMPLETED, StopReason.CANCELLED, StopReason.WAITING})


class WaitingStep(Struct, frozen=True):
    """A step of a workflow that waits for a person."""

    id: str
    """The same as long as it waits."""
    workflow: str
    step: str
    text: str
    """The question, or why a person must decide."""
    user: str


WaitingSteps: TypeAlias = Callable[[str], Awaitable[Sequence[WaitingStep]]]
"""The steps of a tenant that wait for a person."""


async def no_steps(tenant: str) -> Sequence[WaitingStep]:
    """Where there are no workflows."""
    return ()


class EndedRun:
    """A run that ended, and how long it took."""

    def __init__(self, view: RunView, ended_at: float) -> None:
        self.view, self.ended_at = view, ended_at
        self.seconds = max(0.0, ended_at - view.began_at)
        self.failed = view.stop not in NO_FAILURE


class Findings:
    """Reads what waits for a person, and which runs have ended, of any tenant."""

    def __init__(
        self,
        approvals: CallApprovals,
        conversations: Conversations,
        redactor: Redactor,
        steps: WaitingSteps = no_steps,
    ) -> None:
        self._approvals, self._conversations, self._steps = approvals, conversations, steps
        self._views: dict[tuple[str, str, float | None], RunView] = {}
        self._redactor, self._here = redactor, platform.node() or "the orchestrator"

    async def waiting(self, tenant: str) -> Sequence[NotificationSubject]:
        """What waits for a person now, the oldest first."""
        found = [self._approval(tenant, case) for case in await self._approvals.waiting(tenant)]
        talks = self._conversations.of(tenant)
        questions = await talks.questions.waiting()
        owners = await owners_of(talks, {session for session, _ in questions})
        found += [
            self._question(tenant, owners[session], question) for session, question in questions
        ]
        found += [self._step(tenant, step) for step in await self._steps(tenant)]
        return found

    async def still_waits(self, subject: NotificationSubject) -> bool:
        """Whether a notification is still needed: an answered call needs none."""
        if subject.approval_id:
            case = await self._approvals.get(subject.approval_id, subject.tenant)
            return case is not None and case.status is ApprovalStatus.WAITING
        if subject.reason == "question" and subject.covers == 1:
            return any(subject.id == found.id for found in await self.waiting(subject.tenant))
        return True

    async def ended(self, tenant: str, since: float, long_s: float) -> Sequence[EndedRun]:
        """The runs that ended at this time or later, in this order: failed ones, and long ones.

        Args:
            tenant: The tenant.
            since: In Unix seconds.
            long_s: The seconds after which a run is long.
        """
        store, found = self._conversations.store.of(tenant), dict[str, EndedRun]()
        while True:
            page = await store.ended_runs(since, long_s, ENDED_RUNS_PER_PAGE)
            new = [run for run in page if run.id not in found]
            for run in new:
                view = await self._view(store, run)
                found[run.id] = EndedRun(view, run.ended_at or 0.0)
            if len(page) < ENDED_RUNS_PER_PAGE or not new:
                return list(found.values())
            since = page[-1].ended_at or since

    async def _view(self, store: SessionStore, run: StoredRun) -> RunView:
        """The view of an ended run; each look finds the runs of the last minute again."""
        key = (store.tenant, run.id, run.ended_at)
        if (known := self._views.get(key)) is None:
            known = self._views[key] = await RunViews(store).view(run)
            if len(self._views) > MAX_KNOWN_VIEWS:
                del self._views[next(iter(self._views))]
        return known

    def run_subject(
        self, tenant: str, run: EndedRun, settings: NotifySettings
    ) -> NotificationSubject | None:
        """What a notifier reports about an ended run; None if it does not report it."""
        view = run.view
        about = f"The run {_quoted(self._clean(view.asked, MAX_TASK_CHARS))} of {view.agent}"
        if run.failed and "failed" in settings.on:
            why = self._clean(wording.ending(view.stop or StopReason.ERROR, view.reason))
            return NotificationSubject(
                f"run-{view.run_id}",
                "failed",
                tenant,
                view.owner,
                "A run failed",
                f"{about} on {self._here} failed. {why}",
                view.run_id,
            )
        if run.seconds >= settings.long_run_s and "long_run" in settings.on:
            outcome = "failed" if run.failed else "ended"
            if view.stop is StopReason.CANCELLED:
                return None  # whoever cancelled it knows
            return NotificationSubject(
                f"run-{view.run_id}",
                "long_run",
                tenant,
                view.owner,
                "A long run ended",
                f"{about} on {self._here} {outcome} after {_duration(run.seconds)}.",
                view.run_id,
            )
        return None

    def _approval(self, tenant: str, case: ApprovalCase) -> NotificationSubject:
        request = case.request
        scope = request.scope
        why = self._clean(request.reason).rstrip(".")
        return NotificationSubject(
            f"approval-{request.id}",
            "approval",
            tenant,
            scope.user,
            "Approval needed",
            f"{scope.agent or 'An agent'} wants to use {scope.tool} on "
            f"{scope.machine or self._here}: {why}.",
            request.run_id,
            request.id,
            request.sha256,
        )

    def _question(self, tenant: str, owner: str, question: Question) -> NotificationSubject:
        options = ", ".join(self._clean(option, MAX_TASK_CHARS) for option in question.options[:5])
        text = self._clean(question.text)
        return NotificationSubject(
            f"question-{question.id}",
            "question",
            tenant,
            owner,
            "A question for you",
            f"{text} ({options})" if options else text,
            run_id_of(question.id),
        )

    def _step(self, tenant: str, step: WaitingStep) -> NotificationSubject:
        about = f"Step {step.step!r} of the workflow {step.workflow!r} waits"
        text = self._clean(step.text)
        return NotificationSubject(
            f"step-{step.id}",
            "question",
            tenant,
            step.user,
            "A workflow waits for you",
            f"{about}: {text}" if text else f"{about} for your decision.",
        )

    def _clean(self, text: str, limit: int = MAX_REASON_CHARS) -> str:
        return one_line(self._redactor.text(text, 4 * limit), limit)


def summary_of(subjects: Sequence[NotificationSubject]) -> NotificationSubject:
    """One message for several."""
    first, count = subjects[0], sum(subject.covers for subject in subjects)
    waiting = sum(subject.reason in ("approval", "question") for subject in subjects)
    ended = count - waiting
    parts = [
        *([f"{waiting} more {'waits' if waiting == 1 else 'wait'} for you"] if waiting else []),
        *([f"{ended} more {'run' if ended == 1 else 'runs'} ended"] if ended else []),
    ]
    text = " and ".join(parts)
    return NotificationSubject(
        f"summary-{subjects[-1].id}",
        "approval" if waiting else first.reason,
        first.tenant,
        "",
        f"{count} more",
        f"{text[:1].upper()}{text[1:]}. Open the dashboard to see them.",
        covers=count,
    )


def _quoted(text: str) -> str:
    return '"' + text.replace('"', "'") + '"'


def _duration(seconds: float) -> str:
    if seconds >= 5_400:
        return f"{seconds / 3_600:.1f} h"
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"

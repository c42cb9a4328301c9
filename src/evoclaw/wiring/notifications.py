"""Builds the notifications of the service: what they report, where to, and how people answer."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evoclaw.config import EvoClawConfig
    from evoclaw.orchestrator.notifications.findings import WaitingStep
    from evoclaw.orchestrator.notifications.messages import NotificationSender
    from evoclaw.orchestrator.notifications.service import Notifications
    from evoclaw.orchestrator.people.approvals import CallApprovals
    from evoclaw.orchestrator.runs.runs import Runs
    from evoclaw.orchestrator.sessions.conversations import Conversations
    from evoclaw.wiring.store import Stores
    from evoclaw.workflows.workflows import Workflows

MAX_WAITING_WORKFLOWS = 100
"""The newest workflows that are looked at for steps that wait for a person."""


def check_notifiers(env: Mapping[str, str]) -> Sequence[str]:
    """The names of the configured notifiers; raise `ConfigError` if one of them cannot work."""
    from evoclaw.orchestrator.notifications.factory import check_senders
    from evoclaw.wiring.settings import orchestrator_settings

    notifiers = orchestrator_settings(env).notify
    check_senders(notifiers, env)
    return [notifier.name for notifier in notifiers]


async def open_notifications(
    settings: EvoClawConfig,
    stores: Stores,
    runs: Runs,
    conversations: Conversations,
    approvals: CallApprovals,
    workflows: Workflows,
    env: Mapping[str, str],
) -> Notifications:
    """Build the notifications; without notifiers they do nothing."""
    from evoclaw.core.redaction import Redactor, secrets_in
    from evoclaw.orchestrator.notifications.answer_tokens import KEY_BYTES, AnswerTokens
    from evoclaw.orchestrator.notifications.answers import OneTapAnswers
    from evoclaw.orchestrator.notifications.findings import Findings
    from evoclaw.orchestrator.notifications.push_subscriptions import PushSubscriptions
    from evoclaw.orchestrator.notifications.service import Notifications
    from evoclaw.orchestrator.overview.sources import store_mark
    from evoclaw.store.governance.tokens import TokenStore
    from evoclaw.store.notifications import NotificationStore

    notifiers, public_url = settings.notify, settings.server.public_url
    store = NotificationStore(stores.database)
    subscriptions = PushSubscriptions(store, notifiers, TokenStore(stores.database).is_revoked)
    key = secrets.token_bytes(KEY_BYTES)
    senders: Mapping[str, NotificationSender] = {}
    if notifiers:
        from evoclaw.orchestrator.notifications.factory import build_senders

        senders = build_senders(notifiers, env, subscriptions)
        # Shared by all orchestrators of the store: any of them may get the answer.
        key = await store.key("answers", lambda: secrets.token_bytes(KEY_BYTES))
    answers = OneTapAnswers(
        AnswerTokens(key),
        approvals,
        runs,
        {notifier.name: notifier for notifier in notifiers},
        subscriptions.person_of,
        public_url=public_url,
        clock=time.time,
    )
    return Notifications(
        store,
        notifiers,
        senders,
        Findings(
            approvals, conversations, Redactor(secrets_in(env)), partial(waiting_steps, workflows)
        ),
        answers,
        subscriptions,
        written=store_mark(conversations),
        changed=runs.hub.wait_for_change,
        public_url=public_url,
    )


async def waiting_steps(workflows: Workflows, tenant: str) -> Sequence[WaitingStep]:
    """The steps of a tenant's workflows that a person must answer."""
    from evoclaw.orchestrator.notifications.findings import WaitingStep
    from evoclaw.workflows.views import WorkflowState

    found: list[WaitingStep] = []
    for listed in await workflows.list(
        tenant, state=WorkflowState.WAITING, limit=MAX_WAITING_WORKFLOWS
    ):
        view = await workflows.get(tenant, listed.id)
        if view is None:
            continue  # it was deleted meanwhile
        found += [
            WaitingStep(
                f"{view.id}-{step.name}-{step.attempts}",
                view.name,
                step.name,
                step.asked or step.error,
                view.user,
            )
            for step in view.steps
            if step.answers
        ]
    return found

"""A whole service with notifiers, over a real store, a real socket and local fakes of services."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import aiohttp

from evoclaw.api.app import create_app
from evoclaw.api.routes.notifications import notification_routes
from evoclaw.api.server import serving
from evoclaw.api.settings import ServerSettings
from evoclaw.core.redaction import Redactor
from evoclaw.governance.autonomy import Autonomy, Level
from evoclaw.orchestrator.notifications.answer_tokens import AnswerTokens
from evoclaw.orchestrator.notifications.answers import OneTapAnswers
from evoclaw.orchestrator.notifications.factory import build_senders
from evoclaw.orchestrator.notifications.findings import Findings
from evoclaw.orchestrator.notifications.push_subscriptions import PushSubscriptions
from evoclaw.orchestrator.notifications.service import Notifications
from evoclaw.orchestrator.notifications.settings import NotifySettings, NtfySettings, check_notify
from evoclaw.orchestrator.overview.sources import store_mark
from evoclaw.providers.scripted import Scripted, calls, says
from evoclaw.store.notifications import NotificationStore
from evoclaw.wiring.notifications import waiting_steps
from tests.support.notification_services import (
    NTFY_TOKEN,
    WEBHOOK_SECRET,
    NotificationServices,
    notification_services,
)
from tests.support.ports import free_port
from tests.support.service import LIMIT, Client, ServiceHarness, database

SECRET = "a-very-secret-value-42"
ENV = {"NTFY_TOKEN": NTFY_TOKEN, "HOOK_SECRET": WEBHOOK_SECRET}
KEY = b"k" * 32


class Clock:
    """The time of this machine, and how far a test has moved it."""

    offset = 0.0

    def __call__(self) -> float:
        return time.time() + self.offset


@dataclass
class NotifyingService:
    """A service, its notifiers, and what they sent."""

    house: ServiceHarness
    services: NotificationServices
    notifiers: tuple[NotifySettings, ...]
    clock: Clock
    url: str
    http: aiohttp.ClientSession
    tokens: AnswerTokens
    notifications: Notifications

    def another_process(self) -> Notifications:
        """The notifications of another process that uses the same store."""
        return _notifications(self.house, self.notifiers, self.tokens, self.clock, self.url)

    async def client(self, *scopes: str, tenant: str = "local", user: str = "ann") -> Client:
        """A caller with a new token."""
        token = await self.house.token(*(scopes or ("*",)), tenant=tenant, user=user)
        return Client(self.http, self.url, token)

    async def waiting_run(self, client: Client) -> str:
        """Start a run whose call waits for an approval; its id."""
        started = await client.post("/v1/runs", {"message": "go"})
        assert started.status == 201, started.body
        run_id = str(started.json["run_id"])
        await client.until(f"/v1/runs/{run_id}", "state", "waiting")
        return run_id


def _notifications(
    house: ServiceHarness,
    notifiers: Sequence[NotifySettings],
    tokens: AnswerTokens,
    clock: Clock,
    url: str,
    env: Mapping[str, str] = ENV,
) -> Notifications:
    store = NotificationStore(house.database, clock)
    subscriptions = PushSubscriptions(store, notifiers, house.tokens.is_revoked)
    by_name = {notifier.name: notifier for notifier in notifiers}
    answers = OneTapAnswers(
        tokens,
        house.approvals,
        house.runs,
        by_name,
        subscriptions.person_of,
        public_url=url,
        clock=clock,
    )
    return Notifications(
        store,
        notifiers,
        build_senders(notifiers, env, subscriptions),
        Findings(
            house.approvals,
            house.talks,
            Redactor((SECRET,)),
            partial(waiting_steps, house.workflows),
        ),
        answers,
        subscriptions,
        written=store_mark(house.talks),
        changed=house.runs.hub.wait_for_change,
        public_url=url,
    )


def asking_model(count: int = 1) -> Scripted:
    """A model of so many runs: each makes a call that needs an approval, then answers."""
    asks = [calls(("work", {"what": f"job {number} {SECRET}"})) for number in range(count)]
    return Scripted(*asks, *[says("done") for _ in range(count)])


def phone(url: str, *, answers: bool | None = True, topic: str = "t") -> NotifySettings:
    """An ntfy notifier that reports everything."""
    ntfy = NtfySettings(url=f"{url}/ntfy", topic=topic)
    return NotifySettings(name="phone", kind="ntfy", answers=answers, ntfy=ntfy)


@asynccontextmanager
async def notifying_service(
    folder: Path,
    model: Scripted,
    *,
    notifiers: Sequence[NotifySettings] | None = None,
    level: Level = Level.SUPERVISED,
    serve: bool = True,
    **changes: object,
) -> AsyncGenerator[NotifyingService]:
    """A service with notifiers; everything has ended when the block ends.

    Args:
        folder: An empty folder.
        model: The model of all runs.
        notifiers: The notifiers; `URL` in their settings is the address of the fake services. By
            default one for an ntfy topic.
        level: How far agents may act without an approval.
        serve: Whether notifications are looked for all the time; else a test calls `scan`.
        changes: Other settings of the default notifier.
    """
    async with AsyncExitStack() as stack:
        services = await stack.enter_async_context(notification_services())
        opened = await stack.enter_async_context(database(folder))
        house = ServiceHarness(opened, folder, model, Autonomy(level))
        stack.callback(house.audit.close)
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        chosen = tuple(
            notifiers if notifiers is not None else [_replaced(phone(services.url), **changes)]
        )
        check_notify(chosen, url)
        clock, tokens = Clock(), AnswerTokens(KEY)
        notifications = _notifications(house, chosen, tokens, clock, url)
        settings = ServerSettings(
            port=port, public_url=url, requests_per_minute=100_000, burst=10_000, stop_within_s=1
        )
        parts = replace(house.parts(settings), extra_routes=notification_routes(notifications))
        await stack.enter_async_context(house.runs.serving())
        await stack.enter_async_context(house.workflows.serving())
        if serve:
            await stack.enter_async_context(notifications.serving())
        http = await stack.enter_async_context(
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(LIMIT))
        )
        await stack.enter_async_context(serving(create_app(parts), settings))
        yield NotifyingService(house, services, chosen, clock, url, http, tokens, notifications)


def _replaced(settings: NotifySettings, **changes: object) -> NotifySettings:
    from msgspec.structs import replace as replaced

    return replaced(settings, **changes)

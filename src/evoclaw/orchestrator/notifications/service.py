"""The notification service: finds what to report, limits it, and delivers it once."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from secrets import token_hex
from urllib.parse import quote

import msgspec
from msgspec import Struct

from evoclaw.core.errors import EvoClawError
from evoclaw.orchestrator.channels.deliveries import DeliveryWorker
from evoclaw.orchestrator.channels.inbound import Undelivered
from evoclaw.orchestrator.log_throttle import LogThrottle, repeat_suffix
from evoclaw.orchestrator.notifications.answers import OneTapAnswers
from evoclaw.orchestrator.notifications.findings import EndedRun, Findings, summary_of
from evoclaw.orchestrator.notifications.messages import (
    Notification,
    NotificationSender,
    NotificationSubject,
)
from evoclaw.orchestrator.notifications.push_subscriptions import PushSubscriptions
from evoclaw.orchestrator.notifications.settings import NotifySettings
from evoclaw.store.databases.change_detection import CommitMark
from evoclaw.store.notifications import (
    NewNotification,
    NotificationStore,
    StoredNotification,
)

logger = logging.getLogger(__name__)
MIN_SCAN_INTERVAL_S, MAX_SCAN_INTERVAL_S = 0.5, 3.0
"""Between two looks at the store; the second one if nothing happened in this process."""
ENDED_RUN_LOOKBACK_S = 3_600.0
"""How old the end of a run may be when this process starts."""
ENDED_RUN_OVERLAP_S = 60.0
"""How far each look goes back before the one before: clocks differ, and commits take time."""
ORPHAN_CHECK_INTERVAL_S = 30.0
"""How often messages are looked for that another process released, and did not send."""
DELIVERY_TIMEOUT_S = 86_400.0
"""After which a message that cannot be sent is given up."""
TEST_TIMEOUT_S = 60.0
MAINTENANCE_INTERVAL_S = 3_600.0
MAX_REMEMBERED_SUBJECTS = 20_000


class NotifierView(Struct, frozen=True):
    """A notifier, as an administrator sees it."""

    name: str
    """The name of the notifier."""
    kind: str
    """The kind, such as `ntfy` or `email`."""
    on: tuple[str, ...]
    """What it reports."""
    users: tuple[str, ...]
    """The users whose runs it reports; none: all."""
    max_per_hour: int
    """How many messages it may send in an hour."""
    answers: bool
    """Whether messages have links that approve or deny."""
    last_state: str = ""
    """The state of the last message: `sent`, `due` if it is tried again, or `dead`."""
    last_problem: str = ""
    """Why the last message was not sent; empty: it was."""
    last_at: float | None = None
    """When the last message was created, in Unix seconds."""


class NotifierCheck(Struct, frozen=True):
    """The outcome of a test message."""

    name: str
    """The name of the notifier."""
    ok: bool
    """Whether the message was sent."""
    detail: str
    """What was reached, or why nothing was."""


class Notifications:
    """All notifiers of a process."""

    def __init__(
        self,
        store: NotificationStore,
        notifiers: Sequence[NotifySettings],
        senders: Mapping[str, NotificationSender],
        findings: Findings,
        answers: OneTapAnswers,
        subscriptions: PushSubscriptions,
        *,
        written: Callable[[], Awaitable[CommitMark]],
        changed: Callable[[], Awaitable[None]],
        public_url: str = "",
    ) -> None:
        """Prepare to notify.

        Args:
            store: Where notifications are stored until they are sent.
            notifiers: The `[[notify]]` tables.
            senders: By name, what sends the messages of a notifier.
            findings: Finds what to report.
            answers: Makes the links that answer approvals.
            subscriptions: The browsers that receive Web Push.
            written: Gives another mark whenever something was committed to the store.
            changed: Returns when something happened in this process.
            public_url: What links start with; empty: messages have no links.
        """
        self._store, self._notifiers, self._senders = store, tuple(notifiers), senders
        self._findings, self.answers, self.subscriptions = findings, answers, subscriptions
        self._written, self._changed, self._url = written, changed, public_url.rstrip("/")
        self.counts: Counter[str] = Counter()
        """Messages that were sent and given up, and those that were no longer needed."""
        self._by_name = {notifier.name: notifier for notifier in notifiers}
        self._workers = {
            notifier.name: DeliveryWorker[StoredNotification](
                store, notifier.name, self._deliver, DELIVERY_TIMEOUT_S, self.counts
            )
            for notifier in notifiers
        }
        self._since: Mapping[str, float] = {}
        self._looked_at: dict[str, float] = {}
        """By tenant, up to when its ended runs were read."""
        self._remembered: dict[tuple[str, str], dict[str, None]] = {}
        """By receiver, the subjects that are certainly stored."""
        self._has_held = False
        self._throttle = LogThrottle()

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator[None]:
        """Notify until the block ends; without notifiers nothing runs."""
        if not self._notifiers:
            yield
            return
        self._since = await self._store.register(tuple(self._by_name))
        work = [
            self._scan_repeatedly(),
            self._prune_repeatedly(),
            self._wake_repeatedly(),
            *(worker.run() for worker in self._workers.values()),
        ]
        tasks = [asyncio.create_task(coroutine) for coroutine in work]
        for task in tasks:
            task.add_done_callback(_report_end)
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def views(self, tenant: str) -> Sequence[NotifierView]:
        """The notifiers of a tenant."""
        found: list[NotifierView] = []
        for notifier in self._notifiers:
            if notifier.tenant == tenant:
                last = await self._store.last_result(notifier.name)
                state, problem, at = last or ("", "", None)
                found.append(
                    NotifierView(
                        notifier.name,
                        notifier.kind,
                        notifier.on,
                        notifier.users,
                        notifier.max_per_hour,
                        bool(self._url) and notifier.sends_answers,
                        state,
                        problem,
                        at,
                    )
                )
        return found

    async def test(self, tenant: str, name: str) -> NotifierCheck | None:
        """Send a test message now; None if the tenant has no such notifier."""
        notifier = self._by_name.get(name)
        if notifier is None or notifier.tenant != tenant:
            return None
        message = Notification(
            f"test-{token_hex(8)}",
            "test",
            "Test message",
            f"The notifier {name!r} of EvoClaw works.",
            f"{self._url}/" if self._url else "",
        )
        try:
            async with asyncio.timeout(TEST_TIMEOUT_S):
                reached = await self._senders[name].send(message, "")
        except Undelivered as problem:
            return NotifierCheck(name, False, str(problem))
        except TimeoutError:
            return NotifierCheck(name, False, f"no result within {TEST_TIMEOUT_S:g} s")
        return NotifierCheck(name, True, f"sent to {reached}")

    async def scan(self) -> None:
        """Look for what to report, store it, and release what the limits permit."""
        self._has_held = False
        for tenant in {notifier.tenant for notifier in self._notifiers}:
            started_at = self._store.clock()
            waiting = await self._findings.waiting(tenant)
            ended = await self._ended(tenant)
            for notifier in self._notifiers:
                if notifier.tenant == tenant:
                    await self._report(notifier, waiting, ended)
            self._looked_at[tenant] = started_at

    async def _ended(self, tenant: str) -> Sequence[EndedRun]:
        reporting = [
            notifier
            for notifier in self._notifiers
            if notifier.tenant == tenant and {"failed", "long_run"} & set(notifier.on)
        ]
        if not reporting:
            return ()
        if (before := self._looked_at.get(tenant)) is None:
            first = min(self._since[notifier.name] for notifier in reporting)
            since = max(first, self._store.clock() - ENDED_RUN_LOOKBACK_S)
        else:
            since = before - ENDED_RUN_OVERLAP_S
        long_s = min(notifier.long_run_s for notifier in reporting)
        return await self._findings.ended(tenant, since, long_s)

    async def _report(
        self,
        notifier: NotifySettings,
        waiting: Sequence[NotificationSubject],
        ended: Sequence[EndedRun],
    ) -> None:
        since = self._since[notifier.name]
        subjects = [subject for subject in waiting if subject.reason in notifier.on]
        for run in ended:
            subject = self._findings.run_subject(notifier.tenant, run, notifier)
            if subject is not None and run.ended_at >= since:
                subjects.append(subject)
        if notifier.users:
            subjects = [subject for subject in subjects if subject.user in notifier.users]
        current = {subject.id for subject in waiting}
        for target, sees in await self.subscriptions.targets(notifier):
            own = [subject for subject in subjects if sees is None or subject.user == sees]
            await self._store_new(notifier, target, own)
            await self._release(notifier, target, current)

    async def _store_new(
        self, notifier: NotifySettings, target: str, subjects: Sequence[NotificationSubject]
    ) -> None:
        remembered = self._remembered.setdefault((notifier.name, target), {})
        unknown = [subject for subject in subjects if subject.id not in remembered]
        if not unknown:
            return
        known = await self._store.known(notifier.name, target, [subject.id for subject in unknown])
        new = [
            NewNotification(
                notifier.tenant, notifier.name, target, subject.id, msgspec.json.encode(subject)
            )
            for subject in unknown
            if subject.id not in known
        ]
        if new:
            await self._store.add(new)
        remembered.update(dict.fromkeys(subject.id for subject in unknown))
        while len(remembered) > MAX_REMEMBERED_SUBJECTS:
            del remembered[next(iter(remembered))]

    async def _release(self, notifier: NotifySettings, target: str, current: set[str]) -> None:
        held = await self._store.held(notifier.name, target)
        if not held:
            return
        unneeded = [item.seq for item in held if not _is_current(_subject(item), current)]

        def summarize(rest: Sequence[StoredNotification]) -> NewNotification:
            covering = summary_of([_subject(item) for item in rest])
            return NewNotification(
                notifier.tenant, notifier.name, target, covering.id, msgspec.json.encode(covering)
            )

        due, still_held = await self._store.release(
            notifier.name, target, notifier.max_per_hour, unneeded, summarize
        )
        self._has_held = self._has_held or still_held > 0
        if due:
            self._workers[notifier.name].wake()

    async def _deliver(self, stored: StoredNotification) -> None:
        notifier, subject = self._by_name[stored.notifier], _subject(stored)
        if not await self._findings.still_waits(subject):
            self.counts["no longer needed"] += 1
            return
        links = await self.answers.links(notifier, stored.target, subject)
        message = Notification(
            subject.id, subject.reason, subject.title, subject.text, self._link(subject), links
        )
        await self._senders[notifier.name].send(message, stored.target)

    def _link(self, subject: NotificationSubject) -> str:
        if not self._url:
            return ""
        if subject.reason in ("approval", "question"):
            return f"{self._url}/#/approvals"
        return f"{self._url}/#/runs/{quote(subject.run_id, safe='')}"

    async def _scan_repeatedly(self) -> None:
        mark: CommitMark | None = None
        while True:
            try:
                found = await self._written()
                if found != mark or self._has_held:
                    await self.scan()
                mark = found
            except EvoClawError as problem:
                if count := self._throttle.count(type(problem).__name__):
                    logger.warning(
                        "looking for notifications failed: %s%s", problem, repeat_suffix(count)
                    )
            await asyncio.sleep(MIN_SCAN_INTERVAL_S)
            with suppress(TimeoutError):
                async with asyncio.timeout(MAX_SCAN_INTERVAL_S - MIN_SCAN_INTERVAL_S):
                    await self._changed()

    async def _wake_repeatedly(self) -> None:
        while True:
            await asyncio.sleep(ORPHAN_CHECK_INTERVAL_S)
            for worker in self._workers.values():
                worker.wake()

    async def _prune_repeatedly(self) -> None:
        while True:
            try:
                await self._store.prune()
            except EvoClawError as problem:
                logger.warning("pruning notifications failed: %s", problem)
            await asyncio.sleep(MAINTENANCE_INTERVAL_S)


def _subject(stored: StoredNotification) -> NotificationSubject:
    return msgspec.json.decode(stored.content, type=NotificationSubject)


def _is_current(subject: NotificationSubject, current: set[str]) -> bool:
    return subject.reason not in ("approval", "question") or subject.id in current


def _report_end(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        logger.error("a task of the notifications ended unexpectedly", exc_info=task.exception())

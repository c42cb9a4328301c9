"""Run driver: drives the claimed runs of this process, and handles control requests.

A fault in one run does not affect the others. Control requests (cancel, steer, resume) arrive
through another orchestrator; one that is missed is found a little later by polling: see
`RunSupervisor`.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, aclosing
from dataclasses import dataclass, field
from functools import partial

import msgspec
from msgspec.structs import replace

from evoclaw.core.deadline import Deadline
from evoclaw.core.events import StopReason
from evoclaw.core.hidden_text import mark_hidden_text
from evoclaw.core.messages import TextBlock, UserMessage
from evoclaw.orchestrator.runs.closing import PARENT_ENDED_REASON, close_run
from evoclaw.orchestrator.runs.hub import Hub
from evoclaw.orchestrator.runs.requests import RunRequest, SessionNotFound, decode_run_request
from evoclaw.orchestrator.sessions.conversations import Conversations
from evoclaw.orchestrator.sessions.run_ids import TenantKey, tenant_run_id
from evoclaw.orchestrator.sessions.run_records import steering_count
from evoclaw.orchestrator.sessions.session_run import DriverContext, SessionRun
from evoclaw.store.databases.database import StoreError
from evoclaw.store.databases.notices import Notice, NoticeKind
from evoclaw.store.databases.write_requests import write_scope
from evoclaw.store.runs.inbox import Inbox
from evoclaw.store.runs.queue import (
    Claim,
    CreatedRun,
    QueuedRun,
    RunEnd,
    RunQueue,
    adopt_subrun,
)
from evoclaw.store.sessions.sessions import Fenced, Session, StoredRun

logger = logging.getLogger(__name__)
MAX_REASON_CHARS = 1_000
"""Longest reason stored for a run that ended by an internal error."""


class SteeringMessages:
    """Steering messages for a run: each is delivered once, in the order sent."""

    def __init__(self) -> None:
        self.received = 0
        """How many messages were delivered or wait here."""
        self._waiting: list[UserMessage] = []

    def __call__(self) -> Sequence[UserMessage]:
        """Return the messages that came since the last call."""
        messages, self._waiting = self._waiting, []
        return messages

    def add(self, start: int, messages: Sequence[UserMessage]) -> None:
        """Add the messages that start at a number; skip those received before."""
        new_messages = messages[max(0, self.received - start) :]
        self._waiting.extend(new_messages)
        self.received += len(new_messages)


@dataclass(eq=False, slots=True)
class ActiveRun:
    """A run that this process drives."""

    claim: Claim
    cancelled: bool = False
    """The run is to be cancelled."""
    created: CreatedRun | None = None
    """Set if this process has just stored the run; used once."""
    resume_requested: bool = False
    """The answer that the run waits for was stored while the run was still active."""
    released: bool = False
    """The claim is released, or about to be."""
    interrupted: bool = False
    """This process stopped driving the run before it ended."""
    messages_left: bool = False
    """The run has ended before it read all its steering messages."""
    deadline: Deadline | None = None
    steering: SteeringMessages | None = None
    owner: str | None = None
    """The user of the run, once that is known."""
    task: asyncio.Task[None] = field(init=False)

    @property
    def key(self) -> TenantKey:
        """Its tenant and id."""
        return self.claim.tenant, self.claim.run_id

    def cancel(self) -> None:
        """Cancel the run; its records say so."""
        self.cancelled = True
        if self.deadline is not None:
            self.deadline.cancel()


class RunDriver:
    """The active runs of this process."""

    def __init__(
        self,
        conversations: Conversations,
        queue: RunQueue,
        inbox: Inbox,
        hub: Hub,
        on_capacity: Callable[[], None],
    ) -> None:
        """Choose the parts; `on_capacity` is called whenever a slot for another run may be free."""
        self._conversations, self._queue, self._inbox, self._hub = conversations, queue, inbox, hub
        self._on_capacity = on_capacity
        self.on_continued: Callable[[str, str], Awaitable[None]] | None = None
        """Called with the tenant and id of a run that continues after a wait, or has ended."""
        self.active: dict[TenantKey, ActiveRun] = {}
        self.suspended: dict[TenantKey, Claim] = {}
        """Runs that can be neither driven nor released while the store is unavailable."""

    @property
    def active_per_tenant(self) -> Mapping[str, int]:
        """The number of active runs of each tenant."""
        return Counter(tenant for tenant, _ in self.active)

    def start(
        self, claim: Claim, *, cancelled: bool = False, created: CreatedRun | None = None
    ) -> ActiveRun | None:
        """Start to drive a claimed run; it is in `active` when this returns.

        None if the run is active already.

        Args:
            claim: The claim.
            cancelled: Whether the run is to be cancelled.
            created: Of a run that this process has just stored, so that it is not read again.
        """
        active = ActiveRun(claim, cancelled, created)
        active.owner = None if created is None else created.run.owner
        if active.key in self.active:
            return None
        stack = ExitStack()
        topic = stack.enter_context(self._hub.topic(active.key))
        topic.is_local, topic.began_here = True, created is not None
        topic.notify()

        def ended(_: object) -> None:
            topic.is_local = topic.began_here = False
            topic.discard_unstored()
            topic.notify()
            stack.close()
            del self.active[active.key]
            self._on_capacity()

        self.active[active.key] = active
        active.task = asyncio.create_task(self._drive(active), name=claim.run_id)
        active.task.add_done_callback(ended)
        return active

    async def interrupt(self, runs: Iterable[ActiveRun], *, release: bool = True) -> None:
        """Stop driving runs where they are; the next process to claim them continues there."""
        stopped = list(runs)
        for active in stopped:
            active.interrupted = True
            active.task.cancel()
        if stopped:
            await asyncio.wait([active.task for active in stopped])
        if stopped and release:
            try:
                await self._queue.release([active.claim for active in stopped])
            except StoreError as error:
                logger.warning("interrupted runs stay claimed until this process ends: %s", error)

    async def release_suspended(self) -> None:
        """Try again to release the claims of suspended runs."""
        if stalled := dict(self.suspended):
            await self._queue.release(list(stalled.values()))
            for key in stalled:
                del self.suspended[key]
            self._on_capacity()

    async def deliver_steering(self, active: ActiveRun) -> None:
        """Deliver steering messages to a run; one that has not started reads them at its start."""
        if (steering := active.steering) is not None:
            start = steering.received
            blobs = await self._inbox.messages(*active.key, start)
            messages = [msgspec.json.decode(blob, type=UserMessage) for blob in blobs]
            steering.add(start, [mark_hidden_text(message) for message in messages])

    async def _drive(self, active: ActiveRun) -> None:
        try:
            with write_scope():
                await self._continue(active)
        except Fenced:
            logger.info("run %s was taken over by another process", active.claim.run_id)
        except StoreError as error:
            logger.warning("run %s suspended: store unavailable: %s", active.claim.run_id, error)
            self.suspended[active.key] = active.claim
        except Exception as error:
            # A fault in one run must not end the others, and its user must learn of it.
            logger.exception("run %s failed with an internal error", active.claim.run_id)
            await self._fail(active, error)

    async def _fail(self, active: ActiveRun, error: Exception) -> None:
        reason = f"{type(error).__name__}: {error}"[:MAX_REASON_CHARS]
        try:
            stored = await self._stored(active)
            if stored is not None and stored.is_open:
                await self._close(active, stored, StopReason.ERROR, reason)
        except Fenced:
            logger.info("run %s was taken over by another process", active.claim.run_id)
        except StoreError as problem:
            logger.warning("run %s suspended: store unavailable: %s", active.claim.run_id, problem)
            self.suspended[active.key] = active.claim

    async def _stored(self, active: ActiveRun) -> StoredRun | None:
        return await self._conversations.store.of(active.claim.tenant).run(active.claim.run_id)

    async def _continue(self, active: ActiveRun) -> None:
        conversations = self._conversations.of(active.claim.tenant)
        # A cancellation or a message that came since the run was stored arrives as a notice, or is
        # found by polling.
        created, active.created = active.created, None
        stored = await self._stored(active) if created is None else created.run
        if stored is None:
            return None
        active.owner = stored.owner
        if not stored.is_open:
            active.messages_left = await self._queue.end_run(active.claim, stored)
            return None
        if active.cancelled or (created is None and await self._inbox.is_cancelled(*active.key)):
            return await self._close(active, stored, StopReason.CANCELLED)
        await self._interrupt_fenced(conversations, stored)
        run = await self._prepare(conversations, active, stored, created)
        if stored.stop is StopReason.WAITING:
            await self._notify_continued(active)
        with self._hub.topic(active.key) as topic:
            async with aclosing(conversations.drive(run)) as records:
                run.on_committed = topic.release
                async for record in records:
                    topic.publish(record, committed=run.is_committed)
        return await self._park_or_finish(active, run)

    async def _interrupt_fenced(self, conversations: Conversations, stored: StoredRun) -> None:
        """Stop driving an earlier run of the session.

        A claim is given only for the first open run of a session. So another process has taken
        the earlier one over and ended it, and this process has not noticed yet.
        """
        other = conversations.running.get((conversations.store.tenant, stored.session_id))
        if other is None or other.state.stop is not None or other.stored.id == stored.id:
            return
        if fenced := self.active.get((conversations.store.tenant, other.stored.id)):
            logger.info("run %s was taken over by another process", other.stored.id)
            await self.interrupt([fenced], release=False)

    async def _prepare(
        self,
        conversations: Conversations,
        active: ActiveRun,
        stored: StoredRun,
        created: CreatedRun | None,
    ) -> SessionRun:
        if created is not None:
            session = created.session
        else:
            session = await conversations.store.session(stored.session_id)
        if session is None:
            raise SessionNotFound(stored.session_id)
        steering = SteeringMessages()
        end_run = partial(self._end_run, active, stored)
        driver = DriverContext(active.claim.epoch, steering, end_run)
        loaded = None if created is None else created.loaded
        run = await conversations.prepare(session, stored, None, None, None, driver, loaded)
        steering.received = run.steering_taken
        active.steering, active.deadline = steering, run.deadline
        if created is None:
            await self.deliver_steering(active)
        if active.cancelled:
            run.deadline.cancel()
        return run

    async def _park_or_finish(self, active: ActiveRun, run: SessionRun) -> None:
        state, claim = run.state, active.claim
        if state.stop is not StopReason.WAITING:
            return await self._on_ended(active, run.stored, state.stop)
        if active.resume_requested:
            active.resume_requested = False
            return await self._continue(active)
        pending = [index for index, call in state.unanswered if call.id in state.pending]
        active.released = True
        call_keys = [f"{claim.run_id}.{state.turn}.{index}" for index in pending]
        return await self._queue.park(claim, call_keys)

    async def _end_run(self, active: ActiveRun, stored: StoredRun, end: RunEnd) -> None:
        """Store the end of a run and release it, in one commit."""
        active.released = True
        active.messages_left = await self._queue.end_run(active.claim, stored, end)

    async def _on_ended(
        self, active: ActiveRun, stored: StoredRun, stop: StopReason | None
    ) -> None:
        await self._notify_continued(active)
        if active.messages_left:
            await self.queue_follow_up(active.claim.tenant, stored, stop)

    async def _notify_continued(self, active: ActiveRun) -> None:
        if self.on_continued is not None:
            await self.on_continued(*active.key)

    async def queue_follow_up(
        self, tenant: str, stored: StoredRun, stop: StopReason | None
    ) -> None:
        """Queue a run that answers messages which came too late, unless the run was cancelled."""
        store, entry = self._conversations.store.of(tenant), None
        messages = await self._inbox.messages(tenant, stored.id)
        if not messages:
            return
        if stop is not StopReason.CANCELLED:
            unread = messages[steering_count(await store.records(stored.id)) :]
            session = await store.session(stored.session_id)
            if unread and session is not None:
                before = decode_run_request(await store.run_request(stored.id))
                entry = _follow_up_run(session, before, [_decode_text(blob) for blob in unread])
        await self._inbox.move_to_next_run(tenant, stored.id, entry)
        await self._queue.offer_session(tenant, stored.session_id)
        self._on_capacity()

    async def _close(
        self, active: ActiveRun, stored: StoredRun, stop: StopReason, reason: str = ""
    ) -> None:
        conversations, epoch = self._conversations.of(active.claim.tenant), active.claim.epoch
        await self._close_subruns(conversations, stored, epoch)
        with self._hub.topic(active.key) as topic:
            end_run = partial(self._end_run, active, stored)
            for record in await close_run(conversations, stored, stop, reason, end_run=end_run):
                topic.publish(record)
        await self._on_ended(active, stored, stop)

    async def _close_subruns(
        self, conversations: Conversations, parent: StoredRun, epoch: int
    ) -> None:
        """Close the sub-runs of a run that ends."""
        for run_id in await self._queue.open_subruns(conversations.store.tenant, parent.id):
            stored = await conversations.store.run(run_id)
            if stored is not None and stored.is_open:
                own = await adopt_subrun(conversations.store, run_id, parent.id, epoch)
                await self._close_subruns(conversations, stored, own)
                await close_run(
                    conversations, stored, StopReason.CANCELLED, PARENT_ENDED_REASON, epoch=own
                )


def encode_user_message(message: str) -> bytes:
    """Encode a message as it is stored until a run reads it."""
    return msgspec.json.encode(UserMessage((TextBlock(message),)))


def _decode_text(blob: bytes) -> str:
    return msgspec.json.decode(blob, type=UserMessage).text


def _follow_up_run(session: Session, before: RunRequest, late: Sequence[str]) -> QueuedRun:
    """The next run of a session: answers what the run before did not read, with its settings."""
    request = replace(
        before,
        message="\n\n".join(late),
        session_id=session.id,
        messages=(),
        images=(),
        title="",
        agent="",
    )
    run_id = tenant_run_id(session.tenant, secrets.token_hex(16))
    return QueuedRun(run_id, session, False, request.message, msgspec.json.encode(request))


MAX_PENDING_CONTROL_REQUESTS = 10_000
"""Control requests that may be pending; further ones are found by polling."""


class ControlRequests:
    """Control requests that were received and are not performed yet."""

    def __init__(
        self,
        driver: RunDriver,
        conversations: Conversations,
        inbox: Inbox,
        *,
        cancel: Callable[[str, str], Awaitable[None]],
        resume: Callable[[str, str], Awaitable[None]],
    ) -> None:
        """Choose the parts.

        Args:
            driver: The active runs of this process.
            conversations: The active sub-runs of this process.
            inbox: The stored control requests.
            cancel: Cancels a run.
            resume: Resumes a waiting run.
        """
        self._driver, self._conversations, self._inbox = driver, conversations, inbox
        self._cancel, self._resume = cancel, resume
        self._pending: dict[tuple[str, TenantKey], None] = {}
        self._available = asyncio.Event()

    def on_notice(self, notice: Notice | None) -> None:
        """Enqueue the control request of a notice: in order, each once."""
        if notice is not None and notice.kind in (
            NoticeKind.CANCELLED,
            NoticeKind.MESSAGE_SENT,
            NoticeKind.ANSWERED,
        ):
            self._enqueue(notice.kind, (notice.tenant, notice.run_id))

    def _enqueue(self, kind: str, key: TenantKey) -> None:
        if len(self._pending) < MAX_PENDING_CONTROL_REQUESTS:
            self._pending[kind, key] = None
            self._available.set()

    async def serve(
        self, attempt: Callable[[Callable[[], Awaitable[None]]], Awaitable[None]]
    ) -> None:
        """Perform requests until cancelled; `attempt` runs one that may fail."""
        while True:
            await self._available.wait()
            self._available.clear()
            pending, self._pending = self._pending, {}
            for kind, key in pending:
                await attempt(partial(self._perform, kind, key))

    async def _perform(self, kind: str, key: TenantKey) -> None:
        active = self._driver.active.get(key)
        if kind == NoticeKind.CANCELLED:
            # A run that no process drives is closed by the orchestrator that got the request.
            if active is not None or key in self._conversations.subruns:
                await self._cancel(*key)
        elif kind == NoticeKind.MESSAGE_SENT:
            if active is not None:
                await self._driver.deliver_steering(active)
        elif active is not None:
            # The run may be about to wait for this answer: check again when it stops.
            active.task.add_done_callback(lambda _: self._enqueue(kind, key))
        elif await self._inbox.is_answered(*key):
            await self._resume(*key)

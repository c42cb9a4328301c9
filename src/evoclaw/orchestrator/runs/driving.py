"""Run driver: drives the claimed runs of this process, closes runs, handles control requests.

A fault in one run does not affect the others.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, aclosing
from dataclasses import dataclass, field

import msgspec
from msgspec.structs import replace

from evoclaw.core.deadline import Deadline
from evoclaw.core.events import StopReason
from evoclaw.core.messages import TextBlock, UserMessage
from evoclaw.orchestrator.errands import Errand, NoSession, errand_of
from evoclaw.orchestrator.runs.closing import ABOVE, close_run
from evoclaw.orchestrator.runs.hub import Hub
from evoclaw.orchestrator.sessions.sessions import Conversations
from evoclaw.orchestrator.sessions.subruns import Hold, Key, LiveRun, heard_in, run_id_of
from evoclaw.store.databases.database import StoreError
from evoclaw.store.databases.strands import one_strand
from evoclaw.store.runs.inbox import Inbox
from evoclaw.store.runs.queue import Claim, Entry, RunQueue, adopt
from evoclaw.store.sessions.sessions import Fenced, Session, StoredRun

logger = logging.getLogger(__name__)
LONGEST_REASON = 1_000
"""Longest reason stored for a run that ended by an internal error."""


class Steering:
    """Steering messages for a run: each is delivered once, in the order sent."""

    def __init__(self) -> None:
        self.known = 0
        """How many messages were delivered or wait here."""
        self._waiting: list[UserMessage] = []

    def __call__(self) -> Sequence[UserMessage]:
        """Return the messages that came since the last call."""
        messages, self._waiting = self._waiting, []
        return messages

    def hear(self, start: int, messages: Sequence[UserMessage]) -> None:
        """Add the messages that start at a number; skip those received before."""
        fresh = messages[max(0, self.known - start) :]
        self._waiting.extend(fresh)
        self.known += len(fresh)


@dataclass(eq=False, slots=True)
class Driven:
    """A run that this process drives."""

    claim: Claim
    cancelled: bool = False
    """The run is to be cancelled."""
    woken: bool = False
    """The answer that the run waits for was stored while the run was still active."""
    released: bool = False
    """The claim is released, or about to be."""
    cut: bool = False
    """This process stopped driving the run before it ended."""
    deadline: Deadline | None = None
    steering: Steering | None = None
    task: asyncio.Task[None] = field(init=False)

    @property
    def key(self) -> Key:
        """Its tenant and id."""
        return self.claim.tenant, self.claim.run_id

    def cancel(self) -> None:
        """Cancel the run; its records say so."""
        self.cancelled = True
        if self.deadline is not None:
            self.deadline.cancel()


class Driving:
    """The active runs of this process."""

    def __init__(
        self,
        talks: Conversations,
        queue: RunQueue,
        inbox: Inbox,
        hub: Hub,
        changed: Callable[[], None],
    ) -> None:
        """Choose the parts; `on_capacity` is called whenever a slot for another run may be free."""
        self._talks, self._queue, self._inbox, self._hub = talks, queue, inbox, hub
        self._changed = changed
        self.live: dict[Key, Driven] = {}
        self.stalled: dict[Key, Claim] = {}
        """Runs that can be neither driven nor released while the store is unavailable."""

    @property
    def counts(self) -> Mapping[str, int]:
        """The number of active runs of each tenant."""
        return Counter(tenant for tenant, _ in self.live)

    def take(self, claim: Claim, *, cancelled: bool = False) -> Driven | None:
        """Start to drive a claimed run; it is in `active` when this returns.

        None if the run is active already.
        """
        active = Driven(claim, cancelled)
        if active.key in self.live:
            return None
        stack = ExitStack()
        topic = stack.enter_context(self._hub.topic(active.key))
        topic.live = True
        topic.stir()

        def ended(_: object) -> None:
            topic.live = False
            topic.tail.clear()
            topic.stir()
            stack.close()
            del self.live[active.key]
            self._changed()

        self.live[active.key] = active
        active.task = asyncio.create_task(self._drive(active), name=claim.run_id)
        active.task.add_done_callback(ended)
        return active

    async def cut_off(self, some: Iterable[Driven], *, release: bool = True) -> None:
        """Stop driving runs where they are; the next process to claim them continues there."""
        stopped = list(some)
        for active in stopped:
            active.cut = True
            active.task.cancel()
        if stopped:
            await asyncio.wait([active.task for active in stopped])
        if stopped and release:
            try:
                await self._queue.release([active.claim for active in stopped])
            except StoreError as error:
                logger.warning("interrupted runs stay claimed until this process ends: %s", error)

    async def let_go(self) -> None:
        """Try again to release the claims of suspended runs."""
        if stalled := dict(self.stalled):
            await self._queue.release(list(stalled.values()))
            for key in stalled:
                del self.stalled[key]
            self._changed()

    async def hear(self, active: Driven) -> None:
        """Deliver steering messages to a run; one that has not started reads them at its start."""
        if (steering := active.steering) is not None:
            start = steering.known
            blobs = await self._inbox.said(*active.key, start)
            steering.hear(start, [msgspec.json.decode(blob, type=UserMessage) for blob in blobs])

    async def _drive(self, active: Driven) -> None:
        try:
            with one_strand():
                await self._go_on(active)
        except Fenced:
            logger.info("run %s was taken over by another process", active.claim.run_id)
        except StoreError as error:
            logger.warning("run %s suspended: store unavailable: %s", active.claim.run_id, error)
            self.stalled[active.key] = active.claim
        except Exception as error:
            # A fault in one run must not end the others, and its user must learn of it.
            logger.exception("run %s failed with an internal error", active.claim.run_id)
            await self._fail(active, error)

    async def _fail(self, active: Driven, error: Exception) -> None:
        reason = f"{type(error).__name__}: {error}"[:LONGEST_REASON]
        try:
            stored = await self._stored(active)
            if stored is not None and stored.is_open:
                await self._close(active, stored, StopReason.ERROR, reason)
        except Fenced:
            logger.info("run %s was taken over by another process", active.claim.run_id)
        except StoreError as problem:
            logger.warning("run %s suspended: store unavailable: %s", active.claim.run_id, problem)
            self.stalled[active.key] = active.claim

    async def _stored(self, active: Driven) -> StoredRun | None:
        return await self._talks.store.of(active.claim.tenant).run(active.claim.run_id)

    async def _go_on(self, active: Driven) -> None:
        conversations, stored = self._talks.of(active.claim.tenant), await self._stored(active)
        if stored is None or not stored.is_open:
            return await self._queue.done(active.claim)
        if active.cancelled or await self._inbox.is_cancelled(*active.key):
            return await self._close(active, stored, StopReason.CANCELLED)
        run = await self._prepare(conversations, active, stored)
        with self._hub.topic(active.key) as topic:
            async with aclosing(conversations.drive(run)) as records:
                async for record in records:
                    topic.publish(record)
        return await self._after(active, run)

    async def _prepare(
        self, conversations: Conversations, active: Driven, stored: StoredRun
    ) -> LiveRun:
        session = await conversations.store.session(stored.session_id)
        if session is None:
            raise NoSession(stored.session_id)
        steering = Steering()
        driver = Hold(active.claim.epoch, steering)
        run = await conversations.prepare(session, stored, None, None, None, driver)
        steering.known = run.heard
        active.steering, active.deadline = steering, run.deadline
        await self.hear(active)
        if active.cancelled:
            run.deadline.cancel()
        return run

    async def _after(self, active: Driven, run: LiveRun) -> None:
        state, claim = run.state, active.claim
        if state.stop is not StopReason.WAITING:
            return await self._ended(active, run.stored, state.stop)
        if active.woken:
            active.woken = False
            return await self._go_on(active)
        pending = [index for index, call in state.unanswered if call.id in state.pending]
        active.released = True
        places = [f"{claim.run_id}.{state.turn}.{index}" for index in pending]
        return await self._queue.park(claim, places)

    async def _ended(self, active: Driven, stored: StoredRun, stop: StopReason | None) -> None:
        active.released = True
        await self._queue.done(active.claim)
        await self.follow(active.claim.tenant, stored, stop)

    async def follow(self, tenant: str, stored: StoredRun, stop: StopReason | None) -> None:
        """Queue a run that answers messages which came too late, unless the run was cancelled."""
        store, entry = self._talks.store.of(tenant), None
        messages = await self._inbox.said(tenant, stored.id)
        if not messages:
            return
        if stop is not StopReason.CANCELLED:
            late = messages[heard_in(await store.records(stored.id)) :]
            session = await store.session(stored.session_id)
            if late and session is not None:
                before = errand_of(await store.errand(stored.id))
                entry = _next(session, before, [_text(blob) for blob in late])
        await self._inbox.follow(tenant, stored.id, entry)
        self._changed()

    async def _close(
        self, active: Driven, stored: StoredRun, stop: StopReason, reason: str = ""
    ) -> None:
        conversations, epoch = self._talks.of(active.claim.tenant), active.claim.epoch
        await self._close_below(conversations, stored, epoch)
        with self._hub.topic(active.key) as topic:
            for record in await close_run(conversations, stored, stop, reason, epoch=epoch):
                topic.publish(record)
        await self._ended(active, stored, stop)

    async def _close_below(
        self, conversations: Conversations, parent: StoredRun, epoch: int
    ) -> None:
        """Close the sub-runs of a run that ends."""
        for run_id in await self._queue.below(conversations.store.tenant, parent.id):
            stored = await conversations.store.run(run_id)
            if stored is not None and stored.is_open:
                own = await adopt(conversations.store, run_id, parent.id, epoch)
                await self._close_below(conversations, stored, own)
                await close_run(conversations, stored, StopReason.CANCELLED, ABOVE, epoch=own)


def said(message: str) -> bytes:
    """Encode a message as it is stored until a run reads it."""
    return msgspec.json.encode(UserMessage((TextBlock(message),)))


def _text(blob: bytes) -> str:
    return msgspec.json.decode(blob, type=UserMessage).text


def _next(session: Session, before: Errand, late: Sequence[str]) -> Entry:
    """The next run of a session: answers what the run before did not read, with its settings."""
    request = replace(
        before, message="\n\n".join(late), session_id=session.id, messages=(), title="", agent=""
    )
    run_id = run_id_of(session.tenant, secrets.token_hex(16))
    return Entry(run_id, session, False, request.message, msgspec.json.encode(request))

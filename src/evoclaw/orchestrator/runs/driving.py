"""Drives the runs that this process holds; whatever happens to one of them, the others go on."""

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
"""Characters of what is told of a fault of ours."""


class Steering:
    """What people said to a run: each message is given to it once, in the order said."""

    def __init__(self) -> None:
        self.known = 0
        """How many were given to it, or wait here."""
        self._waiting: list[UserMessage] = []

    def __call__(self) -> Sequence[UserMessage]:
        """What was said since the last time."""
        said, self._waiting = self._waiting, []
        return said

    def hear(self, start: int, messages: Sequence[UserMessage]) -> None:
        """Take in messages from a number on; those that are known stay as they are."""
        fresh = messages[max(0, self.known - start) :]
        self._waiting.extend(fresh)
        self.known += len(fresh)


@dataclass(eq=False, slots=True)
class Driven:
    """A run that goes on in this process."""

    claim: Claim
    cancelled: bool = False
    """It is to end."""
    woken: bool = False
    """Somebody said that what it waits for is there, while it went on."""
    released: bool = False
    """It is let go of, or about to be."""
    cut: bool = False
    """It is driven here no longer, wherever it was."""
    deadline: Deadline | None = None
    steering: Steering | None = None
    task: asyncio.Task[None] = field(init=False)

    @property
    def key(self) -> Key:
        """Its tenant and id."""
        return self.claim.tenant, self.claim.run_id

    def cancel(self) -> None:
        """Have it end, and say so in its records."""
        self.cancelled = True
        if self.deadline is not None:
            self.deadline.cancel()


class Driving:
    """The runs that go on in this process."""

    def __init__(
        self,
        talks: Conversations,
        queue: RunQueue,
        inbox: Inbox,
        hub: Hub,
        changed: Callable[[], None],
    ) -> None:
        """Choose the parts; `changed` is called whenever there is room for another run."""
        self._talks, self._queue, self._inbox, self._hub = talks, queue, inbox, hub
        self._changed = changed
        self.live: dict[Key, Driven] = {}
        self.stalled: dict[Key, Claim] = {}
        """Runs that cannot be driven, nor let go of, while the store cannot be written."""

    @property
    def counts(self) -> Mapping[str, int]:
        """How many runs of each tenant go on."""
        return Counter(tenant for tenant, _ in self.live)

    def take(self, claim: Claim, *, cancelled: bool = False) -> Driven | None:
        """Begin to drive a run that is held; it is known as going on when this returns.

        None if it goes on already.
        """
        driven = Driven(claim, cancelled)
        if driven.key in self.live:
            return None
        stack = ExitStack()
        topic = stack.enter_context(self._hub.topic(driven.key))
        topic.live = True
        topic.stir()

        def ended(_: object) -> None:
            topic.live = False
            topic.tail.clear()
            topic.stir()
            stack.close()
            del self.live[driven.key]
            self._changed()

        self.live[driven.key] = driven
        driven.task = asyncio.create_task(self._drive(driven), name=claim.run_id)
        driven.task.add_done_callback(ended)
        return driven

    async def cut_off(self, some: Iterable[Driven], *, release: bool = True) -> None:
        """Stop driving where they are; whoever holds them next goes on from there."""
        driven = list(some)
        for one in driven:
            one.cut = True
            one.task.cancel()
        if driven:
            await asyncio.wait([one.task for one in driven])
        if driven and release:
            try:
                await self._queue.release([one.claim for one in driven])
            except StoreError as error:
                logger.warning(
                    "runs that were cut off are held until this process is gone: %s", error
                )

    async def let_go(self) -> None:
        """Try again to let go of runs that could not be driven."""
        if stalled := dict(self.stalled):
            await self._queue.release(list(stalled.values()))
            for key in stalled:
                del self.stalled[key]
            self._changed()

    async def hear(self, driven: Driven) -> None:
        """Have a run hear what was said to it; one that has not begun yet will."""
        if (steering := driven.steering) is not None:
            start = steering.known
            blobs = await self._inbox.said(*driven.key, start)
            steering.hear(start, [msgspec.json.decode(blob, type=UserMessage) for blob in blobs])

    async def _drive(self, driven: Driven) -> None:
        try:
            with one_strand():
                await self._go_on(driven)
        except Fenced:
            logger.info("run %s was taken over by another process", driven.claim.run_id)
        except StoreError as error:
            logger.warning("run %s stands still: %s", driven.claim.run_id, error)
            self.stalled[driven.key] = driven.claim
        except Exception as error:
            # A fault in one run's parts must not end the others, and its people must be told.
            logger.exception("run %s ended by a fault", driven.claim.run_id)
            await self._fail(driven, error)

    async def _fail(self, driven: Driven, error: Exception) -> None:
        reason = f"{type(error).__name__}: {error}"[:LONGEST_REASON]
        try:
            stored = await self._stored(driven)
            if stored is not None and stored.is_open:
                await self._close(driven, stored, StopReason.ERROR, reason)
        except Fenced:
            logger.info("run %s was taken over by another process", driven.claim.run_id)
        except StoreError as problem:
            logger.warning("run %s stands still: %s", driven.claim.run_id, problem)
            self.stalled[driven.key] = driven.claim

    async def _stored(self, driven: Driven) -> StoredRun | None:
        return await self._talks.store.of(driven.claim.tenant).run(driven.claim.run_id)

    async def _go_on(self, driven: Driven) -> None:
        talks, stored = self._talks.of(driven.claim.tenant), await self._stored(driven)
        if stored is None or not stored.is_open:
            return await self._queue.done(driven.claim)
        if driven.cancelled or await self._inbox.is_cancelled(*driven.key):
            return await self._close(driven, stored, StopReason.CANCELLED)
        run = await self._prepare(talks, driven, stored)
        with self._hub.topic(driven.key) as topic:
            async with aclosing(talks.drive(run)) as records:
                async for record in records:
                    topic.publish(record)
        return await self._after(driven, run)

    async def _prepare(self, talks: Conversations, driven: Driven, stored: StoredRun) -> LiveRun:
        session = await talks.store.session(stored.session_id)
        if session is None:
            raise NoSession(stored.session_id)
        steering = Steering()
        hold = Hold(driven.claim.epoch, steering)
        run = await talks.prepare(session, stored, None, None, None, hold)
        steering.known = run.heard
        driven.steering, driven.deadline = steering, run.deadline
        await self.hear(driven)
        if driven.cancelled:
            run.deadline.cancel()
        return run

    async def _after(self, driven: Driven, run: LiveRun) -> None:
        state, claim = run.state, driven.claim
        if state.stop is not StopReason.WAITING:
            return await self._ended(driven, run.stored, state.stop)
        if driven.woken:
            driven.woken = False
            return await self._go_on(driven)
        pending = [index for index, call in state.unanswered if call.id in state.pending]
        driven.released = True
        places = [f"{claim.run_id}.{state.turn}.{index}" for index in pending]
        return await self._queue.park(claim, places)

    async def _ended(self, driven: Driven, stored: StoredRun, stop: StopReason | None) -> None:
        driven.released = True
        await self._queue.done(driven.claim)
        await self.follow(driven.claim.tenant, stored, stop)

    async def follow(self, tenant: str, stored: StoredRun, stop: StopReason | None) -> None:
        """What was said too late for a run becomes the next one, unless it was cancelled."""
        store, entry = self._talks.store.of(tenant), None
        said = await self._inbox.said(tenant, stored.id)
        if not said:
            return
        if stop is not StopReason.CANCELLED:
            late = said[heard_in(await store.records(stored.id)) :]
            session = await store.session(stored.session_id)
            if late and session is not None:
                before = errand_of(await store.errand(stored.id))
                entry = _next(session, before, [_text(blob) for blob in late])
        await self._inbox.follow(tenant, stored.id, entry)
        self._changed()

    async def _close(
        self, driven: Driven, stored: StoredRun, stop: StopReason, reason: str = ""
    ) -> None:
        talks, epoch = self._talks.of(driven.claim.tenant), driven.claim.epoch
        await self._close_below(talks, stored, epoch)
        with self._hub.topic(driven.key) as topic:
            for record in await close_run(talks, stored, stop, reason, epoch=epoch):
                topic.publish(record)
        await self._ended(driven, stored, stop)

    async def _close_below(self, talks: Conversations, above: StoredRun, epoch: int) -> None:
        """End the sub-runs of a run that ends."""
        for run_id in await self._queue.below(talks.store.tenant, above.id):
            stored = await talks.store.run(run_id)
            if stored is not None and stored.is_open:
                own = await adopt(talks.store, run_id, above.id, epoch)
                await self._close_below(talks, stored, own)
                await close_run(talks, stored, StopReason.CANCELLED, ABOVE, epoch=own)


def said(message: str) -> bytes:
    """A message as it is kept until a run takes it in."""
    return msgspec.json.encode(UserMessage((TextBlock(message),)))


def _text(blob: bytes) -> str:
    return msgspec.json.decode(blob, type=UserMessage).text


def _next(session: Session, before: Errand, late: Sequence[str]) -> Entry:
    """The run of a session that answers what one before it did not hear, made as that one was."""
    errand = replace(
        before, message="\n\n".join(late), session_id=session.id, messages=(), title="", agent=""
    )
    run_id = run_id_of(session.tenant, secrets.token_hex(16))
    return Entry(run_id, session, False, errand.message, msgspec.json.encode(errand))

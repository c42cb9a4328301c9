"""A device's calls: each begun at most once, however often it is asked for, and told truly.

What a crash leaves behind is decided by the journal: a call that was only received runs after the
restart, one that had begun is reported as unknown and not run again.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Mapping

from msgspec.structs import replace

from evoclaw.core.errors import EvoClawError, ToolFailure
from evoclaw.core.messages import JSON, ErrorKind, ToolResult
from evoclaw.core.wording import crashed, outcome_unknown
from evoclaw.edge import refusals
from evoclaw.edge.call_slots import Places
from evoclaw.edge.clock import OrchestratorClock
from evoclaw.edge.device import Limits
from evoclaw.edge.live_output import Chunks
from evoclaw.edge.plans import Plan, Planner, named, refused
from evoclaw.edge.reports import Reports
from evoclaw.edge.running_call import Live, watched
from evoclaw.store.calls.journal import CallState, Entry, Journal, Kind, Row
from evoclaw.transport.outcomes import to_payload
from evoclaw.transport.wire import Command, ReportType, encode, fingerprint, message_hash

REMEMBERED = 10_000
"""Refusals that are not journaled."""
MOST_WORDS = 1_000
"""Things being said."""
LAST_WORDS = 10.0
"""Seconds in which calls that are ended have ended."""
Noted = Callable[[ToolResult, float | None], None]

_STATES = {
    None: CallState.SUCCEEDED,
    ErrorKind.TIMEOUT: CallState.TIMEOUT,
    ErrorKind.CANCELLED: CallState.CANCELLED,
    ErrorKind.EXPIRED: CallState.EXPIRED,
    ErrorKind.UNKNOWN: CallState.UNKNOWN,
    ErrorKind.PERMISSION_DENIED: CallState.REFUSED,
    ErrorKind.QUEUE_FULL: CallState.REFUSED,
    ErrorKind.NOT_FOUND: CallState.REFUSED,
    ErrorKind.INVALID_PARAMS: CallState.REFUSED,
}


class Calls:
    """Takes commands that do something, and sees each to its end."""

    def __init__(
        self,
        planners: Mapping[str, Planner],
        journal: Journal,
        reports: Reports,
        clock: OrchestratorClock,
        limits: Limits,
        boot_id: str,
        *,
        concurrency: Callable[[], int] | None = None,
        noted: Noted = lambda result, elapsed: None,
    ) -> None:
        """Choose the parts.

        Args:
            planners: What makes a plan of each command.
            journal: Where everything is written down first.
            reports: The way out.
            clock: The orchestrator's.
            limits: How much at once.
            boot_id: Of this process.
            concurrency: How many run at the same time, if that is not what the limits say.
            noted: Told how each call ended and how long it ran, if it did.
        """
        self._planners, self._journal, self._reports = planners, journal, reports
        self._clock, self._limits, self._boot_id, self._noted = clock, limits, boot_id, noted
        self.places = Places(concurrency or (lambda: limits.concurrency))
        self._live: dict[str, Live] = {}
        self._refused: OrderedDict[str, ToolResult] = OrderedDict()
        """Answers to messages that were refused without a note."""
        self._words: set[asyncio.Task[None]] = set()
        self._closing = False

    @property
    def live(self) -> list[Live]:
        """The calls that are here, written down, and have not ended."""
        return [live for live in self._live.values() if live.kept]

    @property
    def in_flight(self) -> int:
        """Calls that run."""
        return sum(1 for live in self._live.values() if live.began)

    @property
    def queued(self) -> int:
        """Calls that wait."""
        return len(self._live) - self.in_flight

    @property
    def room(self) -> int:
        """How many more calls are taken now; less than 0 if there are too many."""
        return self._limits.concurrency + self._limits.queue - len(self._live) + self._jobs

    def accept(self, command: Command, message: bytes) -> None:
        """Take a command as it came in a message; it goes on by itself."""
        known = self._live.get(command.request_id)
        if self._closing:
            return  # whoever asked asks again when we are back
        if known is None:
            live = Live(command, self.places.draw(), message)
            self._take(live, self._begin(live))
        elif known.digest == fingerprint(command):
            self._spawn(self._tell(known))
        else:
            self._spawn(self._refuse(command, message, refusals.conflict(command)))

    async def recover(self) -> None:
        """Take up what the journal says was open when this device stopped."""
        for row in await self._journal.open_calls():
            command = refusals.recovered(row)
            live = Live(command, self.places.draw(), kept=True)
            if row.digest == refusals.NEVER:
                self._take(live, self._finish(live, refusals.cancelled(command)))
            elif row.state is CallState.RUNNING:
                self._take(live, self._interrupted(live))
            else:
                self._take(live, self._resume(live))

    def cancel(self, request_id: str) -> bool:
        """End a call that waits or runs, and what it started; whether there was one."""
        live = self._live.get(request_id)
        if live is not None:
            live.deadline.cancel()
        return live is not None

    async def cancel_unseen(self, request_id: str) -> Row | None:
        """See to it that a call which is not here never begins; what is known of it otherwise."""
        entry = Entry(request_id, request_id, 0, refusals.NEVER, b"")
        received = await self._journal.receive(entry)
        if received.kind is not Kind.NEW:
            return received.row
        text = "The call was cancelled before it came here."
        unseen = Command("", {}, request_id)
        result = refused(unseen, ErrorKind.CANCELLED, text)
        payload = to_payload(result, request_id, 0)
        await self._reports.finish(unseen, CallState.CANCELLED, payload)
        return None

    async def close(self) -> None:
        """End and tell what runs; what waits is written down and runs after the restart."""
        self._closing = True
        for live in self._live.values():
            if live.began or live.committed:
                live.deadline.cancel()
            elif live.task is not None:
                live.task.cancel()
        tasks = [live.task for live in self._live.values() if live.task is not None]
        if tasks := [*tasks, *self._words]:
            await asyncio.wait(tasks, timeout=LAST_WORDS)

    async def abandon(self) -> None:
        """End every task without a word, as a crash would."""
        self._closing = True
        tasks = [live.task for live in self._live.values() if live.task is not None]
        for task in (tasks := [*tasks, *self._words]):
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def beat(self) -> None:
        """Say from time to time that long calls still go on; runs as long as the device does."""
        while True:
            await asyncio.sleep(self._limits.beat)
            now = time.monotonic()
            for live in self.live:
                if now - live.came > self._limits.long:
                    await self._tell(live)

    @property
    def _is_full(self) -> bool:
        # Jobs are counted only when it matters: there may be thousands of calls.
        most = self._limits.concurrency + self._limits.queue
        return len(self._live) > most and self.room < 0

    @property
    def _jobs(self) -> int:
        return sum(1 for live in self._live.values() if live.is_job)

    def _take(self, live: Live, work: Coroutine[object, object, None]) -> None:
        self._live[live.request_id] = live
        live.task = asyncio.create_task(work, name=live.request_id)
        live.task.add_done_callback(lambda task: self._ended(live, task))

    def _ended(self, live: Live, task: asyncio.Task[None]) -> None:
        del self._live[live.request_id]
        live.ticket.leave()
        if not task.cancelled() and (problem := task.exception()) is not None:
            # A fault of ours: the call may have happened, and whoever asked must not wait for ever.
            text = crashed(named(live.command), problem)
            result = refused(live.command, ErrorKind.INTERNAL, text)
            self._spawn(self._finish(live, result) if live.kept else self._turn_away(live, result))

    async def _begin(self, live: Live) -> None:
        """Plan, journal, and run or say why not."""
        before = self._refused.get(message_hash(live.message)) if self._refused else None
        if before is not None:
            return await self._say(live.command, live.message, before)
        full = refusals.queue_full(live.command, self._limits.queue) if self._is_full else None
        try:
            plan = full or await self._plan(live)
        except ToolFailure as problem:
            result = refused(live.command, problem.kind, problem.message, **problem.details)
            return await self._turn_away(live, result)
        if isinstance(plan, ToolResult):
            live.ticket.leave()
            return await self._finish(live, plan) if await self._receive(live) else None
        live.plan = plan
        if plan.background or live.ticket.has_place:
            # It can begin: received and begun are one write, and one wait for the disk.
            return await self._run(live, plan) if await self._receive(live, start=True) else None
        return await self._wait(live, plan) if await self._receive(live) else None

    async def _plan(self, live: Live) -> Plan | ToolResult:
        command = live.command
        if command.expires_at is not None:
            await self._clock.known()
        if self._is_late(command):
            return refusals.expired(command)
        refusals.check(command, self._clock.now(), self._limits.dedupe_seconds)
        plan = await self._planners[command.command](command)
        if isinstance(plan, Plan) and plan.background and self._jobs >= self._limits.jobs:
            return refusals.too_many_jobs(command, self._limits.jobs)
        return plan

    def _is_late(self, command: Command) -> bool:
        return command.expires_at is not None and self._clock.now() > command.expires_at

    async def _receive(self, live: Live, *, start: bool = False) -> bool:
        """Write the call down; False if it is not ours to begin, which is then told."""
        command, live.committed = live.command, start
        run_id = command.run_id or command.request_id  # nobody takes over what belongs to no run
        entry = Entry(command.request_id, run_id, command.epoch, live.digest, encode(command))
        try:
            known = await self._journal.receive(entry, start=self._boot_id if start else None)
        except EvoClawError as problem:
            await self._turn_away(live, refusals.no_journal(command, problem))
            return False
        live.kept = known.kind is Kind.NEW
        row = known.row
        if known.kind is Kind.FENCED:
            await self._turn_away(live, refusals.fenced(command))
        elif row is not None and (known.kind is Kind.KNOWN or row.digest == refusals.NEVER):
            await self._tell_again(live, row)
        elif known.kind is Kind.CONFLICT:
            await self._turn_away(live, refusals.conflict(command))
        return live.kept

    async def _tell_again(self, live: Live, row: Row) -> None:
        if await self._reports.repeat(live.request_id):
            return
        if row.state.terminal:
            before = refusals.told_before(live.command, row)
            await self._say(live.command, live.message, before)
        else:  # it had begun, and what ran it is gone
            await self._interrupted(live)

    async def _resume(self, live: Live) -> None:
        """Take up what was received before a restart: rules and tools may be others now."""
        try:
            plan = await self._plan(live)
        except ToolFailure as problem:
            plan = refused(live.command, problem.kind, problem.message)
        if isinstance(plan, ToolResult):
            await self._finish(live, plan)
        elif plan.background:
            await self._start(live, plan)
        else:
            await self._wait(live, plan)

    async def _wait(self, live: Live, plan: Plan) -> None:
        """Wait for a free place, then run it, unless it is too late or was cancelled."""
        await self._tell(live)
        try:
            await live.deadline.bound(live.ticket.wait())
        except TimeoutError:
            return await self._finish(live, refusals.cancelled(live.command))
        if self._is_late(live.command):
            return await self._finish(live, refusals.expired(live.command))
        return await self._start(live, plan)

    async def _start(self, live: Live, plan: Plan) -> None:
        live.committed = True
        try:
            if not await self._journal.start(live.request_id, self._boot_id):
                return None  # it ended before, and that is told
        except EvoClawError as problem:
            return await self._finish(live, refusals.no_journal(live.command, problem))
        return await self._run(live, plan)

    async def _run(self, live: Live, plan: Plan) -> None:
        live.begin(plan)
        if plan.background:
            live.ticket.leave()
        wait = 0.0 if plan.background else self._limits.accepted_after
        word = asyncio.get_running_loop().call_later(wait, lambda: self._spawn(self._tell(live)))
        chunks = Chunks(self._reports, live.request_id) if plan.streams else None

        def progress(text: str) -> None:
            live.hear(text)
            if chunks is not None:
                chunks.add(text)

        try:
            with watched(live, plan.idle):
                result = await plan.work(live.deadline, progress)
        finally:
            word.cancel()
            if chunks is not None:
                await chunks.close()
        await self._finish(live, refusals.silent(live) if live.silent else result)

    async def _interrupted(self, live: Live) -> None:
        text = outcome_unknown(named(live.command))
        result = refused(live.command, ErrorKind.UNKNOWN, text, interrupted=True)
        await self._finish(live, result)

    async def _finish(self, live: Live, result: ToolResult) -> None:
        elapsed = (time.monotonic() - live.began) * 1000 if live.began else None
        self._noted(result, elapsed)
        state = _STATES.get(result.error, CallState.FAILED)
        payload = to_payload(result, live.request_id, elapsed or 0.0)
        await self._reports.finish(live.command, state, payload, elapsed)

    async def _turn_away(self, live: Live, result: ToolResult) -> None:
        """Refuse what is not journaled, unless the journal knows better."""
        try:
            row = await self._journal.get(live.request_id)
        except EvoClawError:
            row = None
        if row is not None and row.digest == live.digest:
            return await self._tell_again(live, row)
        return await self._refuse(live.command, live.message, result)

    async def _refuse(self, command: Command, message: bytes, result: ToolResult) -> None:
        """Say no to one message, and the same if it comes again."""
        self._refused[message_hash(message)] = result
        while len(self._refused) > REMEMBERED:
            self._refused.popitem(last=False)
        await self._say(command, message, result)

    async def _say(self, command: Command, message: bytes, result: ToolResult) -> None:
        """Refuse: it is said which message this is about, as it says nothing about others."""
        details = dict(result.details)
        fenced = details.pop("fenced", False)
        payload = to_payload(replace(result, details=details), result.call_id, 0)
        payload |= {"refuses": message_hash(message)} | ({"fenced": True} if fenced else {})
        await self._reports.refuse(command, payload)

    async def _tell(self, live: Live) -> None:
        """Say that a call is here and has not ended, if it is sure to be here after a crash."""
        if live.kept and self._live.get(live.request_id) is live:
            state = "running" if live.began else "accepted"
            word: dict[str, JSON] = {"request_id": live.request_id, "state": state}
            await self._reports.say(ReportType.PROGRESS, word)

    def _spawn(self, word: Coroutine[object, object, None]) -> None:
        if len(self._words) >= MOST_WORDS:
            word.close()  # who does not hear us asks again
            return
        task = asyncio.create_task(word)
        self._words.add(task)
        task.add_done_callback(self._words.discard)

"""`EdgeCalls`: a device's calls, each started at most once, however often it is requested.

What a crash leaves behind is decided by the journal: a call that was only received runs after the
restart, one that had started is reported as unknown and not run again.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Mapping

from msgspec.structs import replace

from evoclaw.core.errors import EvoClawError, ToolFailure
from evoclaw.core.messages import JSON, ErrorKind, ToolResult
from evoclaw.core.wording import crashed, outcome_unknown
from evoclaw.edge import refusals
from evoclaw.edge.device import DeviceLimits, OrchestratorClock
from evoclaw.edge.live_output import OutputChunks
from evoclaw.edge.plans import CallPlan, Planner, named, refused
from evoclaw.edge.reports import EdgeReports
from evoclaw.edge.running_call import CallSlots, RunningCall, idle_timeout
from evoclaw.store.calls.journal import CallState, Journal, JournalEntry, JournalRow, ReceiveKind
from evoclaw.transport.outcomes import to_payload
from evoclaw.transport.timer_queue import TimerQueue
from evoclaw.transport.wire import Command, ReportType, fingerprint, message_hash

MAX_REMEMBERED_REFUSALS = 10_000
"""Refusals that are kept without a journal record."""
MAX_PENDING_REPORTS = 1_000
"""Reports being sent."""
END_TIMEOUT_S = 10.0
"""How long cancelled calls may take to end."""
OnCallEnded = Callable[[ToolResult, float | None], None]

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


class EdgeCalls:
    """Takes the commands that run something, until each has an outcome."""

    def __init__(
        self,
        planners: Mapping[str, Planner],
        journal: Journal,
        reports: EdgeReports,
        clock: OrchestratorClock,
        limits: DeviceLimits,
        boot_id: str,
        *,
        concurrency: Callable[[], int] | None = None,
        noted: OnCallEnded = lambda result, elapsed: None,
    ) -> None:
        """Set the dependencies.

        Args:
            planners: The planner of each command.
            journal: The journal; every state is written there first.
            reports: Sends the reports.
            clock: The orchestrator's clock.
            limits: The limits of the device.
            boot_id: The boot id of this process.
            concurrency: Concurrent calls, if other than in the limits.
            noted: Called with the outcome of each call and how long it ran, if it did.
        """
        self._planners, self._journal, self._reports = planners, journal, reports
        self._clock, self._limits, self._boot_id, self._noted = clock, limits, boot_id, noted
        self.places = CallSlots(concurrency or (lambda: limits.concurrency))
        self._live: dict[str, RunningCall] = {}
        self._refused: OrderedDict[str, ToolResult] = OrderedDict()
        """Answers to messages that were refused without a journal record."""
        self._words: set[asyncio.Task[None]] = set()
        self._unreported = TimerQueue[str](self._report_accepted)
        """Calls that started, by when they are reported as accepted."""
        self._closing = False

    @property
    def live(self) -> list[RunningCall]:
        """The calls that are journaled and have not ended."""
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
        """How many more calls are accepted now; negative if there are too many."""
        return self._limits.concurrency + self._limits.queue - len(self._live) + self._jobs

    def accept(self, command: Command, message: bytes) -> None:
        """Accept a command from a message; a background task runs it."""
        known = self._live.get(command.request_id)
        if self._closing:
            return  # the orchestrator sends it again after the restart
        if known is None:
            live = RunningCall(command, self.places.enqueue(), message)
            self._take(live, self._start_call(live))
        elif known.digest == fingerprint(command):
            self._spawn(self._report_state(known))
        else:
            self._spawn(self._refuse(command, message, refusals.conflict(command)))

    async def recover(self) -> None:
        """Resume the calls that were open when this device stopped, by the journal."""
        for row in await self._journal.open_calls():
            command = refusals.recovered(row)
            live = RunningCall(command, self.places.enqueue(), kept=True)
            if row.digest == refusals.NEVER_STARTED_DIGEST:
                self._take(live, self._finish(live, refusals.cancelled(command)))
            elif row.state is CallState.RUNNING:
                self._take(live, self._interrupted(live))
            else:
                self._take(live, self._resume(live))

    def cancel(self, request_id: str) -> bool:
        """Cancel a call that waits or runs; whether there was one."""
        live = self._live.get(request_id)
        if live is not None:
            live.deadline.cancel()
        return live is not None

    async def cancel_unseen(self, request_id: str) -> JournalRow | None:
        """Keep an unknown call from ever starting; else return what is known of it."""
        entry = JournalEntry(request_id, request_id, 0, refusals.NEVER_STARTED_DIGEST, b"")
        received = await self._journal.receive(entry)
        if received.kind is not ReceiveKind.NEW:
            return received.row
        text = "The call was cancelled before it arrived."
        unseen = Command("", {}, request_id)
        result = refused(unseen, ErrorKind.CANCELLED, text)
        payload = to_payload(result, request_id, 0)
        await self._reports.finish(unseen, CallState.CANCELLED, payload)
        return None

    async def close(self) -> None:
        """End and report what runs; waiting calls are journaled and run after the restart."""
        self._closing = True
        for live in self._live.values():
            if live.began or live.committed:
                live.deadline.cancel()
            elif live.task is not None:
                live.task.cancel()
        tasks = [live.task for live in self._live.values() if live.task is not None]
        if tasks := [*tasks, *self._words]:
            await asyncio.wait(tasks, timeout=END_TIMEOUT_S)

    async def abandon(self) -> None:
        """End every task without a report, as a crash would."""
        self._closing = True
        self._unreported.close()
        tasks = [live.task for live in self._live.values() if live.task is not None]
        for task in (tasks := [*tasks, *self._words]):
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def report_progress(self) -> None:
        """Send progress reports of long calls; runs as long as the device does."""
        while True:
            await asyncio.sleep(self._limits.progress_interval_s)
            now = time.monotonic()
            for live in self.live:
                if now - live.came > self._limits.progress_delay_s:
                    await self._report_state(live)

    @property
    def _is_full(self) -> bool:
        # Jobs are counted only when needed: there may be thousands of calls.
        limit = self._limits.concurrency + self._limits.queue
        return len(self._live) > limit and self.room < 0

    @property
    def _jobs(self) -> int:
        return sum(1 for live in self._live.values() if live.is_job)

    def _take(self, live: RunningCall, work: Coroutine[object, object, None]) -> None:
        self._live[live.request_id] = live
        live.task = asyncio.create_task(work, name=live.request_id)
        live.task.add_done_callback(lambda task: self._ended(live, task))

    def _ended(self, live: RunningCall, task: asyncio.Task[None]) -> None:
        del self._live[live.request_id]
        live.ticket.leave()
        if not task.cancelled() and (problem := task.exception()) is not None:
            # An internal error: the call may have run, and the caller must not wait forever.
            text = crashed(named(live.command), problem)
            result = refused(live.command, ErrorKind.INTERNAL, text)
            self._spawn(self._finish(live, result) if live.kept else self._reject(live, result))

    async def _start_call(self, live: RunningCall) -> None:
        """Plan, journal, and run or refuse."""
        before = self._refused.get(message_hash(live.message)) if self._refused else None
        if before is not None:
            return await self._report_result(live.command, live.message, before)
        full = refusals.queue_full(live.command, self._limits.queue) if self._is_full else None
        try:
            plan = full or await self._plan(live)
        except ToolFailure as problem:
            result = refused(live.command, problem.kind, problem.message, **problem.details)
            return await self._reject(live, result)
        if isinstance(plan, ToolResult):
            live.ticket.leave()
            return await self._finish(live, plan) if await self._receive(live) else None
        live.plan = plan
        if plan.background or live.ticket.has_slot:
            # It can start at once: received and started are one write.
            return await self._run(live, plan) if await self._receive(live, start=True) else None
        return await self._wait(live, plan) if await self._receive(live) else None

    async def _plan(self, live: RunningCall) -> CallPlan | ToolResult:
        command = live.command
        if command.expires_at is not None:
            await self._clock.known()
        if self._is_late(command):
            return refusals.expired(command)
        refusals.check(command, self._clock.now(), self._limits.dedupe_retention_s)
        plan = await self._planners[command.command](command)
        if isinstance(plan, CallPlan) and plan.background and self._jobs >= self._limits.jobs:
            return refusals.too_many_jobs(command, self._limits.jobs)
        return plan

    def _is_late(self, command: Command) -> bool:
        return command.expires_at is not None and self._clock.now() > command.expires_at

    async def _receive(self, live: RunningCall, *, start: bool = False) -> bool:
        """Journal the call; False if it may not start, which is then reported."""
        command, live.committed = live.command, start
        run_id = command.run_id or command.request_id  # a call without a run is not taken over
        entry = JournalEntry(command.request_id, run_id, command.epoch, live.digest, live.message)
        try:
            known = await self._journal.receive(entry, start=self._boot_id if start else None)
        except EvoClawError as problem:
            await self._reject(live, refusals.no_journal(command, problem))
            return False
        live.kept = known.kind is ReceiveKind.NEW
        row = known.row
        if known.kind is ReceiveKind.FENCED:
            await self._reject(live, refusals.fenced(command))
        elif row is not None and (
            known.kind is ReceiveKind.KNOWN or row.digest == refusals.NEVER_STARTED_DIGEST
        ):
            await self._report_again(live, row)
        elif known.kind is ReceiveKind.CONFLICT:
            await self._reject(live, refusals.conflict(command))
        return live.kept

    async def _report_again(self, live: RunningCall, row: JournalRow) -> None:
        if await self._reports.repeat(live.request_id):
            return
        if row.state.terminal:
            before = refusals.reported_before(live.command, row)
            await self._report_result(live.command, live.message, before)
        else:  # it had started in an earlier process
            await self._interrupted(live)

    async def _resume(self, live: RunningCall) -> None:
        """Resume a call that was received before a restart: rules and tools may have changed."""
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

    async def _wait(self, live: RunningCall, plan: CallPlan) -> None:
        """Wait for a slot, then run it, unless it has expired or was cancelled."""
        await self._report_state(live)
        try:
            await live.deadline.bound(live.ticket.wait())
        except TimeoutError:
            return await self._finish(live, refusals.cancelled(live.command))
        if self._is_late(live.command):
            return await self._finish(live, refusals.expired(live.command))
        return await self._start(live, plan)

    async def _start(self, live: RunningCall, plan: CallPlan) -> None:
        live.committed = True
        try:
            if not await self._journal.start(live.request_id, self._boot_id):
                return None  # it ended before, and that is reported
        except EvoClawError as problem:
            return await self._finish(live, refusals.no_journal(live.command, problem))
        return await self._run(live, plan)

    async def _run(self, live: RunningCall, plan: CallPlan) -> None:
        live.start(plan)
        if plan.background:
            live.ticket.leave()
            self._spawn(self._report_state(live))
        else:
            live.report_at = asyncio.get_running_loop().time() + self._limits.accepted_delay_s
            self._unreported.add(live.report_at, live.request_id)
        chunks = OutputChunks(self._reports, live.request_id) if plan.streams else None

        def progress(text: str) -> None:
            live.on_progress(text)
            if chunks is not None:
                chunks.add(text)

        try:
            if plan.idle is None:
                result = await plan.work(live.deadline, progress)
            else:
                with idle_timeout(live, plan.idle):
                    result = await plan.work(live.deadline, progress)
        finally:
            live.report_at = math.inf
            if chunks is not None:
                await chunks.close()
        await self._finish(live, refusals.silent(live) if live.silent else result)

    async def _interrupted(self, live: RunningCall) -> None:
        text = outcome_unknown(named(live.command))
        result = refused(live.command, ErrorKind.UNKNOWN, text, interrupted=True)
        await self._finish(live, result)

    async def _finish(self, live: RunningCall, result: ToolResult) -> None:
        elapsed = (time.monotonic() - live.began) * 1000 if live.began else None
        self._noted(result, elapsed)
        state = _STATES.get(result.error, CallState.FAILED)
        payload = to_payload(result, live.request_id, elapsed or 0.0)
        await self._reports.finish(live.command, state, payload, elapsed)

    async def _reject(self, live: RunningCall, result: ToolResult) -> None:
        """Refuse a call that is not journaled, unless the journal has it after all."""
        try:
            row = await self._journal.get(live.request_id)
        except EvoClawError:
            row = None
        if row is not None and row.digest == live.digest:
            return await self._report_again(live, row)
        return await self._refuse(live.command, live.message, result)

    async def _refuse(self, command: Command, message: bytes, result: ToolResult) -> None:
        """Refuse one message, and again if it is repeated."""
        self._refused[message_hash(message)] = result
        while len(self._refused) > MAX_REMEMBERED_REFUSALS:
            self._refused.popitem(last=False)
        await self._report_result(command, message, result)

    async def _report_result(self, command: Command, message: bytes, result: ToolResult) -> None:
        """Refuse: the report names the message it is about, and no others."""
        details = dict(result.details)
        fenced = details.pop("fenced", False)
        payload = to_payload(replace(result, details=details), result.call_id, 0)
        payload |= {"refuses": message_hash(message)} | ({"fenced": True} if fenced else {})
        await self._reports.refuse(command, payload)

    def _report_accepted(self, request_id: str) -> None:
        live = self._live.get(request_id)
        if live is not None and live.report_at <= asyncio.get_running_loop().time():
            live.report_at = math.inf
            self._spawn(self._report_state(live))

    async def _report_state(self, live: RunningCall) -> None:
        """Report that a call is accepted, if it would survive a crash."""
        if live.kept and self._live.get(live.request_id) is live:
            state = "running" if live.began else "accepted"
            progress: dict[str, JSON] = {"request_id": live.request_id, "state": state}
            await self._reports.send(ReportType.PROGRESS, progress)

    def _spawn(self, word: Coroutine[object, object, None]) -> None:
        if len(self._words) >= MAX_PENDING_REPORTS:
            word.close()  # the orchestrator asks again
            return
        task = asyncio.create_task(word)
        self._words.add(task)
        task.add_done_callback(self._words.discard)

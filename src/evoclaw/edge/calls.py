"""A device's calls: each begun at most once, however often it is asked for, and told truly.

What a crash leaves behind is decided by the journal: a call that was only received runs after the
restart, one that had begun is reported as unknown and not run again.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Mapping

from evoclaw.core.deadline import Deadline
from evoclaw.core.errors import EvoClawError, ToolFailure
from evoclaw.core.messages import JSON, ErrorKind, TextBlock, ToolResult
from evoclaw.core.wording import outcome_unknown
from evoclaw.edge.chunks import Chunks
from evoclaw.edge.clock import OrchestratorClock
from evoclaw.edge.identity import Limits
from evoclaw.edge.plans import Plan, Planner, refused
from evoclaw.edge.reports import Reports
from evoclaw.store.journal import CallState, Entry, Journal, Kind, Row
from evoclaw.transport.outcomes import to_payload
from evoclaw.transport.wire import Command, ReportType, digest, encode, read_command

ACCEPTED_AFTER = 0.1
"""Seconds before a call is said to be accepted: most have ended by then, which says it too."""
LONG, BEAT = 15.0, 10.0
"""A call longer than this says that it still runs, so often."""
REMEMBERED = 10_000
"""Refusals that are not journaled."""

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


class _Live:
    """A call that is here and has not ended."""

    __slots__ = ("began", "command", "deadline", "digest", "plan", "task")

    def __init__(self, command: Command) -> None:
        self.command = command
        self.digest = fingerprint(command)
        self.deadline = Deadline()
        self.plan: Plan | None = None
        self.began = 0.0
        self.task: asyncio.Task[None] | None = None


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
        noted: Callable[[ToolResult, float | None], None] = lambda result, elapsed: None,
    ) -> None:
        """`noted` is told how each call ended and how long it ran, if it did."""
        self._planners = planners
        self._journal, self._reports, self._clock = journal, reports, clock
        self._limits, self._boot_id, self._noted = limits, boot_id, noted
        self._places = asyncio.Semaphore(limits.concurrency)
        self._live: dict[str, _Live] = {}
        self._refused: OrderedDict[str, ToolResult] = OrderedDict()
        self._words: set[asyncio.Task[None]] = set()

    @property
    def in_flight(self) -> int:
        """Calls that run."""
        return sum(1 for live in self._live.values() if live.began)

    @property
    def queued(self) -> int:
        """Calls that wait."""
        return len(self._live) - self.in_flight

    @property
    def open_ids(self) -> list[str]:
        """The calls that are here and have not ended."""
        return list(self._live)

    def accept(self, command: Command) -> None:
        """Take a command; it goes on by itself."""
        known = self._live.get(command.request_id)
        if known is None:
            live = _Live(command)
            self._take(live, self._begin(live))
        elif known.digest == fingerprint(command):
            self._spawn(self._tell(known))
        else:
            self._spawn(self._say(_conflict(command)))

    async def recover(self) -> None:
        """Take up what the journal says was open when this device stopped."""
        for row in await self._journal.open_calls():
            live = _Live(read_command(row.command))
            begun = row.state is CallState.RUNNING
            self._take(live, self._interrupted(live) if begun else self._wait(live))

    def cancel(self, request_id: str) -> bool:
        """End a call that waits or runs, and what it started; whether there was one."""
        live = self._live.get(request_id)
        if live is not None:
            live.deadline.cancel()
        return live is not None

    async def close(self) -> None:
        """End everything, tell it, and take nothing more."""
        for live in self._live.values():
            live.deadline.cancel()
        tasks = [live.task for live in self._live.values() if live.task is not None]
        if tasks := [*tasks, *self._words]:
            await asyncio.wait(tasks)

    async def abandon(self) -> None:
        """End every task without a word, as a crash would; for tests of what comes after."""
        tasks = [live.task for live in self._live.values() if live.task is not None]
        for task in (tasks := [*tasks, *self._words]):
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def beat(self) -> None:
        """Say from time to time that long calls still run; runs as long as the device does."""
        while True:
            await asyncio.sleep(BEAT)
            now = time.monotonic()
            for live in tuple(self._live.values()):
                if live.began and now - live.began > LONG:
                    await self._tell(live)

    def _take(self, live: _Live, work: Coroutine[object, object, None]) -> None:
        request_id = live.command.request_id
        self._live[request_id] = live
        live.task = asyncio.create_task(work, name=request_id)
        live.task.add_done_callback(lambda _: self._live.pop(request_id))

    async def _begin(self, live: _Live) -> None:
        """Plan, journal, and run or say why not."""
        command = live.command
        if (before := self._refused.get(command.request_id)) is not None:
            return await self._say(before)
        try:
            plan = self._turned_away(command) or await self._plan(command)
        except ToolFailure as problem:
            return await self._refuse(refused(command, problem.kind, problem.message))
        if isinstance(plan, ToolResult):
            if await self._receive(live):
                await self._finish(live, plan)
            return None
        if self._places.locked():
            return await self._wait(live, plan) if await self._receive(live) else None
        # There is a place: received and begun are one write, and one wait for the disk.
        async with self._places:
            return await self._run(live, plan) if await self._receive(live, start=True) else None

    def _turned_away(self, command: Command) -> ToolResult | None:
        if len(self._live) > self._limits.concurrency + self._limits.queue:
            text = f"The device has {self._limits.queue} calls waiting already. Try again later."
            return refused(command, ErrorKind.QUEUE_FULL, text)
        return _expired(command) if self._is_late(command) else None

    async def _plan(self, command: Command) -> Plan | ToolResult:
        return await self._planners[command.command](command)

    def _is_late(self, command: Command) -> bool:
        return command.expires_at is not None and self._clock.now() > command.expires_at

    async def _receive(self, live: _Live, *, start: bool = False) -> bool:
        """Write the call down; False if it is not ours to begin, which is then told."""
        command = live.command
        entry = Entry(
            command.request_id, command.run_id, command.epoch, live.digest, encode(command)
        )
        try:
            known = await self._journal.receive(entry, start=self._boot_id if start else None)
        except EvoClawError as problem:
            text = f"The device cannot write its journal ({problem}), so it runs nothing."
            await self._refuse(refused(command, ErrorKind.INTERNAL, text))
            return False
        match known.kind:
            case Kind.NEW:
                return True
            case Kind.CONFLICT:
                await self._say(_conflict(command))
            case Kind.FENCED:
                text = "Another orchestrator has taken this run over; this one is out."
                await self._say(refused(command, ErrorKind.CONFLICT, text, fenced=True))
            case Kind.KNOWN:
                assert known.row is not None
                await self._tell_again(command, known.row)
        return False

    async def _tell_again(self, command: Command, row: Row) -> None:
        if row.report:
            return await self._reports.repeat(row.report)
        text = "This call ended before, and its result was acknowledged and is no longer kept."
        return await self._say(refused(command, ErrorKind.UNKNOWN, text, state=str(row.state)))

    async def _wait(self, live: _Live, plan: Plan | None = None) -> None:
        """Wait for a free place, then run it, unless it is too late or was cancelled."""
        command = live.command
        await self._tell(live)
        try:
            await live.deadline.bound(self._places.acquire())
        except TimeoutError:
            text = "The call was cancelled before it began."
            return await self._finish(live, refused(command, ErrorKind.CANCELLED, text))
        try:
            if self._is_late(command):
                return await self._finish(live, _expired(command))
            found = plan or await self._replan(command)
            if isinstance(found, ToolResult):
                return await self._finish(live, found)
            if await self._journal.start(command.request_id, self._boot_id):
                await self._run(live, found)
            return None
        finally:
            self._places.release()

    async def _replan(self, command: Command) -> Plan | ToolResult:
        """Plan anew what was received before a restart: rules and tools may be others now."""
        try:
            return await self._plan(command)
        except ToolFailure as problem:
            return refused(command, problem.kind, problem.message)

    async def _run(self, live: _Live, plan: Plan) -> None:
        live.began, live.plan = time.monotonic(), plan
        wait = 0.0 if plan.background else ACCEPTED_AFTER
        word = asyncio.get_running_loop().call_later(wait, lambda: self._spawn(self._tell(live)))
        chunks = Chunks(self._reports, live.command.request_id)
        try:
            result = await plan.work(live.deadline, chunks.add if plan.streams else _unheard)
            await chunks.close()
        finally:
            word.cancel()
        await self._finish(live, result)

    async def _interrupted(self, live: _Live) -> None:
        text = outcome_unknown(refused(live.command, ErrorKind.UNKNOWN, "").name)
        result = refused(live.command, ErrorKind.UNKNOWN, text, interrupted=True)
        await self._finish(live, result)

    async def _finish(self, live: _Live, result: ToolResult) -> None:
        elapsed = (time.monotonic() - live.began) * 1000 if live.began else None
        self._noted(result, elapsed)
        state = _STATES.get(result.error, CallState.FAILED)
        payload = to_payload(result, live.command.request_id, elapsed or 0.0)
        await self._reports.finish(live.command.request_id, state, payload)

    async def _refuse(self, result: ToolResult) -> None:
        """Refuse what is not journaled; a second asking gets the same answer."""
        self._refused[result.call_id] = result
        while len(self._refused) > REMEMBERED:
            self._refused.popitem(last=False)
        await self._say(result)

    async def _say(self, result: ToolResult) -> None:
        await self._reports.say(ReportType.ERROR, to_payload(result, result.call_id, 0))

    async def _tell(self, live: _Live) -> None:
        """Say that a call is here; of one in the background, that its result comes later."""
        request_id = live.command.request_id
        if live.plan is not None and live.plan.background:
            text = f"Job {request_id} runs in the background; ask for it by that id."
            job = ToolResult(request_id, live.plan.name, (TextBlock(text),), details=_job(live))
            await self._reports.say(ReportType.RESULT, to_payload(job, request_id, 0))
        state = "running" if live.began else "accepted"
        await self._reports.say(ReportType.PROGRESS, {"request_id": request_id, "state": state})

    def _spawn(self, word: Coroutine[object, object, None]) -> None:
        task = asyncio.create_task(word)
        self._words.add(task)
        task.add_done_callback(self._words.discard)


def fingerprint(command: Command) -> str:
    """What two askings with one id must have in common."""
    return digest([command.command, command.payload])


def _job(live: _Live) -> dict[str, JSON]:
    return {"job_id": live.command.request_id, "state": "running"}


def _unheard(text: str) -> None:
    """Drop the output of a call that nobody watches; the result holds what matters."""


def _expired(command: Command) -> ToolResult:
    text = "The call reached the device after its time, so it was not run."
    return refused(command, ErrorKind.EXPIRED, text)


def _conflict(command: Command) -> ToolResult:
    text = "Another call with the same id and other arguments was here before; nothing was run."
    return refused(command, ErrorKind.CONFLICT, text)

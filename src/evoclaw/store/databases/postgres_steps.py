"""Sends steps to PostgreSQL: all that are ready in one statement, on one connection, no thread.

While a statement travels, the steps of all runs that become ready wait, and go into the next one:
the slower the network, the larger the batches. A statement is a transaction of its own, so no lock
is held for longer than the server works on it.

Each batch has a number, and the server keeps the number of the last one. So a batch whose answer
was lost is sent again, as often as needed: the server runs it once, and repeats its answer.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import psycopg
from psycopg import errors

from evoclaw.store.databases.database import CommitUnknown, StoreError, StoreUnavailable
from evoclaw.store.databases.postgres_connection import (
    PostgresServer,
    is_connection_lost,
    translate_error,
)
from evoclaw.store.databases.steps import Step
from evoclaw.store.databases.write_requests import (
    DeferredResult,
    PendingResult,
    WriteScope,
    resolve,
)

logger = logging.getLogger(__name__)

MAX_BATCH_STEPS = 64
"""Steps in one statement."""
MAX_BATCH_BYTES = 4_000_000
"""Bytes of arguments in one statement; a larger step is sent alone."""
DEFERRED_STEP_DELAY_S = 0.05
"""Seconds at most before a deferred step is sent."""
MAX_RETRY_DELAY_S = 0.5
"""Seconds at most between two attempts to reach the server."""
RETRIED_ERRORS = (
    errors.SerializationFailure,
    errors.DeadlockDetected,
    errors.LockNotAvailable,
)
"""Errors after which the same statement may succeed."""


class _Entry:
    """A step that waits, or is on its way."""

    __slots__ = ("alone", "at", "done", "results", "sent", "step", "text")

    def __init__(self, step: Step, at: float) -> None:
        self.step, self.at = step, at
        self.results: list[PendingResult] = []
        """Where the result goes."""
        self.text = b""
        """The procedure and the arguments as JSON, once they are known."""
        self.sent = self.done = False
        self.alone = False
        """It must not share a statement: one of several could not be stored."""

    @property
    def is_waited_for(self) -> bool:
        return any(isinstance(result, asyncio.Future) for result in self.results)

    def finish(self, value: Any, problem: BaseException | None) -> None:
        self.done = True
        results, self.results = self.results, []
        for result in results:
            resolve(result, value, problem)

    def fail_callers(self, problem: BaseException) -> None:
        """Tell those who wait; the step itself stays."""
        callers = [result for result in self.results if isinstance(result, asyncio.Future)]
        self.results = [r for r in self.results if not isinstance(r, asyncio.Future)]
        for future in callers:
            resolve(future, None, problem)


class StepSender:
    """The one connection of a process for its steps."""

    def __init__(
        self,
        server: PostgresServer,
        functions: str,
        reconnect_timeout_s: float,
        on_clock: Callable[[float], None],
    ) -> None:
        """Nothing is sent, and no connection made, before the first step.

        Args:
            server: The server.
            functions: The digest in the names of its functions.
            reconnect_timeout_s: Seconds that the server may be unreachable before callers are told.
            on_clock: Called with the time of the server.
        """
        self.commits, self.busy_s = 0, 0.0
        self._statement = f"SELECT * FROM step_run_all_{functions}($1, $2, $3, $4::jsonb)".encode()
        self._server, self._timeout_s, self._on_clock = server, reconnect_timeout_s, on_clock
        self._writer, self._number = secrets.token_hex(8), 0
        self._queue: list[_Entry] = []
        self._batch: list[_Entry] = []
        """The entries of the statement that is under way."""
        self._shared: dict[str, _Entry] = {}
        """Shared steps that are queued, by procedure: others join them."""
        self._connection: psycopg.AsyncConnection | None = None
        self._wake = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._down_since: float | None = None
        self.broken: StoreError | None = None
        """Why nothing can be sent any more."""
        self._closing = False
        self._task: asyncio.Task[None] | None = None

    def submit(self, step: Step, result: PendingResult, scope: WriteScope | None) -> None:
        """Queue a step.

        Args:
            step: The step. A shared one joins the queued one of its procedure, if there is one.
            result: Where its result goes; a future is waited for, so the step is sent at once.
            scope: Waits for the step in `flush`.
        """
        if self.broken is not None:
            raise self.broken
        name = step.procedure.name
        entry = self._shared.get(name) if step.is_shared else None
        if entry is None:
            entry = _Entry(step, time.monotonic())
            self._queue.append(entry)
            entry.results.append(result)
            if step.is_shared:
                self._shared[name] = entry
        if scope is not None:
            scope.last = entry
        self._schedule(urgent=isinstance(result, asyncio.Future))

    def _schedule(self, *, urgent: bool) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="store steps")
            self._task.add_done_callback(self._on_ended)
        if urgent:
            self._wake.set()
        elif self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(DEFERRED_STEP_DELAY_S, self._wake.set)

    @property
    def is_idle(self) -> bool:
        """Whether every step is committed."""
        return not self._queue and not self._batch

    async def flush(self, scope: WriteScope | None) -> None:
        """Wait until the steps of a scope, or all steps, are committed."""
        every = self._queue or self._batch
        entry = scope.last if scope is not None else every[-1] if every else None
        if isinstance(entry, _Entry) and not entry.done:
            future = asyncio.get_running_loop().create_future()
            entry.results.append(future)
            self._schedule(urgent=True)
            await future

    async def close(self) -> BaseException | None:
        """Send what is queued, then end; the error if something could not be sent."""
        self._closing = True
        self._wake.set()
        if self._task is not None:
            await asyncio.wait([self._task])
        if self._connection is not None:
            await self._connection.close()
        if self._timer is not None:
            self._timer.cancel()
        if self.is_idle or self.broken is not None:
            return self.broken
        return StoreError(f"{self._server.name}: the last deferred steps could not be stored")

    async def _run(self) -> None:
        while not (self._closing and self.is_idle):
            await self._wake.wait()
            self._wake.clear()
            await asyncio.sleep(0)  # others that are ready now may join
            while self._queue and (self._closing or self._is_due()):
                self._batch = self._cut()
                if not await self._send_until_answered():
                    return

    def _on_ended(self, task: asyncio.Task[None]) -> None:
        """Tell the callers if the task has failed, which it never should."""
        if task.cancelled() or (problem := task.exception()) is None:
            return
        logger.error("%s: steps cannot be sent any more", self._server.name, exc_info=problem)
        self.broken = StoreError(f"{self._server.name}: steps cannot be sent: {problem}")
        for entry in [*self._batch, *self._queue]:
            entry.finish(None, self.broken)

    def _is_due(self) -> bool:
        """Whether something is waited for, or has waited long enough for more to join."""
        now = time.monotonic()
        if any(e.is_waited_for or now >= e.at + DEFERRED_STEP_DELAY_S for e in self._queue):
            return True
        self._schedule(urgent=False)
        return False

    def _cut(self) -> list[_Entry]:
        """Take the next batch from the queue."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        batch, size = list[_Entry](), 0
        for entry in self._queue:
            if not self._encode(entry):
                continue
            size += len(entry.text)
            full = len(batch) == MAX_BATCH_STEPS or size > MAX_BATCH_BYTES
            if batch and (full or entry.alone or batch[0].alone):
                break
            batch.append(entry)
        taken = set(map(id, batch))
        self._queue = [e for e in self._queue if not e.done and id(e) not in taken]
        batch.sort(key=lambda entry: entry.step.procedure.rank)
        return batch

    def _encode(self, entry: _Entry) -> bool:
        """Encode the arguments of a step; False if it is not to be sent."""
        if entry.text:
            return True
        name, result = entry.step.procedure.name, entry.results[0] if entry.results else None
        if self._shared.get(name) is entry:
            del self._shared[name]
        elif isinstance(result, DeferredResult) and result.scope.problem is not None:
            entry.finish(None, result.scope.problem)
            return False
        try:
            entry.text = msgspec.json.encode((name, entry.step.values()))
        except (TypeError, OverflowError, ValueError, msgspec.MsgspecError) as problem:
            entry.finish(None, problem)
            return False
        return True

    async def _send_until_answered(self) -> bool:
        """Send the batch, again and again if need be; False if it was given up at the end."""
        self._number += 1
        pause, started = 0.01, time.monotonic()
        while self._batch:
            try:
                results = await self._send(self._batch)
            except (psycopg.Error, OSError) as problem:
                if not await self._may_retry(problem):
                    break
                if self._closing and self._is_overdue(started):
                    return False
                await asyncio.sleep(pause)
                pause = min(2 * pause, MAX_RETRY_DELAY_S)
            else:
                self._down_since = None
                self.commits += 1
                for number, entry in enumerate(self._batch):
                    if results is None:
                        entry.finish(None, CommitUnknown(self._server.name))
                    else:
                        entry.finish(results[number], None)
                break
        self._batch = []
        self.busy_s += time.monotonic() - started
        return True

    async def _may_retry(self, problem: BaseException) -> bool:
        """Whether to send the batch again after an error."""
        connection = self._connection
        if connection is None or is_connection_lost(problem, connection):
            await self._disconnect()
        elif not isinstance(problem, RETRIED_ERRORS):
            self._split(problem)
            return False
        else:
            for entry in self._batch:
                entry.sent = False  # the server answered that nothing is stored
        self._down_since = self._down_since or time.monotonic()
        self._fail_overdue(problem)
        return bool(self._batch)

    def _split(self, problem: BaseException) -> None:
        """A step cannot be stored: send each alone, so that it does not take others with it."""
        if len(self._batch) == 1:
            self._batch[0].finish(None, translate_error(problem, self._server.name))
            return
        for entry in self._batch:
            entry.alone, entry.sent = True, False
        self._queue = [*self._batch, *self._queue]
        self._wake.set()

    async def _send(self, batch: list[_Entry]) -> Sequence[Any] | None:
        """The results; None if the batch was committed and its results are lost."""
        connection = self._connection or await self._connect()
        payload = b"[%s]" % b",".join([entry.text for entry in batch])
        locks = sorted({entry.step.lock for entry in batch if entry.step.lock})
        for entry in batch:
            entry.sent = True
        cursor = await connection.execute(
            self._statement,
            (self._writer, self._number, locks, payload.decode()),
            prepare=True,
            binary=True,
        )
        row = await cursor.fetchone()
        assert row is not None
        self._on_clock(row[0])
        return None if row[1] is None else msgspec.json.decode(row[1])

    async def _connect(self) -> psycopg.AsyncConnection:
        self._connection = await self._server.connect_for_steps()
        return self._connection

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    def _is_overdue(self, since: float) -> bool:
        now = time.monotonic()
        down_since = self._down_since
        return down_since is not None and now >= max(down_since, since) + self._timeout_s

    def _fail_overdue(self, problem: BaseException) -> None:
        """Tell the callers that have waited long enough; what was sent stays in the batch."""
        unavailable = translate_error(problem, self._server.name)
        if not isinstance(unavailable, StoreError):
            unavailable = StoreUnavailable(f"{self._server.name}: {problem}")
        for entry in [*self._batch, *self._queue]:
            if self._is_overdue(entry.at):
                entry.fail_callers(CommitUnknown(self._server.name) if entry.sent else unavailable)
                # Its caller no longer waits, and it was never sent.
                entry.done = not entry.sent and not entry.results
        self._batch = [entry for entry in self._batch if not entry.done]
        self._queue = [entry for entry in self._queue if not entry.done]

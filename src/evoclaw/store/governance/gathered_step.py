"""Gathers the operations of all runs in one step: at most one of them waits to be sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from evoclaw.store.databases.database import Database
from evoclaw.store.databases.steps import Procedure, Step
from evoclaw.store.databases.write_requests import current_write_scope


class Operation:
    """One operation of a run, which waits for its answer or continues without it."""

    def __init__(self, values: Sequence[Any]) -> None:
        self.values = values
        self.scope = current_write_scope()
        self.answer: asyncio.Future[Any] | None = None
        """For a caller that waits."""
        self.sent = False
        """Whether the database has taken it."""

    def fail(self, problem: BaseException) -> None:
        """Raise an error for the caller, or suspend the run that did not wait."""
        if self.answer is None:
            if self.scope is not None:
                self.scope.fail(problem)
        elif not self.answer.done():
            self.answer.set_exception(problem)
            self.answer.exception()  # the caller may have been cancelled


class GatheredStep:
    """The operations that wait to be sent, and those that wait for their answer."""

    def __init__(
        self,
        database: Database,
        procedure: Procedure,
        encode: Callable[[Sequence[Operation]], Sequence[Any]],
        on_result: Callable[[Sequence[Operation], Any], None],
        on_failure: Callable[[Sequence[Operation], BaseException], None],
    ) -> None:
        """Choose the parts.

        Args:
            database: The database.
            procedure: Executes a list of operations.
            encode: The arguments of the step for some operations.
            on_result: Gets the result for these operations; again, if they were repeated.
            on_failure: Gets the error, and nothing was stored.
        """
        self._database, self._procedure = database, procedure
        self._encode, self._on_result, self._on_failure = encode, on_result, on_failure
        self._loop = asyncio.get_running_loop()
        self._queued: list[Operation] | None = None
        """The operations of the step that was not sent yet."""
        self.unanswered: list[Operation] = []
        """In order."""

    def add(self, *operations: Operation) -> None:
        """Send operations with the next commit, or a moment later."""
        for operation in operations:
            operation.sent = True
        queued = self._queued = self._queued or []
        queued += operations
        self.unanswered += operations

        def send() -> Sequence[Any]:
            if self._queued is queued:
                self._queued = None
            return self._encode(queued)

        def answered(result: Any) -> None:
            self._forget(queued)
            self._on_result(queued, result)

        # Each time, as the step joins the one that is queued: the scope of the caller waits for it.
        step = Step(self._procedure, send)
        try:
            self._database.defer(
                step, on_result=answered, on_failure=lambda problem: self._failed(queued, problem)
            )
        except BaseException:
            self._queued = None
            self._forget(queued)
            for operation in queued:
                operation.sent = False
            raise

    async def ask(
        self, operation: Operation, *, commit: bool, first: Sequence[Operation] = ()
    ) -> Any:
        """Send an operation and wait for its result, and for its commit if the caller wants.

        The operations of `first` are sent before it, in the same step.
        """
        operation.answer = self._loop.create_future()
        self.add(*first, operation)
        if commit or self._database.dialect == "postgres":
            # PostgreSQL executes it no earlier than that.
            await self._database.flush()
        return await operation.answer

    def _failed(self, operations: Sequence[Operation], problem: BaseException) -> None:
        if self._queued is operations:
            self._queued = None
        self._forget(operations)
        for operation in operations:
            operation.fail(problem)
        self._on_failure(operations, problem)

    def _forget(self, operations: Sequence[Operation]) -> None:
        done = set(map(id, operations))
        self.unanswered = [found for found in self.unanswered if id(found) not in done]

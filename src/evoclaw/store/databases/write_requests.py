"""Write requests and write scopes: the work that waits for a database, and what fails together.

The requests of a batch share a transaction; one that fails is rolled back alone, with a savepoint.

Write scopes: the writes that fail together when a deferred commit is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeAlias

from evoclaw.core.errors import EvoClawError
from evoclaw.store.databases.database import Connection, StoreError, Work
from evoclaw.store.databases.steps import OnFailure, OnResult


class WriteScope:
    """Writes that depend on each other; `problem` is set once one of them was lost or refused.

    A deferred write returns before it is committed. If its connection is lost and the write cannot
    be repeated, as when another process used up a budget meanwhile, no later write of its scope may
    succeed. A run is one write scope: it is suspended, and resumes from what is stored.
    """

    __slots__ = ("_held", "last", "problem")

    def __init__(self) -> None:
        self.problem: BaseException | None = None
        self.last: object = None
        """Its last step, for a database that waits for the steps of one scope alone."""
        self._held: list[Callable[[], None]] = []

    def hold(self, send: Callable[[], None]) -> None:
        """Call a function before the next write, read or flush of this scope.

        It defers what was held back until then, so that several changes become one step. Only
        shared steps may overtake it.
        """
        self._held.append(send)

    def send_held(self) -> None:
        """Defer what was held back."""
        while self._held:
            self._held.pop(0)()

    def fail(self, problem: BaseException) -> None:
        """No later write of this scope may succeed; the first problem is the one to report."""
        self.problem = self.problem or problem


_CURRENT_SCOPE: ContextVar[WriteScope | None] = ContextVar("evoclaw_write_scope", default=None)


@contextmanager
def write_scope() -> Generator[WriteScope]:
    """Put all writes of the block, and of the tasks it starts, into one new scope."""
    scope = WriteScope()
    token = _CURRENT_SCOPE.set(scope)
    try:
        yield scope
    finally:
        _CURRENT_SCOPE.reset(token)


def current_write_scope() -> WriteScope | None:
    """The scope of a write that is requested here."""
    return _CURRENT_SCOPE.get()


def scope_of_next_write() -> WriteScope | None:
    """The scope of a write that is requested here, after all that it held back."""
    scope = _CURRENT_SCOPE.get()
    if scope is not None:
        scope.send_held()
    return scope


MAX_BATCH_REQUESTS = 256
"""Requests that share one commit; with more, the first would wait too long for the last."""


class DeferredResult:
    """Stands for the future of a deferred step, whose caller does not wait.

    It gives the result to a function, and an error to the scope or to another function.
    """

    def __init__(
        self, scope: WriteScope, on_result: OnResult | None, on_failure: OnFailure | None = None
    ) -> None:
        """Choose who gets the result.

        Args:
            scope: Fails with the step.
            on_result: Gets the result; again, if the step had to be repeated.
            on_failure: Gets the error, instead of the scope.
        """
        self.scope, self._on_result, self._on_failure = scope, on_result, on_failure

    def done(self) -> bool:
        """False: the result is always wanted."""
        return False

    def set_result(self, result: Any) -> None:
        """Give the result to the function; what it raises is for the scope."""
        if self._on_result is not None:
            try:
                self._on_result(result)
            except EvoClawError as problem:
                self.scope.fail(problem)

    def set_exception(self, problem: BaseException) -> None:
        """Give an error to the function for it, or to the scope."""
        (self._on_failure or self.scope.fail)(problem)


PendingResult: TypeAlias = "asyncio.Future[Any] | DeferredResult"
"""Where the result of a request goes."""


class WriteRequest:
    """A function to run in a transaction, and the future of its caller.

    Reads are requests too, with `writes` false. Without a function it only waits for the commit.
    """

    __slots__ = (
        "changes_once",
        "deferred",
        "future",
        "problem",
        "result",
        "scope",
        "wait",
        "work",
        "writes",
    )

    def __init__(
        self,
        work: Work[Any] | None,
        future: PendingResult,
        *,
        writes: bool,
        wait: bool = True,
        scope: WriteScope | None = None,
        changes_once: bool = False,
    ) -> None:
        self.work, self.future, self.writes, self.wait = work, future, writes, wait
        self.scope, self.changes_once = scope, changes_once
        self.result: Any = None
        self.problem: BaseException | None = None
        self.deferred = False
        """Its commit is deferred: the result was returned already, so the write must be kept."""

    def attempt(self, connection: Connection) -> None:
        """Run it; an error is for its caller, not for the other requests of the batch."""
        self.problem = None
        try:
            if self.scope is not None and self.scope.problem is not None:
                raise self.scope.problem
            self.result = None if self.work is None else self.work(connection)
        except BaseException as problem:
            self.problem = problem

    def resolve(self, explain: Callable[[BaseException], BaseException]) -> None:
        """Give the caller the result or the error."""
        resolve(self.future, self.result, self.problem and explain(self.problem))


def resolve(future: PendingResult, result: Any, problem: BaseException | None) -> None:
    """Give a result or an error to a caller that still waits."""
    if future.done():
        return
    if problem is None:
        future.set_result(result)
    elif isinstance(problem, StopIteration):
        future.set_exception(RuntimeError("work raised StopIteration"))
    else:
        future.set_exception(problem)


class DeferredCommitFailed(StoreError):
    """A deferred commit failed for good: this process writes nothing more to the database."""

    def __init__(self, name: str, problem: BaseException) -> None:
        super().__init__(
            f"{name}: a deferred commit failed and could not be repeated ({problem}); this process "
            "writes nothing more. Restart it to continue from what is stored"
        )


def attempt_all(
    connection: Connection,
    requests: Iterable[WriteRequest],
    *,
    savepoints: bool,
    check_transaction: Callable[[WriteRequest], None],
) -> bool:
    """Run requests in the open transaction; False if one failed and all must be rolled back.

    Args:
        connection: In a transaction.
        requests: The requests, in order.
        savepoints: Whether to use savepoints, so that only what fails is rolled back.
        check_transaction: Raises if a request ended the transaction.
    """
    requests = list(requests)
    if not savepoints:
        return _first_failed(connection, requests, check_transaction) is None
    _attempt_with_savepoints(connection, requests, check_transaction)
    return True


def _attempt_with_savepoints(
    connection: Connection,
    requests: Sequence[WriteRequest],
    check_transaction: Callable[[WriteRequest], None],
) -> None:
    """Roll back what fails. Failures are rare: one savepoint covers all up to the next failure."""
    if all(request.changes_once for request in requests):
        for request in requests:
            _first_failed(connection, (request,), check_transaction)
        return
    while requests:
        connection.execute("SAVEPOINT one")
        failed = _first_failed(connection, requests, check_transaction)
        if failed is not None:
            connection.execute("ROLLBACK TO SAVEPOINT one")
        connection.execute("RELEASE SAVEPOINT one")
        if failed is None:
            return
        # Those before it were sound, and were rolled back with it.
        _attempt_with_savepoints(connection, requests[:failed], check_transaction)
        requests = requests[failed + 1 :]


def _first_failed(
    connection: Connection,
    requests: Sequence[WriteRequest],
    check_transaction: Callable[[WriteRequest], None],
) -> int | None:
    for number, request in enumerate(requests):
        request.attempt(connection)
        check_transaction(request)
        if request.problem is not None:
            return number
    return None

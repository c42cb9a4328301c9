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

from evoclaw.store.databases.database import Connection, StoreError, StoreUnavailable, Work
from evoclaw.store.databases.notices import Notice


class WriteScope:
    """Writes that depend on each other; `lost` once one of them could not be committed.

    A deferred write returns before it is committed. If its connection is lost and the write cannot
    be repeated, as when another process used up a budget meanwhile, no later write of its scope may
    succeed. A run is one write scope: it is suspended, and resumes from what is stored.
    """

    __slots__ = ("lost",)

    def __init__(self) -> None:
        self.lost = False


_CURRENT_SCOPE: ContextVar[WriteScope | None] = ContextVar("evoclaw_write_scope", default=None)


@contextmanager
def write_scope() -> Generator[WriteScope]:
    """Put all writes of the block, and of the tasks it starts, into one new scope."""
    strand = WriteScope()
    token = _CURRENT_SCOPE.set(strand)
    try:
        yield strand
    finally:
        _CURRENT_SCOPE.reset(token)


def current_write_scope() -> WriteScope | None:
    """The scope of a write that is requested here."""
    return _CURRENT_SCOPE.get()


MAX_BATCH_REQUESTS = 256
"""Requests that share one commit; with more, the first would wait too long for the last."""


Resolution: TypeAlias = tuple[asyncio.Future[Any], Any, BaseException | None]
"""The future of a request, with its result or its error."""


class WriteRequest:
    """A function to run in a transaction, and the future of its caller.

    Reads are requests too, with `writes` false.
    """

    def __init__(
        self,
        work: Work[Any],
        future: asyncio.Future[Any],
        *,
        writes: bool,
        wait: bool = True,
        notices: Sequence[Notice] = (),
    ) -> None:
        self.work, self.future, self.writes, self.wait = work, future, writes, wait
        self.notices, self.scope = notices, current_write_scope()
        self.result: Any = None
        self.problem: BaseException | None = None
        self.deferred = False
        """Its commit is deferred: the result was returned already, so the write must be kept."""
        self.resolved = False
        """The caller has its result."""

    @property
    def scope_lost(self) -> bool:
        """Whether an earlier write of its scope was lost."""
        return self.scope is not None and self.scope.lost

    def attempt(self, connection: Connection) -> None:
        """Run it; an error is for its caller, not for the other requests of the batch."""
        self.problem = None
        try:
            if self.scope_lost:
                raise StoreUnavailable("an earlier write that this one depends on was lost")
            self.result = self.work(connection)
        except BaseException as problem:
            self.problem = problem

    def resolve(self, explain: Callable[[BaseException], BaseException]) -> None:
        """Give the caller the result or the error."""
        resolve(self.future, self.result, self.problem and explain(self.problem))


def resolve(future: asyncio.Future[Any], result: Any, problem: BaseException | None) -> None:
    """Give a result or an error to a caller that still waits."""
    if future.done():
        return
    if problem is None:
        future.set_result(result)
    elif isinstance(problem, StopIteration):
        future.set_exception(RuntimeError("work raised StopIteration"))
    else:
        future.set_exception(problem)


def resolve_all(resolutions: Iterable[Resolution]) -> None:
    """Give each caller its result, in order."""
    for answer in resolutions:
        resolve(*answer)


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

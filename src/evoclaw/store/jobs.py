"""Work that waits for a database, and how several of one transaction are kept apart."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from evoclaw.store.database import Connection, StoreError, Work

LARGEST_BATCH = 256
"""Writes that share one commit; more of them would make the first wait for the last."""


class Job:
    """One thing to do, and who waits for it."""

    __slots__ = ("answer", "answered", "problem", "promised", "result", "wait", "work", "writes")

    def __init__(
        self, work: Work[Any], answer: asyncio.Future[Any], *, writes: bool, wait: bool = True
    ) -> None:
        self.work, self.answer, self.writes, self.wait = work, answer, writes, wait
        self.result: Any = None
        self.problem: BaseException | None = None
        self.promised = False
        """Its result was returned before it was committed: it must be."""
        self.answered = False
        """There is nothing left to say to the one who asked."""

    def attempt(self, connection: Connection) -> None:
        """Do it; what goes wrong is for the one who asked, not for the others of its batch."""
        self.problem = None
        try:
            self.result = self.work(connection)
        except BaseException as problem:
            self.problem = problem

    def resolve(self, explain: Callable[[BaseException], BaseException]) -> None:
        """Tell the one who asked."""
        resolve(self.answer, self.result, self.problem and explain(self.problem))


def resolve(answer: asyncio.Future[Any], result: Any, problem: BaseException | None) -> None:
    """Give a result, or say what went wrong, to whoever still waits."""
    if answer.done():
        return
    if problem is None:
        answer.set_result(result)
    elif isinstance(problem, StopIteration):
        answer.set_exception(RuntimeError("work raised StopIteration"))
    else:
        answer.set_exception(problem)


class Broken(StoreError):
    """What was promised to be kept cannot be: nothing more is written by this process."""

    def __init__(self, name: str, problem: BaseException) -> None:
        super().__init__(
            f"{name}: a write that was to be committed with a later one could not be done again "
            f"({problem}); nothing more is written, begin anew to go on from what is stored"
        )


def attempt_all(
    connection: Connection, jobs: Iterable[Job], *, marks: bool, alive: Callable[[Job], None]
) -> bool:
    """Do writes in an open transaction; False if one failed, and all are to be undone.

    Args:
        connection: In a transaction.
        jobs: In order.
        marks: Whether each is marked, to be undone alone. It would cost a quarter of a write, and
            few fail: it is done when one has.
        alive: Raises if the transaction did not outlive a job.
    """
    for job in jobs:
        if marks:
            connection.execute("SAVEPOINT one")
        job.attempt(connection)
        alive(job)
        if job.problem is not None and not marks:
            return False
        if job.problem is not None:
            connection.execute("ROLLBACK TO SAVEPOINT one")
        if marks:
            connection.execute("RELEASE SAVEPOINT one")
    return True

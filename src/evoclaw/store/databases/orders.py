"""Work that waits for a database, and how several of one transaction are kept apart."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from evoclaw.store.databases.database import Connection, StoreAway, StoreError, Work
from evoclaw.store.databases.notices import Notice
from evoclaw.store.databases.strands import strand_here

LARGEST_BATCH = 256
"""Writes that share one commit; more of them would make the first wait for the last."""


Answer: TypeAlias = tuple[asyncio.Future[Any], Any, BaseException | None]
"""Who asked, and what it is told: a result, or what went wrong."""


class Order:
    """One thing to do, and who waits for it."""

    __slots__ = (
        "answer", "answered", "problem", "promised", "result", "strand", "tells", "wait", "work",
        "writes",
    )  # fmt: skip

    def __init__(
        self,
        work: Work[Any],
        answer: asyncio.Future[Any],
        *,
        writes: bool,
        wait: bool = True,
        tells: Sequence[Notice] = (),
    ) -> None:
        self.work, self.answer, self.writes, self.wait = work, answer, writes, wait
        self.tells, self.strand = tells, strand_here()
        self.result: Any = None
        self.problem: BaseException | None = None
        self.promised = False
        """Its result was returned before it was committed: it must be."""
        self.answered = False
        """There is nothing left to say to the one who asked."""

    @property
    def is_lost(self) -> bool:
        """Whether something was lost that it relies on."""
        return self.strand is not None and self.strand.lost

    def attempt(self, connection: Connection) -> None:
        """Do it; what goes wrong is for the one who asked, not for the others of its batch."""
        self.problem = None
        try:
            if self.is_lost:
                raise StoreAway("what this was to go on from was lost with its connection")
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


def resolve_all(answers: Iterable[Answer]) -> None:
    """Give each its result, in order."""
    for answer in answers:
        resolve(*answer)


class Broken(StoreError):
    """What was promised to be kept cannot be: nothing more is written by this process."""

    def __init__(self, name: str, problem: BaseException) -> None:
        super().__init__(
            f"{name}: a write that was to be committed with a later one could not be done again "
            f"({problem}); nothing more is written, begin anew to go on from what is stored"
        )


def attempt_all(
    connection: Connection, orders: Iterable[Order], *, marks: bool, alive: Callable[[Order], None]
) -> bool:
    """Do writes in an open transaction; False if one failed, and all are to be undone.

    Args:
        connection: In a transaction.
        orders: One after the other.
        marks: Whether what fails is undone alone, and the rest kept.
        alive: Raises if the transaction did not outlive an order.
    """
    orders = list(orders)
    if not marks:
        return _first_failed(connection, orders, alive) is None
    _keep_sound(connection, orders, alive)
    return True


def _keep_sound(
    connection: Connection, orders: Sequence[Order], alive: Callable[[Order], None]
) -> None:
    """Undo what fails. Few do: marked are not single ones, but all from one failure to the next."""
    while orders:
        connection.execute("SAVEPOINT one")
        failed = _first_failed(connection, orders, alive)
        if failed is not None:
            connection.execute("ROLLBACK TO SAVEPOINT one")
        connection.execute("RELEASE SAVEPOINT one")
        if failed is None:
            return
        # Those before it were sound, and were undone with it.
        _keep_sound(connection, orders[:failed], alive)
        orders = orders[failed + 1 :]


def _first_failed(
    connection: Connection, orders: Sequence[Order], alive: Callable[[Order], None]
) -> int | None:
    for number, order in enumerate(orders):
        order.attempt(connection)
        alive(order)
        if order.problem is not None:
            return number
    return None

"""Places for calls that run: first come, first served; how many there are may change meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Ticket:
    """One call's turn, drawn when it came."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def has_place(self) -> bool:
        """Whether it is this call's turn."""
        return self._turn.done()

    async def wait(self) -> None:
        """Wait for the place."""
        if not self._turn.done():
            await asyncio.wait([self._turn])

    def give(self) -> None:
        """It is its turn."""
        self._turn.set_result(None)

    def leave(self) -> None:
        """Give the place back, or the turn up; may be said twice."""
        self._places.leave(self)


class Places:
    """Hands out places in the order in which tickets were drawn."""

    def __init__(self, most: Callable[[], int]) -> None:
        self._most = most
        self._taken: set[Ticket] = set()
        self._waiting: dict[Ticket, None] = {}

    def draw(self) -> Ticket:
        """A ticket for a call that came just now."""
        ticket = Ticket(self)
        self._waiting[ticket] = None
        self.changed()
        return ticket

    def leave(self, ticket: Ticket) -> None:
        """Take a ticket back."""
        self._waiting.pop(ticket, None)
        self._taken.discard(ticket)
        self.changed()

    def changed(self) -> None:
        """Hand out what is free: there may be more places than before."""
        while self._waiting and len(self._taken) < self._most():
            ticket = next(iter(self._waiting))
            del self._waiting[ticket]
            self._taken.add(ticket)
            ticket.give()

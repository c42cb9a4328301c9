"""`CallSlots`: limits concurrent calls, first come first served; the limit may change meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class SlotTicket:
    """A call's position in the queue for a slot."""

    def __init__(self, slots: CallSlots) -> None:
        self._slots = slots
        self._turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def has_slot(self) -> bool:
        """Whether the call has a slot."""
        return self._turn.done()

    async def wait(self) -> None:
        """Wait for a slot."""
        if not self._turn.done():
            await asyncio.wait([self._turn])

    def grant(self) -> None:
        """Give it a slot."""
        self._turn.set_result(None)

    def leave(self) -> None:
        """Release the slot, or leave the queue; may be called twice."""
        self._slots.leave(self)


class CallSlots:
    """Assigns slots in the order of the tickets."""

    def __init__(self, most: Callable[[], int]) -> None:
        self._most = most
        self._taken: set[SlotTicket] = set()
        self._waiting: dict[SlotTicket, None] = {}

    def enqueue(self) -> SlotTicket:
        """A ticket for a new call."""
        ticket = SlotTicket(self)
        self._waiting[ticket] = None
        self.changed()
        return ticket

    def leave(self, ticket: SlotTicket) -> None:
        """Remove a ticket."""
        self._waiting.pop(ticket, None)
        self._taken.discard(ticket)
        self.changed()

    def changed(self) -> None:
        """Assign free slots: the limit may have grown."""
        while self._waiting and len(self._taken) < self._most():
            ticket = next(iter(self._waiting))
            del self._waiting[ticket]
            self._taken.add(ticket)
            ticket.grant()

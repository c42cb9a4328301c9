"""The way to each edge: as many commands at once as it takes, in the order they were stored.

What was published counts as under way until its outcome is in. It is published again while nobody
has accepted it, and when an edge that had it falls silent: the broker's word for it is worth
nothing, and an edge that has it already says so and does not begin it twice.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence

from evoclaw.core.errors import EvoClawError
from evoclaw.transport.link import Link, LinkDown, TooLarge
from evoclaw.transport.outbox import Backlog, Wanted
from evoclaw.transport.topics import Kind, topic

AGAIN = (2.0, 4.0, 8.0, 15.0)
"""Seconds until a command that nobody has accepted is published again; the last one repeats."""
SILENCE = 30.0
"""Seconds after the last word on an accepted command when it counts as lost: three of the edge's
words are missing. It is asked for again, and waited for as before."""
WINDOW = 32
"""Commands under way to an edge that does not say how many it takes."""


class _Flight:
    """A command under way."""

    __slots__ = ("accepted", "lost", "payload", "stored", "timer", "tries")

    def __init__(self, payload: bytes, *, stored: bool) -> None:
        self.payload, self.stored = payload, stored
        self.accepted = self.lost = False
        self.tries = 0
        self.timer: asyncio.TimerHandle | None = None


class _Lane:
    """The way to one edge."""

    __slots__ = ("behind", "feeding", "flights", "jobs", "there", "window")

    def __init__(self) -> None:
        self.window = WINDOW
        self.flights: dict[str, _Flight] = {}
        self.there: set[str] = set()
        """What the edge said it has, when it said hello last."""
        self.jobs: set[str] = set()
        """What it has begun and goes on by itself."""
        self.behind = False
        """The store may have more for this edge than is under way."""
        self.feeding = False

    @property
    def has_room(self) -> bool:
        return len(self.flights) < self.window


Spawn = Callable[[Coroutine[object, object, None]], None]
Unsendable = Callable[[str, str, TooLarge], Awaitable[None]]
"""Told the agent, the id and why when a stored command cannot be published at all."""


class Lanes:
    """The ways to all edges."""

    def __init__(
        self,
        link: Link,
        backlog: Backlog,
        *,
        reachable: Callable[[str], bool],
        clock: Callable[[], float],
        spawn: Spawn,
        unsendable: Unsendable,
        again: Sequence[float] = AGAIN,
        silence: float = SILENCE,
    ) -> None:
        """Choose the parts.

        Args:
            link: The way to the broker.
            backlog: The stored commands.
            reachable: Whether an agent is there.
            clock: The time of day; deadlines are told by it.
            spawn: Does something beside the rest.
            unsendable: Told of what can never be published.
            again: Seconds until what nobody accepted is published again; the last one repeats.
            silence: Seconds without a word after which what was accepted counts as lost.
        """
        self._link, self._backlog = link, backlog
        self._reachable, self._clock = reachable, clock
        self._spawn, self._unsendable = spawn, unsendable
        self._again, self._silence = tuple(again), silence
        self._lanes: dict[str, _Lane] = {}
        self.counts: Counter[str] = Counter()
        """What had to be said again, by reason."""

    def reserve(self, agent_id: str, request_id: str, payload: bytes) -> bool:
        """Take a place for a command that is being stored; False if it must wait its turn."""
        lane = self._lane(agent_id)
        if request_id in lane.flights:
            lane.flights[request_id].payload = payload
            return True
        if lane.behind or not lane.has_room or not self._reachable(agent_id):
            return False
        lane.flights[request_id] = _Flight(payload, stored=False)
        return True

    async def launch(self, agent_id: str, request_id: str) -> None:
        """Publish what has its place; it is stored by now."""
        flight = self._lane(agent_id).flights.get(request_id)
        if flight is not None:
            flight.stored = True
            await self._fly(agent_id, request_id, flight)

    def wake(self, agent_id: str) -> None:
        """Send what the store has for an edge, as far as it takes it."""
        lane = self._lane(agent_id)
        lane.behind = True
        if not lane.feeding and lane.has_room and self._reachable(agent_id):
            lane.feeding = True
            self._spawn(self._feed(agent_id, lane))

    def greeted(self, agent_id: str, there: Collection[str], room: int | None) -> None:
        """An edge said what it has: everything else that is under way is published once more."""
        lane = self._lane(agent_id)
        lane.there = set(there)
        lane.jobs &= lane.there
        here = sum(request_id in lane.there for request_id in lane.flights)
        lane.window = WINDOW if room is None else max(1, here + room)
        for request_id, flight in tuple(lane.flights.items()):
            if request_id in lane.there:
                self.heard(agent_id, request_id)
            elif flight.stored:
                flight.accepted, flight.tries = False, 0
                self._spawn(self._fly(agent_id, request_id, flight))
        self.wake(agent_id)

    def breathed(self, agent_id: str, room: int | None) -> None:
        """An edge said how many more it takes."""
        lane = self._lane(agent_id)
        if room is not None:
            lane.window = max(1, room + sum(flight.accepted for flight in lane.flights.values()))
            if lane.behind:
                self.wake(agent_id)

    def heard(self, agent_id: str, request_id: str) -> bool:
        """An edge has a command; whether that is news."""
        flight = self._lane(agent_id).flights.get(request_id)
        if flight is None:
            return False
        news, flight.accepted, flight.lost = not flight.accepted, True, False
        self._arm(agent_id, request_id, flight, self._silence)
        return news

    def parked(self, agent_id: str, request_id: str) -> None:
        """An edge has begun a job: it holds no place any longer, neither here nor there."""
        self.landed(agent_id, request_id)
        self._lane(agent_id).jobs.add(request_id)

    def landed(self, agent_id: str, request_id: str) -> None:
        """A command's outcome is in, or it is no longer waited for: the next one may go."""
        lane = self._lane(agent_id)
        lane.there.discard(request_id)
        lane.jobs.discard(request_id)
        flight = lane.flights.pop(request_id, None)
        if flight is not None and flight.timer is not None:
            flight.timer.cancel()
        if lane.behind and 2 * len(lane.flights) <= lane.window:
            # Not for each one: a look into the store is worth more than one command.
            self.wake(agent_id)

    def lost(self, agent_id: str) -> list[str]:
        """Commands that an edge accepted and has been silent about for too long."""
        return [one for one, flight in self._lane(agent_id).flights.items() if flight.lost]

    def close(self) -> None:
        """Let go of all timers."""
        for lane in self._lanes.values():
            for flight in lane.flights.values():
                if flight.timer is not None:
                    flight.timer.cancel()
        self._lanes.clear()

    async def publish(self, agent_id: str, payload: bytes) -> bool:
        """Publish to an edge; False when the link would not take it now."""
        try:
            await self._link.publish(topic(agent_id, Kind.COMMANDS), payload)
        except LinkDown:
            return False
        return True

    def _lane(self, agent_id: str) -> _Lane:
        lane = self._lanes.get(agent_id)
        return self._lanes.setdefault(agent_id, _Lane()) if lane is None else lane

    async def _feed(self, agent_id: str, lane: _Lane) -> None:
        try:
            while lane.behind and lane.has_room and self._reachable(agent_id):
                # Before looking: who stores something while we look says so once more.
                lane.behind = False
                known = len(lane.flights) + len(lane.there) + len(lane.jobs)
                limit = known + lane.window
                rows = await self._backlog.wanted(agent_id, self._clock(), limit)
                lane.behind = lane.behind or len(rows) == limit
                await self._send(agent_id, lane, rows)
        except EvoClawError:
            lane.behind = True
            self.counts["the store failed"] += 1
        finally:
            lane.feeding = False

    async def _send(self, agent_id: str, lane: _Lane, rows: Sequence[Wanted]) -> None:
        for row in rows:
            request_id = row.request_id
            if any(request_id in some for some in (lane.flights, lane.there, lane.jobs)):
                continue
            if not lane.has_room:
                lane.behind = True
                return
            flight = lane.flights[request_id] = _Flight(row.payload, stored=True)
            if row.state == "queued" and not await self._backlog.mark(request_id, "sent"):
                self.landed(agent_id, request_id)  # it was closed meanwhile
                continue
            await self._fly(agent_id, request_id, flight)

    async def _fly(self, agent_id: str, request_id: str, flight: _Flight) -> None:
        delay = self._again[min(flight.tries, len(self._again) - 1)]
        flight.tries += 1
        self._arm(agent_id, request_id, flight, self._silence if flight.accepted else delay)
        try:
            await self.publish(agent_id, flight.payload)
        except TooLarge as problem:
            await self._unsendable(agent_id, request_id, problem)

    def _arm(self, agent_id: str, request_id: str, flight: _Flight, seconds: float) -> None:
        if flight.timer is not None:
            flight.timer.cancel()
        loop = asyncio.get_running_loop()
        flight.timer = loop.call_later(seconds, self._due, agent_id, request_id, flight)

    def _due(self, agent_id: str, request_id: str, flight: _Flight) -> None:
        if self._lane(agent_id).flights.get(request_id) is not flight:
            return
        if flight.accepted and not flight.lost:
            flight.lost = True
            self.counts["lost"] += 1
        if self._reachable(agent_id):
            self.counts["published again"] += 1
            self._spawn(self._fly(agent_id, request_id, flight))
        else:  # it says hello when it is back
            self._arm(agent_id, request_id, flight, self._again[-1])

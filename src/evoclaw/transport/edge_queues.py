"""`EdgeQueues`: per-edge queues: as many commands in flight as an edge takes, in stored order.

A published command is in flight until its outcome is in. It is published again while the edge has
not accepted it, and when an edge that accepted it stops reporting progress: the broker's
acknowledgement does not count, and an edge that has the command already says so and does not start
it twice. An edge that speaks only the basic messages would start it twice: it gets each command
once.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence

from evoclaw.core.commands import CommandRow
from evoclaw.core.errors import EvoClawError
from evoclaw.transport.link import Link, LinkDown, TooLarge
from evoclaw.transport.outbox import Outbox
from evoclaw.transport.timer_queue import TimerQueue
from evoclaw.transport.topics import TopicKind, topic

PUBLISH_RETRY_DELAYS_S = (2.0, 4.0, 8.0, 15.0)
"""Delays before a command that the edge has not accepted is published again; the last repeats."""
PROGRESS_TIMEOUT_S = 30.0
"""How long after its last progress report an accepted command counts as lost: three reports are
missing. It is published again, and waited for as before."""
DEFAULT_WINDOW_COMMANDS = 32
"""Commands in flight to an edge that does not report its capacity."""


class _CommandInFlight:
    """A command in flight."""

    __slots__ = ("accepted", "due", "lost", "payload", "stored", "tries")

    def __init__(self, payload: bytes, *, stored: bool) -> None:
        self.payload, self.stored = payload, stored
        self.accepted = self.lost = False
        self.tries = 0
        self.due = math.inf
        """When it is published again, by the loop's clock."""


class _EdgeQueue:
    """The commands in flight to one edge."""

    __slots__ = ("has_backlog", "feeding", "in_flight", "jobs", "on_edge", "window")

    def __init__(self) -> None:
        self.window = DEFAULT_WINDOW_COMMANDS
        self.in_flight: dict[str, _CommandInFlight] = {}
        self.on_edge: set[str] = set()
        """The commands that the edge listed in its last hello."""
        self.jobs: set[str] = set()
        """Background jobs that the edge has started."""
        self.has_backlog = False
        """The store may have more commands for this edge than are in flight."""
        self.feeding = False

    @property
    def has_room(self) -> bool:
        return len(self.in_flight) < self.window


Spawn = Callable[[Coroutine[object, object, None]], None]
OnUnsendable = Callable[[str, str, TooLarge], Awaitable[None]]
"""Called with the agent, the id and the error when a stored command cannot be published."""


class EdgeQueues:
    """The per-edge queues of commands in flight."""

    def __init__(
        self,
        link: Link,
        backlog: Outbox,
        *,
        reachable: Callable[[str], bool],
        clock: Callable[[], float],
        spawn: Spawn,
        unsendable: OnUnsendable,
        refusal: Callable[[str], str] = lambda _: "",
        recognizes_repeats: Callable[[str], bool] = lambda _: True,
        retry_delays: Sequence[float] = PUBLISH_RETRY_DELAYS_S,
        progress_timeout: float = PROGRESS_TIMEOUT_S,
    ) -> None:
        """Set the dependencies.

        Args:
            link: The link to the broker.
            backlog: The stored commands.
            reachable: Whether an agent is online.
            clock: The time of day, for deadlines.
            spawn: Starts a background task.
            unsendable: Called with commands that can never be published.
            refusal: Why nothing may be sent to an agent; empty if it may.
            recognizes_repeats: Whether an agent does not start a command twice that it gets twice.
            retry_delays: Seconds until an unaccepted command is published again; the last repeats.
            progress_timeout: Seconds without progress after which an accepted command is lost.
        """
        self._link, self._backlog = link, backlog
        self._reachable, self._clock = reachable, clock
        self._spawn, self._unsendable = spawn, unsendable
        self._refusal, self._recognizes_repeats = refusal, recognizes_repeats
        self._retry_delays, self._progress_timeout = tuple(retry_delays), progress_timeout
        self._queues: dict[str, _EdgeQueue] = {}
        self._timers = TimerQueue[tuple[str, str]](self._due)
        self.counts: Counter[str] = Counter()
        """Commands that were published again, or were not, by reason."""

    def reserve(self, agent_id: str, request_id: str, payload: bytes) -> bool:
        """Reserve a slot for a command that is being stored; False if it must wait."""
        queue = self._queue(agent_id)
        if request_id in queue.in_flight:
            queue.in_flight[request_id].payload = payload
            return True
        if queue.has_backlog or not queue.has_room or not self._reachable(agent_id):
            return False
        queue.in_flight[request_id] = _CommandInFlight(payload, stored=False)
        return True

    async def publish_stored(self, agent_id: str, request_id: str) -> None:
        """Publish a command that has its slot; it is stored by now."""
        sent = self._queue(agent_id).in_flight.get(request_id)
        if sent is not None:
            sent.stored = True
            await self._publish_command(agent_id, request_id, sent)

    def wake(self, agent_id: str) -> None:
        """Send what the store has for an edge, up to its window."""
        queue = self._queue(agent_id)
        queue.has_backlog = True
        if not queue.feeding and queue.has_room and self._reachable(agent_id):
            queue.feeding = True
            self._spawn(self._feed(agent_id, queue))

    def on_hello(self, agent_id: str, on_edge: Collection[str], room: int | None) -> None:
        """Take an edge's list of commands: everything else in flight is published again."""
        queue = self._queue(agent_id)
        queue.on_edge = set(on_edge)
        queue.jobs &= queue.on_edge
        here = sum(request_id in queue.on_edge for request_id in queue.in_flight)
        queue.window = DEFAULT_WINDOW_COMMANDS if room is None else max(1, here + room)
        for request_id, sent in tuple(queue.in_flight.items()):
            if request_id in queue.on_edge:
                self.on_progress(agent_id, request_id)
            elif sent.stored:
                sent.accepted, sent.tries = False, 0
                self._spawn(self._publish_command(agent_id, request_id, sent))
        self.wake(agent_id)

    def on_heartbeat(self, agent_id: str, room: int | None) -> None:
        """Take an edge's report of its free capacity."""
        queue = self._queue(agent_id)
        if room is not None:
            queue.window = max(1, room + sum(sent.accepted for sent in queue.in_flight.values()))
        if queue.has_backlog or not self._recognizes_repeats(agent_id):  # it never says hello
            self.wake(agent_id)

    def on_progress(self, agent_id: str, request_id: str) -> bool:
        """Note that an edge has a command; whether that was not known."""
        sent = self._queue(agent_id).in_flight.get(request_id)
        if sent is None:
            return False
        news, sent.accepted, sent.lost = not sent.accepted, True, False
        self._arm(agent_id, request_id, sent, self._progress_timeout)
        return news

    def on_job_started(self, agent_id: str, request_id: str) -> None:
        """Note that an edge has started a job: it no longer takes a slot, here or on the edge."""
        self.completed(agent_id, request_id)
        self._queue(agent_id).jobs.add(request_id)

    def completed(self, agent_id: str, request_id: str) -> None:
        """Note that a command has its outcome, or is no longer awaited, and free its slot."""
        queue = self._queue(agent_id)
        queue.on_edge.discard(request_id)
        queue.jobs.discard(request_id)
        queue.in_flight.pop(request_id, None)
        if queue.has_backlog and 2 * len(queue.in_flight) <= queue.window:
            # Not for each command: one query of the store should fetch several.
            self.wake(agent_id)

    def lost(self, agent_id: str) -> list[str]:
        """Accepted commands without progress for too long."""
        return [
            request_id for request_id, sent in self._queue(agent_id).in_flight.items() if sent.lost
        ]

    def close(self) -> None:
        """Publish nothing again."""
        self._timers.close()
        self._queues.clear()

    async def publish(self, agent_id: str, payload: bytes) -> bool:
        """Publish to an edge; False when the link is down, or nothing may be sent to the edge."""
        if self._refusal(agent_id):
            self.counts["refused"] += 1
            return False
        try:
            await self._link.publish(topic(agent_id, TopicKind.COMMANDS), payload)
        except LinkDown:
            return False
        return True

    def _queue(self, agent_id: str) -> _EdgeQueue:
        queue = self._queues.get(agent_id)
        return self._queues.setdefault(agent_id, _EdgeQueue()) if queue is None else queue

    async def _feed(self, agent_id: str, queue: _EdgeQueue) -> None:
        try:
            while queue.has_backlog and queue.has_room and self._reachable(agent_id):
                # Before the query: a command stored during the query sets it again.
                queue.has_backlog = False
                known = len(queue.in_flight) + len(queue.on_edge) + len(queue.jobs)
                limit = known + queue.window
                rows = await self._backlog.wanted(agent_id, self._clock(), limit)
                queue.has_backlog = queue.has_backlog or len(rows) == limit
                await self._send(agent_id, queue, rows)
        except EvoClawError:
            queue.has_backlog = True
            self.counts["the store failed"] += 1
        finally:
            queue.feeding = False

    async def _send(self, agent_id: str, queue: _EdgeQueue, rows: Sequence[CommandRow]) -> None:
        for row in rows:
            request_id = row.request_id
            if any(request_id in some for some in (queue.in_flight, queue.on_edge, queue.jobs)):
                continue
            if not queue.has_room:
                queue.has_backlog = True
                return
            if row.state != "queued" and not self._recognizes_repeats(agent_id):
                continue  # it was sent before a restart, and may have run
            sent = queue.in_flight[request_id] = _CommandInFlight(row.payload, stored=True)
            if row.state == "queued" and not await self._backlog.mark(request_id, "sent"):
                self.completed(agent_id, request_id)  # closed meanwhile
                continue
            await self._publish_command(agent_id, request_id, sent)

    async def _publish_command(
        self, agent_id: str, request_id: str, sent: _CommandInFlight
    ) -> None:
        delay = self._retry_delays[min(sent.tries, len(self._retry_delays) - 1)]
        sent.tries += 1
        self._arm(agent_id, request_id, sent, self._progress_timeout if sent.accepted else delay)
        try:
            published = await self.publish(agent_id, sent.payload)
            if not published and not self._recognizes_repeats(agent_id):
                sent.tries = 0
        except TooLarge as problem:
            await self._unsendable(agent_id, request_id, problem)

    def _arm(self, agent_id: str, request_id: str, sent: _CommandInFlight, seconds: float) -> None:
        sent.due = asyncio.get_running_loop().time() + seconds
        self._timers.add(sent.due, (agent_id, request_id))

    def _due(self, command: tuple[str, str]) -> None:
        agent_id, request_id = command
        sent = self._queue(agent_id).in_flight.get(request_id)
        if sent is None or sent.due > asyncio.get_running_loop().time():
            return
        if sent.tries and not self._recognizes_repeats(agent_id):
            self.counts["not published again"] += 1
            return
        if sent.accepted and not sent.lost:
            sent.lost = True
            self.counts["lost"] += 1
        if self._reachable(agent_id):
            self.counts["published again"] += 1
            self._spawn(self._publish_command(agent_id, request_id, sent))
        else:  # it says hello when it is back
            self._arm(agent_id, request_id, sent, self._retry_delays[-1])

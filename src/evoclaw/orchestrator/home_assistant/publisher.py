"""Publishes the edges and agents for Home Assistant, and obeys the buttons of edges.

Several orchestrators of one broker publish the same retained messages, so they need no lease; each
result is published by the orchestrator that stored it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from secrets import token_hex

from msgspec.structs import replace

from evoclaw.core.errors import EvoClawError, ToolFailure
from evoclaw.governance.shared_stops import StopRegistry
from evoclaw.governance.stops import Stop, StopKind, Stops
from evoclaw.orchestrator.home_assistant.announced import (
    Announced,
    read_announced,
    write_announced,
)
from evoclaw.orchestrator.home_assistant.payloads import (
    PING,
    STOP,
    agent_device,
    describe_agent,
    describe_edge,
    edge_device,
    encode_result,
    encode_state,
    read_figures,
)
from evoclaw.orchestrator.home_assistant.settings import HomeAssistantSettings
from evoclaw.orchestrator.orchestrator import Orchestrator
from evoclaw.transport.link import Incoming, Link, LinkDown, Will
from evoclaw.transport.topics import (
    HomeAssistantTopic,
    discovery_topic,
    home_assistant_topic,
    read_button_topic,
)
from evoclaw.transport.wire import Outcome

logger = logging.getLogger(__name__)
POLL_INTERVAL_S = 0.5
"""Between two checks for changed edges."""
REFRESH_INTERVAL_S = 60.0
"""Between two queries for the figures of an edge, and after which states are published again."""
QUERY_TIMEOUT_S, QUERY_CONCURRENCY = 10.0, 20
MAX_WAITING_RESULTS = 1_000
"""Results that wait for the broker; the oldest are dropped."""


class HomeAssistantPublisher:
    """The orchestrator's side of MQTT discovery, on its own connection to the broker."""

    def __init__(
        self,
        settings: HomeAssistantSettings,
        link: Link,
        orchestrator: Orchestrator,
        *,
        folder: Path,
        agents: Sequence[str],
        refusal: Callable[[str], str],
        stops: Stops,
        stop_registry: StopRegistry,
        clock: Callable[[], float] = time.time,
        refresh_interval_s: float = REFRESH_INTERVAL_S,
    ) -> None:
        """Prepare to publish.

        Args:
            settings: What Home Assistant sees, and what it may do.
            link: Its own connection to the broker.
            orchestrator: Knows the edges.
            folder: The data folder, which remembers what was announced.
            agents: The agents that take messages of Home Assistant's account.
            refusal: Why an edge takes no part, such as that it was revoked; empty if it does.
            stops: Which edges are stopped.
            stop_registry: Stops an edge.
            clock: Unix seconds.
            refresh_interval_s: Between two queries for figures, and two messages of one state.
        """
        self._refresh_interval_s = refresh_interval_s
        self._settings, self._link, self._orchestrator = settings, link, orchestrator
        self._folder, self._agents, self._refusal = folder, tuple(agents), refusal
        self._stops, self._stop_registry, self._clock = stops, stop_registry, clock
        self._client_id = f"orchestrator-home-assistant-{token_hex(8)}"
        self._figures: dict[str, dict[str, float]] = {}
        self._sent: dict[str, bytes] = {}
        """What this connection published, by topic."""
        self._results: deque[tuple[str, bytes]] = deque(maxlen=MAX_WAITING_RESULTS)
        self._tasks: set[asyncio.Task[None]] = set()
        self._querying = asyncio.Semaphore(QUERY_CONCURRENCY)
        self.counts: Counter[str] = Counter()
        """Messages that were ignored, by reason."""

    async def run(self) -> None:
        """Publish until cancelled; if discovery is off, only remove what was announced before."""
        before = read_announced(self._folder)
        if not self._settings.discovery and before is None:
            return
        serving = asyncio.create_task(self._link.run(self))
        try:
            if not self._settings.discovery and before is not None:
                await self._remove(before)
                return
            self._orchestrator.requests.on_outcome(self._on_outcome)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._publish_changes(before))
                group.create_task(self._refresh_figures())
        finally:
            for task in (serving, *self._tasks):
                task.cancel()
            await asyncio.wait([serving, *self._tasks])

    @property
    def client_id(self) -> str:
        """A new id each time: two orchestrators never disconnect each other."""
        return self._client_id

    @property
    def subscriptions(self) -> Sequence[str]:
        """The buttons of all edges, as pressed by the account of Home Assistant."""
        account = self._settings.account
        if not account or not self._settings.discovery:
            return ()
        return (home_assistant_topic("+", HomeAssistantTopic.COMMAND, account),)

    def will(self) -> Will | None:
        """None: states expire, unless another orchestrator publishes them."""
        return None

    async def connected(self) -> None:
        """Publish everything again: the broker may have lost it."""
        self._sent.clear()

    def disconnected(self, reason: str) -> None:
        """Record it; the link reconnects."""
        self.counts["disconnected"] += 1

    def received(self, message: Incoming) -> None:
        """Take a pressed button."""
        found = read_button_topic(message.topic)
        if found is None or message.retained or found[1] != self._settings.account:
            # A retained press may be old.
            self.counts["no button"] += 1
            return
        edge, press = found[0], message.payload
        if self._orchestrator.fleet.find(edge) is None or self._refusal(edge):
            self.counts["unknown edge"] += 1
        elif press == PING.encode():
            self._spawn(self._ping(edge))
        elif press == STOP.encode():
            self._spawn(self._stop(edge))
        else:
            self.counts["unknown button"] += 1

    async def _ping(self, edge: str) -> None:
        try:
            outcome = await self._orchestrator.query(edge, "ping", seconds=QUERY_TIMEOUT_S)
        except (ToolFailure, EvoClawError):
            self._add_result(edge, "no_answer")
        else:
            self._add_result(edge, "no_answer" if outcome.error else "pong")

    async def _stop(self, edge: str) -> None:
        by = self._settings.account
        stop = Stop(StopKind.AGENT, edge, "stopped in Home Assistant", by, self._clock())
        try:
            await self._stop_registry.put(stop)
        except EvoClawError as problem:
            logger.error("Home Assistant asked to stop the edge %s: %s", edge, problem)
        else:
            logger.warning("the edge %s was stopped in Home Assistant, by %s", edge, by)

    def _on_outcome(self, edge: str, outcome: Outcome) -> None:
        failed = bool(outcome.error) or outcome.status == "error"
        self._add_result(edge, "error" if failed else "success")

    def _add_result(self, edge: str, event_type: str) -> None:
        self._results.append((edge, encode_result(event_type, self._clock())))

    async def _publish_changes(self, before: Announced | None) -> None:
        settings, kept = self._settings, before
        if kept is None or (kept.prefix, kept.account) != (settings.prefix, settings.account):
            if kept is not None:
                await self._remove(kept)
            kept = Announced(settings.prefix, settings.account)
        refreshed = time.monotonic()
        while True:
            if time.monotonic() - refreshed >= self._refresh_interval_s:
                # States expire, also those of offline edges.
                refreshed = time.monotonic()
                for edge in kept.edges:
                    self._sent.pop(home_assistant_topic(edge, HomeAssistantTopic.STATE), None)
            if self._link.is_up:
                try:
                    kept = await self._publish(kept)
                except LinkDown:
                    self.counts["not published"] += 1  # published again when it is connected
            await asyncio.sleep(POLL_INTERVAL_S)

    async def _publish(self, kept: Announced) -> Announced:
        """Publish what changed; returns what is announced now."""
        wanted = self._wanted(kept)
        if wanted != kept:
            # Before the messages: after a crash, each of them can still be removed.
            gone = set(kept.topics()) - set(wanted.topics())
            agents = tuple({*kept.agents, *wanted.agents})
            both = replace(wanted, edges=kept.edges | wanted.edges, agents=agents)
            write_announced(self._folder, both)
            await self._clear(gone)
            write_announced(self._folder, wanted)
        for topic, payload in self._messages(wanted).items():
            if self._sent.get(topic) != payload:
                await self._link.publish(topic, payload, retain=True)
                self._sent[topic] = payload
        while self._results:
            edge, payload = self._results[0]
            if edge in wanted.edges:
                topic = home_assistant_topic(edge, HomeAssistantTopic.RESULT)
                await self._link.publish(topic, payload, retain=True)
            self._results.popleft()
        return wanted

    def _wanted(self, kept: Announced) -> Announced:
        """All edges that take part: those that are known, and those that were before a restart."""
        members = [member.agent_id for member in self._orchestrator.fleet.members()]
        edges: dict[str, tuple[str, ...]] = {}
        for edge in sorted({*kept.edges, *members}):
            if not self._refusal(edge):
                figures = {*kept.edges.get(edge, ()), *self._figures.get(edge, ())}
                edges[edge] = tuple(sorted(figures))
        return replace(kept, edges=edges, agents=self._agents)

    def _messages(self, announced: Announced) -> dict[str, bytes]:
        prefix, account = announced.prefix, announced.account
        messages: dict[str, bytes] = {}
        for edge, figures in announced.edges.items():
            described = describe_edge(edge, figures, account)
            messages[discovery_topic(prefix, edge_device(edge))] = described
            messages[home_assistant_topic(edge, HomeAssistantTopic.STATE)] = encode_state(
                self._figures.get(edge, {}),
                online=self._orchestrator.fleet.is_online(edge),
                stopped=self._stops.stop_for_device(edge) is not None,
            )
        for agent in announced.agents:
            described = describe_agent(agent, account)
            messages[discovery_topic(prefix, agent_device(agent))] = described
        return messages

    async def _remove(self, announced: Announced) -> None:
        """Remove everything that was announced; retry until the broker has it."""
        while True:
            try:
                await self._clear(set(announced.topics()))
            except LinkDown:
                await asyncio.sleep(POLL_INTERVAL_S)
            else:
                return write_announced(self._folder, None)

    async def _clear(self, topics: set[str]) -> None:
        for topic in sorted(topics):
            await self._link.publish(topic, b"", retain=True)
            self._sent.pop(topic, None)

    async def _refresh_figures(self) -> None:
        asked: dict[str, float] = {}
        while True:
            now = time.monotonic()
            for member in self._orchestrator.fleet.online():
                edge = member.agent_id
                if edge not in asked or now - asked[edge] >= self._refresh_interval_s:
                    asked[edge] = now
                    self._spawn(self._read_figures(edge))
            await asyncio.sleep(POLL_INTERVAL_S)

    async def _read_figures(self, edge: str) -> None:
        async with self._querying:
            try:
                outcome = await self._orchestrator.query(
                    edge, "get_metrics", seconds=QUERY_TIMEOUT_S
                )
            except (ToolFailure, EvoClawError):
                self.counts["no figures"] += 1
            else:
                self._figures[edge] = read_figures(outcome.result)

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

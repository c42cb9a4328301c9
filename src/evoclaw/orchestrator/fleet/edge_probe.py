"""Pings the edges that calls wait for: a machine that lost its power or network sends no will."""

from __future__ import annotations

import asyncio
from secrets import token_hex

from evoclaw.core.errors import ToolFailure
from evoclaw.orchestrator.fleet.fleet import Fleet
from evoclaw.transport.requests import Requests
from evoclaw.transport.wire import Command

PROBE_INTERVAL_S = 1.0
"""Seconds between two rounds; a call is that old before its edge is pinged."""
PROBE_TIMEOUT_S = 2.0
"""Seconds without an answer after which the callers are told that the edge is offline."""


class EdgeProbe:
    """Tells the callers of an edge soon when it does not answer, and when it does again.

    The edge counts as online until the broker or its missing heartbeats say otherwise.
    """

    def __init__(
        self,
        fleet: Fleet,
        requests: Requests,
        *,
        interval_s: float = PROBE_INTERVAL_S,
        timeout_s: float = PROBE_TIMEOUT_S,
    ) -> None:
        self._fleet, self._requests = fleet, requests
        self._interval_s, self._timeout_s = interval_s, timeout_s

    async def run(self) -> None:
        """Probe until cancelled."""
        probes: dict[str, asyncio.Task[None]] = {}
        try:
            while True:
                await asyncio.sleep(self._interval_s)
                probes = {name: probe for name, probe in probes.items() if not probe.done()}
                for agent_id in self._requests.awaited_agents(self._interval_s):
                    if agent_id not in probes and self._answers_pings(agent_id):
                        probes[agent_id] = asyncio.create_task(self._probe(agent_id))
        finally:
            for probe in probes.values():
                probe.cancel()
            if probes:
                await asyncio.wait(probes.values())

    def _answers_pings(self, agent_id: str) -> bool:
        """Whether an edge should answer: it is online and greeted us as edges of EvoClaw do."""
        member = self._fleet.find(agent_id)
        return member is not None and member.online and member.last_hello is not None

    async def _probe(self, agent_id: str) -> None:
        ping = Command("ping", {}, f"ping-{token_hex(8)}")
        try:
            await self._requests.query(agent_id, ping, self._timeout_s)
            answers = True
        except ToolFailure:
            answers = False
        if self._fleet.is_online(agent_id):  # otherwise the callers know already
            self._requests.on_presence(agent_id, online=answers)

"""Acknowledgements: gathered for a moment, then one message for many results."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

from evoclaw.core.messages import JSON
from evoclaw.transport.wire import Command

AFTER = 0.02
"""Seconds that they are gathered."""
MOST = 500
"""In one message."""


class Acks:
    """What is to be acknowledged, by agent. One that gets lost is asked for by a resend."""

    def __init__(
        self,
        send: Callable[[str, Command], Coroutine[object, object, bool]],
        spawn: Callable[[Coroutine[object, object, None]], None],
    ) -> None:
        self._send, self._spawn = send, spawn
        self._waiting: dict[str, list[str]] = {}

    def add(self, agent_id: str, request_id: str) -> None:
        """Acknowledge a result soon."""
        waiting = self._waiting.setdefault(agent_id, [])
        waiting.append(request_id)
        if len(waiting) == 1:
            asyncio.get_running_loop().call_later(AFTER, self._due, agent_id)

    def flush(self) -> None:
        """Acknowledge everything now."""
        for agent_id in tuple(self._waiting):
            self._due(agent_id)

    def _due(self, agent_id: str) -> None:
        if agent_id in self._waiting:
            self._spawn(self._say(agent_id))

    async def _say(self, agent_id: str) -> None:
        ids = self._waiting.pop(agent_id, [])
        for start in range(0, len(ids), MOST):
            some: JSON = ids[start : start + MOST]
            await self._send(agent_id, Command("result_ack", {"request_ids": some}))

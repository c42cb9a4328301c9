"""The emergency stop for edges: a stopped edge is sent no more work, and its work is cancelled."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

from evoclaw.core.errors import EvoClawError, ToolFailure
from evoclaw.core.messages import ErrorKind
from evoclaw.core.tools import Call
from evoclaw.executors.edge import Grants, ungranted
from evoclaw.governance.stops import STOPS_POLL_INTERVAL_S, Stops
from evoclaw.orchestrator.orchestrator import Orchestrator
from evoclaw.store.calls.commands import CommandStore
from evoclaw.transport.wire import Command

WORK_COMMANDS = frozenset({"tool", "execute", "prompt"})
"""Commands that start work; others, such as `cancel`, still reach a stopped edge."""
MAX_CANCEL_ROUNDS = 3
"""How often the work of a stopped edge is cancelled: another process may just have sent some."""


class StoppableGrants:
    """Signs no work for a stopped edge, tool or agent, whichever way the call came."""

    def __init__(self, stops: Stops, grants: Grants = ungranted) -> None:
        self._stops, self._grants = stops, grants

    def __call__(self, agent_id: str, command: Command, call: Call | None) -> str:
        """Return the grant; `ToolFailure` if the edge, the tool or everything is stopped."""
        if command.command in WORK_COMMANDS:
            stop = self._stops.stop_for_device(agent_id, call)
            if stop is not None:
                text = (
                    f"Error: Nothing was sent to {agent_id!r}: {stop.description}. Tell the user."
                )
                raise ToolFailure(ErrorKind.PERMISSION_DENIED, text)
        return self._grants(agent_id, command, call)


@asynccontextmanager
async def enforce_stops(
    stops: Stops,
    orchestrator: Orchestrator,
    store: CommandStore,
    *,
    interval_s: float = STOPS_POLL_INTERVAL_S,
    clock: Callable[[], float] = time.time,
) -> AsyncGenerator[None]:
    """While the block runs, cancel the work of every edge as soon as it is stopped.

    This covers all open calls, prompts and jobs in the store, of any process. Unsent commands are
    never sent; an edge that is offline gets the cancellation when it is back online.
    """
    done: dict[str, int] = {}

    async def watch() -> None:
        while True:
            known = {member.agent_id for member in orchestrator.fleet.members()}
            stopped = {
                name for name in known | set(stops.stopped_agents()) if stops.stop_for_device(name)
            }
            for released in done.keys() - stopped:
                del done[released]
            for agent_id in sorted(stopped):
                if done.setdefault(agent_id, 0) < MAX_CANCEL_ROUNDS:
                    done[agent_id] += await _cancel_work(orchestrator, store, agent_id, clock())
            await asyncio.sleep(interval_s)

    watching = asyncio.create_task(watch(), name="emergency stops")
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.wait([watching])


async def _cancel_work(
    orchestrator: Orchestrator, store: CommandStore, agent_id: str, now: float
) -> int:
    """Cancel the work of an edge; 0 if the store failed, so that it is tried again."""
    try:
        wanted = await store.wanted(agent_id, now)
    except EvoClawError:
        return 0
    requests = orchestrator.requests
    await asyncio.gather(*(requests.cancel(agent_id, row.request_id) for row in wanted))
    return 1

"""Getting to know what an edge can do: the schemas of its tools, page by page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from secrets import token_hex

import msgspec

from evoclaw.core.errors import EvoClawError, ToolFailure
from evoclaw.core.messages import JSON, is_array, is_object
from evoclaw.core.tools import Tool
from evoclaw.orchestrator.fleet.fleet import MOST_TOOLS, Fleet
from evoclaw.transport.requests import Requests
from evoclaw.transport.wire import Command

PAGES = 50
"""Answers that are read from one edge."""


TRIES = 3
"""How often at once, while an edge's tools go on changing."""


class Surveying:
    """Asks edges for their tools, each once at a time."""

    def __init__(self, fleet: Fleet, requests: Requests, counts: Counter[str]) -> None:
        self._fleet, self._requests, self._counts = fleet, requests, counts
        self._asking: set[str] = set()

    async def look_at(self, agent_id: str) -> None:
        """Have an edge's tools known as it advertises them now."""
        if agent_id in self._asking:
            return
        self._asking.add(agent_id)
        member = self._fleet.member(agent_id)
        try:
            for _ in range(TRIES):
                advertised = member.hashes
                shown = await self._ask(agent_id)
                await self._take(agent_id, shown, advertised)
                if not member.outdated:
                    break  # otherwise they changed while we asked
        except ToolFailure:
            self._counts["tools unanswered"] += 1  # its next heartbeat brings us here again
        except EvoClawError:
            # Which of them were approved is not known: none that is new is offered before it is.
            self._counts["the store failed"] += 1
        finally:
            self._asking.discard(agent_id)

    async def _ask(self, agent_id: str) -> list[JSON]:
        shown: list[JSON] = []
        offset: JSON = 0
        for _ in range(PAGES):
            asked = Command("tools_list", {"offset": offset}, f"tools-{token_hex(8)}")
            outcome = await self._requests.query(agent_id, asked)
            page = outcome.result if is_object(outcome.result) else {}
            found = page.get("tools")
            shown += found if is_array(found) else []
            offset = page.get("next")
            if not isinstance(offset, int) or len(shown) >= MOST_TOOLS:
                break
        return shown[:MOST_TOOLS]

    async def _take(self, agent_id: str, shown: list[JSON], advertised: Mapping[str, str]) -> None:
        try:
            tools = [msgspec.convert(one, Tool) for one in shown]
        except (msgspec.ValidationError, RecursionError) as problem:
            self._fleet.quarantine(agent_id, f"a tool cannot be read: {problem}", advertised)
        else:
            await self._fleet.tools(agent_id, tools, advertised)

"""Fetches the schemas of an edge's tools, page by page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from secrets import token_hex

import msgspec

from evoclaw.core.errors import EvoClawError, ToolFailure
from evoclaw.core.messages import JSON, is_array, is_object
from evoclaw.core.tools import Tool
from evoclaw.orchestrator.fleet.fleet import MAX_TOOLS_PER_EDGE, Fleet
from evoclaw.transport.requests import Requests
from evoclaw.transport.wire import Command

MAX_PAGES = 50
"""Of the tool list of one edge."""
MAX_ATTEMPTS = 3
"""While the tools of an edge change during a fetch."""


class ToolDiscovery:
    """Fetches the tools of edges, one fetch at a time per edge."""

    def __init__(self, fleet: Fleet, requests: Requests, counts: Counter[str]) -> None:
        self._fleet, self._requests, self._counts = fleet, requests, counts
        self._asking: set[str] = set()

    async def refresh(self, agent_id: str) -> None:
        """Fetch an edge's tools as it advertises them now."""
        if agent_id in self._asking:
            return
        self._asking.add(agent_id)
        member = self._fleet.member(agent_id)
        try:
            for _ in range(MAX_ATTEMPTS):
                advertised = member.advertised_hashes
                listed = await self._list_tools(agent_id)
                await self._store_tools(agent_id, listed, advertised)
                if not member.outdated:
                    break  # otherwise the tools changed during the fetch
        except ToolFailure:
            self._counts["tools unanswered"] += 1  # retried at its next heartbeat
        except EvoClawError:
            # The approvals are unknown: new tools are not offered until they can be read.
            self._counts["the store failed"] += 1
        finally:
            self._asking.discard(agent_id)

    async def _list_tools(self, agent_id: str) -> list[JSON]:
        listed: list[JSON] = []
        offset: JSON = 0
        for _ in range(MAX_PAGES):
            command = Command("tools_list", {"offset": offset}, f"tools-{token_hex(8)}")
            outcome = await self._requests.query(agent_id, command)
            page = outcome.result if is_object(outcome.result) else {}
            found = page.get("tools")
            listed += found if is_array(found) else []
            offset = page.get("next")
            if not isinstance(offset, int) or len(listed) >= MAX_TOOLS_PER_EDGE:
                break
        return listed[:MAX_TOOLS_PER_EDGE]

    async def _store_tools(
        self, agent_id: str, listed: list[JSON], advertised: Mapping[str, str]
    ) -> None:
        try:
            tools = [msgspec.convert(tool, Tool) for tool in listed]
        except (msgspec.ValidationError, RecursionError) as problem:
            self._fleet.quarantine(agent_id, f"invalid tool: {problem}", advertised)
        else:
            await self._fleet.set_tools(agent_id, tools, advertised)

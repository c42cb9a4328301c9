"""An agent for foreign clients: its scripted model does what a message tells it to.

`Say TEXT` is answered with the text, `Call NAME JSON` with a call; a tool's result is repeated.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.support.chat_service import ChatService, serve_agents

from evoclaw.core.messages import Reply, ToolResult
from evoclaw.providers.scripted import Scripted, ScriptedRequest, calls, says

MAX_REPLIES = 500


def obey(request: ScriptedRequest) -> Reply:
    """The reply to the last message."""
    last = request.messages[-1]
    if isinstance(last, ToolResult):
        return says(f"The result is {last.text}")
    order, _, rest = last.text.partition(" ")
    if order == "Call":
        name, _, arguments = rest.partition(" ")
        return calls((name, json.loads(arguments or "{}")))
    return says(rest if order == "Say" else "Hello.")


@asynccontextmanager
async def obedient_agent(folder: Path) -> AsyncGenerator[ChatService]:
    """Serve the agent `lead` while the block runs."""
    async with serve_agents(folder, model=Scripted(*[obey] * MAX_REPLIES)) as house:
        yield house

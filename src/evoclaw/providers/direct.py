"""A provider without a model: it answers with the result of the last call. For single-call runs."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from evoclaw.core.events import Replied, ReplyEvent
from evoclaw.core.messages import Reply, ToolResult
from evoclaw.core.ports import Request
from evoclaw.core.profile import Profile

DIRECT_MODEL = "direct"


class DirectProvider:
    """Replies with the result of the last call; makes no calls, and costs nothing."""

    @property
    def model(self) -> str:
        """Its name."""
        return DIRECT_MODEL

    @property
    def profile(self) -> Profile:
        """The default profile."""
        return Profile()

    async def stream(self, request: Request) -> AsyncGenerator[ReplyEvent, None]:
        """Reply with the text of the last result, or that there is none."""
        last = request.history[-1] if len(request.history) else None
        text = last.text if isinstance(last, ToolResult) else ""
        yield Replied(Reply(text or "There was nothing to do.", model=DIRECT_MODEL, cost=0.0))

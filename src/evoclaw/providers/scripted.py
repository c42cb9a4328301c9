"""Providers without a model: `Scripted` returns given replies, for tests, docs and the demo.

`DirectProvider` answers with the result of the last call, for single-call runs.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from evoclaw.core.errors import ProviderError, ProviderErrorKind
from evoclaw.core.events import Replied, ReplyEvent, TextDelta
from evoclaw.core.messages import JSON, Finish, Message, Reply, ToolCall, ToolResult, Usage
from evoclaw.core.ports import Request
from evoclaw.core.profile import Profile

ScriptStep: TypeAlias = (
    Reply | ProviderError | Callable[["ScriptedRequest"], "Reply | ProviderError"]
)


@dataclass(frozen=True, slots=True)
class ScriptedRequest:
    """A request to the scripted model, as it was at that moment."""

    messages: tuple[Message, ...]
    tools: tuple[str, ...]
    offer_tools: bool


class Scripted:
    """Plays `steps`: a reply is returned, an error is raised, a function returns one of the two."""

    def __init__(
        self,
        *steps: ScriptStep,
        model: str = "scripted/model",
        profile: Profile = Profile(),
    ) -> None:
        self._steps = iter(steps)
        self.model = model
        self.profile = profile
        self.requests: list[ScriptedRequest] = []

    async def stream(self, request: Request) -> AsyncGenerator[ReplyEvent, None]:
        """Play the next step."""
        snapshot = ScriptedRequest(
            request.history.to_tuple(),
            tuple(tool.name for tool in request.tools),
            request.offer_tools,
        )
        self.requests.append(snapshot)
        step = next(self._steps, None)
        if step is None:
            turns = len(self.requests) - 1
            raise ProviderError(
                ProviderErrorKind.UNKNOWN, f"the script has only {turns} replies; add a step"
            )
        outcome = step(snapshot) if callable(step) else step
        if isinstance(outcome, ProviderError):
            raise outcome
        for word in outcome.text.splitlines(keepends=True):
            yield TextDelta(word)
        yield Replied(outcome)


def says(text: str, *, finish: Finish = Finish.STOP) -> Reply:
    """A reply of plain text."""
    return Reply(text, finish=finish, usage=Usage(10, 5), model="scripted", cost=0.0)


def calls(*asked: tuple[str, Mapping[str, JSON] | str], text: str = "") -> Reply:
    """A reply with calls; arguments given as text are sent unchanged."""
    return Reply(
        text,
        tuple(
            ToolCall(f"call_{index}", name, _as_json(arguments))
            for index, (name, arguments) in enumerate(asked)
        ),
        Finish.CALLS,
        Usage(10, 5),
        "scripted",
        0.0,
    )


def _as_json(arguments: Mapping[str, JSON] | str) -> str:
    if isinstance(arguments, str):
        return arguments
    return msgspec.json.encode(arguments).decode()


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

"""A deterministic provider: plays given replies in order. For tests, docs, the demo and replay."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from evoclaw.core.errors import ProviderError, ProviderErrorKind
from evoclaw.core.events import Replied, ReplyEvent, TextDelta
from evoclaw.core.messages import JSON, Finish, Message, Reply, ToolCall, Usage
from evoclaw.core.ports import Request
from evoclaw.core.profile import Profile

Step: TypeAlias = Reply | ProviderError | Callable[["Asked"], "Reply | ProviderError"]


@dataclass(frozen=True, slots=True)
class Asked:
    """What the model was asked, as it was at that moment."""

    messages: tuple[Message, ...]
    tools: tuple[str, ...]
    offer_tools: bool


class Scripted:
    """Play `steps`: a reply is given, an error raised, a function asked for one of the two."""

    def __init__(
        self,
        *steps: Step,
        model: str = "scripted/model",
        profile: Profile = Profile(),
    ) -> None:
        self._steps = iter(steps)
        self.model = model
        self.profile = profile
        self.requests: list[Asked] = []

    async def stream(self, request: Request) -> AsyncGenerator[ReplyEvent, None]:
        """Play the next step."""
        asked = Asked(
            request.history.to_tuple(),
            tuple(tool.name for tool in request.tools),
            request.offer_tools,
        )
        self.requests.append(asked)
        step = next(self._steps, None)
        if step is None:
            turns = len(self.requests) - 1
            raise ProviderError(
                ProviderErrorKind.UNKNOWN, f"the script is over after {turns} replies"
            )
        outcome = step(asked) if callable(step) else step
        if isinstance(outcome, ProviderError):
            raise outcome
        for word in outcome.text.splitlines(keepends=True):
            yield TextDelta(word)
        yield Replied(outcome)


def says(text: str, *, finish: Finish = Finish.STOP) -> Reply:
    """Make a reply of text alone."""
    return Reply(text, finish=finish, usage=Usage(10, 5), model="scripted", cost=0.0)


def calls(*asked: tuple[str, Mapping[str, JSON] | str], text: str = "") -> Reply:
    """Make a reply that asks for tools; arguments given as text are sent as they are."""
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

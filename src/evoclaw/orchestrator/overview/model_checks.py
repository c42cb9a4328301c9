"""Checks whether a model answers: with one real request, when a person asks for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import aclosing

from msgspec import Struct

from evoclaw.core.errors import EvoClawError
from evoclaw.core.events import Replied
from evoclaw.core.history import History
from evoclaw.core.messages import TextBlock, UserMessage
from evoclaw.core.ports import Provider, Request

CHECK_TIMEOUT_S = 60.0
"""A local model may have to be loaded first."""
MAX_SHOWN_CHARS = 200
_QUESTION = "Say hello in one word."


class ModelCheck(Struct, frozen=True):
    """Whether a model answers."""

    model: str
    """The model that was asked."""
    ok: bool | None
    """Null: no request was sent yet."""
    problem: str = ""
    """Why it does not answer; also what is known without a request, such as a missing key."""
    answer: str = ""
    """What it said, shortened."""
    seconds: float = 0.0
    """How long the answer took."""
    checked_at: float | None = None
    """When it was asked, in Unix seconds."""


class ModelChecks:
    """The last check of each model, for the life of the process."""

    def __init__(
        self,
        provider_of: Callable[[str], Provider],
        problem_of: Callable[[str], str],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Choose the models.

        Args:
            provider_of: The provider of a model; of the default model for an empty name.
            problem_of: Why a model is unavailable, as far as known without a request.
            clock: Returns Unix seconds.
        """
        self._provider_of, self._problem_of, self._clock = provider_of, problem_of, clock
        self._last: dict[str, ModelCheck] = {}
        self._one_at_a_time = asyncio.Lock()

    def last(self, model: str) -> ModelCheck:
        """The last check of a model, or what is known without one."""
        if problem := self._problem_of(model):
            return ModelCheck(self._provider_of(model).model, False, problem)
        return self._last.get(model) or ModelCheck(self._provider_of(model).model, None)

    async def check(self, model: str) -> ModelCheck:
        """Send a model one short request."""
        async with self._one_at_a_time:
            found = await check_provider(self._provider_of(model), self._clock)
            self._last[model] = found
            return found


async def check_provider(provider: Provider, clock: Callable[[], float] = time.time) -> ModelCheck:
    """Send the model of a provider one short request."""
    started_at, problem, text = time.monotonic(), "", ""
    try:
        async with asyncio.timeout(CHECK_TIMEOUT_S):
            text = await _reply(provider)
    except TimeoutError:
        problem = f"The model did not answer in {CHECK_TIMEOUT_S:.0f} seconds."
    except EvoClawError as error:
        problem = str(error)
    seconds = round(time.monotonic() - started_at, 3)
    shown = text[:MAX_SHOWN_CHARS]
    return ModelCheck(provider.model, not problem, problem, shown, seconds, clock())


async def _reply(provider: Provider) -> str:
    request = Request(History((UserMessage((TextBlock(_QUESTION),)),)))
    async with aclosing(provider.stream(request)) as pieces:
        async for piece in pieces:
            if isinstance(piece, Replied):
                return piece.reply.text
    return ""

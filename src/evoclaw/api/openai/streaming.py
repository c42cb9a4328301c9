"""A completion in pieces, as server-sent events that OpenAI's clients read."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec
from msgspec import UNSET, Struct

from evoclaw.api.openai.answering import Answer
from evoclaw.api.openai.errors import problem_of
from evoclaw.api.openai.shapes import (
    CallDelta,
    Chunk,
    ChunkChoice,
    Delta,
    ErrorBody,
    UsageOut,
)

DONE = b"data: [DONE]\n\n"


class Head(Struct, frozen=True):
    """What every piece of one completion bears."""

    id: str
    created: int
    model: str
    include_usage: bool = False

    def chunk(self, delta: Delta, finish: str | None = None) -> bytes:
        """One piece."""
        nothing = None if self.include_usage else UNSET
        choice = ChunkChoice(delta, finish)
        return _frame(Chunk(self.id, self.created, self.model, (choice,), nothing))

    def usage(self, usage: UsageOut) -> bytes:
        """The piece that says what it took."""
        return _frame(Chunk(self.id, self.created, self.model, (), usage))


async def frames(
    head: Head, pieces: AsyncGenerator[str | Answer, None]
) -> AsyncGenerator[bytes, None]:
    """The pieces of an answer as they go over the wire; an error is the last one, if there is one.

    Closing this closes the pieces.
    """
    yield head.chunk(Delta(role="assistant", content=""))
    async with aclosing(pieces):
        async for piece in pieces:
            if isinstance(piece, str):
                yield head.chunk(Delta(content=piece))
                continue
            if piece.error is not None:
                _, problem, _ = problem_of(piece.error)
                yield _frame(ErrorBody(problem))
                return
            for index, call in enumerate(piece.calls):
                delta = CallDelta(index, call.id, call.function)
                yield head.chunk(Delta(tool_calls=(delta,)))
            yield head.chunk(Delta(), piece.finish)
            if head.include_usage:
                yield head.usage(piece.usage)
            yield DONE


def _frame(body: Chunk | ErrorBody) -> bytes:
    return b"data: " + msgspec.json.encode(body) + b"\n\n"

"""Streams a chat completion as server-sent events in OpenAI's format."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec
from msgspec import UNSET, Struct

from evoclaw.api.openai.answers import ChatAnswer
from evoclaw.api.openai.errors import to_openai_error
from evoclaw.api.openai.schemas import (
    Chunk,
    ChunkChoice,
    Delta,
    OpenAIErrorBody,
    ToolCallDelta,
    UsageOut,
)

DONE = b"data: [DONE]\n\n"


class CompletionHeader(Struct, frozen=True):
    """The fields that all chunks of one completion share."""

    id: str
    created: int
    model: str
    include_usage: bool = False

    def chunk(self, delta: Delta, finish: str | None = None) -> bytes:
        """Encode one chunk."""
        no_usage = None if self.include_usage else UNSET
        choice = ChunkChoice(delta, finish)
        return _frame(Chunk(self.id, self.created, self.model, (choice,), no_usage))

    def usage(self, usage: UsageOut) -> bytes:
        """Encode the chunk with the token usage."""
        return _frame(Chunk(self.id, self.created, self.model, (), usage))


async def frames(
    head: CompletionHeader, pieces: AsyncGenerator[str | ChatAnswer, None]
) -> AsyncGenerator[bytes, None]:
    """Encode an answer as server-sent events; an error is the last event.

    Closing this generator closes `pieces`.
    """
    yield head.chunk(Delta(role="assistant", content=""))
    async with aclosing(pieces):
        async for piece in pieces:
            if isinstance(piece, str):
                yield head.chunk(Delta(content=piece))
                continue
            if piece.error is not None:
                _, problem, _ = to_openai_error(piece.error)
                yield _frame(OpenAIErrorBody(problem))
                return
            for index, call in enumerate(piece.calls):
                delta = ToolCallDelta(index, call.id, call.function)
                yield head.chunk(Delta(tool_calls=(delta,)))
            yield head.chunk(Delta(), piece.finish)
            if head.include_usage:
                yield head.usage(piece.usage)
            yield DONE


def _frame(body: Chunk | OpenAIErrorBody) -> bytes:
    return b"data: " + msgspec.json.encode(body) + b"\n\n"

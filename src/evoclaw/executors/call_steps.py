"""Steps of the call pipeline: traces, receipts, hidden text, quarantine, other timeouts.

Also retries, as a wrapper around an executor.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TypeAlias

from msgspec.structs import replace

from evoclaw.core.errors import ConfigError
from evoclaw.core.hidden_text import hidden_text_note
from evoclaw.core.messages import (
    JSON,
    ErrorBlock,
    ErrorKind,
    ImageBlock,
    TextBlock,
    ToolResult,
)
from evoclaw.core.pipeline import AroundStep, Execution, OfferStep, ResultStep
from evoclaw.core.routes import Place
from evoclaw.core.tools import UNDO_TOOL, WAITING_PERMISSIONS, Call, Tool
from evoclaw.core.tracing import call_span, current_trace, use_trace

MAX_KEPT_CHARS = 400_000
"""Of one text."""


class Quarantine(OfferStep, AroundStep, ResultStep):
    """Replaces text from outside by a handle, which only `read_untrusted` can ask about.

    The text itself goes into the result's details, which are recorded and never sent to a model:
    it survives a restart, for the one tool that may ask about it.
    """

    def __init__(self, kept: str) -> None:
        """`kept` is the key of the detail in which the asking tool finds the text."""
        self._kept = kept
        self._outside: frozenset[str] = frozenset()

    def offer(self, tools: Sequence[Tool]) -> Sequence[Tool]:
        """Clear the `outside` mark of tools: their text does not get past this step."""
        self._outside = frozenset(tool.name for tool in tools if tool.outside)
        return [replace(tool, outside=False) if tool.outside else tool for tool in tools]

    @asynccontextmanager
    async def around(self, execution: Execution) -> AsyncGenerator[None]:
        """Drop the progress of an outside tool: it is as untrusted as its result."""
        if self._hides(execution):
            execution.progress = lambda text: None
        yield

    async def finish(self, execution: Execution, result: ToolResult) -> ToolResult:
        """Keep the text, and return its handle."""
        return self._hidden(execution.call, result) if self._hides(execution) else result

    def _hides(self, execution: Execution) -> bool:
        asks_model = execution.route.place is Place.MODEL
        return not asks_model and execution.call.name in self._outside

    def _hidden(self, call: Call, result: ToolResult) -> ToolResult:
        texts = [block.text for block in result.blocks if not isinstance(block, ImageBlock)]
        text, pictures = "\n".join(texts), len(result.blocks) - len(texts)
        handle = _handle(call)
        kept = {
            self._kept: {"handle": handle, "text": text[:MAX_KEPT_CHARS], "characters": len(text)}
        }
        if result.error is not None:
            message = (
                f"It failed ({result.error}). The error message came from outside and is kept "
                f"as {handle}; ask about it with read_untrusted."
            )
            return call.failed(ErrorKind(result.error), message, **kept)
        left_out = f" {pictures} pictures were left out." if pictures else ""
        message = (
            f"{len(text)} characters came from outside. They are not shown; they are kept as "
            f"{handle}. Ask about them with read_untrusted.{left_out}"
        )
        return ToolResult(call.id, call.name, (TextBlock(message),), details=kept)


def _handle(call: Call) -> str:
    """A name that is stable for the call, and not chosen by an outsider."""
    run, _, position = call.request_id.partition(".")
    return "-".join(("q", run[:6], *position.split(".")[:2]))


class TraceCall(AroundStep):
    """Makes the span of the call current while it runs."""

    @asynccontextmanager
    async def around(self, execution: Execution) -> AsyncGenerator[None]:
        """Enter the span, if the run is traced."""
        parent = current_trace()
        if parent is None:
            yield
            return
        with use_trace(parent.child(call_span(execution.call.request_id))):
            yield


Sign: TypeAlias = Callable[[Call, ToolResult, float, float], Awaitable[JSON]]
"""Stores a receipt of a call, its result, its start and end; returns the summary to show."""


class SignReceipt(ResultStep):
    """Signs the results of calls that ran on this machine; an edge signs its own."""

    def __init__(self, sign: Sign) -> None:
        self._sign = sign

    async def finish(self, execution: Execution, result: ToolResult) -> ToolResult:
        """Sign how the call ended; a call that was cancelled from outside has no receipt."""
        if execution.route.place is not Place.HERE:
            return result
        signed = await self._sign(execution.call, result, execution.started, execution.ended)
        # A tool must not supply receipts of its own.
        details = {name: of for name, of in result.details.items() if name != "receipts"}
        return replace(result, details={**details, "receipt": signed})


class MarkHiddenText(ResultStep):
    """Adds a note to a result that contains hidden characters."""

    async def finish(self, execution: Execution, result: ToolResult) -> ToolResult:
        """Add a note; the text itself stays exact."""
        note = hidden_text_note(result.blocks, "result")
        if not note:
            return result
        last = result.blocks[-1]
        if isinstance(last, ErrorBlock):
            # A failure is a single block.
            marked = replace(last, text=f"{last.text}\n{note}")
            return replace(result, blocks=(*result.blocks[:-1], marked))
        return replace(result, blocks=(*result.blocks, TextBlock(note)))


class WithoutUndoTool(OfferStep):
    """Leaves out the tool `undo`: people use it, models do not."""

    def offer(self, tools: Sequence[Tool]) -> Sequence[Tool]:
        """All other tools."""
        return [tool for tool in tools if tool.name != UNDO_TOOL]


class ToolTimeouts(OfferStep):
    """Gives tools other timeouts than their own, never above their maximum."""

    def __init__(self, seconds: Mapping[str, float]) -> None:
        for name, timeout in seconds.items():
            if timeout <= 0:
                raise ConfigError(f"the timeout of {name!r} must be above 0 seconds")
        self._seconds = dict(seconds)

    def offer(self, tools: Sequence[Tool]) -> Sequence[Tool]:
        """Replace the timeouts that are configured."""
        return tuple(
            replace(tool, timeout=min(self._seconds[tool.name], tool.max_timeout))
            if tool.name in self._seconds
            else tool
            for tool in tools
        )


class DefaultTimeout(OfferStep):
    """Gives tools the configured default timeout, never above their maximum."""

    def __init__(self, seconds: float) -> None:
        if seconds <= 0:
            raise ConfigError(
                f"the default timeout of calls must be above 0 seconds, not {seconds:g}"
            )
        self._seconds = seconds

    def offer(self, tools: Sequence[Tool]) -> Sequence[Tool]:
        """Set the timeout of all tools but those that wait for people or other runs."""
        return [
            tool
            if tool.permissions & WAITING_PERMISSIONS
            else replace(tool, timeout=min(self._seconds, tool.max_timeout))
            for tool in tools
        ]

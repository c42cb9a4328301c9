"""Turns the records of a run into the streaming events of OpenAI's Responses API.

A response that is not streamed is the last of these events: there is one way to make it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import msgspec

from evoclaw.api.openai.answers import ChatAnswer, ChatAnswerReader, StreamedText
from evoclaw.api.openai.response_objects import (
    ResponseHeader,
    agent_call_item,
    caller_call_item,
    message_item,
    reasoning_item,
    status_of,
    text_part,
)
from evoclaw.api.openai.schemas import ToolCallOut
from evoclaw.core.events import (
    CallFinished,
    CallStarted,
    ReasoningDelta,
    Record,
    Replied,
    StopReason,
    TurnStarted,
)
from evoclaw.core.messages import JSON, ToolResult
from evoclaw.orchestrator.sessions.caller_tools import CallPosition

ResponseEvent = dict[str, JSON]


class ResponseWriter:
    """Makes the events and the output items of one response."""

    def __init__(
        self, header: ResponseHeader, *, custom: frozenset[str], holds_text_back: bool
    ) -> None:
        """Start a response.

        Args:
            header: What stays the same.
            custom: The names of the caller's custom tools.
            holds_text_back: Whether a text is final only at the end of the run.
        """
        self._header, self._custom, self._holds_text_back = header, custom, holds_text_back
        self.output: list[dict[str, JSON]] = []
        self._sequence = 0
        self._text: _OpenText | None = None
        self._reasoning: _OpenText | None = None
        self._reasoned = ("", 0)
        """The run and the turn of the last reasoning."""
        self._streamed = StreamedText()
        self._shown_text = ""
        """The text of the last message item."""
        self._calls: dict[str, int] = {}
        """The output index of the agent's own calls, by call id."""
        self.final: dict[str, JSON] = {}
        """The finished response."""

    def opening(self, status: str = "in_progress") -> Iterator[ResponseEvent]:
        """The first events."""
        kinds = ("created", status) if status == "queued" else ("created", "in_progress")
        for kind in kinds:
            yield self._event(f"response.{kind}", response=self._header.response(status, []))

    def read(self, record: Record, reading: ChatAnswerReader) -> Iterator[ResponseEvent]:
        """The events of one record, which the reader has applied already."""
        if not reading.is_new:
            return
        shows_text = not (reading.is_provisional or self._holds_text_back)
        match record.event:
            case TurnStarted():
                self._streamed = StreamedText()
            case ReasoningDelta(text):
                yield from self._add_reasoning(reading, text)
            case Replied(reply):
                if reply.reasoning and self._reasoned != (reading.run_id, reading.turn):
                    yield from self._add_reasoning(reading, reply.reasoning)
                yield from self._close_reasoning()
                if shows_text:
                    yield from self._add_text(reading, self._streamed.next_text(record))
                yield from self._close_text()
            case CallStarted(call_id, name, arguments):
                text = msgspec.json.encode(arguments).decode()
                yield from self._start_call(reading, call_id, name, text)
            case CallFinished(result):
                yield from self._finish_call(reading, result)
            case _ if shows_text:
                yield from self._add_text(reading, self._streamed.next_text(record))
            case _:
                pass

    def finish(self, answer: ChatAnswer, reading: ChatAnswerReader) -> Iterator[ResponseEvent]:
        """The last events, when the answer is known."""
        yield from self._close_reasoning()
        yield from self._close_text()
        if answer.error is None and not answer.calls:
            sent = self._shown_text.strip()
            if answer.text.strip() and answer.text.strip() != sent:
                yield from self._add_text(reading, answer.text, end=True)
                yield from self._close_text()
        elif answer.calls and answer.text and answer.text != self._shown_text:
            yield from self._add_text(reading, answer.text, end=True)
            yield from self._close_text()
        for call in answer.calls:
            yield from self._caller_call(call)
        stop = None if reading.end is None else reading.end.stop
        status = status_of(answer, is_cancelled=stop is StopReason.CANCELLED)
        done = int(time.time()) if status == "completed" else None
        self.final = self._header.response(status, self.output, answer=answer, completed_at=done)
        kind = status if status in ("failed", "incomplete") else "completed"
        yield self._event(f"response.{kind}", response=self.final)

    def snapshot(self, status: str) -> dict[str, JSON]:
        """The response so far, of a run that has not ended."""
        return self._header.response(status, self.output)

    def _event(self, kind: str, **fields: JSON) -> ResponseEvent:
        event = {"type": kind, "sequence_number": self._sequence, **fields}
        self._sequence += 1
        return event

    def _item_event(self, kind: str, index: int, **fields: JSON) -> ResponseEvent:
        item_id = self.output[index]["id"]
        return self._event(kind, item_id=item_id, output_index=index, **fields)

    def _add_item(self, item: dict[str, JSON]) -> Iterator[ResponseEvent]:
        self.output.append(item)
        index = len(self.output) - 1
        yield self._event("response.output_item.added", output_index=index, item=dict(item))

    def _replace_item(self, index: int, item: dict[str, JSON]) -> Iterator[ResponseEvent]:
        self.output[index] = item
        yield self._event("response.output_item.done", output_index=index, item=dict(item))

    def _add_reasoning(self, reading: ChatAnswerReader, text: str) -> Iterator[ResponseEvent]:
        if not text:
            return
        if self._reasoning is None:
            item_id = f"rs_{reading.run_id}_{reading.turn}"
            yield from self._add_item(reasoning_item(item_id, None, "in_progress"))
            self._reasoning = _OpenText(len(self.output) - 1)
            self._reasoned = (reading.run_id, reading.turn)
            part = {"type": "summary_text", "text": ""}
            yield self._item_event(
                "response.reasoning_summary_part.added",
                self._reasoning.index,
                summary_index=0,
                part=part,
            )
        self._reasoning.pieces.append(text)
        yield self._item_event(
            "response.reasoning_summary_text.delta",
            self._reasoning.index,
            summary_index=0,
            delta=text,
        )

    def _close_reasoning(self) -> Iterator[ResponseEvent]:
        open_, self._reasoning = self._reasoning, None
        if open_ is None:
            return
        index, text = open_.index, open_.text
        part = {"type": "summary_text", "text": text}
        kind = "response.reasoning_summary_text.done"
        yield self._item_event(kind, index, summary_index=0, text=text)
        kind = "response.reasoning_summary_part.done"
        yield self._item_event(kind, index, summary_index=0, part=part)
        item_id = self.output[index]["id"]
        yield from self._replace_item(index, reasoning_item(item_id, text, "completed"))

    def _add_text(
        self, reading: ChatAnswerReader, text: str, *, end: bool = False
    ) -> Iterator[ResponseEvent]:
        if not text:
            return
        if self._text is None:
            yield from self._close_reasoning()
            suffix = "_end" if end else ""
            item_id = f"msg_{reading.run_id}_{reading.turn}{suffix}"
            yield from self._add_item(message_item(item_id, None, "in_progress"))
            self._text = _OpenText(len(self.output) - 1)
            yield self._item_event(
                "response.content_part.added", self._text.index, content_index=0, part=text_part("")
            )
        self._text.pieces.append(text)
        yield self._item_event(
            "response.output_text.delta",
            self._text.index,
            content_index=0,
            delta=text,
            logprobs=[],
        )

    def _close_text(self) -> Iterator[ResponseEvent]:
        open_, self._text = self._text, None
        if open_ is None:
            return
        index, text = open_.index, open_.text
        self._shown_text = text
        kind = "response.output_text.done"
        yield self._item_event(kind, index, content_index=0, text=text, logprobs=[])
        kind = "response.content_part.done"
        yield self._item_event(kind, index, content_index=0, part=text_part(text))
        item_id = self.output[index]["id"]
        yield from self._replace_item(index, message_item(item_id, text, "completed"))

    def _start_call(
        self, reading: ChatAnswerReader, call_id: str, name: str, arguments: str
    ) -> Iterator[ResponseEvent]:
        """The start of a call with one of the agent's own tools."""
        position = reading.position_of(call_id)
        if position is None or reading.is_caller_call(call_id) or call_id in self._calls:
            return
        item_id = _item_id("mcp", position)
        yield from self._add_item(agent_call_item(item_id, name, ""))
        index = self._calls[call_id] = len(self.output) - 1
        yield self._item_event("response.mcp_call.in_progress", index)
        yield self._item_event("response.mcp_call_arguments.delta", index, delta=arguments)
        yield self._item_event("response.mcp_call_arguments.done", index, arguments=arguments)
        self.output[index]["arguments"] = arguments

    def _finish_call(
        self, reading: ChatAnswerReader, result: ToolResult
    ) -> Iterator[ResponseEvent]:
        arguments = reading.arguments_of(result.call_id)
        yield from self._start_call(reading, result.call_id, result.name, arguments)
        index = self._calls.pop(result.call_id, None)
        if index is None:
            return
        failed = result.error is not None
        kind = "failed" if failed else "completed"
        yield self._item_event(f"response.mcp_call.{kind}", index)
        said: dict[str, JSON] = {"output": result.text}
        if failed:
            content = [{"type": "text", "text": result.text}]
            said = {"error": {"type": "mcp_tool_execution_error", "content": content}}
        yield from self._replace_item(index, {**self.output[index], **said, "status": kind})

    def _caller_call(self, call: ToolCallOut) -> Iterator[ResponseEvent]:
        """A call that the caller has to run, with its whole life."""
        name, arguments = call.function.name, call.function.arguments
        custom = name in self._custom
        key, prefix = ("input", "ctc") if custom else ("arguments", "fc")
        if custom:
            found: JSON = msgspec.json.decode(arguments)
            arguments = found["input"]
        item_id = f"{prefix}_{call.id.removeprefix('call_')}"
        item = caller_call_item(item_id, call.id, name, arguments, custom=custom)
        yield from self._add_item({**item, key: "", "status": "in_progress"})
        index = len(self.output) - 1
        kind = "custom_tool_call_input" if custom else "function_call_arguments"
        yield self._item_event(f"response.{kind}.delta", index, delta=arguments)
        done = {key: arguments} if custom else {key: arguments, "name": name}
        yield self._item_event(f"response.{kind}.done", index, **done)
        yield from self._replace_item(index, item)


class _OpenText:
    """A text that is being written into an item."""

    __slots__ = ("index", "pieces")

    def __init__(self, index: int) -> None:
        self.index = index
        self.pieces: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self.pieces)


def _item_id(prefix: str, position: CallPosition) -> str:
    return f"{prefix}_{position.run_id}_{position.turn}_{position.index}"

"""Builds a chat completion from the records of a run, at once or as a stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from msgspec import Struct

from evoclaw.api.openai.errors import BadRequest
from evoclaw.api.openai.requests import ParsedChatRequest
from evoclaw.api.openai.schemas import FunctionCall, PromptTokensDetails, ToolCallOut, UsageOut
from evoclaw.core.errors import EvoClawError, ProviderError, ProviderErrorKind
from evoclaw.core.events import (
    CallFinished,
    CallJudged,
    ContextTrimmed,
    Record,
    Replied,
    ReplyFailed,
    ReplyRetried,
    RunFinished,
    RunResumed,
    RunStarted,
    StopReason,
    TextDelta,
    TurnStarted,
)
from evoclaw.core.messages import Finish, Reply, Usage
from evoclaw.orchestrator.runs.reply_options import ReplyOptions, caller_name
from evoclaw.orchestrator.sessions.caller_tools import CALLER_ASK_CODE, CallPosition

RUN_UNFINISHED = "The run's records ended before its answer. Send the request again."
PARAGRAPH_BREAK = "\n\n"
_FINISH_REASONS = {Finish.LENGTH: "length", Finish.FILTERED: "content_filter"}


class ChatAnswer(Struct, frozen=True):
    """The final answer to a chat request."""

    text: str
    finish: str
    usage: UsageOut
    calls: tuple[ToolCallOut, ...] = ()
    error: EvoClawError | None = None
    problem: str = ""
    """Why the model must answer again, if that is the error: its format, or a missing call."""


class ChatAnswerReader:
    """Reads the records of a run for a caller, who may send tool results several times."""

    def __init__(
        self,
        run_id: str,
        answered: frozenset[CallPosition] = frozenset(),
        options: ReplyOptions | None = None,
        *,
        after_turn: int = 0,
    ) -> None:
        """Start reading.

        Args:
            run_id: The id of the run.
            answered: The calls that the caller sent results for: earlier responses reported
                everything before these results.
            options: The reply options of the run, with the caller's names of its tools.
            after_turn: The turn that the earlier response ended with; 0: there was none.
        """
        self.run_id, self._unseen_results = run_id, set(answered)
        self._options, self._after_turn = options, after_turn
        self.turn = 0
        """The number of the current turn."""
        self._positions: dict[str, tuple[CallPosition, FunctionCall]] = {}
        self._caller_calls: list[str] = []
        self._seen_caller_calls: set[str] = set()
        self._usage = Usage()
        self._reply: Reply | None = None
        self._failed: ReplyFailed | None = None
        self.end: RunFinished | None = None
        """How the run ended, or why it waits."""
        self.is_provisional = False
        """Whether a reply may still be rejected, so that it is not streamed before the run ends."""

    @property
    def is_new(self) -> bool:
        """Whether the current record was not part of an earlier response."""
        return not self._unseen_results and (not self._after_turn or self.turn > self._after_turn)

    def read(self, record: Record) -> None:
        """Apply one record."""
        match record.event:
            case RunStarted(settings=settings) | RunResumed(settings=settings):
                self.is_provisional = settings.confirm or settings.evidence is True
                self._caller_calls.clear()
            case TurnStarted(turn):
                self.turn, self._failed = turn, None
            case Replied(reply):
                self._on_reply(reply)
            case ReplyFailed(usage=usage):
                self._failed = record.event
                self._add_usage(usage)
            case ContextTrimmed(usage=usage):
                self._add_usage(usage)
            case CallJudged(call_id, "ask", code) if code == CALLER_ASK_CODE:
                self._caller_calls.append(call_id)
                self._seen_caller_calls.add(call_id)
            case CallFinished(result):
                if (found := self._positions.get(result.call_id)) is not None:
                    self._unseen_results.discard(found[0])
            case RunFinished():
                self.end = record.event if self.is_new else None
            case _:
                pass

    def _on_reply(self, reply: Reply) -> None:
        self._reply = reply
        for index, call in enumerate(reply.calls):
            place = CallPosition(self.run_id, self.turn, index)
            name = caller_name(self._options, call.name)
            self._positions[call.id] = place, FunctionCall(name, call.arguments)
        self._add_usage(reply.usage)

    def _add_usage(self, usage: Usage) -> None:
        if self.is_new:
            self._usage += usage

    def answer(self, wanted: ParsedChatRequest | None = None) -> ChatAnswer:
        """The answer of a run that has ended or waits, checked against the request."""
        end, usage = self.end, to_openai_usage(self._usage)
        if end is None:
            return ChatAnswer("", "stop", usage, error=BadRequest(RUN_UNFINISHED, status=503))
        if end.stop is StopReason.WAITING and self._caller_calls:
            text = self._reply.text if self._reply else ""
            return ChatAnswer(text, "tool_calls", usage, self._calls())
        if end.stop is StopReason.WAITING:
            return ChatAnswer(f"{end.text}\n(run {self.run_id})", "stop", usage)
        if end.stop is StopReason.ERROR and self._failed is not None:
            return ChatAnswer(end.text, "stop", usage, error=provider_error(self._failed))
        finish = "stop"
        if end.stop is StopReason.COMPLETED and self._reply is not None:
            finish = _FINISH_REASONS.get(self._reply.finish, "stop")
        if wanted is None or end.stop is not StopReason.COMPLETED:
            return ChatAnswer(end.text, finish, usage)
        if wanted.required:
            problem = "it has no call of a tool"
            message = f"The model's answer does not fit `tool_choice`: {problem}."
            error = BadRequest(message, "tool_choice", "tool_choice", status=502)
            return ChatAnswer(end.text, finish, usage, error=error, problem=problem)
        if wanted.format is None:
            return ChatAnswer(end.text, finish, usage)
        text, problem = wanted.format.read(end.text)
        if problem:
            message = f"The model's answer does not fit `response_format`: {problem}"
            error = BadRequest(message, "response_format", "response_format", status=502)
            return ChatAnswer(end.text, finish, usage, error=error, problem=problem)
        return ChatAnswer(text, finish, usage)

    def position_of(self, call_id: str) -> CallPosition | None:
        """The position of a call of the model; None if it is unknown."""
        found = self._positions.get(call_id)
        return None if found is None else found[0]

    def arguments_of(self, call_id: str) -> str:
        """The arguments of a call as the model wrote them."""
        found = self._positions.get(call_id)
        return "{}" if found is None else found[1].arguments

    def is_caller_call(self, call_id: str) -> bool:
        """Whether the caller has to run a call, or ran it."""
        return call_id in self._seen_caller_calls

    def _calls(self) -> tuple[ToolCallOut, ...]:
        found = [self._positions[call_id] for call_id in dict.fromkeys(self._caller_calls)]
        return tuple(ToolCallOut(place.call_id(), function) for place, function in found)


async def answer_pieces(
    records: AsyncGenerator[Record, None],
    reading: ChatAnswerReader,
    wanted: ParsedChatRequest | None = None,
) -> AsyncGenerator[str | ChatAnswer, None]:
    """The text of the answer as the model writes it, then the final answer.

    Text of a reply that broke off has already been sent. If the retried reply repeats it, nothing
    is sent twice; if it differs, it starts a new paragraph.
    """
    streamed = StreamedText()
    async with aclosing(records):
        async for record in records:
            reading.read(record)
            if reading.end is not None:
                break
            is_final = wanted is None or not wanted.holds_text_back
            live = reading.is_new and not reading.is_provisional and is_final
            if live and (text := streamed.next_text(record)):
                yield text
    answer = reading.answer(wanted)
    if answer.error is None and (text := streamed.remaining(answer.text)):
        yield text
    yield answer


class StreamedText:
    """The text that was already sent to the caller."""

    def __init__(self) -> None:
        self._has_sent = False
        self._sent: list[str] = []
        """The text of the current reply."""
        self._retried: str | None = None
        """The text of a retried reply so far, while it only repeats what was sent."""

    def next_text(self, record: Record) -> str:
        """The text to send for a record."""
        match record.event:
            case TurnStarted():
                self._sent, self._retried = [], None
            case TextDelta(text):
                return self._send(text)
            case ReplyRetried():
                self._retried = "" if self._sent else None
            case Replied(reply) if reply.text and not self._sent:
                return self._send(reply.text)
            case _:
                pass
        return ""

    def remaining(self, text: str) -> str:
        """The text still to send when the final answer is known."""
        sent = "".join(self._sent)
        if not text.strip() or sent.strip() == text.strip():
            return ""
        if sent and text.startswith(sent):
            return text[len(sent) :]
        return f"{PARAGRAPH_BREAK}{text}" if self._has_sent else text

    def _send(self, text: str) -> str:
        gap = PARAGRAPH_BREAK if self._has_sent and not self._sent else ""
        if self._retried is not None:
            sent, retried = "".join(self._sent), self._retried + text
            if sent.startswith(retried):
                self._retried = retried
                return ""
            self._retried = None
            if retried.startswith(sent):
                text = retried[len(sent) :]
            else:
                self._sent, text, gap = [], retried, PARAGRAPH_BREAK
        if not text:
            return ""
        self._has_sent = True
        self._sent.append(text)
        return gap + text


def provider_error(failed: ReplyFailed) -> ProviderError:
    """The provider error that ended a run."""
    kinds = {str(kind): kind for kind in ProviderErrorKind}
    return ProviderError(kinds.get(failed.kind, ProviderErrorKind.UNKNOWN), failed.reason)


def to_openai_usage(usage: Usage) -> UsageOut:
    """Token usage in OpenAI's format."""
    total = usage.input + usage.output
    return UsageOut(usage.input, usage.output, total, PromptTokensDetails(usage.cache_read))

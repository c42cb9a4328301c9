"""Builds a chat completion from the records of a run, at once or as a stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from msgspec import Struct

from evoclaw.api.openai.asking import Format
from evoclaw.api.openai.errors import BadRequest
from evoclaw.api.openai.shapes import CallOut, FunctionCall, Tokens, UsageOut
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
from evoclaw.orchestrator.sessions.callers import CODE, Place

NOBODY_WAITS = "The run's records ended before its answer. Send the request again."
GAP = "\n\n"
_FINISHES = {Finish.LENGTH: "length", Finish.FILTERED: "content_filter"}


class Answer(Struct, frozen=True):
    """The final answer to a chat request."""

    text: str
    finish: str
    usage: UsageOut
    calls: tuple[CallOut, ...] = ()
    error: EvoClawError | None = None
    misfit: str = ""
    """Why the text does not fit `response_format`, if that is the error."""


class Reading:
    """Reads the records of a run for a caller, who may send tool results several times."""

    def __init__(self, run_id: str, after: frozenset[Place] = frozenset()) -> None:
        """Start reading.

        Args:
            run_id: The id of the run.
            after: The calls that the caller sent results for: earlier responses reported
                everything before these results.
        """
        self._run_id, self._missing = run_id, set(after)
        self._turn = 0
        self._places: dict[str, tuple[Place, FunctionCall]] = {}
        self._handed: list[str] = []
        self._usage = Usage()
        self._reply: Reply | None = None
        self._failed: ReplyFailed | None = None
        self.end: RunFinished | None = None
        """How the run ended, or why it waits."""
        self.holds_back = False
        """Whether a reply may still be rejected, so that it is not streamed before the run ends."""

    @property
    def is_news(self) -> bool:
        """Whether the current record was not part of an earlier response."""
        return not self._missing

    def see(self, record: Record) -> None:
        """Apply one record."""
        match record.event:
            case RunStarted(settings=settings) | RunResumed(settings=settings):
                self.holds_back = settings.confirm or settings.evidence is True
                self._handed.clear()
            case TurnStarted(turn):
                self._turn, self._failed = turn, None
            case Replied(reply):
                self._replied(reply)
            case ReplyFailed(usage=usage):
                self._failed = record.event
                self._spend(usage)
            case ContextTrimmed(usage=usage):
                self._spend(usage)
            case CallJudged(call_id, "ask", code) if code == CODE:
                self._handed.append(call_id)
            case CallFinished(result):
                if (found := self._places.get(result.call_id)) is not None:
                    self._missing.discard(found[0])
            case RunFinished():
                self.end = record.event if self.is_news else None
            case _:
                pass

    def _replied(self, reply: Reply) -> None:
        self._reply = reply
        for index, call in enumerate(reply.calls):
            place = Place(self._run_id, self._turn, index)
            self._places[call.id] = place, FunctionCall(call.name, call.arguments)
        self._spend(reply.usage)

    def _spend(self, usage: Usage) -> None:
        if self.is_news:
            self._usage += usage

    def answer(self, wanted: Format | None = None) -> Answer:
        """The answer of a run that has ended or waits."""
        end, usage = self.end, usage_of(self._usage)
        if end is None:
            return Answer("", "stop", usage, error=BadRequest(NOBODY_WAITS, status=503))
        if end.stop is StopReason.WAITING and self._handed:
            text = self._reply.text if self._reply else ""
            return Answer(text, "tool_calls", usage, self._calls())
        if end.stop is StopReason.WAITING:
            return Answer(f"{end.text}\n(run {self._run_id})", "stop", usage)
        if end.stop is StopReason.ERROR and self._failed is not None:
            return Answer(end.text, "stop", usage, error=provider_error(self._failed))
        finish = "stop"
        if end.stop is StopReason.COMPLETED and self._reply is not None:
            finish = _FINISHES.get(self._reply.finish, "stop")
        if wanted is None or end.stop is not StopReason.COMPLETED:
            return Answer(end.text, finish, usage)
        text, problem = wanted.read(end.text)
        if problem:
            message = f"The model's answer does not fit `response_format`: {problem}"
            error = BadRequest(message, "response_format", "response_format", status=502)
            return Answer(end.text, finish, usage, error=error, misfit=problem)
        return Answer(text, finish, usage)

    def _calls(self) -> tuple[CallOut, ...]:
        found = [self._places[call_id] for call_id in dict.fromkeys(self._handed)]
        return tuple(CallOut(place.shown(), function) for place, function in found)


async def pieces(
    records: AsyncGenerator[Record, None], reading: Reading, wanted: Format | None
) -> AsyncGenerator[str | Answer, None]:
    """The text of the answer as the model writes it, then the final answer.

    Text of a reply that broke off has already been sent. If the retried reply repeats it, nothing
    is sent twice; if it differs, it starts a new paragraph.
    """
    streamed = Shown()
    async with aclosing(records):
        async for record in records:
            reading.see(record)
            if reading.end is not None:
                break
            live = reading.is_news and not reading.holds_back and wanted is None
            if live and (text := streamed.take(record)):
                yield text
    answer = reading.answer(wanted)
    if answer.error is None and (text := streamed.rest(answer.text)):
        yield text
    yield answer


class Shown:
    """The text that was already sent to the caller."""

    def __init__(self) -> None:
        self._any = False
        self._told: list[str] = []
        """The text of the current reply."""
        self._again: str | None = None
        """The text of a retried reply so far, while it only repeats what was sent."""

    def take(self, record: Record) -> str:
        """The text to send for a record."""
        match record.event:
            case TurnStarted():
                self._told, self._again = [], None
            case TextDelta(text):
                return self._show(text)
            case ReplyRetried():
                self._again = "" if self._told else None
            case Replied(reply) if reply.text and not self._told:
                return self._show(reply.text)
            case _:
                pass
        return ""

    def rest(self, text: str) -> str:
        """The text still to send when the final answer is known."""
        sent = "".join(self._told)
        if not text.strip() or sent.strip() == text.strip():
            return ""
        if sent and text.startswith(sent):
            return text[len(sent) :]
        return f"{GAP}{text}" if self._any else text

    def _show(self, text: str) -> str:
        gap = GAP if self._any and not self._told else ""
        if self._again is not None:
            sent, retried = "".join(self._told), self._again + text
            if sent.startswith(retried):
                self._again = retried
                return ""
            self._again = None
            if retried.startswith(sent):
                text = retried[len(sent) :]
            else:
                self._told, text, gap = [], retried, GAP
        if not text:
            return ""
        self._any = True
        self._told.append(text)
        return gap + text


def provider_error(failed: ReplyFailed) -> ProviderError:
    """The provider error that ended a run."""
    kinds = {str(kind): kind for kind in ProviderErrorKind}
    return ProviderError(kinds.get(failed.kind, ProviderErrorKind.UNKNOWN), failed.reason)


def usage_of(usage: Usage) -> UsageOut:
    """Token usage in OpenAI's format."""
    total = usage.input + usage.output
    return UsageOut(usage.input, usage.output, total, Tokens(usage.cache_read))

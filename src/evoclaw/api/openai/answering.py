"""What became of a run, as a chat completion: read from its records, whole or piece by piece."""

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

NOBODY_WAITS = "The run ended before it could be answered; ask again."
GAP = "\n\n"
_FINISHES = {Finish.LENGTH: "length", Finish.FILTERED: "content_filter"}


class Answer(Struct, frozen=True):
    """What the caller is told in the end."""

    text: str
    finish: str
    usage: UsageOut
    calls: tuple[CallOut, ...] = ()
    error: EvoClawError | None = None
    misfit: str = ""
    """Why the text is not what was asked for, when that is the error."""


class Reading:
    """Where a run stands for its caller, who may come back to it with results several times."""

    def __init__(self, run_id: str, after: frozenset[Place] = frozenset()) -> None:
        """Begin to read.

        Args:
            run_id: Of the run.
            after: The calls that the caller gave results for: what came before their end was told
                to him earlier.
        """
        self._run_id, self._missing = run_id, set(after)
        self._turn = 0
        self._places: dict[str, tuple[Place, FunctionCall]] = {}
        self._handed: list[str] = []
        self._usage = Usage()
        self._reply: Reply | None = None
        self._failed: ReplyFailed | None = None
        self.end: RunFinished | None = None
        """How it ended, or why it waits."""
        self.holds_back = False
        """Whether a reply may still be sent back to the model, and is not the answer until then."""

    @property
    def is_news(self) -> bool:
        """Whether the caller has not been told before of what happens now."""
        return not self._missing

    def see(self, record: Record) -> None:
        """Take one record in."""
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
        """What the caller is told, when the run ended or waits."""
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
            told = f"the model's answer is not what `response_format` asks for: {problem}"
            error = BadRequest(told, "response_format", "response_format", status=502)
            return Answer(end.text, finish, usage, error=error, misfit=problem)
        return Answer(text, finish, usage)

    def _calls(self) -> tuple[CallOut, ...]:
        found = [self._places[call_id] for call_id in dict.fromkeys(self._handed)]
        return tuple(CallOut(place.shown(), function) for place, function in found)


async def pieces(
    records: AsyncGenerator[Record, None], reading: Reading, wanted: Format | None
) -> AsyncGenerator[str | Answer, None]:
    """The text of the answer as it comes, and in the end the answer.

    What a reply said before it broke off cannot be taken back. When it is asked for again and says
    the same, nothing is told twice; when it says something else, that begins a new paragraph.
    """
    shown = Shown()
    async with aclosing(records):
        async for record in records:
            reading.see(record)
            if reading.end is not None:
                break
            live = reading.is_news and not reading.holds_back and wanted is None
            if live and (text := shown.take(record)):
                yield text
    answer = reading.answer(wanted)
    if answer.error is None and (text := shown.rest(answer.text)):
        yield text
    yield answer


class Shown:
    """What the caller was shown of the replies of a run."""

    def __init__(self) -> None:
        self._any = False
        self._told: list[str] = []
        """Of this reply."""
        self._again: str | None = None
        """Of a reply that is asked for again: what it has said so far, while that is nothing
        new."""

    def take(self, record: Record) -> str:
        """What is to be shown for a record."""
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
        """What is to be shown when the answer is known."""
        told = "".join(self._told)
        if not text.strip() or told.strip() == text.strip():
            return ""
        if told and text.startswith(told):
            return text[len(told) :]
        return f"{GAP}{text}" if self._any else text

    def _show(self, text: str) -> str:
        gap = GAP if self._any and not self._told else ""
        if self._again is not None:
            told, said = "".join(self._told), self._again + text
            if told.startswith(said):
                self._again = said
                return ""
            self._again = None
            if said.startswith(told):
                text = said[len(told) :]
            else:
                self._told, text, gap = [], said, GAP
        if not text:
            return ""
        self._any = True
        self._told.append(text)
        return gap + text


def provider_error(failed: ReplyFailed) -> ProviderError:
    """The error that ended a run."""
    kinds = {str(kind): kind for kind in ProviderErrorKind}
    return ProviderError(kinds.get(failed.kind, ProviderErrorKind.UNKNOWN), failed.reason)


def usage_of(usage: Usage) -> UsageOut:
    """Tokens, as OpenAI counts them."""
    total = usage.input + usage.output
    return UsageOut(usage.input, usage.output, total, Tokens(usage.cache_read))

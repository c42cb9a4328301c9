"""From the records of a run to its spans: run, turn, request and call; a sink.

A span is named by the record that began it, a call's by its request id: so a call that goes on in
another process has one span, and what a device did for it hangs below that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

from evoclaw.core.events import (
    ApprovalAnswered,
    CallFinished,
    CallJudged,
    CallStarted,
    ContextTrimmed,
    Prompted,
    Record,
    Replied,
    ReplyFailed,
    ReplyRetried,
    RunFinished,
    RunResumed,
    RunStarted,
    ToolsChanged,
    TurnStarted,
)
from evoclaw.core.tracing import Place, call_span, here, span_id_of, stand, trace_id_of
from evoclaw.observe.tracing import attributes as attrs
from evoclaw.observe.tracing.content import Content

if TYPE_CHECKING:
    from evoclaw.core.agent import LoopSettings
    from evoclaw.core.redaction import Redactor
    from evoclaw.observe.tracing.attributes import TracedRun
    from evoclaw.observe.tracing.spans import OpenSpan, Spans


class Traces(Protocol):
    """The traces of a process, as one run sees them."""

    spans: Spans
    content: Redactor | None

    def goes_on(self, run_id: str, tracer: RunTracer) -> None:
        """Know a run whose spans are to be ended."""
        ...

    def ended(self, run_id: str) -> None:
        """Forget a run."""
        ...


class _EarlierRecords:
    """What happened in a run before this process went on with it."""

    def __init__(self) -> None:
        self.opened = 0
        """The number of the record by which it was begun, or gone on with, last."""
        self.turn = 0
        self.began: dict[str, float] = {}
        """When calls began that have no answer yet."""

    def receive(self, record: Record) -> None:
        """Take one record."""
        event = record.event
        match event:
            case RunStarted() | RunResumed():
                self.opened = record.seq
            case TurnStarted():
                self.turn = event.turn
            case CallStarted():
                self.began.setdefault(event.call_id, record.at)
            case CallFinished():
                self.began.pop(event.result.call_id, None)
            case _:
                pass


class RunTracer:
    """Makes the spans of one run."""

    def __init__(self, traces: Traces, who: TracedRun, before: Iterable[Record] = ()) -> None:
        """Begin with what is known of the run.

        Args:
            traces: Of this process.
            who: Whose run it is.
            before: What happened in it, if it is gone on with.
        """
        self._traces, self._spans, self._who = traces, traces.spans, who
        self._run: OpenSpan | None = None
        self._turn: OpenSpan | None = None
        self._chat: OpenSpan | None = None
        self._calls: dict[str, OpenSpan] = {}
        self._judged: dict[str, tuple[CallJudged, float]] = {}
        self._answers: dict[str, ApprovalAnswered] = {}
        self._outside: Place | None = None
        self._model, self._last = "", 0.0
        self._settings: LoopSettings | None = None
        self._content = None if traces.content is None else Content(traces.content)
        self._earlier = _EarlierRecords()
        for record in before:
            self._earlier.receive(record)
        self._number = self._earlier.turn
        self._takes: dict[type, Callable[[Record, Any], None]] = {
            RunStarted: self._run_begins,
            RunResumed: self._run_begins,
            ToolsChanged: self._tools_changed,
            TurnStarted: self._turn_begins,
            ReplyRetried: self._retried,
            ReplyFailed: self._reply_failed,
            Replied: self._replied,
            CallJudged: self._call_judged,
            ApprovalAnswered: self._approved,
            CallStarted: self._call_begins,
            CallFinished: self._call_ends,
            Prompted: self._prompted,
            ContextTrimmed: self._trimmed,
            RunFinished: self._run_ends,
        }

    def receive(self, record: Record) -> None:
        """Take one record in."""
        # Nearly all records are pieces of text: they must cost next to nothing.
        take = self._takes.get(type(record.event))
        if take is not None:
            take(record, record.event)

    def cut_off(self, at: float) -> None:
        """Nobody goes on with it here: end what is open, but for calls, which others may end."""
        for span in (self._chat, self._turn, self._run):
            if span is not None:
                span.set({attrs.CUT_OFF: True})
                span.end(max(at, self._last))
        self._chat = self._turn = self._run = None
        self._calls.clear()

    def _run_begins(self, record: Record, event: RunStarted | RunResumed) -> None:
        self._outside = here()
        parent = self._outside or Place(trace_id_of(record.run_id))
        self._model, self._settings = event.model, event.settings
        name, said = attrs.run_span(record.run_id, event.model, self._who)
        links: tuple[Place, ...] = ()
        if isinstance(event, RunResumed):
            said[attrs.RESUMED] = True
            before = _opening(record.run_id, self._earlier.opened)
            links = (Place(parent.trace_id, span_id_of(before)),) if self._earlier.opened else ()
        elif self._content is not None:
            self._content.hear(*event.messages)
        self._run = self._spans.begin(
            name,
            at=record.at,
            parent=parent,
            attributes=said,
            span_id=span_id_of(_opening(record.run_id, record.seq)),
            links=links,
        )
        stand(self._run.place)
        self._traces.goes_on(record.run_id, self)

    def _tools_changed(self, _record: Record, event: ToolsChanged) -> None:
        if self._content is not None:
            self._content.tools(event.tools)

    def _turn_begins(self, record: Record, event: TurnStarted) -> None:
        self._end_turn()
        self._number = event.turn
        turn = self._turn_at(record)
        name, said = attrs.request_span(self._model, self._settings)
        if self._content is not None:
            said |= self._content.request()
        self._chat = self._spans.begin(
            name,
            at=record.at,
            parent=turn.place,
            attributes=said,
            kind="client",
            span_id=span_id_of(f"{_opening(record.run_id, record.seq)} chat"),
        )

    def _turn_at(self, record: Record) -> OpenSpan:
        """The turn that goes on; calls of a run that is gone on with have none yet."""
        self._last = record.at
        if self._turn is None:
            self._turn = self._spans.begin(
                f"turn {self._number}",
                at=record.at,
                parent=self._above(record),
                attributes={attrs.TURN: self._number},
                span_id=span_id_of(f"{_opening(record.run_id, record.seq)} turn"),
            )
            stand(self._turn.place)
        return self._turn

    def _above(self, record: Record) -> Place:
        if self._run is not None:
            return self._run.place
        return here() or Place(trace_id_of(record.run_id))

    def _retried(self, record: Record, event: ReplyRetried) -> None:
        if self._chat is not None:
            self._chat.event(attrs.RETRIED, record.at, attrs.retried(event))

    def _reply_failed(self, record: Record, event: ReplyFailed) -> None:
        self._last = record.at
        if self._chat is not None:
            self._chat.set(attrs.usage_attributes(event.usage))
            self._end_chat(record.at, attrs.clean(event.kind))

    def _replied(self, record: Record, event: Replied) -> None:
        self._last = record.at
        if self._chat is not None:
            said = attrs.replied(event.reply)
            if self._content is not None:
                said |= self._content.reply(event.reply, attrs.finish(event.reply))
            self._chat.set(said)
            self._end_chat(record.at)

    def _end_chat(self, at: float, error: str = "") -> None:
        if self._chat is not None:
            self._chat.end(at, error)
            self._chat = None

    def _call_judged(self, record: Record, event: CallJudged) -> None:
        self._turn_at(record)
        self._judged[event.call_id] = event, record.at

    def _approved(self, record: Record, event: ApprovalAnswered) -> None:
        self._turn_at(record).event(attrs.APPROVED, record.at, attrs.approval(event))
        self._answers[event.call_id] = event

    def _call_begins(self, record: Record, event: CallStarted) -> None:
        name, said = attrs.tool_span(event.name, event.call_id, event.request_id)
        if self._content is not None:
            said |= self._content.arguments(event.name, event.arguments)
        turn = self._turn_at(record)
        self._calls[event.call_id] = self._spans.begin(
            name,
            # What a device did for it meanwhile lies within it.
            at=self._earlier.began.pop(event.call_id, record.at),
            parent=turn.place,
            attributes=said,
            span_id=span_id_of(call_span(event.request_id)),
        )

    def _call_ends(self, record: Record, event: CallFinished) -> None:
        result = event.result
        turn = self._turn_at(record)
        verdict, at = self._judged.pop(result.call_id, (None, record.at))
        span = self._calls.pop(result.call_id, None)
        if span is None:
            name, said = attrs.tool_span(result.name, result.call_id)
            span = self._spans.begin(name, at=at, parent=turn.place, attributes=said)
        said = attrs.outcome(result) | attrs.verdict_attributes(
            verdict, self._answers.pop(result.call_id, None)
        )
        if self._content is not None:
            said |= self._content.result(result)
            self._content.hear(result)
        span.set(said)
        span.end(record.at, "" if result.error is None else str(result.error))

    def _prompted(self, _record: Record, event: Prompted) -> None:
        if self._content is not None:
            self._content.hear(event.message)

    def _trimmed(self, record: Record, event: ContextTrimmed) -> None:
        if self._run is not None:
            self._run.event(attrs.TRIMMED, record.at, attrs.trimmed(event))

    def _end_turn(self) -> None:
        if self._turn is not None:
            self._turn.end(self._last)
            self._turn = None

    def _run_ends(self, record: Record, event: RunFinished) -> None:
        if self._chat is not None:
            self._last = record.at
            self._end_chat(record.at, str(event.stop))
        self._end_turn()
        self._calls.clear()
        if self._run is not None:
            said, error = attrs.run_end(event)
            self._run.set(said)
            self._run.end(record.at, error)
            self._run = None
        stand(self._outside)
        self._traces.ended(record.run_id)


def _opening(run_id: str, seq: int) -> str:
    return f"{run_id}#{seq}"

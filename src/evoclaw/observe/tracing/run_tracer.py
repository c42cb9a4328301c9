"""Turns the records of a run into spans of run, turns, model requests and calls; a sink.

The id of a span is derived from the record that started it, that of a call from its request id: a
call that continues in another process has one span, and what a device did for it is its child.
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
from evoclaw.core.tracing import (
    TraceContext,
    call_span,
    current_trace,
    set_trace,
    span_id_of,
    trace_id_of,
)
from evoclaw.observe.tracing import attributes as attrs
from evoclaw.observe.tracing.attributes import Content

if TYPE_CHECKING:
    from evoclaw.core.agent import LoopSettings
    from evoclaw.core.redaction import Redactor
    from evoclaw.observe.tracing.attributes import TracedRun
    from evoclaw.observe.tracing.spans import OpenSpan, Spans


class Traces(Protocol):
    """The tracing of a process, as one run uses it."""

    spans: Spans
    content: Redactor | None

    def run_started(self, run_id: str, tracer: RunTracer) -> None:
        """Keep the tracer of a run, to end its spans if it is interrupted."""
        ...

    def run_ended(self, run_id: str) -> None:
        """Forget a run."""
        ...


class _EarlierRecords:
    """What happened in a run before this process resumed it."""

    def __init__(self) -> None:
        self.opened = 0
        """The number of the record by which it was last started or resumed."""
        self.turn = 0
        self.started_at: dict[str, float] = {}
        """When calls without a result were started."""

    def receive(self, record: Record) -> None:
        """Handle a record."""
        event = record.event
        match event:
            case RunStarted() | RunResumed():
                self.opened = record.seq
            case TurnStarted():
                self.turn = event.turn
            case CallStarted():
                self.started_at.setdefault(event.call_id, record.at)
            case CallFinished():
                self.started_at.pop(event.result.call_id, None)
            case _:
                pass


class RunTracer:
    """Creates the spans of one run."""

    def __init__(self, traces: Traces, traced: TracedRun, before: Iterable[Record] = ()) -> None:
        """Start to trace a run.

        Args:
            traces: Of this process.
            traced: The run's agent, session and tenant.
            before: The records so far, if the run is resumed.
        """
        self._traces, self._spans, self._traced = traces, traces.spans, traced
        self._run: OpenSpan | None = None
        self._turn: OpenSpan | None = None
        self._chat: OpenSpan | None = None
        self._calls: dict[str, OpenSpan] = {}
        self._judged: dict[str, tuple[CallJudged, float]] = {}
        self._answers: dict[str, ApprovalAnswered] = {}
        self._outside: TraceContext | None = None
        self._model, self._last = "", 0.0
        self._settings: LoopSettings | None = None
        self._content = None if traces.content is None else Content(traces.content)
        self._earlier = _EarlierRecords()
        for record in before:
            self._earlier.receive(record)
        self._number = self._earlier.turn
        self._handlers: dict[type, Callable[[Record, Any], None]] = {
            RunStarted: self._run_started,
            RunResumed: self._run_started,
            ToolsChanged: self._tools_changed,
            TurnStarted: self._turn_started,
            ReplyRetried: self._retried,
            ReplyFailed: self._reply_failed,
            Replied: self._replied,
            CallJudged: self._call_judged,
            ApprovalAnswered: self._approved,
            CallStarted: self._call_started,
            CallFinished: self._call_finished,
            Prompted: self._prompted,
            ContextTrimmed: self._trimmed,
            RunFinished: self._run_finished,
        }

    def receive(self, record: Record) -> None:
        """Handle a record."""
        # Nearly all records are text chunks: they must cost almost nothing.
        handle = self._handlers.get(type(record.event))
        if handle is not None:
            handle(record, record.event)

    def interrupted(self, at: float) -> None:
        """End open spans, except those of calls: another process that resumes the run ends them."""
        for span in (self._chat, self._turn, self._run):
            if span is not None:
                span.set({attrs.CUT_OFF: True})
                span.end(max(at, self._last))
        self._chat = self._turn = self._run = None
        self._calls.clear()

    def _run_started(self, record: Record, event: RunStarted | RunResumed) -> None:
        self._outside = current_trace()
        parent = self._outside or TraceContext(trace_id_of(record.run_id))
        self._model, self._settings = event.model, event.settings
        name, values = attrs.run_span(record.run_id, event.model, self._traced)
        links: tuple[TraceContext, ...] = ()
        if isinstance(event, RunResumed):
            values[attrs.RESUMED] = True
            before = _opening(record.run_id, self._earlier.opened)
            links = (
                (TraceContext(parent.trace_id, span_id_of(before)),) if self._earlier.opened else ()
            )
        elif self._content is not None:
            self._content.add(*event.messages)
        self._run = self._spans.start(
            name,
            at=record.at,
            parent=parent,
            attributes=values,
            span_id=span_id_of(_opening(record.run_id, record.seq)),
            links=links,
        )
        set_trace(self._run.place)
        self._traces.run_started(record.run_id, self)

    def _tools_changed(self, _record: Record, event: ToolsChanged) -> None:
        if self._content is not None:
            self._content.tools(event.tools)

    def _turn_started(self, record: Record, event: TurnStarted) -> None:
        self._end_turn()
        self._number = event.turn
        turn = self._turn_at(record)
        name, values = attrs.request_span(self._model, self._settings)
        if self._content is not None:
            values |= self._content.request()
        self._chat = self._spans.start(
            name,
            at=record.at,
            parent=turn.place,
            attributes=values,
            kind="client",
            span_id=span_id_of(f"{_opening(record.run_id, record.seq)} chat"),
        )

    def _turn_at(self, record: Record) -> OpenSpan:
        """The span of the current turn; started here for calls of a resumed run."""
        self._last = record.at
        if self._turn is None:
            self._turn = self._spans.start(
                f"turn {self._number}",
                at=record.at,
                parent=self._above(record),
                attributes={attrs.TURN: self._number},
                span_id=span_id_of(f"{_opening(record.run_id, record.seq)} turn"),
            )
            set_trace(self._turn.place)
        return self._turn

    def _above(self, record: Record) -> TraceContext:
        if self._run is not None:
            return self._run.place
        return current_trace() or TraceContext(trace_id_of(record.run_id))

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
            values = attrs.replied(event.reply)
            if self._content is not None:
                values |= self._content.reply(event.reply, attrs.finish(event.reply))
            self._chat.set(values)
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

    def _call_started(self, record: Record, event: CallStarted) -> None:
        name, values = attrs.tool_span(event.name, event.call_id, event.request_id)
        if self._content is not None:
            values |= self._content.arguments(event.name, event.arguments)
        turn = self._turn_at(record)
        self._calls[event.call_id] = self._spans.start(
            name,
            # The original start, so that the device's span lies within this span.
            at=self._earlier.started_at.pop(event.call_id, record.at),
            parent=turn.place,
            attributes=values,
            span_id=span_id_of(call_span(event.request_id)),
        )

    def _call_finished(self, record: Record, event: CallFinished) -> None:
        result = event.result
        turn = self._turn_at(record)
        verdict, at = self._judged.pop(result.call_id, (None, record.at))
        span = self._calls.pop(result.call_id, None)
        if span is None:
            name, values = attrs.tool_span(result.name, result.call_id)
            span = self._spans.start(name, at=at, parent=turn.place, attributes=values)
        values = attrs.outcome(result) | attrs.verdict_attributes(
            verdict, self._answers.pop(result.call_id, None)
        )
        if self._content is not None:
            values |= self._content.result(result)
            self._content.add(result)
        span.set(values)
        span.end(record.at, "" if result.error is None else str(result.error))

    def _prompted(self, _record: Record, event: Prompted) -> None:
        if self._content is not None:
            self._content.add(event.message)

    def _trimmed(self, record: Record, event: ContextTrimmed) -> None:
        if self._run is not None:
            self._run.event(attrs.TRIMMED, record.at, attrs.trimmed(event))

    def _end_turn(self) -> None:
        if self._turn is not None:
            self._turn.end(self._last)
            self._turn = None

    def _run_finished(self, record: Record, event: RunFinished) -> None:
        if self._chat is not None:
            self._last = record.at
            self._end_chat(record.at, str(event.stop))
        self._end_turn()
        self._calls.clear()
        if self._run is not None:
            values, error = attrs.run_end(event)
            self._run.set(values)
            self._run.end(record.at, error)
            self._run = None
        set_trace(self._outside)
        self._traces.run_ended(record.run_id)


def _opening(run_id: str, seq: int) -> str:
    return f"{run_id}#{seq}"

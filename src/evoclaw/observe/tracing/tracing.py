"""Traces of runs, for any OpenTelemetry collector: only where the standard variables ask for them.

Nothing of OpenTelemetry is loaded before somebody asks.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from evoclaw.core.errors import ConfigError
from evoclaw.core.tracing import Place, read_traceparent, trace_id_of

if TYPE_CHECKING:
    from evoclaw.core.events import Record
    from evoclaw.core.messages import ToolResult
    from evoclaw.core.redaction import Redactor
    from evoclaw.observe.audit.sink import PerRunSink
    from evoclaw.observe.tracing.attributes import TracedRun
    from evoclaw.observe.tracing.run_tracer import RunTracer
    from evoclaw.observe.tracing.spans import OpenSpan, Spans

EXPORTERS = ("otlp", "console")
CAPTURE_VARIABLE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
MAX_RUNS = 10_000
"""Runs that go on at once; beyond that the oldest is taken for cut off."""
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_PROTOBUF = "http/protobuf"
_CAPTURE_VALUES = frozenset({"true", "span_only", "span_and_event"})


def configured_exporters(env: Mapping[str, str]) -> Sequence[str]:
    """Where traces are to be sent: some of `otlp` and `console`; nothing if nobody asks."""
    if _variable(env, "OTEL_SDK_DISABLED") == "true":
        return ()
    chosen = [
        one.strip() for one in _variable(env, "OTEL_TRACES_EXPORTER").split(",") if one.strip()
    ]
    if not chosen:
        chosen = ["otlp"] if any(env.get(name, "").strip() for name in _ENDPOINTS) else []
    if "none" in chosen:
        return ()
    if unknown := [one for one in chosen if one not in EXPORTERS]:
        text = f"OTEL_TRACES_EXPORTER says {', '.join(map(repr, unknown))}; it can be otlp, "
        raise ConfigError(f"{text}console or none")
    if "otlp" in chosen:
        _check_protocol(env)
    return tuple(dict.fromkeys(chosen))


def captures_content(env: Mapping[str, str]) -> bool:
    """Whether spans may hold what people, models and tools said."""
    return _variable(env, CAPTURE_VARIABLE) in _CAPTURE_VALUES


def _variable(env: Mapping[str, str], name: str) -> str:
    return env.get(name, "").strip().lower()


def _check_protocol(env: Mapping[str, str]) -> None:
    for name in _PROTOCOLS:
        if said := _variable(env, name):
            if said != _PROTOBUF:
                text = f"{name} is {said!r}; only {_PROTOBUF} is spoken here, which collectors"
                raise ConfigError(f"{text} take on port 4318")
            return


class Tracing:
    """The traces of one process."""

    def __init__(self, spans: Spans, *, content: Redactor | None = None) -> None:
        """Begin to trace.

        Args:
            spans: Makes spans and sends them.
            content: Takes secrets out of what is said; None leaves all of it out.
        """
        self.spans, self.content = spans, content
        self._runs: OrderedDict[str, RunTracer] = OrderedDict()

    def listener(self, who: TracedRun, before: Iterable[Record] = ()) -> RunTracer:
        """A sink for one run, in which this happened before."""
        from evoclaw.observe.tracing.run_tracer import RunTracer

        return RunTracer(self, who, before)

    def every_run(self, agent: str) -> PerRunSink:
        """A sink for runs that come and go, of one agent."""
        from evoclaw.observe.audit.sink import PerRunSink
        from evoclaw.observe.tracing.attributes import TracedRun

        return PerRunSink(lambda: self.listener(TracedRun(agent)))

    def goes_on(self, run_id: str, tracer: RunTracer) -> None:
        """Know a run whose spans are to be ended, whatever becomes of it."""
        if (other := self._runs.pop(run_id, tracer)) is not tracer:
            other.cut_off(time.time())
        self._runs[run_id] = tracer
        while len(self._runs) > MAX_RUNS:
            self._runs.popitem(last=False)[1].cut_off(time.time())

    def ended(self, run_id: str) -> None:
        """Forget a run."""
        self._runs.pop(run_id, None)

    def device_call(
        self, agent_id: str, tool: str, *, request_id: str, run_id: str, traceparent: str
    ) -> EdgeCallSpan:
        """Begin the span of what a device was asked to do."""
        from evoclaw.observe.tracing import attributes as attrs

        parent = read_traceparent(traceparent) or Place(trace_id_of(run_id or request_id))
        name, attributes = attrs.edge_span(agent_id, tool, request_id)
        begun = self.spans.begin(
            name, at=time.time(), parent=parent, attributes=attributes, kind="server"
        )
        return EdgeCallSpan(begun)

    def close(self, seconds: float) -> bool:
        """End what is open, and send what is left; False if that took too long.

        It blocks. What a run that was cut off had not answered is ended by whoever goes on with it.
        """
        now = time.time()
        for tracer in self._runs.values():
            tracer.cut_off(now)
        self._runs.clear()
        return self.spans.close(seconds)


class EdgeCallSpan:
    """One command, as it runs on a device."""

    def __init__(self, begun: OpenSpan) -> None:
        self._begun = begun

    @property
    def place(self) -> Place:
        """Where it is in its trace."""
        return self._begun.place

    def ended(self, result: ToolResult | None) -> None:
        """Say what became of it; None if it was cut off."""
        from evoclaw.observe.tracing import attributes as attrs

        if result is None:
            self._begun.set({attrs.OUTCOME: attrs.INTERRUPTED})
            self._begun.end(time.time(), attrs.INTERRUPTED)
            return
        self._begun.set(attrs.outcome(result))
        self._begun.end(time.time(), "" if result.error is None else str(result.error))

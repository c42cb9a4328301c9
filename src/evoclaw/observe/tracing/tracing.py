"""Traces of runs, for any OpenTelemetry collector: only if its standard variables are set.

OpenTelemetry is imported only then. Log lines get the trace and span ids.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Generator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

from evoclaw.core.errors import ConfigError
from evoclaw.core.tracing import TraceContext, current_trace, read_traceparent, trace_id_of

if TYPE_CHECKING:
    from evoclaw.core.events import Record
    from evoclaw.core.messages import ToolResult
    from evoclaw.core.redaction import Redactor
    from evoclaw.observe.audit.sink import PerRunSink
    from evoclaw.observe.tracing.attributes import TracedRun
    from evoclaw.observe.tracing.run_tracer import RunTracer
    from evoclaw.observe.tracing.spans import OpenSpan, Spans


logger = logging.getLogger(__name__)
EXPORTERS = ("otlp", "console")
FINAL_EXPORT_TIMEOUT_S = 2.0
"""Seconds to export the last spans when a process ends; the rest is lost."""
CAPTURE_VARIABLE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
MAX_RUNS = 10_000
"""In progress at the same time; beyond that the oldest counts as interrupted."""
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_PROTOBUF = "http/protobuf"
_CAPTURE_VALUES = frozenset({"true", "span_only", "span_and_event"})


def configured_exporters(env: Mapping[str, str]) -> Sequence[str]:
    """The exporters that the environment names, of `otlp` and `console`; none by default."""
    if _variable(env, "OTEL_SDK_DISABLED") == "true":
        return ()
    chosen = [
        name.strip() for name in _variable(env, "OTEL_TRACES_EXPORTER").split(",") if name.strip()
    ]
    if not chosen:
        chosen = ["otlp"] if any(env.get(name, "").strip() for name in _ENDPOINTS) else []
    if "none" in chosen:
        return ()
    if unknown := [name for name in chosen if name not in EXPORTERS]:
        names = ", ".join(map(repr, unknown))
        raise ConfigError(f"unknown OTEL_TRACES_EXPORTER {names}; use otlp, console or none")
    if "otlp" in chosen:
        _check_protocol(env)
    return tuple(dict.fromkeys(chosen))


def captures_content(env: Mapping[str, str]) -> bool:
    """Whether spans may contain messages, arguments and results."""
    return _variable(env, CAPTURE_VARIABLE) in _CAPTURE_VALUES


def _variable(env: Mapping[str, str], name: str) -> str:
    return env.get(name, "").strip().lower()


def _check_protocol(env: Mapping[str, str]) -> None:
    for name in _PROTOCOLS:
        if protocol := _variable(env, name):
            if protocol != _PROTOBUF:
                text = f"{name} is {protocol!r}; only {_PROTOBUF} is supported"
                raise ConfigError(f"{text}: collectors accept it on port 4318")
            return


class Tracing:
    """The traces of one process."""

    def __init__(self, spans: Spans, *, content: Redactor | None = None) -> None:
        """Start to trace.

        Args:
            spans: Creates and exports spans.
            content: Redacts messages, arguments and results; None leaves them out.
        """
        self.spans, self.content = spans, content
        self._runs: OrderedDict[str, RunTracer] = OrderedDict()

    def sink(self, traced: TracedRun, before: Iterable[Record] = ()) -> RunTracer:
        """A sink for one run; `before` are the records of a resumed run so far."""
        from evoclaw.observe.tracing.run_tracer import RunTracer

        return RunTracer(self, traced, before)

    def every_run(self, agent: str) -> PerRunSink:
        """A sink for all runs of one agent."""
        from evoclaw.observe.audit.sink import PerRunSink
        from evoclaw.observe.tracing.attributes import TracedRun

        return PerRunSink(lambda: self.sink(TracedRun(agent)))

    def run_started(self, run_id: str, tracer: RunTracer) -> None:
        """Keep the tracer of a run, to end its spans if it is interrupted."""
        if (other := self._runs.pop(run_id, tracer)) is not tracer:
            other.interrupted(time.time())
        self._runs[run_id] = tracer
        while len(self._runs) > MAX_RUNS:
            self._runs.popitem(last=False)[1].interrupted(time.time())

    def run_ended(self, run_id: str) -> None:
        """Forget a run."""
        self._runs.pop(run_id, None)

    def edge_call(
        self, agent_id: str, tool: str, *, request_id: str, run_id: str, traceparent: str
    ) -> EdgeCallSpan:
        """Start the span of a command on an edge."""
        from evoclaw.observe.tracing import attributes as attrs

        parent = read_traceparent(traceparent) or TraceContext(trace_id_of(run_id or request_id))
        name, attributes = attrs.edge_span(agent_id, tool, request_id)
        span = self.spans.start(
            name, at=time.time(), parent=parent, attributes=attributes, kind="server"
        )
        return EdgeCallSpan(span)

    def close(self, seconds: float) -> bool:
        """End open spans and export the rest; False if that took too long.

        It blocks. Open calls of interrupted runs are ended by the process that resumes the run.
        """
        now = time.time()
        for tracer in self._runs.values():
            tracer.interrupted(now)
        self._runs.clear()
        return self.spans.close(seconds)


class EdgeCallSpan:
    """The span of one command on an edge."""

    def __init__(self, span: OpenSpan) -> None:
        self._span = span

    @property
    def place(self) -> TraceContext:
        """Its position in the trace."""
        return self._span.place

    def ended(self, result: ToolResult | None) -> None:
        """End the span with the result; None if the command was interrupted."""
        from evoclaw.observe.tracing import attributes as attrs

        if result is None:
            self._span.set({attrs.OUTCOME: attrs.INTERRUPTED})
            self._span.end(time.time(), attrs.INTERRUPTED)
            return
        self._span.set(attrs.outcome(result))
        self._span.end(time.time(), "" if result.error is None else str(result.error))


@asynccontextmanager
async def open_tracing(env: Mapping[str, str], name: str) -> AsyncGenerator[Tracing | None]:
    """Trace while the block runs; None if no exporter is configured.

    Args:
        env: The OTEL_… variables.
        name: The service name in traces, unless `OTEL_SERVICE_NAME` is set.
    """
    kinds = configured_exporters(env)
    if not kinds:
        yield None
        return
    try:
        from evoclaw.observe.tracing.spans import open_spans
    except ModuleNotFoundError as missing:
        if not (missing.name or "").startswith("opentelemetry"):
            raise
        text = "OTEL_… variables enable tracing, but its packages are not installed: run "
        raise ConfigError(
            f"{text}`pip install 'evoclaw[otel]'`, or set OTEL_SDK_DISABLED=true"
        ) from None
    pass

    tracing = Tracing(open_spans(kinds, name), content=_redactor(env))
    try:
        with trace_ids_in_logs():
            yield tracing
    finally:
        if not await asyncio.to_thread(tracing.close, FINAL_EXPORT_TIMEOUT_S):
            logger.warning("the last spans were not exported: the collector does not answer")


def _redactor(env: Mapping[str, str]) -> Redactor | None:
    if not captures_content(env):
        return None
    from evoclaw.core.redaction import Redactor, secrets_in

    return Redactor(secrets_in(env))


class TraceIdFilter(logging.Filter):
    """Adds the trace and span ids of the current task to every log record."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Set `trace_id` and `span_id` in hexadecimal, or empty."""
        place = current_trace()
        record.trace_id = f"{place.trace_id:032x}" if place is not None else ""
        record.span_id = f"{place.span_id:016x}" if place is not None and place.span_id else ""
        return True


class TraceIdFormatter(logging.Formatter):
    """Appends the trace and span ids to the line, if there are any."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record."""
        line = super().format(record)
        ids = [
            f"{name}={value}"
            for name in ("trace_id", "span_id")
            if (value := getattr(record, name, ""))
        ]
        return " ".join((line, *ids))


@contextmanager
def trace_ids_in_logs() -> Generator[None]:
    """Add trace ids to log lines while the block runs, on the existing or a new log handler."""
    root, correlation = logging.getLogger(), TraceIdFilter()
    handlers = list(root.handlers)
    own = None if handlers else _log_to_stderr()
    if own is not None:
        root.addHandler(own)
        handlers.append(own)
    for handler in handlers:
        handler.addFilter(correlation)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(correlation)
        if own is not None:
            root.removeHandler(own)


def _log_to_stderr() -> logging.Handler:
    """Log warnings to stderr, as `logging` does without any configuration."""
    handler = logging.StreamHandler()
    handler.setLevel(logging.WARNING)
    handler.setFormatter(TraceIdFormatter())
    return handler

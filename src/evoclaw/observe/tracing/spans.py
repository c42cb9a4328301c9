"""Creates spans and exports them with the OpenTelemetry SDK: the only file that uses it.

The SDK itself reads its environment variables (endpoint, headers, sampler, limits, resource).
"""

from __future__ import annotations

import logging
import math
import os
import secrets
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    ConsoleSpanExporter,
    SpanExporter,
)
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

from evoclaw.core.tracing import TraceContext
from evoclaw.core.version import VERSION

logger = logging.getLogger(__name__)
SCOPE = "evoclaw"
SERVICE_NAME, SERVICE_VERSION, ERROR_TYPE = "service.name", "service.version", "error.type"
LOG_INTERVAL_S = 60.0
"""Between two warnings about an unreachable collector."""
_KINDS = {"internal": SpanKind.INTERNAL, "client": SpanKind.CLIENT, "server": SpanKind.SERVER}

Value: TypeAlias = str | bool | int | float | Sequence[str]
Attributes: TypeAlias = Mapping[str, Value]
Kind: TypeAlias = Literal["internal", "client", "server"]


class OpenSpan:
    """A span that has started."""

    __slots__ = ("_span", "place")

    def __init__(self, span: Span, place: TraceContext) -> None:
        self._span, self.place = span, place

    def set(self, attributes: Attributes) -> None:
        """Set attributes."""
        self._span.set_attributes(attributes)

    def event(self, name: str, at: float, attributes: Attributes) -> None:
        """Add an event."""
        self._span.add_event(name, attributes, _nanoseconds(at))

    def end(self, at: float, error: str = "") -> None:
        """End the span; `error` is the kind of its error."""
        if error:
            self._span.set_attribute(ERROR_TYPE, error)
            self._span.set_status(Status(StatusCode.ERROR))
        self._span.end(_nanoseconds(at))


class Spans:
    """Creates spans, and exports them."""

    def __init__(self, *exporters: SpanExporter, name: str) -> None:
        """Export to these; `name` is the service name, unless the environment sets one."""
        self._ids, self._exporters = _Ids(), exporters
        self._provider = TracerProvider(
            resource=_resource(name), shutdown_on_exit=False, id_generator=self._ids
        )
        for exporter in exporters:
            self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer(SCOPE, VERSION)
        self._throttle = _LogThrottle()
        self._throttle.install()

    def start(
        self,
        name: str,
        *,
        at: float,
        parent: TraceContext,
        attributes: Attributes,
        kind: Kind = "internal",
        span_id: int = 0,
        links: Sequence[TraceContext] = (),
    ) -> OpenSpan:
        """Start a span at a time; with a random id if none is given."""
        self._ids.trace_id, self._ids.span_id = parent.trace_id, span_id
        context = Context()
        if parent.span_id:
            context = set_span_in_context(NonRecordingSpan(_context(parent)), context)
        span = self._tracer.start_span(
            name,
            context,
            _KINDS[kind],
            attributes,
            [Link(_context(link)) for link in links],
            _nanoseconds(at),
        )
        own = span.get_span_context()
        return OpenSpan(span, TraceContext(own.trace_id, own.span_id, own.trace_flags.sampled))

    def flush(self) -> None:
        """Export ended spans; blocks until they are sent."""
        self._provider.force_flush()

    def close(self, seconds: float) -> bool:
        """Export ended spans and shut down; False if that took longer and was given up."""
        # A daemon thread: a collector that hangs must not keep the process alive.
        closing = threading.Thread(target=self._provider.shutdown, name="traces", daemon=True)
        closing.start()
        closing.join(seconds)
        if closing.is_alive():
            self._throttle.mute()
            for exporter in self._exporters:
                exporter.shutdown()  # stops its retries
            return False
        self._throttle.remove()
        return True


def open_spans(kinds: Sequence[str], name: str) -> Spans:
    """Spans with these exporters: `otlp`, `console`."""
    return Spans(*(_exporter(kind) for kind in kinds), name=name)


def _exporter(kind: str) -> SpanExporter:
    if kind == "console":
        # stdout is for the answer of a command, or for a protocol.
        return ConsoleSpanExporter(out=sys.stderr)
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter()


def _resource(name: str) -> Resource:
    found = Resource.create({SERVICE_VERSION: VERSION})
    attributes = os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    if os.environ.get("OTEL_SERVICE_NAME") or f"{SERVICE_NAME}=" in attributes:
        return found
    return found.merge(Resource({SERVICE_NAME: name}))


def _context(place: TraceContext) -> SpanContext:
    flags = TraceFlags(TraceFlags.SAMPLED if place.sampled else TraceFlags.DEFAULT)
    return SpanContext(place.trace_id, place.span_id, is_remote=True, trace_flags=flags)


def _nanoseconds(at: float) -> int:
    return int(at * 1e9)


class _Ids(IdGenerator):
    """Gives the ids that were chosen for the next span."""

    def __init__(self) -> None:
        self.trace_id = self.span_id = 0

    def generate_trace_id(self) -> int:
        """The chosen id, or a random one."""
        return self.trace_id or secrets.randbits(128) or 1

    def generate_span_id(self) -> int:
        """The chosen id, or a random one."""
        return self.span_id or secrets.randbits(64) or 1


class _LogThrottle(logging.Handler):
    """Limits how often warnings of the SDK are logged: a collector may be unreachable for days."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._next = 0.0
        self._library = logging.getLogger("opentelemetry")

    def install(self) -> None:
        """Take over the library's log."""
        self._library.addHandler(self)
        self._library.propagate = False

    def remove(self) -> None:
        """Restore the library's log."""
        self._library.removeHandler(self)
        self._library.propagate = True

    def mute(self) -> None:
        """Log nothing more: the process is about to end."""
        self._next = math.inf

    def emit(self, record: logging.LogRecord) -> None:
        """Log a warning, at most one per `LOG_INTERVAL_S`."""
        if (now := time.monotonic()) >= self._next:
            self._next = now + LOG_INTERVAL_S
            logger.warning("traces: %s", record.getMessage())

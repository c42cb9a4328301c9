"""Spans, made and sent by OpenTelemetry's SDK: the only file that knows it.

What its own variables say (endpoint, headers, sampler, limits, batches, resource) it reads itself.
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

from evoclaw.core.tracing import Place
from evoclaw.core.version import VERSION

logger = logging.getLogger(__name__)
SCOPE = "evoclaw"
SERVICE_NAME, SERVICE_VERSION, ERROR_TYPE = "service.name", "service.version", "error.type"
LOG_INTERVAL_S = 60.0
"""Seconds between two complaints about a collector that is away."""
_KINDS = {"internal": SpanKind.INTERNAL, "client": SpanKind.CLIENT, "server": SpanKind.SERVER}

Value: TypeAlias = str | bool | int | float | Sequence[str]
Attributes: TypeAlias = Mapping[str, Value]
Kind: TypeAlias = Literal["internal", "client", "server"]


class OpenSpan:
    """A span that has begun."""

    __slots__ = ("_span", "place")

    def __init__(self, span: Span, place: Place) -> None:
        self._span, self.place = span, place

    def set(self, attributes: Attributes) -> None:
        """Say something of it."""
        self._span.set_attributes(attributes)

    def event(self, name: str, at: float, attributes: Attributes) -> None:
        """Something happened in it."""
        self._span.add_event(name, attributes, _nanoseconds(at))

    def end(self, at: float, error: str = "") -> None:
        """It is over; `error` says in a word how it failed."""
        if error:
            self._span.set_attribute(ERROR_TYPE, error)
            self._span.set_status(Status(StatusCode.ERROR))
        self._span.end(_nanoseconds(at))


class Spans:
    """Makes spans, and sends them."""

    def __init__(self, *exporters: SpanExporter, name: str) -> None:
        """Send to these; `name` is what this process is called, unless the variables say it."""
        self._ids, self._exporters = _Ids(), exporters
        self._provider = TracerProvider(
            resource=_resource(name), shutdown_on_exit=False, id_generator=self._ids
        )
        for exporter in exporters:
            self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer(SCOPE, VERSION)
        self._relay = _LogThrottle()
        self._relay.install()

    def begin(
        self,
        name: str,
        *,
        at: float,
        parent: Place,
        attributes: Attributes,
        kind: Kind = "internal",
        span_id: int = 0,
        links: Sequence[Place] = (),
    ) -> OpenSpan:
        """Begin a span at a time; its id is a new one if none is given."""
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
        made = span.get_span_context()
        return OpenSpan(span, Place(made.trace_id, made.span_id, made.trace_flags.sampled))

    def flush(self) -> None:
        """Send what has ended; blocks as long as that takes."""
        self._provider.force_flush()

    def close(self, seconds: float) -> bool:
        """Send what has ended, and be done; False if that took longer, and is given up."""
        # A thread that nobody waits for: a collector that hangs must not keep a process alive.
        closing = threading.Thread(target=self._provider.shutdown, name="traces", daemon=True)
        closing.start()
        closing.join(seconds)
        if closing.is_alive():
            self._relay.mute()
            for exporter in self._exporters:
                exporter.shutdown()  # what it would try again it gives up
            return False
        self._relay.remove()
        return True


def open_spans(kinds: Sequence[str], name: str) -> Spans:
    """Spans that are sent there."""
    return Spans(*(_exporter(kind) for kind in kinds), name=name)


def _exporter(kind: str) -> SpanExporter:
    if kind == "console":
        # What we print is for whoever asked: an answer, or the words of a protocol.
        return ConsoleSpanExporter(out=sys.stderr)
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter()


def _resource(name: str) -> Resource:
    found = Resource.create({SERVICE_VERSION: VERSION})
    told = os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    if os.environ.get("OTEL_SERVICE_NAME") or f"{SERVICE_NAME}=" in told:
        return found
    return found.merge(Resource({SERVICE_NAME: name}))


def _context(place: Place) -> SpanContext:
    flags = TraceFlags(TraceFlags.SAMPLED if place.sampled else TraceFlags.DEFAULT)
    return SpanContext(place.trace_id, place.span_id, is_remote=True, trace_flags=flags)


def _nanoseconds(at: float) -> int:
    return int(at * 1e9)


class _Ids(IdGenerator):
    """Gives the ids that were chosen for the span that is begun next."""

    def __init__(self) -> None:
        self.trace_id = self.span_id = 0

    def generate_trace_id(self) -> int:
        """The one that was chosen."""
        return self.trace_id or secrets.randbits(128) or 1

    def generate_span_id(self) -> int:
        """The one that was chosen, or a new one."""
        return self.span_id or secrets.randbits(64) or 1


class _LogThrottle(logging.Handler):
    """Says seldom what the SDK complains of: a collector may be away for days."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._next = 0.0
        self._library = logging.getLogger("opentelemetry")

    def install(self) -> None:
        """Hear what the library says."""
        self._library.addHandler(self)
        self._library.propagate = False

    def remove(self) -> None:
        """Let it speak for itself again."""
        self._library.removeHandler(self)
        self._library.propagate = True

    def mute(self) -> None:
        """Say no more: whatever it still complains of, nobody can help it."""
        self._next = math.inf

    def emit(self, record: logging.LogRecord) -> None:
        """Pass one on, if none was for a while."""
        if (now := time.monotonic()) >= self._next:
            self._next = now + LOG_INTERVAL_S
            logger.warning("traces: %s", record.getMessage())

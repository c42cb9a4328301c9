"""A collector: takes traces over OTLP/HTTP on a real socket, as any other would."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web
from msgspec import Struct
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span as WireSpan

PATIENCE = 30.0
SERVER, CLIENT, INTERNAL = (
    WireSpan.SPAN_KIND_SERVER,
    WireSpan.SPAN_KIND_CLIENT,
    WireSpan.SPAN_KIND_INTERNAL,
)


class Span(Struct, frozen=True):
    """A span as it came."""

    name: str
    kind: int
    trace_id: str
    span_id: str
    parent_id: str
    start: int
    end: int
    attributes: dict[str, Any]
    events: list[tuple[str, dict[str, Any]]]
    links: list[str]
    failed: bool
    resource: dict[str, Any]


class Collector:
    """What was sent."""

    def __init__(self) -> None:
        self.port = 0
        self.spans: list[Span] = []
        self.raw = b""
        self._changed = asyncio.Event()
        self.answers = asyncio.Event()
        """Cleared, it takes requests and says nothing."""
        self.answers.set()

    @property
    def env(self) -> dict[str, str]:
        """What has traces sent here, soon."""
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{self.port}",
            "OTEL_BSP_SCHEDULE_DELAY": "50",
        }

    async def take(self, request: web.Request) -> web.Response:
        """`POST /v1/traces`."""
        body = await request.read()
        if request.headers.get("content-encoding") == "gzip" and body[:2] == b"\x1f\x8b":
            body = gzip.decompress(body)
        await self.answers.wait()
        self.raw += body
        sent = ExportTraceServiceRequest.FromString(body)
        for group in sent.resource_spans:
            resource = _values(group.resource.attributes)
            for scope in group.scope_spans:
                self.spans += [_span(one, resource) for one in scope.spans]
        self._changed.set()
        answer = ExportTraceServiceResponse().SerializeToString()
        return web.Response(body=answer, content_type="application/x-protobuf")

    async def until(self, count: int) -> list[Span]:
        """Wait for so many spans; the earliest first."""
        try:
            async with asyncio.timeout(PATIENCE):
                while len(self.spans) < count:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            there = [span.name for span in self.spans]
            raise AssertionError(f"{count} spans were to come, there are {there}") from None
        return self.sorted

    @property
    def sorted(self) -> list[Span]:
        """All spans; the earliest first, the longest of those that begin together before others."""
        return sorted(self.spans, key=lambda span: (span.start, -span.end))

    def write(self, path: Path) -> None:
        """Put everything into a file, a span a line."""
        path.write_bytes(b"\n".join(json.dumps(_plain(span)).encode() for span in self.sorted))


def _plain(span: Span) -> dict[str, Any]:
    return {name: getattr(span, name) for name in span.__struct_fields__}


def _values(pairs: Iterable[KeyValue]) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: AnyValue) -> Any:
    match value.WhichOneof("value"):
        case "string_value":
            return value.string_value
        case "int_value":
            return value.int_value
        case "double_value":
            return value.double_value
        case "bool_value":
            return value.bool_value
        case "array_value":
            return [_value(one) for one in value.array_value.values]
        case other:
            raise ValueError(f"unexpected {other}")


def _span(span: WireSpan, resource: dict[str, Any]) -> Span:
    return Span(
        span.name,
        span.kind,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        _values(span.attributes),
        [(event.name, _values(event.attributes)) for event in span.events],
        [link.span_id.hex() for link in span.links],
        span.status.code == span.status.STATUS_CODE_ERROR,
        resource,
    )


@asynccontextmanager
async def collector() -> AsyncGenerator[Collector]:
    """Take traces on a free port of the loopback while the block runs."""
    found = Collector()
    app = web.Application(client_max_size=1 << 26)
    app.router.add_post("/v1/traces", found.take)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        found.port = runner.addresses[0][1]
        yield found
    finally:
        found.answers.set()
        await runner.cleanup()

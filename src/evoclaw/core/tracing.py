"""The trace context of a task, inherited by every task that it starts (W3C Trace Context).

Trace and span ids are derived from run and request ids. So a resumed run, a sub-run, and a device
that got a command twice compute the same ids again. Nothing here creates or sends spans.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from hashlib import sha256

from msgspec import Struct

MAX_TRACEPARENT_CHARS = 512
"""Characters of a `traceparent`; later versions of the standard may be longer than ours."""
_SAMPLED = 1
_PARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)


class TraceContext(Struct, frozen=True, gc=False):
    """A span in a trace, or a trace without a span yet."""

    trace_id: int
    span_id: int = 0
    """0 if there is no span yet."""
    sampled: bool = True

    @property
    def traceparent(self) -> str:
        """The W3C `traceparent` header; empty if there is no span."""
        if not self.span_id:
            return ""
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{_SAMPLED * self.sampled:02x}"

    def child(self, name: str) -> TraceContext:
        """The context of a child span with this name."""
        return TraceContext(self.trace_id, span_id_of(name), self.sampled)


_CURRENT: ContextVar[TraceContext | None] = ContextVar("evoclaw_place", default=None)


def current_trace() -> TraceContext | None:
    """The trace context of this task, if it has one."""
    return _CURRENT.get()


def set_trace(context: TraceContext | None) -> None:
    """Set the trace context of this task and of the tasks it starts from now on."""
    _CURRENT.set(context)


@contextmanager
def use_trace(context: TraceContext | None) -> Generator[None]:
    """Use a trace context while the block runs."""
    before = _CURRENT.get()
    _CURRENT.set(context)
    try:
        yield
    finally:
        _CURRENT.set(before)


def current_traceparent() -> str:
    """The `traceparent` of this task, to be sent to the next service; empty if it has none."""
    current = _CURRENT.get()
    return "" if current is None else current.traceparent


def enter_run_trace(run_id: str, parent: str = "") -> None:
    """Enter the trace of a run and its sub-runs.

    Args:
        run_id: The id of the topmost run.
        parent: The `traceparent` of the request that started it, if it had one.
    """
    _CURRENT.set(read_traceparent(parent) or TraceContext(trace_id_of(run_id)))


def trace_id_of(run_id: str) -> int:
    """The trace id of a run: deterministic, never 0."""
    return _hash_id(f"trace {run_id}", 16)


def span_id_of(name: str) -> int:
    """The id of the span with this name: deterministic, never 0."""
    return _hash_id(f"span {name}", 8)


def call_span(request_id: str) -> str:
    """The name of a call's span: the same for every attempt."""
    return request_id.rpartition(".")[0] or request_id


def read_traceparent(text: str) -> TraceContext | None:
    """Parse a `traceparent` header; None if it is not valid."""
    found = _PARENT.fullmatch(text) if len(text) <= MAX_TRACEPARENT_CHARS else None
    if found is None:
        return None
    version, trace_id, span_id = found[1], int(found[2], 16), int(found[3], 16)
    too_long = version == "00" and found[5] is not None
    if version == "ff" or too_long or not trace_id or not span_id:
        return None
    return TraceContext(trace_id, span_id, bool(int(found[4], 16) & _SAMPLED))


def _hash_id(name: str, size: int) -> int:
    return int.from_bytes(sha256(name.encode()).digest()[:size], "big") or 1

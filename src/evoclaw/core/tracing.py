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

LONGEST = 512
"""Characters of a `traceparent`; later versions of the standard may be longer than ours."""
_SAMPLED = 1
_PARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)


class Place(Struct, frozen=True, gc=False):
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

    def child(self, name: str) -> Place:
        """The context of a child span with this name."""
        return Place(self.trace_id, span_id_of(name), self.sampled)


_HERE: ContextVar[Place | None] = ContextVar("evoclaw_place", default=None)


def here() -> Place | None:
    """The trace context of this task, if it has one."""
    return _HERE.get()


def stand(place: Place | None) -> None:
    """Set the trace context of this task and of the tasks it starts from now on."""
    _HERE.set(place)


@contextmanager
def standing(place: Place | None) -> Generator[None]:
    """Use a trace context while the block runs."""
    before = _HERE.get()
    _HERE.set(place)
    try:
        yield
    finally:
        _HERE.set(before)


def traceparent() -> str:
    """The `traceparent` of this task, to be sent to the next service; empty if it has none."""
    current = _HERE.get()
    return "" if current is None else current.traceparent


def enter(run_id: str, parent: str = "") -> None:
    """Enter the trace of a run and its sub-runs.

    Args:
        run_id: The id of the topmost run.
        parent: The `traceparent` of the request that started it, if it had one.
    """
    _HERE.set(read_traceparent(parent) or Place(trace_id_of(run_id)))


def trace_id_of(run_id: str) -> int:
    """The trace id of a run: deterministic, never 0."""
    return _number(f"trace {run_id}", 16)


def span_id_of(name: str) -> int:
    """The id of the span with this name: deterministic, never 0."""
    return _number(f"span {name}", 8)


def call_span(request_id: str) -> str:
    """The name of a call's span: the same for every attempt."""
    return request_id.rpartition(".")[0] or request_id


def read_traceparent(text: str) -> Place | None:
    """Parse a `traceparent` header; None if it is not valid."""
    found = _PARENT.fullmatch(text) if len(text) <= LONGEST else None
    if found is None:
        return None
    version, trace_id, span_id = found[1], int(found[2], 16), int(found[3], 16)
    too_long = version == "00" and found[5] is not None
    if version == "ff" or too_long or not trace_id or not span_id:
        return None
    return Place(trace_id, span_id, bool(int(found[4], 16) & _SAMPLED))


def _number(name: str, size: int) -> int:
    return int.from_bytes(sha256(name.encode()).digest()[:size], "big") or 1

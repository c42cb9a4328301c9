"""Where in a trace something happens: a task knows it, and so does everything that it begins.

Ids are made of ids that there are anyway. So a run that goes on after a restart, a sub-run, and a
device that was asked twice find the same place again. Nothing here makes or sends spans.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from hashlib import sha256

from msgspec import Struct

LONGEST = 512
"""Characters of a `traceparent` that are looked at; later versions of it may say more than ours."""
_SAMPLED = 1
_PARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)


class Place(Struct, frozen=True, gc=False):
    """A span in a trace, or a trace in which none has begun yet."""

    trace_id: int
    span_id: int = 0
    """0 if none has begun."""
    sampled: bool = True

    @property
    def traceparent(self) -> str:
        """As W3C says it; empty where there is no span to be the parent."""
        if not self.span_id:
            return ""
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{_SAMPLED * self.sampled:02x}"

    def child(self, name: str) -> Place:
        """The place of a span below, by what names it."""
        return Place(self.trace_id, span_id_of(name), self.sampled)


_HERE: ContextVar[Place | None] = ContextVar("evoclaw_place", default=None)


def here() -> Place | None:
    """Where this task is, if that is known."""
    return _HERE.get()


def stand(place: Place | None) -> None:
    """Be there from now on, with all that this task begins."""
    _HERE.set(place)


@contextmanager
def standing(place: Place | None) -> Generator[None]:
    """Be there while the block runs."""
    before = _HERE.get()
    _HERE.set(place)
    try:
        yield
    finally:
        _HERE.set(before)


def traceparent() -> str:
    """What to send to whoever goes on with it; empty if there is nothing to go on with."""
    place = _HERE.get()
    return "" if place is None else place.traceparent


def enter(run_id: str, parent: str = "") -> None:
    """Be in the trace of a run and its sub-runs from now on.

    Args:
        run_id: Of the topmost run.
        parent: The `traceparent` that came with the wish to begin it, if one did.
    """
    _HERE.set(read_traceparent(parent) or Place(trace_id_of(run_id)))


def trace_id_of(run_id: str) -> int:
    """The trace of a run, always the same; never 0."""
    return _number(f"trace {run_id}", 16)


def span_id_of(name: str) -> int:
    """The id of the span that a name stands for, always the same; never 0."""
    return _number(f"span {name}", 8)


def call_span(request_id: str) -> str:
    """What names a call's span: the same, whichever attempt it is."""
    return request_id.rpartition(".")[0] or request_id


def read_traceparent(text: str) -> Place | None:
    """The place that a `traceparent` names; None if it names none."""
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

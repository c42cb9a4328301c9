"""The figures of one run, a fold over its records; what it takes in, it need not see again."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from msgspec import Struct

from evoclaw.core.events import (
    CallFinished,
    CallStarted,
    ContextTrimmed,
    Record,
    Replied,
    ReplyFailed,
    RunFinished,
    RunResumed,
    StopReason,
    TurnStarted,
)
from evoclaw.core.messages import (
    JSON,
    ErrorKind,
    ImageBlock,
    ToolResult,
    Usage,
    is_array,
    is_object,
)
from evoclaw.core.result import Meter

LONGEST_SAID = 200
"""Characters that are kept of what was said about a failure."""
LONGEST_NAME = 128
"""Characters of a tool's name: a model may have made it up."""
ASKS_EDGES = "edge_call"
"""The tool whose arguments name edges."""
_EDGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_NEVER: tuple[float | None, Mapping[str, JSON]] = (None, {})
_GOOD = (None, StopReason.COMPLETED, StopReason.WAITING)


class FoldedCall(Struct, frozen=True, gc=False):
    """One call, as the records tell of it."""

    at: float
    turn: int
    tool: str
    ms: float | None
    error: str
    denied: bool
    bytes: int
    said: str
    edges: tuple[tuple[str, str], ...]
    """The edges that were asked, each with its kind of error."""


class Fold:
    """What is known of a run so far."""

    def __init__(self) -> None:
        self.seq = 0
        """The last record that was taken in."""
        self.last = 0.0
        """When that was."""
        self.calls: list[FoldedCall] = []
        self.tokens_in = self.tokens_out = self.unpriced = 0
        self.cost = self.waited = 0.0
        self._meter = Meter()
        self._turn = self._good_turn = 0
        self._parked: float | None = None
        self._started: dict[str, tuple[float | None, Mapping[str, JSON]]] = {}

    @property
    def saved(self) -> float:
        """Seconds that calls side by side saved."""
        return self._meter.metrics().wall_time_saved_ms / 1000

    def take(self, record: Record) -> None:
        """Take one record in; each once, in order."""
        self.seq, self.last = record.seq, record.at
        self._meter.receive(record)
        match record.event:
            case TurnStarted(turn=turn):
                self._turn = turn
            case CallStarted(call_id=call_id, arguments=arguments):
                # One that was cut off and begun again is measured from its last beginning.
                self._started[call_id] = record.at, arguments
            case CallFinished(result=result):
                self._finished(result, record.at)
            case Replied(reply=reply):
                self._spend(reply.usage, reply.cost)
            case ReplyFailed(usage=usage):
                self._spend(usage, None)
            case ContextTrimmed(usage=usage, cost=cost):
                self._spend(usage, cost)
            case RunFinished(stop=stop):
                self._parked = record.at if stop is StopReason.WAITING else None
            case RunResumed():
                self.waited += 0.0 if self._parked is None else record.at - self._parked
                self._parked = None
            case _:
                pass

    def recovered(self, call: FoldedCall, stop: StopReason | None) -> bool:
        """Whether a call failed, one of a later turn succeeded, and the run came to no bad end."""
        return bool(call.error) and call.turn < self._good_turn and stop in _GOOD

    def _finished(self, result: ToolResult, at: float) -> None:
        began, arguments = self._started.pop(result.call_id, _NEVER)
        error = "" if result.error is None else str(result.error)
        ran = began is not None
        if not error:
            self._good_turn = self._turn
        self.calls.append(
            FoldedCall(
                at,
                self._turn,
                plain(result.name, LONGEST_NAME),
                None if began is None else max(0.0, at - began) * 1000,
                error,
                not ran and result.error is ErrorKind.PERMISSION_DENIED,
                _size(result),
                plain(result.text, LONGEST_SAID) if error else "",
                tuple(_edges(result, arguments, error).items()) if ran else (),
            )
        )

    def _spend(self, usage: Usage, cost: float | None) -> None:
        self.tokens_in += usage.input
        self.tokens_out += usage.output
        if cost is not None:
            self.cost += cost
        elif usage.input or usage.output:
            self.unpriced += 1


def plain(text: str, limit: int) -> str:
    """The beginning of a text on one line, without what a database or a terminal minds."""
    shown = "".join(char if char.isprintable() else " " for char in text[: 4 * limit])
    return " ".join(shown.split())[:limit]


def _size(result: ToolResult) -> int:
    return sum(
        len(block.data if isinstance(block, ImageBlock) else block.text.encode(errors="replace"))
        for block in result.blocks
    )


def _edges(result: ToolResult, arguments: Mapping[str, JSON], error: str) -> dict[str, str]:
    """The edges that a call ran on, and how it went on each."""
    several, one = result.details.get("agents"), result.details.get("agent")
    if result.name == ASKS_EDGES and is_object(several):
        found = {name: "" if how == "ok" else str(how) for name, how in several.items()}
    elif isinstance(one, str) and "session_id" not in result.details:
        found = {one: error}
    elif result.name == ASKS_EDGES:
        # Nobody was reached: whom it was meant for stands in the arguments.
        found = dict.fromkeys(_named(arguments.get("agent_id")), error)
    else:
        return {}
    return {name: how for name, how in found.items() if _EDGE.fullmatch(name)}


def _named(asked: JSON) -> Sequence[str]:
    if is_array(asked):
        return [one for one in asked if isinstance(one, str)]
    return [asked] if isinstance(asked, str) else []

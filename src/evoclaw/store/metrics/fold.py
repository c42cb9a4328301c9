"""The metrics of one run, a fold over its stored records: every record is folded once."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from msgspec import UNSET, Struct

from evoclaw.core.events import (
    Record,
    RunFinished,
    RunResumed,
    RunStarted,
    StopReason,
    TurnStarted,
)
from evoclaw.core.messages import JSON, ErrorKind, ToolResult, is_array, is_object
from evoclaw.core.metrics import FinishedCall, RunMeter, Spending, result_bytes

MAX_ERROR_CHARS = 200
"""Characters of an error text."""
MAX_NAME_CHARS = 128
"""Characters of a tool's name: a model may have invented it."""
EDGE_CALL = "edge_call"
"""The tool whose arguments name edges."""
_EDGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_GOOD_STOPS = (None, StopReason.COMPLETED, StopReason.WAITING)


class FoldedCall(Struct, frozen=True, gc=False):
    """One call, from its records."""

    at: float
    turn: int
    tool: str
    ms: float | None
    error: str
    denied: bool
    bytes: int
    said: str
    edges: tuple[tuple[str, str], ...]
    """The edges that the call was sent to, each with its kind of error."""


class RunFold:
    """The metrics of a run so far."""

    def __init__(self) -> None:
        self.seq = 0
        """The number of the last folded record."""
        self.last = 0.0
        """The time of the last folded record."""
        self.calls: list[FoldedCall] = []
        self.waited = 0.0
        self.genome = ""
        """The digest of the agent's genome."""
        self._meter = RunMeter(on_call=self._add_call)
        self._turn = self._good_turn = 0
        self._parked: float | None = None

    @property
    def spending(self) -> Spending:
        """What its replies cost."""
        return self._meter.replies.spending

    @property
    def saved(self) -> float:
        """Seconds that parallel calls saved."""
        return self._meter.metrics().wall_time_saved_ms / 1000

    def receive(self, record: Record) -> None:
        """Fold a record; each once, in order."""
        self.seq, self.last = record.seq, record.at
        self._meter.receive(record)
        match record.event:
            case RunStarted(settings=settings):
                self.genome = "" if settings.genome is UNSET else settings.genome
            case TurnStarted(turn=turn):
                self._turn = turn
            case RunFinished(stop=stop):
                self._parked = record.at if stop is StopReason.WAITING else None
            case RunResumed():
                self.waited += 0.0 if self._parked is None else record.at - self._parked
                self._parked = None
            case _:
                pass

    def recovered(self, call: FoldedCall, stop: StopReason | None) -> bool:
        """Whether a call failed, one of a later turn succeeded, and the run ended well."""
        return bool(call.error) and call.turn < self._good_turn and stop in _GOOD_STOPS

    def _add_call(self, call: FinishedCall) -> None:
        result = call.result
        error = "" if result.error is None else str(result.error)
        if not error:
            self._good_turn = self._turn
        self.calls.append(
            FoldedCall(
                call.at,
                self._turn,
                plain(result.name, MAX_NAME_CHARS),
                call.elapsed_ms,
                error,
                not call.ran and result.error is ErrorKind.PERMISSION_DENIED,
                result_bytes(result),
                plain(result.text, MAX_ERROR_CHARS) if error else "",
                tuple(_edges(result, call.arguments, error).items()) if call.ran else (),
            )
        )


def plain(text: str, limit: int) -> str:
    """The first characters of a text on one line, without control characters."""
    shown = "".join(char if char.isprintable() else " " for char in text[: 4 * limit])
    return " ".join(shown.split())[:limit]


def _edges(result: ToolResult, arguments: Mapping[str, JSON], error: str) -> dict[str, str]:
    """The edges that a call ran on, each with its kind of error."""
    several, single = result.details.get("agents"), result.details.get("agent")
    if result.name == EDGE_CALL and is_object(several):
        found = {name: "" if how == "ok" else str(how) for name, how in several.items()}
    elif isinstance(single, str) and "session_id" not in result.details:
        found = {single: error}
    elif result.name == EDGE_CALL:
        # No edge was reached: the arguments name the intended ones.
        found = dict.fromkeys(_named_edges(arguments.get("agent_id")), error)
    else:
        return {}
    return {name: how for name, how in found.items() if _EDGE.fullmatch(name)}


def _named_edges(agent_id: JSON) -> Sequence[str]:
    if is_array(agent_id):
        return [name for name in agent_id if isinstance(name, str)]
    return [agent_id] if isinstance(agent_id, str) else []

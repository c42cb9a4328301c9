"""What a prompt's run came to, noted for the device's fitness: its calls, and how it ended."""

from __future__ import annotations

from evoclaw.core.events import CallFinished, CallStarted, Record, RunFinished, StopReason
from evoclaw.core.state import RunState
from evoclaw.edge.fitness import Outcomes


class RunNotes:
    """Listens to one run; a sink."""

    def __init__(self, outcomes: Outcomes, tool_error_limit: int) -> None:
        self._outcomes, self._limit = outcomes, tool_error_limit
        self._state = RunState("")
        self._began: dict[str, float] = {}

    def receive(self, record: Record) -> None:
        """Take one record in."""
        event = record.event
        self._state.apply(event)
        if isinstance(event, CallStarted):
            self._began[event.call_id] = record.at
        elif isinstance(event, CallFinished):
            self._note_call(event, record.at)
        elif isinstance(event, RunFinished):
            by_tools = event.stop is StopReason.ERROR and self._state.failed_turns >= self._limit
            self._outcomes.record_run(event.stop, by_tools=by_tools)

    def _note_call(self, event: CallFinished, at: float) -> None:
        result = event.result
        began = self._began.pop(result.call_id, None)
        elapsed = None if began is None else max(at - began, 0.0) * 1000
        self._outcomes.record_call(
            result.name, error=result.error, message=result.text, elapsed_ms=elapsed
        )

"""Answers calls from recorded results, and counts how many it could not answer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from evoclaw.core.encoding import json_digest
from evoclaw.core.errors import ToolFailure
from evoclaw.core.events import CallFinished, CallStarted, Record
from evoclaw.core.messages import ErrorKind, TextBlock, ToolResult
from evoclaw.core.ports import Progress
from evoclaw.core.tools import Call, Effect, Tool
from evoclaw.core.toolset import Toolset
from evoclaw.evolution.cases import CaseFile, CaseResult, recorded_tools

NOT_RECORDED = "Error: There is no recorded result for this call. Try something else."


class RecordedResults:
    """An executor of the tools of a case; nothing is executed."""

    def __init__(self, case: CaseFile, known: Iterable[Tool] = ()) -> None:
        """`known` are the tools of this machine: a case may name one without describing it."""
        records = case.records()
        self._results = case.case.results
        self._recorded = _results_of(records)
        self._tools = Toolset(_offered(case, records, known))
        self.answered = self.unanswered = 0
        """Calls that were answered, and those that were not or were refused before."""

    @property
    def coverage(self) -> float | None:
        """The share of calls that were answered from the record; None without a call."""
        total = self.answered + self.unanswered
        return self.answered / total if total else None

    def tools(self) -> Sequence[Tool]:
        """The tools of the case."""
        return self._tools

    def can_answer(self, call: Call) -> bool:
        """Whether there is a result for a call."""
        return self._own_result(call) is not None or bool(self._waiting(call))

    async def execute(self, call: Call, progress: Progress) -> ToolResult:
        """The recorded result of a call with the same arguments, in the order of the record."""
        if (result := self._own_result(call)) is not None:
            self.answered += 1
            return _result(call, result)
        waiting = self._waiting(call)
        if not waiting:
            self.unanswered += 1
            raise ToolFailure(ErrorKind.NOT_FOUND, NOT_RECORDED)
        self.answered += 1
        # A call that is made once more than it was recorded gets the last result again.
        found = waiting.pop(0) if len(waiting) > 1 else waiting[0]
        return replace(found, call_id=call.id, name=call.name)

    def _own_result(self, call: Call) -> CaseResult | None:
        """The result that the case itself has for a call."""
        fitting = (r for r in self._results if r.tool == call.name)
        return next((r for r in fitting if r.arguments in (None, call.arguments)), None)

    def _waiting(self, call: Call) -> list[ToolResult]:
        """The results that the recorded run has for calls like this one, in their order."""
        return self._recorded.get((call.name, json_digest(call.arguments)), [])


def _result(call: Call, result: CaseResult) -> ToolResult:
    if result.error is not None:
        return call.failed(result.error, result.text)
    return ToolResult(call.id, call.name, (TextBlock(result.text),))


def _results_of(records: Iterable[Record]) -> dict[tuple[str, str], list[ToolResult]]:
    """The results of a recorded run by tool and arguments; calls that never ran have none."""
    started: dict[str, CallStarted] = {}
    found: dict[tuple[str, str], list[ToolResult]] = {}
    for record in records:
        event = record.event
        if isinstance(event, CallStarted):
            started[event.call_id] = event
        elif isinstance(event, CallFinished) and event.result.call_id in started:
            call = started[event.result.call_id]
            key = call.name, json_digest(call.arguments)
            found.setdefault(key, []).append(event.result)
    return found


def _offered(case: CaseFile, records: Iterable[Record], known: Iterable[Tool]) -> list[Tool]:
    own = [
        Tool(tool.name, tool.description, {"type": "object", **tool.parameters}, effect=Effect.READ)
        for tool in case.case.tools
    ]
    named = {result.tool for result in case.case.results}
    here = [tool for tool in known if tool.name in named]
    return list({tool.name: tool for tool in (*here, *recorded_tools(records), *own)}.values())

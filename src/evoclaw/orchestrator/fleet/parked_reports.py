"""Outcomes of commands that this orchestrator did not send: parked, then looked up together.

All orchestrators of a store receive every report. The one that sent the command stores its outcome
at once; the others look a moment later, in one query for all, whether that has happened. What has
no outcome by then is taken as if it had been sent here: its orchestrator is dead, or missed it.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable, Coroutine
from itertools import islice

import msgspec
from msgspec.structs import replace

from evoclaw.core.commands import CommandRow
from evoclaw.core.errors import EvoClawError
from evoclaw.store.calls.commands import CommandStore
from evoclaw.transport.outcomes import read_outcome
from evoclaw.transport.wire import Outcome, Report

PARKING_S = 2.0
"""Seconds at most before a parked report is looked up."""
MAX_PARKED_REPORTS = 5_000
"""Further reports are dropped; edges repeat what was not acknowledged."""
MAX_PARKED_BYTES = 32_000_000
"""Bytes of the parked reports together."""
MAX_REMEMBERED_REPORTS = 20_000
"""Reports that were found stored: one that comes again was not acknowledged."""
LOOK_UP_ROWS = 500
"""Commands in one query."""


class ParkedReports:
    """The reports that wait for another orchestrator to take them."""

    def __init__(
        self,
        commands: CommandStore,
        counts: Counter[str],
        *,
        spawn: Callable[[Coroutine[object, object, None]], None],
        take: Callable[[Report, CommandRow | None], Coroutine[object, object, None]],
    ) -> None:
        """`take` gets a report that no orchestrator has taken, and its command if it is known."""
        self._commands, self._counts, self._spawn, self._take = commands, counts, spawn, take
        self._parked: OrderedDict[tuple[str, str], tuple[float, int, Report]] = OrderedDict()
        self._bytes = 0
        self._stored: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._timer: asyncio.TimerHandle | None = None

    def park(self, report: Report, size: int) -> bool:
        """Keep a report for a moment; False if it must be looked at now: it came before."""
        key = report.agent_id, report.request_id
        if key in self._stored:
            del self._stored[key]
            return False  # its acknowledgement was lost
        if key in self._parked:
            return True
        if len(self._parked) >= MAX_PARKED_REPORTS or self._bytes + size > MAX_PARKED_BYTES:
            self._counts["too much at once"] += 1
            return True
        loop = asyncio.get_running_loop()
        self._parked[key] = loop.time(), size, report
        self._bytes += size
        if self._timer is None:
            self._timer = loop.call_later(PARKING_S, self._due)
        return True

    def close(self) -> None:
        """Drop all; edges repeat what was not acknowledged."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._parked.clear()
        self._bytes = 0

    def _due(self) -> None:
        """Look up what is parked for long enough that its orchestrator has had time."""
        loop = asyncio.get_running_loop()
        latest = loop.time() - PARKING_S / 2
        due = [key for key, (since, _, _) in self._parked.items() if since <= latest]
        found = [self._parked.pop(key) for key in due]
        self._bytes -= sum(size for _, size, _ in found)
        self._timer = loop.call_later(PARKING_S, self._due) if self._parked else None
        reports = iter([report for _, _, report in found])
        while some := list(islice(reports, LOOK_UP_ROWS)):
            self._spawn(self._look_up(some))

    async def _look_up(self, reports: list[Report]) -> None:
        try:
            rows = await self._commands.get_all({report.request_id for report in reports})
        except EvoClawError:
            self._counts["the store failed"] += 1  # not acknowledged, so the edge reports it again
            return
        for report in reports:
            row = rows.get(report.request_id)
            if _has_outcome(row, report):
                self._remember(report)
                self._counts["taken elsewhere"] += 1
            else:
                await self._take(report, row)

    def _remember(self, report: Report) -> None:
        self._stored[report.agent_id, report.request_id] = None
        if len(self._stored) > MAX_REMEMBERED_REPORTS:
            self._stored.popitem(last=False)


def _has_outcome(row: CommandRow | None, report: Report) -> bool:
    """Whether exactly this outcome is stored; the verdict on its receipt is not part of it."""
    if row is None or row.outcome is None or row.agent_id != report.agent_id:
        return False
    try:
        stored = msgspec.json.decode(row.outcome, type=Outcome)
    except msgspec.MsgspecError:
        return False
    return replace(stored, checked={}) == replace(read_outcome(report), checked={})

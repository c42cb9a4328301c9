"""Undoes the file changes of a run, by one call of `undo` on each machine.

Each call is a run of its own, under the agent's policies: judged, recorded and signed like a write.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import sha256

import msgspec
from msgspec import Struct

from evoclaw.core.errors import EvoClawError
from evoclaw.core.events import CallFinished, CallStarted, Record, StopReason, ToolsChanged
from evoclaw.core.labels import Principal
from evoclaw.core.messages import JSON, ErrorKind, ToolResult, is_array, is_object
from evoclaw.core.routes import SERVICE_MACHINE
from evoclaw.core.tools import UNDO_TOOL, Effect, Tool
from evoclaw.orchestrator.runs.requests import RunStatus, RunView
from evoclaw.orchestrator.runs.runs import Runs
from evoclaw.orchestrator.runs.single_calls import call_result, single_call_request
from evoclaw.orchestrator.sanitizing import one_line

MAX_ATTEMPTS = 50
"""Of undoing one run on one machine; each that failed may be followed by another."""
MAX_SHOWN_COMMAND_CHARS = 120
_NEVER_RAN = (ErrorKind.PERMISSION_DENIED, ErrorKind.INVALID_PARAMS, ErrorKind.NOT_FOUND)
_MAY_HAVE_RUN = (ErrorKind.TIMEOUT, ErrorKind.CANCELLED, ErrorKind.UNKNOWN)


class AlreadyUndone(EvoClawError):
    """A run was undone before."""

    def __init__(self, run_id: str) -> None:
        super().__init__(f"the file changes of run {run_id} were undone before; send a new message")
        self.run_id = run_id


class RunNotEnded(EvoClawError):
    """A run has not ended, so it cannot be undone yet."""

    def __init__(self, run_id: str) -> None:
        super().__init__(f"run {run_id} has not ended; cancel it first, then undo it")
        self.run_id = run_id


class MachineChanges(Struct, frozen=True):
    """What a run changed in files of one machine."""

    machine: str
    calls: tuple[str, ...]
    """The ids of the calls, in order."""
    paths: tuple[str, ...]


class UndoPlan(Struct, frozen=True):
    """What can be undone of a run, and what cannot."""

    machines: tuple[MachineChanges, ...]
    left: tuple[str, ...]
    """The calls whose effects stay, in words."""


class UndoneMachine(Struct, frozen=True, omit_defaults=True):
    """How undoing a run ended on one machine."""

    machine: str
    """The name of the machine."""
    run_id: str
    """The run that undid it."""
    state: str
    """`undone`, `waiting` for an approval, or `failed`."""
    restored: tuple[str, ...] = ()
    """Files that are as they were before, or are deleted because they did not exist."""
    not_restored: dict[str, str] = {}
    """Files that could not be restored, and why."""
    reason: str = ""
    """Why it failed, or what it waits for."""


class UndoResult(Struct, frozen=True):
    """How undoing a run ended."""

    run_id: str
    """The run whose changes were undone."""
    machines: tuple[UndoneMachine, ...]
    """Empty if the run changed no files."""
    left: tuple[str, ...] = ()
    """What cannot be undone: commands that ran, messages that were sent, and so on."""


def plan_undo(records: Iterable[Record], *, local: bool = False) -> UndoPlan:
    """What the records of runs say about file changes.

    Those of a `local` run, of `evoclaw run`, may also name changes whose before-images are kept on
    the machine of the run; that machine has the name "".
    """
    tools: dict[str, Tool] = {}
    started: dict[tuple[str, str], CallStarted] = {}
    calls: dict[str, dict[str, None]] = {}
    paths: dict[str, dict[str, None]] = {}
    left: list[str] = []
    for record in records:
        match record.event:
            case ToolsChanged(offered):
                tools |= {tool.name: tool for tool in offered}
            case CallStarted(call_id):
                started[record.run_id, call_id] = record.event
            case CallFinished(result):
                start = started.get((record.run_id, result.call_id))
                if start is None:
                    continue
                for machine, call_id, changed in _changes(
                    record.run_id, start, result, local=local
                ):
                    calls.setdefault(machine, {})[call_id] = None
                    paths.setdefault(machine, {}).update(dict.fromkeys(changed))
                if text := _not_undoable(start, result, tools):
                    left.append(text)
            case _:
                pass
    machines = (MachineChanges(name, tuple(calls[name]), tuple(paths[name])) for name in calls)
    return UndoPlan(tuple(machines), tuple(left))


def _changes(
    run_id: str, start: CallStarted, result: ToolResult, *, local: bool
) -> Iterable[tuple[str, str, Sequence[str]]]:
    """The machine, the call id and the files of each change that a result names."""
    entries = result.details.get("changes")
    on_edge = start.machine not in ("", SERVICE_MACHINE)
    if not (on_edge or local) or not is_array(entries):
        return  # the service keeps no before-images: anything else was not said by an edge
    for entry in entries:
        if not is_object(entry):
            continue
        machine = entry.get("agent", result.details.get("agent")) if on_edge else None
        call_id, changed = entry.get("call"), entry.get("paths")
        if not isinstance(call_id, str) or not is_array(changed):
            continue
        if machine is None and local and call_id.startswith(f"{run_id}."):
            machine = ""  # of this run: a tool cannot name the changes of another one
        if isinstance(machine, str):
            yield machine, call_id, [path for path in changed if isinstance(path, str)]


def _not_undoable(start: CallStarted, result: ToolResult, tools: dict[str, Tool]) -> str:
    """A call whose effects stay, in words; empty if it had none."""
    name, given = start.name, start.arguments
    if name == "edge_call" and isinstance(action := given.get("action"), str):
        params = given.get("params")
        name, given = action, params if is_object(params) else {}
    if name == UNDO_TOOL or "changes" in result.details or result.error in _NEVER_RAN:
        return ""
    tool = tools.get(name)
    where = f" on {start.machine}" if start.machine else ""
    if isinstance(command := given.get("command"), str):
        return f"{name}{where}: {one_line(command, MAX_SHOWN_COMMAND_CHARS)}"
    if tool is None or tool.effect is not Effect.WRITE:
        return ""
    if result.error in _MAY_HAVE_RUN:
        return f"{name}{where}: it did not end, and may have changed something"
    if result.error is None and "file_write" in tool.permissions and not given.get("dry_run"):
        return f"{name}{where}: what the files held before was not kept"
    return f"{name}{where}" if tool.has_side_effects else ""


async def undo_run(runs: Runs, principal: Principal, view: RunView) -> UndoResult:
    """Undo the file changes of a run and its sub-runs; wait until that ends or waits.

    Raises `RunNotEnded`, or `AlreadyUndone`.
    """
    if view.state is not RunStatus.ENDED:
        raise RunNotEnded(view.run_id)
    plan = plan_undo(await _records(runs, principal.tenant, view.run_id))
    machines: list[UndoneMachine] = []
    was_undone = False
    for changes in plan.machines:
        undone = await _undo_on(runs, principal, view, changes)
        was_undone = was_undone or undone is None
        if undone is not None:
            machines.append(undone)
    if was_undone and not machines:
        raise AlreadyUndone(view.run_id)
    return UndoResult(view.run_id, tuple(machines), plan.left)


async def _records(runs: Runs, tenant: str, run_id: str) -> list[Record]:
    """The records of a run, then of its sub-runs, in the order of their time."""
    found = [record async for record in runs.records(tenant, run_id)]
    for child in await runs.list(tenant, parent_run=run_id, limit=100):
        found += await _records(runs, tenant, child.run_id)
    return sorted(found, key=lambda record: record.at)


async def _undo_on(
    runs: Runs, principal: Principal, view: RunView, changes: MachineChanges
) -> UndoneMachine | None:
    """Undo a run on one machine; None if it was undone there before.

    The id of the run that undoes it follows from what is undone: two callers start it once.
    """
    arguments: dict[str, JSON] = {"calls": list(changes.calls), "paths": list(changes.paths)}
    request = single_call_request(
        UNDO_TOOL, arguments, agent=view.agent, on=changes.machine, title=f"undo: {view.asked}"
    )
    for attempt in range(1, MAX_ATTEMPTS + 1):
        stem = f"undo {view.run_id} {changes.machine} {attempt}"
        run_id = sha256(stem.encode()).hexdigest()[:32]
        started, is_new = await runs.start(principal, request, run_id=run_id)
        ended = await runs.result(principal.tenant, started.run_id)
        if ended.stop is StopReason.WAITING:
            reason = ended.reason or ended.text
            return UndoneMachine(changes.machine, started.run_id, "waiting", reason=reason)
        result = await call_result(runs, principal.tenant, started.run_id)
        if result is not None and result.error is None:
            return _undone(changes.machine, started.run_id, result) if is_new else None
        if is_new:
            reason = ended.reason or ended.text if result is None else result.text
            return UndoneMachine(changes.machine, started.run_id, "failed", reason=reason)
    reason = "it failed too often; restore the files by hand"
    return UndoneMachine(changes.machine, "", "failed", reason=reason)


def _undone(machine: str, run_id: str, result: ToolResult) -> UndoneMachine:
    class Details(Struct):
        restored: tuple[str, ...] = ()
        not_restored: dict[str, str] = {}

    found = msgspec.convert(result.details, Details)
    return UndoneMachine(machine, run_id, "undone", found.restored, found.not_restored)

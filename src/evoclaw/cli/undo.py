"""`evoclaw undo`: undo the file changes of `evoclaw run`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import click
import msgspec

from evoclaw.cli.options import FILE, CliCommand, json_option
from evoclaw.cli.output import print_err, print_out
from evoclaw.cli.run import EDGE_TIMEOUT_S, RunOptions, recordings_folder, start_run
from evoclaw.cli.service_api import UndoneMachineRow, UndoRow
from evoclaw.cli.terminal import is_interactive
from evoclaw.cli.terminal_text import one_line
from evoclaw.core.errors import ConfigError, RecordingError
from evoclaw.core.events import CallFinished, Record, RunFinished, RunStarted, StopReason
from evoclaw.core.messages import JSON, Reply, ToolCall, ToolResult, UserMessage, user
from evoclaw.core.ports import Approver, Ports
from evoclaw.core.state import PreparedRun, RunState, fold, new_run
from evoclaw.core.tools import UNDO_TOOL
from evoclaw.governance.autonomy import Level
from evoclaw.orchestrator.runs.undo import MachineChanges, UndoPlan, plan_undo


@click.command(cls=CliCommand)
@click.argument(
    "recording", type=FILE, required=False, help="A recording of `evoclaw run` [the newest]"
)
@click.option("--yes", is_flag=True, help="Restore the files without asking")
@json_option()
def undo(recording: Path | None, *, yes: bool, as_json: bool) -> int:
    """Undo the file changes of a run; what its commands did stays."""
    if not yes and (as_json or not is_interactive()):
        raise ConfigError("undoing asks before it writes, and no user can answer: add --yes")
    path, records = _newest_run() if recording is None else (recording, _read_recording(recording))
    if not as_json:
        print_err(f"undoing {path}: {_task(records)}")
    plan, lost = asyncio.run(_plan(records))
    rows = [_undo_on(changes, yes=yes, as_json=as_json) for changes in plan.machines]
    if lost:
        why = "what it held before is not kept any more"
        rows.append(UndoneMachineRow("", "", "undone", not_restored=dict.fromkeys(lost, why)))
    found = UndoRow(tuple(rows), plan.left)
    if as_json:
        print_out(msgspec.to_builtins(found))
    for line in [] if as_json else found.lines():
        print_out(line)
    return found.exit_code


def _read_recording(path: Path) -> list[Record]:
    from evoclaw.wiring.record_key import open_recording

    records = open_recording(path)
    if not records:
        raise ConfigError(f"{path} holds no records")
    return records


def _newest_run() -> tuple[Path, list[Record]]:
    """The newest recorded run that did not undo another one."""
    found = recordings_folder().glob("*.jsonl")
    for path in sorted(found, key=lambda path: path.stat().st_mtime_ns, reverse=True):
        try:
            records = _read_recording(path)
        except (ConfigError, RecordingError) as problem:
            print_err(f"skipped: {problem}")
            continue
        if _undoes_another(records):
            continue
        if fold(records).stop is None:
            raise ConfigError(
                f"the run in {path} has not ended: wait for it, resume it with `evoclaw run "
                f"--resume {path}`, or undo what it did so far with `evoclaw undo {path}`"
            )
        return path, records
    raise ConfigError("no run is recorded on this machine; start one with `evoclaw run`")


def _undoes_another(records: Sequence[Record]) -> bool:
    first = records[0].event
    last = first.messages[-1] if isinstance(first, RunStarted) and first.messages else None
    return isinstance(last, Reply) and any(call.name == UNDO_TOOL for call in last.calls)


def _task(records: Sequence[Record]) -> str:
    first = records[0].event
    messages = first.messages if isinstance(first, RunStarted) else ()
    tasks = [message.text for message in messages if isinstance(message, UserMessage)]
    return one_line(tasks[-1] if tasks else "", 100)


async def _plan(records: Sequence[Record]) -> tuple[UndoPlan, list[str]]:
    """What is undone where, and the files whose content is not kept any more.

    The machine is an edge, or the folder or `ssh://` URL in which a call of `evoclaw run` worked.
    """
    from evoclaw.wiring.before_images import changes_by_root
    from evoclaw.wiring.undo import with_subruns

    plan = plan_undo(await with_subruns(records, os.environ), local=True)
    machines: list[MachineChanges] = []
    lost: list[str] = []
    for changes in plan.machines:
        if changes.machine:
            machines.append(changes)
            continue
        by_root, not_kept = await changes_by_root(changes, os.environ)
        machines += by_root
        lost += not_kept
    return UndoPlan(tuple(machines), plan.left), lost


class _UndoOutcome:
    """A sink that remembers how the call of `undo` ended."""

    def __init__(self) -> None:
        self.result: ToolResult | None = None
        self.end: RunFinished | None = None

    def receive(self, record: Record) -> None:
        """Remember the result of the call, and the end of the run."""
        match record.event:
            case CallFinished(result):
                self.result = result
            case RunFinished():
                self.end = record.event
            case _:
                pass


def _undo_on(changes: MachineChanges, *, yes: bool, as_json: bool) -> UndoneMachineRow:
    """Undo the changes below one root, or on one edge, by a run of one call."""
    arguments: dict[str, JSON] = {"calls": list(changes.calls), "paths": list(changes.paths)}
    call = ToolCall("call", UNDO_TOOL, msgspec.json.encode(arguments).decode())
    state = new_run((user("Undo an earlier run."), Reply(calls=(call,))))
    level = Level.of_flags(read_only=False, yes=yes)

    def open_ports(
        approver: Approver, state: RunState, records: Sequence[Record]
    ) -> AbstractAsyncContextManager[Ports]:
        run = PreparedRun(state, records, attended=is_interactive())
        return _open_ports(changes.machine, level, approver, run)

    shown = _UndoOutcome()
    start_run(_run_options(yes=yes, as_json=as_json), state, open_ports=open_ports, shown=shown)
    machine = _machine_name(changes.machine)
    result, end = shown.result, shown.end
    if result is None:
        reason = "the run that undoes it did not end" if end is None else end.reason
        is_waiting = end is not None and end.stop is StopReason.WAITING
        state_name = "waiting" if is_waiting else "failed"
        return UndoneMachineRow(machine, state.run_id, state_name, reason=reason)
    if result.error is not None:
        return UndoneMachineRow(machine, state.run_id, "failed", reason=result.text)
    return msgspec.convert(
        {**result.details, "machine": machine, "run_id": state.run_id, "state": "undone"},
        UndoneMachineRow,
    )


def _run_options(*, yes: bool, as_json: bool) -> RunOptions:
    return RunOptions(
        model=None,
        folder=Path(),
        tools=None,
        turns=None,
        seconds=None,
        as_json=as_json,
        yes=yes,
        read_only=False,
        wait=False,
        record=None,
        no_record=False,
    )


def _open_ports(
    where: str, level: Level, approver: Approver, run: PreparedRun
) -> AbstractAsyncContextManager[Ports]:
    from evoclaw.wiring.fleet import fleet_ports
    from evoclaw.wiring.undo import undo_ports

    if _is_root(where):
        return undo_ports(where, level=level, approver=approver, env=os.environ, run=run)
    return fleet_ports(
        model=None,
        on=where,
        level=level,
        approver=approver,
        env=os.environ,
        run=run,
        timeout_s=EDGE_TIMEOUT_S,
        undo=True,
    )


def _is_root(where: str) -> bool:
    """Whether this names a folder or an `ssh://` URL: the name of an edge has no slash."""
    return "/" in where


def _machine_name(where: str) -> str:
    """The machine for people: an edge, an SSH host, or nothing for this one."""
    return "" if where.startswith("/") else where

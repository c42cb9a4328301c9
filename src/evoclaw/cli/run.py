"""`evoclaw run`: run a task with the tools of this machine, of an edge or of an SSH host."""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
import time
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import click
from msgspec import Struct
from msgspec.structs import replace

from evoclaw.cli import exits
from evoclaw.cli.model_offer import offer_model
from evoclaw.cli.options import FILE, POSITIVE, ExclusiveCommand, F, json_option
from evoclaw.cli.output import print_err
from evoclaw.cli.progress import ProgressLine
from evoclaw.cli.render import renderer
from evoclaw.cli.run_genome import genome_of_run
from evoclaw.cli.terminal import (
    TerminalApprover,
    TerminalPerson,
    cancel_on_interrupt,
    is_interactive,
)
from evoclaw.cli.terminal_text import clean, decode_input
from evoclaw.core.agent import Agent, LoopSettings
from evoclaw.core.deadline import Deadline
from evoclaw.core.errors import ConfigError
from evoclaw.core.events import CallFinished, Record, RunFinished
from evoclaw.core.genome import Genome, with_notes
from evoclaw.core.hidden_text import mark_hidden_text
from evoclaw.core.loop import run_loop
from evoclaw.core.messages import Message, SystemMessage, user
from evoclaw.core.ports import Approver, Ports, Sink
from evoclaw.core.run import Bus, recorded
from evoclaw.core.state import PreparedRun, RunState, fold, new_run
from evoclaw.core.tools import UNDO_TOOL
from evoclaw.governance.approvals import ApprovalSettings
from evoclaw.governance.autonomy import Level
from evoclaw.governance.stops import Stops, cancel_on_stop
from evoclaw.orchestrator.agents.prompt import system_prompt
from evoclaw.orchestrator.agents.tuning import tune
from evoclaw.orchestrator.people.approvals import CallApprovals
from evoclaw.providers.registry import NoModelFound
from evoclaw.store.sessions.recordings import Recording, reopen_recording
from evoclaw.tools.question import UserPrompter

EDGE_TIMEOUT_S = 15.0
"""Seconds that a run waits for an edge."""
PortsOpener: TypeAlias = Callable[
    [Approver, RunState, Sequence[Record]], AbstractAsyncContextManager[Ports]
]
"""Opens the ports of a run, given its approver, its state and its records so far."""


class RunOptions(Struct, frozen=True):
    """The options of a run."""

    model: str | None
    folder: Path
    tools: str | None
    turns: int | None
    seconds: int | None
    as_json: bool
    yes: bool
    read_only: bool
    wait: bool
    record: Path | None
    no_record: bool
    confirm: bool = False
    resume: Path | None = None
    task: str | None = None
    on: str | None = None
    session: str | None = None
    quarantine: bool = False
    genome: str | None = None


_OPTIONS = (
    click.option(
        "--model",
        metavar="PROVIDER/MODEL",
        show_default="the first model found",
        help="Use this model; `A,B` falls back to B when A fails",
    ),
    click.option(
        "--folder", type=FILE, default=Path(), metavar="FOLDER", help="Work in this folder"
    ),
    click.option("--tools", metavar="A,B", show_default="all", help="Offer only these tools"),
    click.option(
        "--turns", type=POSITIVE, metavar="N", show_default="10", help="Stop after N turns"
    ),
    click.option(
        "--seconds", type=POSITIVE, metavar="N", show_default="3600", help="Stop after N seconds"
    ),
    click.option(
        "--confirm", is_flag=True, help="Ask the model to check its work before its answer counts"
    ),
    json_option("Print every record as a line of JSON"),
    click.option("--yes", is_flag=True, help="Write and execute without asking"),
    click.option("--read-only", is_flag=True, help="Deny calls that write or execute"),
    click.option(
        "--wait", is_flag=True, help="Suspend the run until `evoclaw approvals` answers it"
    ),
    click.option("--record", type=FILE, metavar="FILE", help="Record the run in this file"),
    click.option("--no-record", is_flag=True, help="Skip recording the run"),
)


def run_options(command: F) -> F:
    """Add the options that say where a run works, what limits it and where it is recorded."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@click.command(
    cls=ExclusiveCommand,
    exclusive=(("yes", "read_only"), ("record", "no_record", "resume")),
)
@click.argument("task", required=False, help="The task in plain words; `-` reads it from stdin")
@click.option(
    "--on",
    metavar="AGENT",
    show_default="this machine",
    help="Run calls on this edge, on `any` that has the tool, or over ssh://USER@HOST/FOLDER; "
    "`*` lets the model choose",
)
@click.option("--session", metavar="NAME", help="Continue this session, or start it")
@click.option(
    "--quarantine",
    is_flag=True,
    help="Hide untrusted text from the model; it asks a second model about it",
)
@click.option(
    "--genome",
    metavar="N",
    show_default="the current one",
    help="Use version N of the genome of the agent evoclaw, or `none`",
)
@run_options
@click.option("--resume", type=FILE, metavar="FILE", help="Resume this recorded run")
def run(**options: Any) -> int:
    """Run a task."""
    return start_run(RunOptions(**options))


def start_run(
    options: RunOptions,
    opening: RunState | None = None,
    *,
    open_ports: PortsOpener | None = None,
    shown: Sink | None = None,
) -> int:
    """Start a run with a task, or from an opening state.

    Args:
        options: What the caller asked for.
        opening: The state to start from, instead of with a task.
        open_ports: Opens the ports of the run, if not those that the options say.
        shown: Shows the run, instead of the renderer that the options say.
    """
    workspace = options.folder.resolve()
    if not workspace.is_dir():
        raise ConfigError(f"there is no folder {workspace}; create it, or use another --folder")
    try:
        return asyncio.run(_run(options, workspace, opening, open_ports, shown))
    except NoModelFound:
        if options.as_json or not offer_model(os.environ):
            raise
    return asyncio.run(_run(options, workspace, opening, open_ports, shown))


async def _run(
    options: RunOptions,
    workspace: Path,
    opening: RunState | None,
    open_ports: PortsOpener | None,
    shown: Sink | None,
) -> int:
    progress = ProgressLine()
    if not options.as_json:
        where = "the tools of this machine" if options.on is None else clean(options.on)
        progress.start(f"preparing {where}" if shown is None else "preparing")
    try:
        return await _prepare_and_run(options, workspace, opening, open_ports, progress, shown)
    finally:
        progress.stop()


async def _prepare_and_run(
    options: RunOptions,
    workspace: Path,
    opening: RunState | None,
    open_ports: PortsOpener | None,
    progress: ProgressLine,
    shown: Sink | None,
) -> int:
    from evoclaw.wiring.oversight import stop_files
    from evoclaw.wiring.settings import loop_settings

    defaults = loop_settings(os.environ)
    settings = replace(
        defaults,
        max_turns=options.turns or defaults.max_turns,
        max_seconds=options.seconds or defaults.max_seconds,
        confirm=options.confirm,
    )
    if options.session:
        return await _run_in_session(options, options.session, workspace, settings, progress)
    records, recording = _reopen(options)
    state = fold(records) if records else opening
    is_new_here = state is None and options.on is None
    genome = await genome_of_run(options.genome, records, is_new_here=is_new_here)
    settings = tune(Agent("", "", settings=settings), genome).settings
    if state is None:
        state = new_run(_opening(options, workspace, genome))
    open_ports = open_ports or partial(_ports, options, workspace, genome)
    async with (
        _approvals(options) as approvals,
        open_ports(approvals.approver(), state, records) as ports,
    ):
        if recording is None and not options.no_record:
            recording = _new_recording(options, state.run_id)
        if shown is None:
            shown = renderer(json=options.as_json, progress=progress)
        else:
            progress.stop()
        sinks: list[Sink] = [shown, *([recording] if recording else [])]
        try:
            stops = Stops(*stop_files(os.environ))
            return await _drive(state, ports, settings, sinks, recording, stops)
        finally:
            if recording is not None:
                recording.close()


async def _run_in_session(
    options: RunOptions,
    session: str,
    workspace: Path,
    settings: LoopSettings,
    progress: ProgressLine,
) -> int:
    """Continue a session of this machine, or start it."""
    from evoclaw.wiring.local_sessions import open_conversations
    from evoclaw.wiring.oversight import stop_files

    if options.on is not None or options.resume:
        raise ConfigError("--session cannot be combined with --on or --resume")
    if options.quarantine or options.genome is not None:
        option = "--quarantine" if options.quarantine else "--genome"
        raise ConfigError(f"--session cannot be combined with {option}")
    task, person = _task(options), _person(options)
    async with (
        _approvals(options) as approvals,
        open_conversations(
            model=options.model,
            workspace=workspace,
            level=Level.of_flags(read_only=options.read_only, yes=options.yes),
            tools=_tools(options),
            approver=approvals.approver,
            person=person,
            settings=settings,
            session=session,
            attended=is_interactive() or options.wait,
            env=os.environ,
            undoable=not options.no_record,
        ) as conversations,
    ):
        run_id = secrets.token_hex(16)
        recording = None if options.no_record else _new_recording(options, run_id)
        shown = renderer(json=options.as_json, progress=progress)
        sinks: list[Sink] = [shown, *([recording] if recording else [])]
        deadline = Deadline(settings.max_seconds)
        stops = Stops(*stop_files(os.environ), agent=next(iter(conversations.agents)))
        end: RunFinished | None = None
        changing = set[str]()
        try:
            async with _cancellable(deadline, stops):
                if await conversations.has_unfinished_run(session):
                    progress.stop()
                    print_err("resuming the unfinished run of this session")
                    async for _ in conversations.resume(session, deadline=deadline):
                        pass
                stream = conversations.send(
                    session, task, run_id=run_id, sinks=sinks, deadline=deadline
                )
                async with aclosing(stream) as records:
                    async for record in records:
                        end = record.event if isinstance(record.event, RunFinished) else end
                        changing |= _changing_tool(record)
        finally:
            if recording is not None:
                recording.close()
    _report_recording(recording, changing)
    return exits.BY_STOP[end.stop] if end else exits.FAILED


@asynccontextmanager
async def _cancellable(deadline: Deadline, stops: Stops) -> AsyncGenerator[None]:
    """Cancel the run of the block on Ctrl-C or an emergency stop."""
    with cancel_on_interrupt(deadline, sys.stderr):
        async with cancel_on_stop(stops, deadline.cancel):
            yield
    if (stop := stops.cancelling_stop()) is not None:
        print_err(f"{clean(stop.description)}; see `evoclaw stop --list`")


def _person(options: RunOptions) -> TerminalPerson | None:
    if options.as_json or not is_interactive():
        return None
    return TerminalPerson(sys.stdin.fileno(), sys.stderr)


def _ports(
    options: RunOptions,
    workspace: Path,
    genome: Genome,
    approver: Approver,
    state: RunState,
    records: Sequence[Record],
) -> AbstractAsyncContextManager[Ports]:
    from evoclaw.wiring.fleet import fleet_ports
    from evoclaw.wiring.local_run import local_ports
    from evoclaw.wiring.ssh_run import ssh_ports

    started = PreparedRun(
        state, records, attended=is_interactive() or options.wait, quarantine=options.quarantine
    )
    if options.on is not None and options.on.startswith("ssh://"):
        return ssh_ports(
            model=options.model,
            url=options.on,
            level=Level.of_flags(read_only=options.read_only, yes=options.yes),
            tools=_tools(options),
            approver=approver,
            env=os.environ,
            run=started,
            undoable=not options.no_record,
        )
    if options.on is not None:
        return fleet_ports(
            model=options.model,
            on=options.on,
            level=Level.of_flags(read_only=options.read_only, yes=options.yes),
            tools=_tools(options),
            approver=approver,
            env=os.environ,
            run=started,
            timeout_s=EDGE_TIMEOUT_S,
        )
    return local_ports(
        model=options.model,
        workspace=workspace,
        level=Level.of_flags(read_only=options.read_only, yes=options.yes),
        tools=_tools(options),
        approver=approver,
        env=os.environ,
        run=started,
        dependencies={UserPrompter: person} if (person := _person(options)) is not None else {},
        undoable=not options.no_record,
        genome=genome,
    )


async def _drive(
    state: RunState,
    ports: Ports,
    settings: LoopSettings,
    sinks: Sequence[Sink],
    recording: Recording | None,
    stops: Stops,
) -> int:
    bus = Bus(state.run_id, (*ports.sinks, *sinks), seq=recording.seq if recording else 0)
    deadline = Deadline(settings.max_seconds)
    end: RunFinished | None = None
    changing = set[str]()
    async with (
        _cancellable(deadline, stops),
        aclosing(recorded(run_loop(state, ports, settings, deadline), bus)) as records,
    ):
        async for record in records:
            if bus.failures:
                deadline.cancel()  # no call runs that cannot be recorded
            if isinstance(record.event, RunFinished):
                end = record.event
            changing |= _changing_tool(record)
    if bus.failures:
        _, error = bus.failures[0]
        print_err(f"the run was stopped because it could not be recorded or shown: {error}")
        return exits.FAILED
    _report_recording(recording, changing)
    return exits.BY_STOP[end.stop] if end else exits.FAILED


def _changing_tool(record: Record) -> set[str]:
    """The tool of a call that changed files in a way that can be undone; else nothing."""
    match record.event:
        case CallFinished(result) if "changes" in result.details:
            return {result.name}
        case _:
            return set()


def _report_recording(recording: Recording | None, changing: Collection[str]) -> None:
    if recording is None:
        return
    print_err(f"recorded in {recording.path}")
    if changing:
        what = "bring the changes back" if UNDO_TOOL in changing else "undo its file changes"
        print_err(f"to {what}: evoclaw undo {recording.path}")


def _tools(options: RunOptions) -> Sequence[str] | None:
    if options.tools is None:
        return None
    return [name.strip() for name in options.tools.split(",") if name.strip()]


def _approvals(options: RunOptions) -> AbstractAsyncContextManager[CallApprovals]:
    from evoclaw.wiring.oversight import open_approvals

    here = not options.as_json and is_interactive()
    return open_approvals(
        os.environ,
        settings=ApprovalSettings(nobody="wait") if options.wait else None,
        face=TerminalApprover(sys.stdin.fileno(), sys.stderr) if here else None,
        absent="no user is at the terminal; the user can run it again "
        + ("at a terminal or with --wait" if options.yes else "with --yes or --wait"),
    )


def _reopen(options: RunOptions) -> tuple[list[Record], Recording | None]:
    """The records and the recording of a resumed run; nothing for a new run."""
    from evoclaw.wiring.record_key import record_cipher

    if not options.resume:
        return [], None
    return reopen_recording(options.resume, cipher=record_cipher(os.environ))


def _opening(options: RunOptions, workspace: Path, genome: Genome) -> tuple[Message, ...]:
    from evoclaw.wiring.skills import skill_catalogue
    from evoclaw.wiring.workspace import workspace_messages

    task = mark_hidden_text(user(_task(options)))
    if options.on is not None:
        return SystemMessage(system_prompt(None)), task
    own = (
        with_notes(genome.prompt, genome.notes),
        skill_catalogue(os.environ, workspace, genome),
    )
    prompt = system_prompt(workspace, "\n\n".join(filter(None, own)))
    return SystemMessage(prompt), *workspace_messages(workspace, os.environ), task


def _task(options: RunOptions) -> str:
    task = options.task
    if task is None or task == "-":
        empty = task is None and sys.stdin.isatty()
        task = "" if empty else decode_input(sys.stdin.buffer.read(), "standard input")
    if not task.strip():
        raise ConfigError('no task is given: type evoclaw run "TASK", or pipe it in')
    return task


def _new_recording(options: RunOptions, run_id: str) -> Recording:
    """A file that the user named is plain JSON, to be read and shared; others are encrypted."""
    from evoclaw.wiring.record_key import record_cipher

    if options.record is not None:
        return Recording(options.record)
    return Recording(_default_recording_path(run_id), cipher=record_cipher(os.environ))


def _default_recording_path(run_id: str) -> Path:
    return recordings_folder() / f"{time.strftime('%Y%m%d-%H%M%S')}-{run_id[:8]}.jsonl"


def recordings_folder() -> Path:
    """Where runs are recorded that name no file."""
    return Path(os.environ.get("EVOCLAW_HOME") or "~/.evoclaw").expanduser() / "runs"

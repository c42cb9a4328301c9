"""`evoclaw run`: a task, with local tools in the current folder or those of an edge."""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
import time
from argparse import Namespace
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from pathlib import Path

from msgspec.structs import replace

from evoclaw.cli import exits
from evoclaw.cli.clean import clean
from evoclaw.cli.needs import Begun, Wiring
from evoclaw.cli.render import face, tell
from evoclaw.cli.terminal import AtTerminal, PersonAtTerminal, has_keyboard, interruptible
from evoclaw.core.agent import LoopSettings
from evoclaw.core.bus import Bus, recorded
from evoclaw.core.deadline import Deadline
from evoclaw.core.errors import ConfigError
from evoclaw.core.events import Record, RunFinished
from evoclaw.core.loop import run_loop
from evoclaw.core.messages import Message, SystemMessage, user
from evoclaw.core.ports import Approver, Ports, Sink
from evoclaw.core.state import RunState, fold, new_run
from evoclaw.governance.approvals import ApprovalSettings
from evoclaw.governance.autonomy import Level
from evoclaw.governance.stops import Stops, ended_by
from evoclaw.orchestrator.agents.prompt import system_prompt
from evoclaw.orchestrator.people.approvals import Approvals
from evoclaw.store.sessions.recordings import Recording, reopen_recording
from evoclaw.tools.question import Person

WAIT = 15.0
"""Seconds that an edge is waited for before a run is given up."""


def run(options: Namespace, wiring: Wiring, opening: RunState | None = None) -> int:
    """Run the command; with an opening, a run that begins there instead of with a task."""
    workspace = Path(options.folder).resolve()
    if not workspace.is_dir():
        raise ConfigError(f"there is no folder {workspace}")
    return asyncio.run(_run(options, workspace, wiring, opening))


async def _run(
    options: Namespace, workspace: Path, wiring: Wiring, opening: RunState | None
) -> int:
    usual = wiring.loop_settings(os.environ)
    settings = replace(
        usual,
        max_turns=options.turns or usual.max_turns,
        max_seconds=options.seconds or usual.max_seconds,
    )
    if options.session:
        return await _talk(options, workspace, wiring, settings)
    records, recording = _reopened(options)
    state = fold(records) if records else opening
    if state is None:
        state = new_run(_opening(options, workspace, wiring))
    async with (
        _approvals(options, wiring) as approvals,
        _ports(options, workspace, wiring, approvals.approver(), state, records) as ports,
    ):
        if recording is None and not options.no_record:
            recording = Recording(_record_at(options, state.run_id))
        sinks: list[Sink] = [face(json=options.json), *([recording] if recording else [])]
        try:
            stops = Stops(*wiring.stop_files(os.environ))
            return await _drive(state, ports, settings, sinks, recording, stops)
        finally:
            if recording is not None:
                recording.close()


async def _talk(options: Namespace, workspace: Path, wiring: Wiring, settings: LoopSettings) -> int:
    """Go on with a conversation that is kept, or begin it."""
    if options.on is not None or options.resume:
        raise ConfigError("a session is on this machine and goes on by itself; no --on or --resume")
    if options.quarantine:
        raise ConfigError("a session has no quarantine; leave out --session or --quarantine")
    task, person = _task(options), _person(options)
    async with (
        _approvals(options, wiring) as approvals,
        wiring.open_conversations(
            model=options.model,
            workspace=workspace,
            level=_level(options),
            tools=_tools(options),
            approver=approvals.approver,
            person=person,
            settings=settings,
            session=options.session,
            attended=has_keyboard() or options.wait,
            env=os.environ,
        ) as talks,
    ):
        run_id = secrets.token_hex(16)
        recording = None if options.no_record else Recording(_record_at(options, run_id))
        sinks: list[Sink] = [face(json=options.json), *([recording] if recording else [])]
        deadline = Deadline(settings.max_seconds)
        stops = Stops(*wiring.stop_files(os.environ), agent=next(iter(talks.agents)))
        end: RunFinished | None = None
        try:
            async with _watched(deadline, stops):
                if await talks.unfinished(options.session):
                    tell("going on with what this session had not ended")
                    async for _ in talks.resume(options.session, deadline=deadline):
                        pass
                spoken = talks.say(
                    options.session, task, run_id=run_id, sinks=sinks, deadline=deadline
                )
                async with aclosing(spoken) as records:
                    async for record in records:
                        end = record.event if isinstance(record.event, RunFinished) else end
        finally:
            if recording is not None:
                recording.close()
    if recording is not None:
        tell(f"recorded in {recording.path}")
    return exits.BY_STOP[end.stop] if end else exits.FAILED


@asynccontextmanager
async def _watched(deadline: Deadline, stops: Stops) -> AsyncGenerator[None]:
    """While the block runs, the keyboard and an emergency stop end what goes on in it."""
    with interruptible(deadline, sys.stderr):
        async with ended_by(stops, deadline.cancel):
            yield
    if (stop := stops.ends()) is not None:
        tell(f"{clean(stop.told)}; `evoclaw stop --list` says more")


def _person(options: Namespace) -> PersonAtTerminal | None:
    if options.json or not has_keyboard():
        return None
    return PersonAtTerminal(sys.stdin.fileno(), sys.stderr)


def _ports(
    options: Namespace,
    workspace: Path,
    wiring: Wiring,
    approver: Approver,
    state: RunState,
    records: Sequence[Record],
) -> AbstractAsyncContextManager[Ports]:
    run = Begun(
        state, records, attended=has_keyboard() or options.wait, quarantine=options.quarantine
    )
    if options.on is not None and options.on.startswith("ssh://"):
        return wiring.ssh_ports(
            model=options.model,
            url=options.on,
            level=_level(options),
            approver=approver,
            env=os.environ,
            run=run,
        )
    if options.on is not None:
        return wiring.fleet_ports(
            model=options.model,
            on=options.on,
            level=_level(options),
            approver=approver,
            env=os.environ,
            run=run,
            wait=WAIT,
        )
    return wiring.local_ports(
        model=options.model,
        workspace=workspace,
        level=_level(options),
        tools=_tools(options),
        approver=approver,
        env=os.environ,
        run=run,
        given={Person: person} if (person := _person(options)) is not None else {},
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
    async with (
        _watched(deadline, stops),
        aclosing(recorded(run_loop(state, ports, settings, deadline), bus)) as records,
    ):
        async for record in records:
            if bus.failures:
                deadline.cancel()  # what cannot be recorded is not done
            if isinstance(record.event, RunFinished):
                end = record.event
    if bus.failures:
        _, error = bus.failures[0]
        tell(f"the run was stopped: it could not be recorded or shown ({error})")
        return exits.FAILED
    if recording is not None:
        tell(f"recorded in {recording.path}")
    return exits.BY_STOP[end.stop] if end else exits.FAILED


def _level(options: Namespace) -> Level:
    if options.read_only:
        return Level.READ_ONLY
    return Level.FULL if options.yes else Level.SUPERVISED


def _tools(options: Namespace) -> Sequence[str] | None:
    if options.tools is None:
        return None
    return [name.strip() for name in options.tools.split(",") if name.strip()]


def _approvals(options: Namespace, wiring: Wiring) -> AbstractAsyncContextManager[Approvals]:
    here = not options.json and has_keyboard()
    return wiring.open_approvals(
        os.environ,
        settings=ApprovalSettings(nobody="wait") if options.wait else None,
        face=AtTerminal(sys.stdin.fileno(), sys.stderr) if here else None,
        absent="nobody is at the terminal; the user can run it again with --yes or --wait",
    )


def _reopened(options: Namespace) -> tuple[list[Record], Recording | None]:
    """What is known of the run that is gone on with, if it is one."""
    return reopen_recording(Path(options.resume)) if options.resume else ([], None)


def _opening(options: Namespace, workspace: Path, wiring: Wiring) -> tuple[Message, ...]:
    if options.on is None:
        prompt = system_prompt(workspace, wiring.skill_catalogue(os.environ))
    else:
        prompt = system_prompt(None)
    return SystemMessage(prompt), user(_task(options))


def _task(options: Namespace) -> str:
    task = options.task
    if task in (None, "-"):
        task = "" if task is None and sys.stdin.isatty() else sys.stdin.read()
    if not task.strip():
        raise ConfigError('say what to do: evoclaw run "…", or pipe it in')
    return task


def _record_at(options: Namespace, run_id: str) -> Path:
    return Path(options.record) if options.record else _place(run_id)


def _place(run_id: str) -> Path:
    home = Path(os.environ.get("EVOCLAW_HOME") or "~/.evoclaw").expanduser()
    return home / "runs" / f"{time.strftime('%Y%m%d-%H%M%S')}-{run_id[:8]}.jsonl"

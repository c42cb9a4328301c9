"""`evoclaw approvals`: calls that wait for an approval, answered by a person."""

from __future__ import annotations

import asyncio
import getpass
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from pathlib import Path

import click
import msgspec

from evoclaw.cli import exits
from evoclaw.cli.options import CommandGroup, json_option
from evoclaw.cli.output import print_out
from evoclaw.cli.terminal import format_arguments
from evoclaw.cli.terminal_text import clean, on_machine, one_line
from evoclaw.core.errors import ConfigError
from evoclaw.core.messages import JSON
from evoclaw.core.ports import Decision
from evoclaw.governance.approvals import HUMAN_SCOPE, Answerer
from evoclaw.orchestrator.people.approvals import ApprovalCase, CallApprovals

HOST_COMMANDS = frozenset({"run", "edge", "up", "mcp"})
"""The commands whose processes run calls of models."""


@click.group(cls=CommandGroup, default="list")
def approvals() -> None:
    """List and answer calls that wait for an approval."""


_ID = click.argument("id_", metavar="ID", help="Id, as `evoclaw approvals` lists it")
_REASON = click.option(
    "--reason", default="", metavar="TEXT", show_default=False, help="Tell the model why"
)


@approvals.command("list", help="List waiting calls and approvals in force (the default)")
@json_option()
def _list(*, as_json: bool) -> int:
    return _with_approvals(lambda opened: _print_all(opened, as_json=as_json))


@approvals.command("show", help="Show a call, and what an approval for the session covers")
@_ID
@json_option()
def _show(id_: str, *, as_json: bool) -> int:
    async def show(opened: CallApprovals) -> None:
        _print_one(await _get(id_, opened), as_json=as_json)

    return _with_approvals(show)


@approvals.command("approve", help="Approve a call once")
@click.option(
    "--session", is_flag=True, help="Approve similar calls of the session too; see `show`"
)
@click.option(
    "--step", is_flag=True, help="Approve this step of its workflow from now on; see `show`"
)
@_ID
@_REASON
def _approve(id_: str, reason: str, *, session: bool, step: bool) -> int:
    if session and step:
        raise ConfigError("choose --session or --step; see what each covers with `show`")
    if step:
        return _with_approvals(lambda opened: _approve_step(id_, reason, opened))
    decision = Decision.SESSION if session else Decision.ONCE
    return _with_approvals(lambda opened: _answer(id_, reason, opened, decision))


@approvals.command("deny", help="Deny a call, or withdraw an approval")
@_ID
@_REASON
def _deny(id_: str, reason: str) -> int:
    return _with_approvals(lambda opened: _answer(id_, reason, opened, Decision.DENY))


def _with_approvals(work: Callable[[CallApprovals], Awaitable[None]]) -> int:
    async def run() -> None:
        from evoclaw.wiring.oversight import open_approvals

        async with open_approvals(os.environ) as opened:
            await work(opened)

    asyncio.run(run())
    return exits.OK


async def _print_all(opened: CallApprovals, *, as_json: bool) -> None:
    waiting, wide = await opened.waiting(), await opened.session_approvals()
    if as_json:
        print_out([_row(case) for case in (*waiting, *wide)])
        return
    for case in waiting:
        asking = case.request
        left = max(0.0, asking.expires_at - time.time())
        shown = one_line(msgspec.json.encode(asking.arguments).decode(), 60)
        tool = clean(asking.scope.tool) + on_machine(asking.scope.machine)
        print_out(f"{asking.id}  {tool:12} {shown}  ({_hours(left)} left)")
    for case in wide:
        print_out(
            f"{case.request.id}  in force, used {case.uses}×: "
            f"{clean(case.request.scope.description)}"
        )
    if waiting:
        print_out("see `evoclaw approvals show ID`, then approve ID or deny ID")
    elif not wide:
        print_out("nothing waits for an approval")


def _print_one(case: ApprovalCase, *, as_json: bool) -> None:
    if as_json:
        print_out(_row(case))
        return
    asking, answer = case.request, case.answer
    print_out(f"{asking.id}: {case.status}")
    tool = clean(asking.scope.tool) + on_machine(asking.scope.machine)
    print_out(f"{tool} wants to run:\n{format_arguments(asking.arguments)}")
    print_out(f"reason: {clean(asking.reason)} ({asking.scope.code})")
    print_out(f"on behalf of: {_principal(case)}, call {asking.request_id}")
    print_out(f"bound to: sha256 {asking.sha256}")
    print_out(f"asked {_when(asking.asked_at)}, expires {_when(asking.expires_at)}")
    if asking.scope.step is None:
        print_out(f"approve --session would cover {clean(asking.scope.description)}")
    else:
        print_out(f"covers {clean(asking.scope.description)}")
    if asking.step_scope is not None:
        print_out(f"approve --step would cover {clean(asking.step_scope.description)}")
    if answer is not None:
        reason = f": {clean(answer.reason)}" if answer.reason else ""
        print_out(f"{answer.decision} by {clean(answer.by.name)} {_when(answer.at)}{reason}")


async def _answer(id_: str, reason: str, opened: CallApprovals, decision: Decision) -> None:
    case, by = await _get(id_, opened), identify_answerer()
    if problem := by.refusal_reason(by.tenant):
        raise ConfigError(problem)
    answer = case.answer
    if decision is Decision.DENY and answer is not None and answer.decision is not Decision.DENY:
        if problem := await opened.withdraw(id_, by):
            raise ConfigError(f"{id_}: {problem}")
        print_out(f"{id_}: the approval was withdrawn")
        return
    if problem := await opened.answer(id_, decision, by, reason):
        raise ConfigError(f"{id_}: {problem}")
    match decision:
        case Decision.DENY:
            print_out(f"{id_}: denied")
        case Decision.SESSION:
            print_out(f"{id_}: approved, and so is {clean(case.request.scope.description)}")
        case _:
            print_out(f"{id_}: approved, once")
    if (recording := _recording(case.request.run_id)) is not None:
        print_out(f"if its run has stopped, resume it: evoclaw run --resume {recording}")


async def _approve_step(id_: str, reason: str, opened: CallApprovals) -> None:
    case, by = await _get(id_, opened), identify_answerer()
    if problem := by.refusal_reason(by.tenant) or await opened.approve_step(id_, by, reason):
        raise ConfigError(f"{id_}: {problem}")
    assert case.request.step_scope is not None
    print_out(f"{id_}: approved, and so is {clean(case.request.step_scope.description)}")


async def _get(id_: str, opened: CallApprovals) -> ApprovalCase:
    case = await opened.get(id_)
    if case is None:
        raise ConfigError(f"there is no approval {id_!r}; see `evoclaw approvals`")
    return case


def identify_answerer() -> Answerer:
    """Who runs this command: a person, unless a process that runs calls of models started it.

    This stops a model that answers its own approvals by a command. It is not a security boundary:
    a program without a sandbox can write the store itself, as the same user. The sandbox must hide
    the data folder.
    """
    if started_by_an_agent(_ancestors()) or _is_sandboxed():
        return Answerer("agent", "a command that an agent runs")
    return Answerer("person", _user(), scopes=frozenset({HUMAN_SCOPE}))


def started_by_an_agent(commands: Iterable[Sequence[str]]) -> bool:
    """Whether one of these command lines is a process that runs calls of models."""
    for words in commands:
        python = Path(words[0]).name.startswith("python")
        for at, word in enumerate(words[:-1]):
            is_program = at == 0 or (python and (at == 1 or words[at - 1] == "-m"))
            if is_program and Path(word).name == "evoclaw" and words[at + 1] in HOST_COMMANDS:
                return True
    return False


def _ancestors() -> Iterator[list[str]]:
    """The command lines of the parent processes, as far as they are visible.

    Orphans of a tool's command are adopted by its supervisor, so they stay in this line.
    """
    process = os.getppid()
    while process > 1:
        try:
            line = Path(f"/proc/{process}/cmdline").read_bytes()
            status = Path(f"/proc/{process}/stat").read_text(errors="replace")
        except OSError:
            return
        yield line.decode(errors="replace").rstrip("\0").split("\0")
        process = int(status.rpartition(")")[2].split()[1])


def _is_sandboxed() -> bool:
    """Whether this runs in a process namespace of a sandbox: its first process shows it."""
    try:
        words = Path("/proc/1/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
        bare = not Path("/proc/1/environ").read_bytes()
    except OSError:
        return False
    name = Path(os.fsdecode(words[0])).name
    return name == "bwrap" or (name == "cat" and len(words) == 1 and bare)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"user {os.getuid()}"


def _recording(run_id: str) -> Path | None:
    home = Path(os.environ.get("EVOCLAW_HOME") or "~/.evoclaw").expanduser()
    return next(iter(sorted((home / "runs").glob(f"*-{run_id[:8]}.jsonl"))), None)


def _row(case: ApprovalCase) -> dict[str, JSON]:
    asking = case.request
    return {
        **msgspec.to_builtins(asking),
        "scope": msgspec.to_builtins(msgspec.structs.asdict(asking.scope)),
        "covers": asking.scope.description,
        "standing": str(case.status),
        "uses": case.uses,
        "answered": msgspec.to_builtins(case.answer),
    }


def _principal(case: ApprovalCase) -> str:
    scope = case.request.scope
    names = (scope.user, scope.agent, scope.tenant)
    return ", ".join(clean(name) for name in names if name) + f", session {clean(scope.session)}"


def _when(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.0f} h" if seconds >= 7200 else f"{seconds / 60:.0f} min"

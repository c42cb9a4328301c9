"""`evoclaw approvals`: what agents want to do and wait for, answered by a person."""

from __future__ import annotations

import asyncio
import getpass
import os
import time
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol

import msgspec

from evoclaw.cli import exits
from evoclaw.cli.clean import clean, one_line
from evoclaw.cli.fleet import show
from evoclaw.cli.terminal import describe
from evoclaw.core.errors import ConfigError
from evoclaw.core.messages import JSON
from evoclaw.core.ports import Decision
from evoclaw.governance.approvals import HUMAN, Answerer
from evoclaw.orchestrator.people.approvals import Approvals, Case

HOSTS = frozenset({"run", "edge", "up", "mcp"})
"""The commands whose processes run what models ask for."""


class Opens(Protocol):
    """Who can open what is kept; imports go down only, so it is handed in."""

    def open_approvals(self, env: Mapping[str, str]) -> AbstractAsyncContextManager[Approvals]:
        """The approvals of this machine."""
        ...


def approvals(options: Namespace, wiring: Opens) -> int:
    """Do one of the actions."""
    return asyncio.run(_approvals(options, wiring))


async def _approvals(options: Namespace, wiring: Opens) -> int:
    async with wiring.open_approvals(os.environ) as opened:
        match options.action:
            case "approve":
                wide = Decision.SESSION if options.session else Decision.ONCE
                await _answer(options, opened, wide)
            case "deny":
                await _answer(options, opened, Decision.DENY)
            case "show":
                _show(await _look(options.id, opened), options)
            case _:
                await _list(options, opened)
    return exits.OK


async def _list(options: Namespace, opened: Approvals) -> None:
    waiting, wide = await opened.waiting(), await opened.in_force()
    if options.json:
        show([_row(case) for case in (*waiting, *wide)])
        return
    for case in waiting:
        asking = case.asking
        left = max(0.0, asking.expires_at - time.time())
        shown = one_line(msgspec.json.encode(asking.arguments).decode(), 60)
        show(f"{asking.id}  {clean(asking.scope.tool):12} {shown}  ({_hours(left)} left)")
    for case in wide:
        show(f"{case.asking.id}  in force, used {case.uses}×: {clean(case.asking.scope.text)}")
    if waiting:
        show("`evoclaw approvals show ID` tells more; then approve ID or deny ID")
    elif not wide:
        show("nothing waits for an approval")


def _show(case: Case, options: Namespace) -> None:
    if options.json:
        show(_row(case))
        return
    asking, said = case.asking, case.answered
    show(f"{asking.id}: {case.standing}")
    show(f"{clean(asking.scope.tool)} wants to run:\n{describe(asking.arguments)}")
    show(f"why it is asked: {clean(asking.reason)} ({asking.scope.code})")
    show(f"for: {_whom(case)}, call {asking.request_id}")
    show(f"bound to: sha256 {asking.sha256}")
    show(f"asked {_when(asking.asked_at)}, expires {_when(asking.expires_at)}")
    show(f"approve --session would cover {clean(asking.scope.text)}")
    if said is not None:
        reason = f": {clean(said.reason)}" if said.reason else ""
        show(f"{said.decision} by {clean(said.by.name)} {_when(said.at)}{reason}")


async def _answer(options: Namespace, opened: Approvals, decision: Decision) -> None:
    case, by = await _look(options.id, opened), person_here()
    if problem := by.why_not(by.tenant):
        raise ConfigError(problem)
    said = case.answered
    if decision is Decision.DENY and said is not None and said.decision is not Decision.DENY:
        if problem := await opened.withdraw(options.id, by):
            raise ConfigError(f"{options.id}: {problem}")
        show(f"{options.id}: the approval was taken back")
        return
    if problem := await opened.answer(options.id, decision, by, options.reason or ""):
        raise ConfigError(f"{options.id}: {problem}")
    match decision:
        case Decision.DENY:
            show(f"{options.id}: denied")
        case Decision.SESSION:
            show(f"{options.id}: approved, and so is {clean(case.asking.scope.text)}")
        case _:
            show(f"{options.id}: approved, once")
    if (recording := _recording(case.asking.run_id)) is not None:
        show(f"if its run has stopped: evoclaw run --resume {recording}")


async def _look(id_: str, opened: Approvals) -> Case:
    case = await opened.look(id_)
    if case is None:
        raise ConfigError(f"there is no approval {id_!r}; see `evoclaw approvals`")
    return case


def person_here() -> Answerer:
    """Who types this: a person, unless one of our own hosts started us for a model.

    That catches what a model tries by a command. It is no wall: what runs without a sandbox as the
    same user may write the store's file itself. The sandbox must not let it see the data folder.
    """
    if started_by_an_agent(_ancestors()) or _in_a_sandbox():
        return Answerer("agent", "a command that an agent runs")
    return Answerer("person", _user(), scopes=frozenset({HUMAN}))


def started_by_an_agent(commands: Iterable[Sequence[str]]) -> bool:
    """Whether one of these command lines is a host that runs what models ask for."""
    for words in commands:
        python = Path(words[0]).name.startswith("python")
        for at, word in enumerate(words[:-1]):
            begins = at == 0 or (python and (at == 1 or words[at - 1] == "-m"))
            if begins and Path(word).name == "evoclaw" and words[at + 1] in HOSTS:
                return True
    return False


def _ancestors() -> Iterator[list[str]]:
    """The command lines of the processes above this one, as far as they can be seen.

    Orphans of a tool's command go to its supervisor, so they cannot leave this line.
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


def _in_a_sandbox() -> bool:
    """Whether this is a process namespace of our executors': its first process shows it."""
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


def _row(case: Case) -> dict[str, JSON]:
    asking = case.asking
    return {
        **msgspec.to_builtins(asking),
        "scope": msgspec.structs.asdict(asking.scope),
        "covers": asking.scope.text,
        "standing": str(case.standing),
        "uses": case.uses,
        "answered": msgspec.to_builtins(case.answered),
    }


def _whom(case: Case) -> str:
    scope = case.asking.scope
    names = (scope.user, scope.agent, scope.tenant)
    return ", ".join(clean(name) for name in names if name) + f", session {clean(scope.session)}"


def _when(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.0f} h" if seconds >= 7200 else f"{seconds / 60:.0f} min"

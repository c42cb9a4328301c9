"""Drives the product through a task as a user does: real commands, in a folder of their own."""

from __future__ import annotations

import asyncio
import os
import pty
import re
import shutil
import signal
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.tasks.task import Ending, Files, MadeCall, Task
from tests.support.command_line import Shell, Typed
from tests.support.git import plain
from tests.support.seat import Seat, seat
from tests.support.up_process import SETTINGS
from tests.support.web_pages import PageServer, serve_pages

from evoclaw.core.events import CallFinished, CallStarted, Record, Replied, RunFinished
from evoclaw.core.messages import Usage
from evoclaw.store.sessions.recordings import read_recording

SITE = "{site}"
SLEEP_S = 2.0
"""For how long an edge stays suspended after the command was started."""
GRACE_S = 60.0
"""Seconds after the limit of a run in which the command must end."""
EDGES = ("garage", "attic")
LOOPBACK = '[network]\nprivate = ["127.0.0.1"]\n'
_PROMPT = re.compile(rb"(?:Your answer|or free text|say why not): $")


@dataclass(frozen=True)
class Variant:
    """Settings of ours whose effect is measured."""

    name: str = ""
    options: tuple[str, ...] = ()
    """Further options of `evoclaw run`."""
    tools: tuple[str, ...] | None = None
    """Offered instead of the task's own tools; empty: what the model is offered by default."""
    skills: bool = True
    """Whether the skills of the task are installed."""


@dataclass(frozen=True)
class TaskRun:
    """How a run ended, for the judge, and what it took."""

    ending: Ending
    stop: str
    turns: int
    calls: int
    errors: int
    """Calls that were answered with an error."""
    recovered: int
    """Errors after which a later call of the same tool succeeded."""
    from_text: int
    """Replies whose calls were JSON in the text."""
    usage: Usage
    seconds: float
    problem: str
    """What the command wrote to standard error, if it failed before the run started."""


@dataclass
class Driver:
    """Runs commands for tasks, with a model."""

    folder: Path
    """Holds one folder `home` and one `work`, which are emptied before each task: with the same
    path in each prompt, a server can reuse its cached prefix."""
    env: Mapping[str, str]
    """What makes the product use the model."""
    warm: bool = False
    """Fork a process that has imported everything, for tests."""
    place: Seat | None = None
    """The fleet, if tasks need one."""
    announce: Callable[[Task, Sequence[str], str], None] | None = None
    """Called with the messages of a task and the address of its web server before it is run: a
    scripted model learns here what to do."""

    async def run(self, task: Task, variant: Variant = Variant()) -> TaskRun:  # noqa: B008
        """Prepare the folder, run the task, and collect what is left."""
        async with serve_pages({}) as pages:
            site = pages.url("").rstrip("/")
            pages.pages |= {path: text.replace(SITE, site) for path, text in task.pages.items()}
            prompts = tuple(prompt.replace(SITE, site) for prompt in task.prompts)
            if self.announce is not None:
                self.announce(task, prompts, site)
            started = time.monotonic()
            if task.on:
                return await self._run_on_edges(task, prompts, variant, started)
            return await self._run_here(task, prompts, variant, pages, started)

    def claim(self, task: Task, answer: str) -> Ending:
        """How a run ends in which the model does nothing and answers so."""
        answers = (answer,) * len(task.prompts)
        if task.on:
            self._prepare_edges(task)
            return self._edge_ending(answers)
        shell = self._prepare(task, Variant())
        return Ending(shell.workspace, answers, start=started_files(task))

    async def _run_here(
        self,
        task: Task,
        prompts: Sequence[str],
        variant: Variant,
        pages: PageServer,
        started: float,
    ) -> TaskRun:
        shell = self._prepare(task, variant)
        questions, problem, recordings = 0, "", list[Path]()
        for number, prompt in enumerate(prompts):
            recording = self.folder / f"record-{number}.jsonl"
            recordings.append(recording)
            arguments = self._arguments(task, variant, recording)
            if len(prompts) > 1:
                arguments += ["--session", "s"]
            if task.person:
                typed, questions = await at_terminal(
                    shell, [*arguments, prompt], task.person, task.seconds + GRACE_S
                )
            else:
                typed = await self._type(shell, [*arguments, prompt], task.seconds)
            problem = problem or _failure(typed, recording)
        records = [_read(path) for path in recordings]
        ending = Ending(
            shell.workspace,
            tuple(_answer(found) for found in records),
            start=started_files(task),
            calls=_calls(records),
            requests=tuple(pages.asked),
            questions=questions,
        )
        return _task_run(ending, records, problem, time.monotonic() - started)

    async def _run_on_edges(
        self, task: Task, prompts: Sequence[str], variant: Variant, started: float
    ) -> TaskRun:
        assert self.place is not None, "the fleet is not started"
        place = self.place
        self._prepare_edges(task)
        recording = place.up.workspace / "record.jsonl"
        recording.unlink(missing_ok=True)
        arguments = [*self._arguments(task, variant, recording), "--on", task.on, prompts[0]]
        async with asleep(place, task.asleep):
            typed = await self._type(place.up.shell, arguments, task.seconds)
        records = [_read(recording)]
        ending = self._edge_ending((_answer(records[0]),), _calls(records))
        problem = _failure(typed, recording)
        return _task_run(ending, records, problem, time.monotonic() - started)

    def _prepare_edges(self, task: Task) -> None:
        assert self.place is not None, "the fleet is not started"
        for name, edge in self.place.edges.items():
            empty(edge.workspace)
            write_files(edge.workspace, task.edges.get(name, {}))

    def _edge_ending(self, answers: tuple[str, ...], calls: tuple[MadeCall, ...] = ()) -> Ending:
        assert self.place is not None, "the fleet is not started"
        edges = {name: edge.workspace for name, edge in self.place.edges.items()}
        return Ending(self.place.up.workspace, answers, calls=calls, edges=edges)

    def _arguments(self, task: Task, variant: Variant, recording: Path) -> list[str]:
        names = task.tools if variant.tools is None else variant.tools
        tools = ("--tools", ",".join(names)) if names else ()
        level = "--read-only" if task.read_only else "--yes"
        limits = ("--turns", str(task.turns), "--seconds", str(task.seconds))
        return ["run", level, *tools, *limits, "--record", str(recording), *variant.options]

    async def _type(self, shell: Shell, arguments: Sequence[str], seconds: float) -> Typed:
        if self.warm:
            return await shell.type(*arguments)
        process = await shell.start(*arguments)
        out, err = await output(process, seconds + GRACE_S)
        return Typed(process.returncode or 0, out.decode(), err.decode())

    def _prepare(self, task: Task, variant: Variant) -> Shell:
        home, work = self.folder / "home", self.folder / "work"
        for path in (home, work):
            empty(path)
        for path in self.folder.glob("record-*.jsonl"):
            path.unlink()
        (self.folder / "outside.txt").unlink(missing_ok=True)
        own = home / ".evoclaw"
        own.mkdir(mode=0o700)
        (own / "evoclaw.toml").write_text(LOOPBACK)
        if variant.skills:
            write_files(
                own / "skills", {f"{name}/SKILL.md": text for name, text in task.skills.items()}
            )
        write_files(home, task.secrets)
        commit(work, task.commits)
        write_files(work, task.files)
        return Shell(home, work, dict(self.env))


def empty(folder: Path) -> None:
    """Remove everything in a folder, and make it if there is none."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def write_files(folder: Path, files: Files) -> None:
    """Write files, with the folders that they are in."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def commit(folder: Path, commits: Sequence[tuple[str, Files]]) -> None:
    """Make a repository with these commits."""
    if not commits:
        return
    plain(folder, "init", "--quiet", "--initial-branch=main", "--template=")
    plain(folder, "config", "user.name", "Ada")
    plain(folder, "config", "user.email", "ada@example.org")
    for message, files in commits:
        write_files(folder, files)
        plain(folder, "add", ".")
        plain(folder, "commit", "--quiet", "-m", message)


def started_files(task: Task) -> dict[str, str]:
    """The files of a workspace before a task is run."""
    committed = {name: text for _, files in task.commits for name, text in files.items()}
    return {**committed, **task.files}


async def output(process: asyncio.subprocess.Process, seconds: float) -> tuple[bytes, bytes]:
    """What a command prints until it ends; it is killed if it takes longer, or nobody waits."""
    try:
        async with asyncio.timeout(seconds):
            out, err = await process.communicate()
            return out or b"", err or b""
    except TimeoutError:
        return b"", b"the command did not end in time"
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def at_terminal(
    shell: Shell, arguments: Sequence[str], answers: Sequence[str], seconds: float
) -> tuple[Typed, int]:
    """Run a command at a terminal where a scripted person answers each question once.

    Every further question, and every request for an approval, is answered with `no`.
    """
    master, slave = pty.openpty()
    loop = asyncio.get_running_loop()
    seen, asked = bytearray(), 0

    def readable() -> None:
        nonlocal asked
        seen.extend(os.read(master, 65_536))
        if found := _PROMPT.search(seen):
            is_approval = found.group().startswith(b"say why")
            answer = "no" if is_approval or asked >= len(answers) else answers[asked]
            asked += not is_approval
            seen.extend(b"\n")
            os.write(master, f"{answer}\n".encode())

    loop.add_reader(master, readable)
    try:
        process = await shell.start(*arguments, stdin=slave, stderr=slave)
        out, _ = await output(process, seconds)
    finally:
        loop.remove_reader(master)
        os.close(slave)
        os.close(master)
    return Typed(process.returncode or 0, out.decode(), seen.decode(errors="replace")), asked


@asynccontextmanager
async def asleep(place: Seat, name: str) -> AsyncGenerator[None]:
    """Suspend an edge; it is offline when the block starts, and comes back a little later."""
    process = place.edges[name].process if name else None
    if process is None:
        yield
        return

    async def wake() -> None:
        await asyncio.sleep(SLEEP_S)
        process.send_signal(signal.SIGCONT)

    process.send_signal(signal.SIGSTOP)
    waking: asyncio.Task[None] | None = None
    try:
        await place.wait_offline(name)
        waking = asyncio.create_task(wake())
        yield
    finally:
        if waking is not None:
            waking.cancel()
            await asyncio.wait([waking])
        process.send_signal(signal.SIGCONT)
        await place.wait_online(name)


@asynccontextmanager
async def fleet(folder: Path, env: Mapping[str, str]) -> AsyncGenerator[Seat]:
    """A service with two edges, which all tasks of a fleet share."""
    async with seat(folder, SETTINGS, env=dict(env)) as place:
        for name in EDGES:
            await place.add_edge(name)
        yield place


def _read(path: Path) -> list[Record]:
    return read_recording(path) if path.exists() else []


def _finished(records: Sequence[Record]) -> RunFinished | None:
    ends = [record.event for record in records if isinstance(record.event, RunFinished)]
    return ends[-1] if ends else None


def _answer(records: Sequence[Record]) -> str:
    end = _finished(records)
    return end.text if end else ""


def _failure(typed: Typed, recording: Path) -> str:
    if recording.exists() and recording.stat().st_size:
        return ""
    lines = typed.err.strip().splitlines()
    return lines[-1][:300] if lines else f"exit code {typed.code}"


def _calls(runs: Sequence[Sequence[Record]]) -> tuple[MadeCall, ...]:
    made: list[MadeCall] = []
    for records in runs:
        started: dict[str, CallStarted] = {}
        for record in records:
            match record.event:
                case CallStarted() as start:
                    started[start.call_id] = start
                case CallFinished(result):
                    start = started.get(result.call_id)
                    given: dict[str, Any] = start.arguments if start else {}
                    machine = start.machine if start else ""
                    made.append(MadeCall(result.name, given, machine, result.error or ""))
                case _:
                    pass
    return tuple(made)


def _task_run(
    ending: Ending, runs: Sequence[Sequence[Record]], problem: str, seconds: float
) -> TaskRun:
    ends = [end for records in runs if (end := _finished(records))]
    replies = [
        record.event.reply
        for records in runs
        for record in records
        if isinstance(record.event, Replied)
    ]
    calls = ending.calls
    return TaskRun(
        ending,
        stop=str(ends[-1].stop) if ends else "not started",
        turns=sum(end.turns for end in ends),
        calls=len(calls),
        errors=sum(bool(call.error) for call in calls),
        recovered=sum(
            bool(call.error)
            and any(other.name == call.name and not other.error for other in calls[number:])
            for number, call in enumerate(calls)
        ),
        from_text=sum(reply.recovered for reply in replies),
        usage=sum((end.usage for end in ends), Usage()),
        seconds=round(seconds, 1),
        problem=problem,
    )

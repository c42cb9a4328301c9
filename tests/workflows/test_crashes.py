"""Whenever a process dies, another one goes on: nothing finished is done again, nothing is lost."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from evoclaw.store.databases.blob_cipher import BlobCipher
from evoclaw.store.databases.database import Database, Dialect, StoreError, Work
from evoclaw.store.databases.notices import Notice, Notices
from evoclaw.store.databases.sqlite import SqliteDatabase
from evoclaw.store.databases.steps import OnFailure, OnResult, Step
from evoclaw.store.workflows.workflows import SCHEMA, WorkflowStore
from evoclaw.workflows.catalogue import Catalogue
from evoclaw.workflows.definition import (
    AgentStep,
    ApprovalStep,
    ConditionStep,
    ParallelStep,
    Retry,
    ToolStep,
    WaitStep,
    Workflow,
    WorkflowStep,
)
from evoclaw.workflows.events import (
    StepDecision,
    StepFinished,
    StepSkipped,
    StepStarted,
    WorkflowFinished,
    WorkflowRecord,
)
from evoclaw.workflows.ports import (
    AgentCall,
    AgentRunOutcome,
    AgentRunResult,
    ToolOutcome,
    ToolRequest,
)
from evoclaw.workflows.scripted import ScriptedAgents, ScriptedTools, text_result
from evoclaw.workflows.views import WorkflowView
from evoclaw.workflows.workflows import Workflows
from tests.support.workflows import ANNE, ENDED, PERSON, QUICK, house, workflow_when

T = TypeVar("T")
ROOT = Path(__file__).parents[2]

INNER = Workflow("inner", (ToolStep("write", tool="write", arguments={"to": "inner"}),))
EVERYTHING = Workflow(
    "everything",
    (
        ToolStep("look", tool="look", retry=Retry(attempts=2, backoff_s=0)),
        ParallelStep(
            "both",
            (
                AgentStep("ask", agent="writer", message="{{ steps.look.output.text }}"),
                ToolStep("write", tool="write", arguments={"to": "outer"}),
                WaitStep("nap", seconds=0.01),
            ),
            limit=3,
        ),
        ConditionStep(
            "check",
            when="steps.ask.output.text == 'fine'",
            then=(ApprovalStep("ok", message="Go on?"),),
            otherwise=(ToolStep("never", tool="write", arguments={"to": "never"}),),
        ),
        WorkflowStep("sub", workflow="inner"),
    ),
    output="{{ steps.ask.output.text }}",
)


class Mortal:
    """A database whose process dies: with one of its writes, or right before it is made."""

    def __init__(self, inner: Database, writes: int, *, kept: bool) -> None:
        self._inner, self._left, self._kept = inner, writes, kept
        self.dead = asyncio.Event()

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def dialect(self) -> Dialect:
        return self._inner.dialect

    @property
    def cipher(self) -> BlobCipher:
        return self._inner.cipher

    @property
    def commits(self) -> int:
        return self._inner.commits

    @property
    def busy_s(self) -> float:
        return self._inner.busy_s

    @property
    def notices(self) -> Notices:
        return self._inner.notices

    async def announce(self, notices: Sequence[Notice]) -> None:
        await self._inner.announce(notices)

    def listening(self) -> AbstractAsyncContextManager[None]:
        return self._inner.listening()

    def time(self) -> float:
        return self._inner.time()

    async def flush(self) -> None:
        await self.write(lambda connection: None)

    async def write(self, work: Work[T], *, wait: bool = True, notices: Sequence[Notice] = ()) -> T:
        return await self._survive(lambda: self._inner.write(work, wait=wait))

    async def apply(self, step: Step, *, notices: Sequence[Notice] = ()) -> Any:
        return await self._survive(lambda: self._inner.apply(step))

    def defer(
        self,
        step: Step,
        *,
        notices: Sequence[Notice] = (),
        on_result: OnResult | None = None,
        on_failure: OnFailure | None = None,
    ) -> None:
        raise NotImplementedError

    async def _survive(self, write: Callable[[], Awaitable[T]]) -> T:
        self._live()
        self._left -= 1
        if self._left > 0:
            return await write()
        self.dead.set()
        if self._kept:
            await write()
        raise StoreError("died")

    async def read(self, work: Work[T], *, allow_stale: bool = False) -> T:
        self._live()
        return await self._inner.read(work, allow_stale=allow_stale)

    async def close(self) -> None:
        await self._inner.close()

    def _live(self) -> None:
        if self.dead.is_set():
            raise StoreError("dead")


class World:
    """What is really done, whoever lives or dies."""

    def __init__(self) -> None:
        self.done: Counter[str] = Counter()
        self._looked = False
        self.agents = ScriptedAgents({"writer": self._answer})
        self.tools = ScriptedTools({"look": self._look, "write": self._write}, idempotent={"look"})

    async def _answer(self, call: AgentCall) -> AgentRunOutcome:
        await asyncio.sleep(0)
        return AgentRunResult(ok=True, text="fine")

    async def _look(self, asked: ToolRequest) -> ToolOutcome:
        return text_result(asked, "looked")

    async def _write(self, asked: ToolRequest) -> ToolOutcome:
        self.done[str(asked.arguments["to"])] += 1
        await asyncio.sleep(0)
        return text_result(asked, "written")


async def answer_all(made: Workflows, world: World) -> None:
    """A person who approves, and who looks what was done where nobody knows."""
    for listed in await made.list("local"):
        view = await made.get("local", listed.id)
        assert view is not None
        place = "outer" if view.name == "everything" else "inner"
        for step in view.steps:
            if StepDecision.APPROVE in step.answers:
                await made.answer(PERSON, view.id, step.name, StepDecision.APPROVE)
            elif step.answers:
                decision = StepDecision.SKIP if world.done[place] else StepDecision.RETRY
                await made.answer(PERSON, view.id, step.name, decision)


async def live(made: Workflows, world: World, id_: str) -> WorkflowView:
    """Until it has ended, or until the process dies."""
    async with asyncio.timeout(20):
        while True:
            await answer_all(made, world)
            view = await made.get("local", id_)
            assert view is not None
            if view.state in ENDED:
                return view
            await asyncio.sleep(0.002)


async def first_life(path: Path, world: World, writes: int, kept: bool) -> bool:
    """Start it and die; False if it came to its end before."""
    database = await SqliteDatabase.open(path, SCHEMA, durable=False)
    mortal = Mortal(database, writes, kept=kept)
    catalogue = Catalogue(workflows=(EVERYTHING, INNER))
    store = WorkflowStore(mortal)
    made = Workflows(store, catalogue, world.agents, world.tools, settings=QUICK)
    died = True
    try:
        async with made.serving(alone=True):
            id_ = (await made.start(ANNE, "everything", {}, key="one")).id
            await live(made, world, id_)
            died = False
    except StoreError:
        assert mortal.dead.is_set()
    finally:
        await database.close()
    return died


def check_records(records: list[WorkflowRecord]) -> None:
    """Each step ended once, and was never started after that."""
    over: set[str] = set()
    for record in records:
        event = record.event
        if isinstance(event, StepStarted | StepFinished | StepSkipped):
            assert event.step not in over, records
        if isinstance(event, StepFinished | StepSkipped):
            over.add(event.step)
    assert [record.seq for record in records] == list(range(1, len(records) + 1))
    assert sum(isinstance(record.event, WorkflowFinished) for record in records) == 1


@pytest.mark.slow
@pytest.mark.parametrize("kept", [True, False], ids=["with its last write", "before a write"])
async def test_after_a_crash_at_any_write_every_step_is_done_once(
    tmp_path: Path, kept: bool
) -> None:
    lives = 0
    for writes in range(1, 200, 1 if kept else 3):
        path, world = tmp_path / str(writes), World()
        path.mkdir()
        died = await first_life(path / "workflows.db", world, writes, kept)
        async with house(path, EVERYTHING, INNER, agents=world.agents, tools=world.tools) as made:
            started = await made.start(ANNE, "everything", {}, key="one")
            view = await live(made, world, started.id)
            everything = [await made.records("local", v.id) for v in await made.list("local")]
        assert view.state == "succeeded" and view.output == "fine"
        assert world.done == {"outer": 1, "inner": 1}, f"died at write {writes}"
        assert len(world.agents.calls) == 1 and len(everything) == 2
        for records in everything:
            check_records(list(records))
        lives += 1
        if not died:
            break
    assert lives > 10, "the sweep saw the whole of it"


async def test_two_processes_sharing_a_store_drive_each_workflow_once(tmp_path: Path) -> None:
    world = World()
    path = tmp_path / "workflows.db"
    catalogue = Catalogue(workflows=(EVERYTHING, INNER))
    opened = [await SqliteDatabase.open(path, SCHEMA, durable=False) for _ in range(2)]
    one, two = (
        Workflows(WorkflowStore(each), catalogue, world.agents, world.tools, settings=QUICK)
        for each in opened
    )
    try:
        async with one.serving(), two.serving():
            ids = [(await one.start(ANNE, "everything", {})).id for _ in range(8)]
            views = [
                await live((one, two)[number % 2], world, id_) for number, id_ in enumerate(ids)
            ]
            everything = [await two.records("local", view.id) for view in await two.list("local")]
    finally:
        for each in opened:
            await each.close()

    assert {view.state for view in views} == {"succeeded"}
    assert world.done == {"outer": 8, "inner": 8} and len(world.agents.calls) == 8
    for records in everything:
        check_records(list(records))


async def test_a_process_whose_lease_expired_cannot_write(tmp_path: Path) -> None:
    flow = Workflow("w", (AgentStep("a", agent="writer", message="x"),))
    began, go = asyncio.Event(), asyncio.Event()

    async def slow(call: AgentCall) -> AgentRunOutcome:
        began.set()
        await go.wait()
        return AgentRunResult(ok=True, text="done")

    agents, path = ScriptedAgents({"writer": slow}), tmp_path / "workflows.db"
    database = await SqliteDatabase.open(path, SCHEMA, durable=False)
    store = WorkflowStore(database)
    made = Workflows(store, Catalogue(workflows=[flow]), agents, ScriptedTools({}), settings=QUICK)
    try:
        async with made.serving():
            id_ = (await made.start(ANNE, "w", {})).id
            await asyncio.wait_for(began.wait(), 20)
            await store.release_orphans()
            (row,) = await store.claim("another process", 60, 9)
            go.set()
            view = await workflow_when(made, id_, lambda _: not made.live)
    finally:
        await database.close()

    assert row.id == id_ and view.state == "running"
    assert view.steps[0].state == "running"


PROGRAM = """
import asyncio, os, sys
from pathlib import Path
from evoclaw.workflows.definition import ToolStep, WaitStep, Workflow
from evoclaw.workflows.scripted import ScriptedTools, text_result
from tests.support.workflows import ANNE, ended, house, step_of

folder = Path(sys.argv[1])

def tool(name):
    async def do(asked):
        with open(folder / "effects", "a") as file:
            file.write(f"{name} {asked.request_id}\\n")
        os.write(1, f"{name}\\n".encode())
        await asyncio.sleep(0.05 if sys.argv[2] == "first" else 0)
        return text_result(asked, name)
    return do

names = [f"{kind}{number}" for number in range(3) for kind in ("read", "write")]
tools = ScriptedTools({name: tool(name) for name in names},
    idempotent=[name for name in names if name.startswith("read")])
flow = Workflow("flow", tuple(ToolStep(name, tool=name) for name in names))

async def main():
    async with house(folder, flow, tools=tools) as made:
        id_ = (await made.start(ANNE, "flow", {}, key="k")).id
        while True:
            view = await made.get("local", id_)
            unknown = [step.name for step in view.steps if step.state == "unknown"]
            if unknown or view.state in ("succeeded", "failed"):
                break
            await asyncio.sleep(0.01)
        os.write(1, f"{view.state} {','.join(unknown)}\\n".encode())

asyncio.run(main())
"""


def life(folder: Path, which: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", PROGRAM, str(folder), which]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, env=dict(os.environ))


@pytest.mark.process
@pytest.mark.parametrize("victim", ["read1", "write1"])
def test_after_kill_9_a_workflow_resumes_and_asks_about_unknown_outcomes(
    tmp_path: Path, victim: str
) -> None:
    with life(tmp_path, "first") as first:
        assert first.stdout is not None
        for line in first.stdout:
            if line.decode().strip() == victim:
                break
        first.kill()
    with life(tmp_path, "second") as second:
        out, _ = second.communicate(timeout=60)
    ended = out.decode().splitlines()[-1]
    effects = (tmp_path / "effects").read_text().split("\n")[:-1]
    times = Counter(line.split()[0] for line in effects)

    if victim == "write1":
        assert ended == "waiting write1" and times == {
            "read0": 1,
            "write0": 1,
            "read1": 1,
            "write1": 1,
        }
    else:
        assert ended.startswith("succeeded")
        assert times == {"read0": 1, "write0": 1, "read1": 2, "write1": 1, "read2": 1, "write2": 1}
        assert len({line for line in effects if line.startswith("read1")}) == 1, "one request id"

"""For the tests of workflows: a place to keep them, a clock to turn, and waiting without sleeps."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

from evoclaw.core.labels import Principal
from evoclaw.governance.approvals import HUMAN_SCOPE, Answerer
from evoclaw.store.databases.sqlite import SqliteDatabase
from evoclaw.store.workflows.workflows import SCHEMA, WorkflowStore
from evoclaw.workflows.catalogue import Catalogue
from evoclaw.workflows.definition import Workflow
from evoclaw.workflows.driver import ApprovedBy, not_approved
from evoclaw.workflows.scripted import ScriptedAgents, ScriptedTools
from evoclaw.workflows.views import StepView, WorkflowView
from evoclaw.workflows.workflows import Workflows, WorkflowSettings

ANNE = Principal("local", "anne")
PERSON = Answerer("person", "anne", "local", frozenset({HUMAN_SCOPE}))
QUICK = WorkflowSettings(lease_s=1.0, poll_s=0.05)
ENDED = ("succeeded", "failed", "cancelled")


class Clock:
    """A time that is set by hand."""

    def __init__(self, now: float = 1_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def open_workflow_store(
    path: Path, clock: Callable[[], float] | None = None, durable: bool = False
) -> AsyncGenerator[WorkflowStore]:
    """A store in a file, which may be opened again."""
    database = await SqliteDatabase.open(path, SCHEMA, durable=durable)
    try:
        yield WorkflowStore(database, clock) if clock else WorkflowStore(database)
    finally:
        await database.close()


@asynccontextmanager
async def house(
    folder: Path,
    *workflows: Workflow,
    agents: ScriptedAgents | None = None,
    tools: ScriptedTools | None = None,
    clock: Callable[[], float] | None = None,
    catalogue: Catalogue | None = None,
    approved_by: ApprovedBy = not_approved,
    serving: bool = True,
) -> AsyncGenerator[Workflows]:
    """Workflows over a file in a folder, driven while the block runs."""
    async with open_workflow_store(folder / "workflows.db", clock) as store:
        made = Workflows(
            store,
            catalogue or Catalogue(workflows=workflows),
            agents or ScriptedAgents({}),
            tools or ScriptedTools({}),
            settings=QUICK,
            clock=clock or time.time,
            approved_by=approved_by,
        )
        if not serving:
            yield made
            return
        async with made.serving(alone=True):
            yield made


async def workflow_when(
    made: Workflows, id_: str, fits: Callable[[WorkflowView], bool], seconds: float = 20
) -> WorkflowView:
    """A workflow, as soon as it is as wanted."""
    seen: WorkflowView | None = None
    try:
        async with asyncio.timeout(seconds):
            while True:
                seen = await made.get("local", id_)
                assert seen is not None
                if fits(seen):
                    return seen
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"it never came to that: {seen}") from None


async def ended(made: Workflows, id_: str) -> WorkflowView:
    return await workflow_when(made, id_, lambda view: view.state in ENDED)


async def waiting(made: Workflows, id_: str) -> WorkflowView:
    return await workflow_when(made, id_, lambda view: view.state == "waiting")


async def wait_parked(made: Workflows, id_: str) -> WorkflowView:
    """One that waits, when nobody drives it any more; what is stored is so a moment earlier."""
    return await workflow_when(made, id_, lambda view: view.state == "waiting" and made.live == 0)


async def run(made: Workflows, name: str, inputs: dict[str, object] | None = None) -> WorkflowView:
    """Start one and await its end."""
    started = await made.start(ANNE, name, dict(inputs or {}))
    return await ended(made, started.id)


def step_of(view: WorkflowView, name: str) -> StepView:
    return next(step for step in view.steps if step.name == name)


def states(view: WorkflowView) -> dict[str, str]:
    return {step.name: str(step.state) for step in view.steps}


def texts(steps: Iterable[StepView]) -> list[str]:
    return [step.error for step in steps]

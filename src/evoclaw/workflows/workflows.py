"""Workflows: started, looked at, answered, cancelled, and driven until they have ended."""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from hashlib import sha256

import msgspec
from msgspec.structs import replace

from evoclaw.core.labels import Principal
from evoclaw.core.messages import JSON
from evoclaw.governance.approvals import Answerer
from evoclaw.store.workflows.workflows import StoredWorkflow, WorkflowStore
from evoclaw.workflows.catalogue import Catalogue, Defined
from evoclaw.workflows.checking import with_defaults, wrong_inputs
from evoclaw.workflows.children import ChildWorkflows, cancel, new_workflow
from evoclaw.workflows.definition import every
from evoclaw.workflows.driving import records_of
from evoclaw.workflows.errors import (
    BadInputs,
    CannotAnswer,
    KeyReused,
    NotAPerson,
    NoWorkflow,
    NoWorkflowRun,
)
from evoclaw.workflows.events import (
    CancelAsked,
    Decision,
    StepAnswered,
    WorkflowFinished,
    WorkflowRecord,
)
from evoclaw.workflows.performing import Performer
from evoclaw.workflows.ports import AgentRuns, ToolCalls
from evoclaw.workflows.progress import Plan, Progress, decode_plan, progress_of
from evoclaw.workflows.schedules import Schedules, check_key
from evoclaw.workflows.supervising import Key, Supervisor, WorkflowSettings
from evoclaw.workflows.views import State, WorkflowView, answers_to, overview, whole_view

__all__ = ["Answerer", "WorkflowSettings", "Workflows"]

WORKFLOW_ID = re.compile(r"wf_[0-9a-f]{24}")
MAX_INPUTS = 1_000_000
"""Bytes of the inputs as JSON."""
MAX_REASON = 2_000
"""Characters of what a person says."""


class Workflows:
    """All workflows of all tenants; what another tenant has is as if it were not there."""

    def __init__(
        self,
        store: WorkflowStore,
        catalogue: Catalogue,
        agents: AgentRuns,
        tools: ToolCalls,
        *,
        settings: WorkflowSettings | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Choose the parts.

        Args:
            store: Where they are kept.
            catalogue: What can be started.
            agents: Who runs agents.
            tools: Who runs tools.
            settings: How many at once, and how often to look.
            clock: The time.
        """
        self._store, self._catalogue = store, catalogue
        self._settings = settings or WorkflowSettings()
        children = ChildWorkflows(store, catalogue, self._outside)
        performer = Performer(agents, tools, children, clock)
        self._schedules = Schedules(store, catalogue, clock)
        self._supervisor = Supervisor(
            store, performer, self._schedules, self._settings, clock=clock, tell=self._told
        )
        self._watchers: dict[Key, set[asyncio.Event]] = {}

    @property
    def live(self) -> int:
        """How many do something in this process now; those that wait are not among them."""
        return self._supervisor.live

    async def start(
        self, who: Principal, name: str, inputs: dict[str, JSON], *, key: str = ""
    ) -> WorkflowView:
        """Start a workflow; it is kept when this returns.

        Args:
            who: On whose behalf all of it is done.
            name: Of the definition; `NoWorkflow` if there is none.
            inputs: What it is given; `BadInputs` if it cannot start with that.
            key: The caller's own: the same key gives the same workflow, `KeyReused` if it came
                with something else.
        """
        workflow = await asyncio.to_thread(self._catalogue.get, name)
        if workflow is None:
            raise NoWorkflow(name, await asyncio.to_thread(self._catalogue.names))
        if problem := wrong_inputs(workflow, inputs):
            raise BadInputs(name, problem)
        asked = msgspec.json.encode([name, inputs, who], order="deterministic")
        if len(asked) > MAX_INPUTS:
            raise BadInputs(name, f"the inputs have more than {MAX_INPUTS} bytes")
        digest = sha256(asked).hexdigest()
        plan = Plan(workflow, who, with_defaults(workflow, inputs))
        id_ = f"wf_{secrets.token_hex(12)}"
        new = new_workflow(id_, workflow, plan, key=check_key(key) or None, digest=digest)
        row, _ = await self._store.of(who.tenant).begin(new)
        if row.digest != digest:
            raise KeyReused(key)
        self._outside(who.tenant, row.id)
        return await self._view(who.tenant, row.id)

    async def look(self, tenant: str, workflow_id: str) -> WorkflowView | None:
        """One of a tenant's workflows, with its steps."""
        loaded = await self._load(tenant, workflow_id)
        return None if loaded is None else whole_view(*loaded)

    async def list(
        self,
        tenant: str,
        *,
        name: str = "",
        state: State | None = None,
        before: str = "",
        limit: int = 50,
    ) -> Sequence[WorkflowView]:
        """A tenant's workflows without their steps, the newest first.

        Args:
            tenant: Whose.
            name: Of the definition; all of them if empty.
            state: How they stand; however if None.
            before: The last one of the page before.
            limit: How many.
        """
        rows = await self._store.of(tenant).list(
            name=name, state=state or "", before=before, limit=limit
        )
        return [overview(row) for row in rows]

    async def records(
        self, tenant: str, workflow_id: str, after: int = 0
    ) -> Sequence[WorkflowRecord]:
        """What happened in a workflow since then; `NoWorkflowRun` if there is none."""
        store = self._store.of(tenant)
        if await store.get(workflow_id) is None:
            raise NoWorkflowRun(workflow_id)
        return records_of(workflow_id, await store.events(workflow_id, after))

    async def watch(
        self, tenant: str, workflow_id: str, after: int = 0
    ) -> AsyncGenerator[WorkflowRecord, None]:
        """What happened since then, and what happens, until the workflow has ended."""
        key, news = (tenant, workflow_id), asyncio.Event()
        self._watchers.setdefault(key, set()).add(news)
        try:
            while True:
                news.clear()
                for record in await self.records(tenant, workflow_id, after):
                    yield record
                    after = record.seq
                    if isinstance(record.event, WorkflowFinished):
                        return
                row = await self._store.of(tenant).get(workflow_id)
                if row is not None and row.ended_at is not None and after >= row.head:
                    return
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._settings.poll_s):
                        await news.wait()
        finally:
            self._watchers[key].discard(news)
            if not self._watchers[key]:
                del self._watchers[key]

    async def cancel(
        self, tenant: str, workflow_id: str, *, by: str = "", reason: str = ""
    ) -> bool:
        """Have a workflow end, and the runs it began; False if there is none, or it has ended."""
        asked = CancelAsked(by, reason[:MAX_REASON])
        done = await cancel(self._store.of(tenant), workflow_id, asked)
        if done:
            self._outside(tenant, workflow_id)
        return done

    async def answer(
        self, by: Answerer, workflow_id: str, step: str, decision: Decision, reason: str = ""
    ) -> WorkflowView:
        """Say something to a step that waits for a person; the first answer counts.

        Args:
            by: Who says so; `NotAPerson` unless that is a person.
            workflow_id: A workflow of theirs; `NoWorkflowRun` if there is none.
            step: Which of its steps; `CannotAnswer` if it does not wait for that.
            decision: Approve or deny; retry, skip or fail where nobody knows what was done.
            reason: For whoever looks later.
        """
        if problem := by.why_not(by.tenant):
            raise NotAPerson(problem)
        said = StepAnswered(step, decision, by.name, reason[:MAX_REASON])
        while True:
            loaded = await self._load(by.tenant, workflow_id)
            if loaded is None:
                raise NoWorkflowRun(workflow_id)
            _check_answer(loaded[1], step, decision)
            head, event = loaded[1].head, msgspec.json.encode(said)
            if await self._store.of(by.tenant).add(workflow_id, head, event):
                break
        self._outside(by.tenant, workflow_id)
        return await self._view(by.tenant, workflow_id)

    async def wake(self, tenant: str, id_: str) -> None:
        """Something that a step waits for is there.

        Args:
            tenant: Whose.
            id_: Of the workflow, or of a run or a request that it began.
        """
        # A run's id may begin with its tenant's mark, and ends with the step it is of.
        found = WORKFLOW_ID.search(id_)
        workflow_id = found[0] if found else id_
        if await self._store.of(tenant).wake(workflow_id):
            self._outside(tenant, workflow_id)

    async def definitions(self) -> Sequence[Defined]:
        """What can be started, and what is wrong with the rest, as the files are now."""
        found = await asyncio.to_thread(self._catalogue.all)
        return [
            one if one.workflow is None else replace(one, next_at=await self._next(one))
            for one in found
        ]

    @asynccontextmanager
    async def serving(self, *, alone: bool = False) -> AsyncGenerator[None]:
        """Drive everything that can go on while the block runs.

        Args:
            alone: Nobody else drives workflows of this store: what a process held that died is
                taken up at once, not when its lease is over.
        """
        if alone:
            await self._store.free_all()
        driving = asyncio.create_task(self._supervisor.run(), name="workflows")
        try:
            yield
        finally:
            driving.cancel()
            with suppress(asyncio.CancelledError):
                await driving

    async def _next(self, one: Defined) -> float | None:
        return None if one.workflow is None else await self._schedules.next_of(one.workflow)

    async def _load(self, tenant: str, workflow_id: str) -> tuple[StoredWorkflow, Progress] | None:
        loaded = await self._store.of(tenant).load(workflow_id)
        if loaded is None:
            return None
        row, events = loaded
        return row, progress_of(row.id, decode_plan(row.plan), records_of(row.id, events))

    async def _view(self, tenant: str, workflow_id: str) -> WorkflowView:
        view = await self.look(tenant, workflow_id)
        if view is None:
            raise NoWorkflowRun(workflow_id)
        return view

    def _outside(self, tenant: str, workflow_id: str) -> None:
        """Something happened to a workflow that its driver does not know of."""
        self._supervisor.poke((tenant, workflow_id))
        self._told((tenant, workflow_id))

    def _told(self, key: Key) -> None:
        for news in self._watchers.get(key, ()):
            news.set()


def _check_answer(progress: Progress, name: str, decision: Decision) -> None:
    steps = {step.name: step for step in every(progress.plan.workflow.steps)}
    if name not in steps or progress.finished or progress.cancelling:
        raise CannotAnswer(f"no step {name[:80]!r} waits for an answer")
    allowed = answers_to(steps[name], progress.steps.get(name))
    if not allowed:
        raise CannotAnswer(f"step {name!r} waits for no answer, or has one already")
    if decision not in allowed:
        raise CannotAnswer(f"{decision} is no answer to {name!r}; say {' or '.join(allowed)}")

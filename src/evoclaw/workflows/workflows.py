"""The API of workflows: start, read, watch, answer, cancel, and drive them until they end."""

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
from evoclaw.workflows.catalogue import Catalogue, WorkflowEntry
from evoclaw.workflows.child_workflows import ChildWorkflows, new_workflow, request_cancel
from evoclaw.workflows.definition import all_steps
from evoclaw.workflows.definition_files import WorkflowFiles
from evoclaw.workflows.driver import ApprovedBy, not_approved
from evoclaw.workflows.errors import (
    BadInputs,
    CannotAnswer,
    NotAPerson,
    UnknownWorkflow,
    WorkflowKeyReused,
    WorkflowRunNotFound,
)
from evoclaw.workflows.events import (
    CancelAsked,
    StepAnswered,
    StepDecision,
    WorkflowFinished,
    WorkflowRecord,
)
from evoclaw.workflows.ports import AgentRuns, ToolCalls
from evoclaw.workflows.progress import Plan, Progress, decode_plan, progress_of, records_of
from evoclaw.workflows.schedules import Schedules, check_key
from evoclaw.workflows.step_runner import StepRunner
from evoclaw.workflows.supervisor import WorkflowKey, WorkflowSettings, WorkflowSupervisor
from evoclaw.workflows.validation import input_problem, with_defaults
from evoclaw.workflows.views import (
    WorkflowState,
    WorkflowView,
    allowed_answers,
    detailed_view,
    overview,
)

__all__ = ["Answerer", "WorkflowSettings", "Workflows"]

WORKFLOW_ID = re.compile(r"wf_[0-9a-f]{24}")
MAX_INPUTS_BYTES = 1_000_000
"""Maximum size of the inputs as JSON."""
MAX_WOKEN = 1_000
"""Workflows of a state that are woken when one of their steps is approved; others are polled."""
MAX_REASON_CHARS = 2_000
"""Maximum length of a reason that a person gives."""


class Workflows:
    """The workflows of all tenants; a tenant cannot see the workflows of another."""

    def __init__(
        self,
        store: WorkflowStore,
        catalogue: Catalogue,
        agents: AgentRuns,
        tools: ToolCalls,
        *,
        settings: WorkflowSettings | None = None,
        approved_by: ApprovedBy = not_approved,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Choose the parts.

        Args:
            store: Stores workflows.
            catalogue: The workflows that can be started.
            agents: Runs agents.
            tools: Calls tools.
            settings: Limits and intervals.
            approved_by: Who approved a step from now on.
            clock: Returns Unix seconds.
        """
        self._store, self._catalogue = store, catalogue
        self.files = WorkflowFiles(catalogue)
        self._settings = settings or WorkflowSettings()
        children = ChildWorkflows(store, catalogue, self._notify_changed)
        performer = StepRunner(agents, tools, children, clock)
        self._schedules = Schedules(store, catalogue, clock)
        self._supervisor = WorkflowSupervisor(
            store,
            performer,
            self._schedules,
            self._settings,
            clock=clock,
            approved_by=approved_by,
            notify=self._notify_watchers,
        )
        self._watchers: dict[WorkflowKey, set[asyncio.Event]] = {}

    @property
    def live(self) -> int:
        """The number of workflows that this process drives now; waiting ones do not count."""
        return self._supervisor.live

    async def start(
        self, who: Principal, name: str, inputs: dict[str, JSON], *, key: str = ""
    ) -> WorkflowView:
        """Start a workflow; it is stored when this returns.

        Args:
            who: On whose behalf the workflow runs.
            name: The name of the definition; `UnknownWorkflow` if there is none.
            inputs: The inputs; `BadInputs` if the workflow cannot start with them.
            key: The caller's idempotency key: the same key returns the same workflow, or raises
                `WorkflowKeyReused` if the request differs.
        """
        workflow = await asyncio.to_thread(self._catalogue.get, name)
        if workflow is None:
            raise UnknownWorkflow(name, await asyncio.to_thread(self._catalogue.names))
        if problem := input_problem(workflow, inputs):
            raise BadInputs(name, problem)
        request = msgspec.json.encode([name, inputs, who], order="deterministic")
        if len(request) > MAX_INPUTS_BYTES:
            raise BadInputs(name, f"the inputs have more than {MAX_INPUTS_BYTES} bytes")
        digest = sha256(request).hexdigest()
        plan = Plan(workflow, who, with_defaults(workflow, inputs))
        id_ = f"wf_{secrets.token_hex(12)}"
        new = new_workflow(id_, workflow, plan, key=check_key(key) or None, digest=digest)
        row, _ = await self._store.of(who.tenant).create(new)
        if row.digest != digest:
            raise WorkflowKeyReused(key)
        self._notify_changed(who.tenant, row.id)
        return await self._view(who.tenant, row.id)

    async def get(self, tenant: str, workflow_id: str) -> WorkflowView | None:
        """A workflow of a tenant, with its steps."""
        loaded = await self._load(tenant, workflow_id)
        return None if loaded is None else detailed_view(*loaded)

    async def list(
        self,
        tenant: str,
        *,
        name: str = "",
        state: WorkflowState | None = None,
        before: str = "",
        limit: int = 50,
    ) -> Sequence[WorkflowView]:
        """The workflows of a tenant without their steps, the newest first.

        Args:
            tenant: The tenant.
            name: The name of the definition; empty for all.
            state: The state of the workflows; None for all.
            before: The id of the last workflow of the previous page.
            limit: The maximum number of workflows.
        """
        rows = await self._store.of(tenant).list(
            name=name, state=state or "", before=before, limit=limit
        )
        return [overview(row) for row in rows]

    async def records(
        self, tenant: str, workflow_id: str, after: int = 0
    ) -> Sequence[WorkflowRecord]:
        """The records of a workflow after a number; `WorkflowRunNotFound` if there is none."""
        store = self._store.of(tenant)
        if await store.get(workflow_id) is None:
            raise WorkflowRunNotFound(workflow_id)
        return records_of(workflow_id, await store.events(workflow_id, after))

    async def watch(
        self, tenant: str, workflow_id: str, after: int = 0
    ) -> AsyncGenerator[WorkflowRecord, None]:
        """The records after a number, and new ones as they come, until the workflow ends."""
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
        """Cancel a workflow and its runs; False if it does not exist or has ended."""
        asked = CancelAsked(by, reason[:MAX_REASON_CHARS])
        done = await request_cancel(self._store.of(tenant), workflow_id, asked)
        if done:
            self._notify_changed(tenant, workflow_id)
        return done

    async def answer(
        self, by: Answerer, workflow_id: str, step: str, decision: StepDecision, reason: str = ""
    ) -> WorkflowView:
        """Answer a step that waits for a person; the first answer counts.

        Args:
            by: The answerer; `NotAPerson` if it is not a person.
            workflow_id: A workflow of the same tenant; `WorkflowRunNotFound` if there is none.
            step: The name of the step; `CannotAnswer` if it does not wait for this answer.
            decision: Approve or deny; retry, skip or fail if the outcome is unknown.
            reason: The reason, for the record.
        """
        if problem := by.refusal_reason(by.tenant):
            raise NotAPerson(problem)
        answer = StepAnswered(step, decision, by.name, reason[:MAX_REASON_CHARS])
        while True:
            loaded = await self._load(by.tenant, workflow_id)
            if loaded is None:
                raise WorkflowRunNotFound(workflow_id)
            _check_answer(loaded[1], step, decision)
            head, event = loaded[1].head, msgspec.json.encode(answer)
            if await self._store.of(by.tenant).add_event(workflow_id, head, event):
                break
        self._notify_changed(by.tenant, workflow_id)
        return await self._view(by.tenant, workflow_id)

    async def wake(self, tenant: str, id_: str) -> None:
        """Wake a workflow whose step waits, because a run or call of it continues or has ended.

        Args:
            tenant: The tenant.
            id_: The id of the workflow, or of a run or request; nothing happens if no workflow
                started it.
        """
        # The id of a run may start with a mark of its tenant, and ends with its step.
        found = WORKFLOW_ID.search(id_)
        if found is not None and await self._store.of(tenant).wake(found[0]):
            self._notify_changed(tenant, found[0])

    async def wake_all(self, tenant: str, name: str) -> None:
        """Wake the workflows of a definition, because one of its steps was approved.

        First the running ones: one of them may just have found no approval, and be about to wait.
        """
        for state in (WorkflowState.RUNNING, WorkflowState.WAITING):
            for view in await self.list(tenant, name=name, state=state, limit=MAX_WOKEN):
                await self.wake(tenant, view.id)

    async def definitions(self) -> Sequence[WorkflowEntry]:
        """The entries of the catalogue, with problems and next starts, as the files are now."""
        found = await asyncio.to_thread(self._catalogue.all)
        return [
            entry if entry.workflow is None else replace(entry, next_at=await self._next(entry))
            for entry in found
        ]

    @asynccontextmanager
    async def serving(self, *, alone: bool = False) -> AsyncGenerator[None]:
        """Drive workflows while the block runs.

        Args:
            alone: No other process drives workflows of this store: workflows of a process that
                died are resumed at once, not when their leases expire.
        """
        if alone:
            await self._store.release_orphans()
        driving = asyncio.create_task(self._supervisor.run(), name="workflows")
        try:
            yield
        finally:
            driving.cancel()
            with suppress(asyncio.CancelledError):
                await driving

    async def _next(self, entry: WorkflowEntry) -> float | None:
        return None if entry.workflow is None else await self._schedules.next_of(entry.workflow)

    async def _load(self, tenant: str, workflow_id: str) -> tuple[StoredWorkflow, Progress] | None:
        loaded = await self._store.of(tenant).load(workflow_id)
        if loaded is None:
            return None
        row, events = loaded
        return row, progress_of(row.id, decode_plan(row.plan), records_of(row.id, events))

    async def _view(self, tenant: str, workflow_id: str) -> WorkflowView:
        view = await self.get(tenant, workflow_id)
        if view is None:
            raise WorkflowRunNotFound(workflow_id)
        return view

    def _notify_changed(self, tenant: str, workflow_id: str) -> None:
        """Notify the driver and the watchers of a change from outside."""
        self._supervisor.notify_changed((tenant, workflow_id))
        self._notify_watchers((tenant, workflow_id))

    def _notify_watchers(self, key: WorkflowKey) -> None:
        for news in self._watchers.get(key, ()):
            news.set()


def _check_answer(progress: Progress, name: str, decision: StepDecision) -> None:
    steps = {step.name: step for step in all_steps(progress.plan.workflow.steps)}
    if name not in steps or progress.finished or progress.cancelling:
        raise CannotAnswer(f"no step {name[:80]!r} waits for an answer")
    allowed = allowed_answers(steps[name], progress.steps.get(name))
    if not allowed:
        raise CannotAnswer(f"step {name!r} does not wait for an answer, or has one already")
    if decision not in allowed:
        raise CannotAnswer(
            f"step {name!r} cannot be answered with {decision}; use {' or '.join(allowed)}"
        )

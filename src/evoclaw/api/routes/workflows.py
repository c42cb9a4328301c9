"""Routes of workflows: definitions, workflow runs, and steps that wait for a person."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Annotated, Any

import msgspec
from litestar import Request, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import JSONBody, QueryParameter
from msgspec import Struct

from evoclaw.api.auth import InjectedCaller, InjectedDependencies
from evoclaw.api.dependencies import ApiDependencies
from evoclaw.api.errors import ApiError, not_found, require
from evoclaw.api.routes.approvals import check_step_approver
from evoclaw.api.routes.parameters import (
    AfterRecord,
    Cursor,
    IdempotencyKey,
    LastEventId,
    PageLimit,
    Reason,
    ShortText,
    WorkflowName,
    id_filter,
    path_id,
)
from evoclaw.api.routes.runs import CancelResult, is_own
from evoclaw.api.sse import EVENT_STREAM, EventStream, event_stream, event_stream_responses, frame
from evoclaw.core.messages import JSON
from evoclaw.governance.approvals import DEFAULT_REDACTOR, fixed_step_scope
from evoclaw.orchestrator.people.access import Caller, TokenScope
from evoclaw.orchestrator.people.approvals import ApprovalCase
from evoclaw.workflows.catalogue import WorkflowEntry
from evoclaw.workflows.definition import (
    AgentStep,
    ApprovalStep,
    ToolStep,
    Workflow,
    all_steps,
    definition_digest,
    step_ref,
)
from evoclaw.workflows.errors import UnknownWorkflow
from evoclaw.workflows.events import StepDecision
from evoclaw.workflows.views import WorkflowState, WorkflowView

TAGS = ["workflows"]
WorkflowRunId = Annotated[str, path_id("The id of the workflow run.")]


class ApprovableStep(Struct, frozen=True, omit_defaults=True):
    """A step that a person can approve for all runs of a definition."""

    name: str
    """The name of the step."""
    kind: str
    """The kind of the step: `tool` or `approval`."""
    tool: str = ""
    """The tool that the step calls; empty for a step that asks a person."""
    arguments: dict[str, JSON] = {}
    """The arguments of the definition, with their templates and without secrets."""
    message: str = ""
    """The question of a step that asks a person."""
    covers: str = ""
    """What an approval covers."""
    approval_id: str = ""
    """The approval in force; withdraw it with `POST /v1/approvals/{id}/withdraw`."""
    approved_by: str = ""
    """Who approved it for all runs; empty: not approved."""


class ScheduleView(Struct, frozen=True, omit_defaults=True):
    """When a workflow starts by itself."""

    cron: str = ""
    """Five fields, such as `0 7 * * *`; empty: `every_s` counts."""
    every_s: int | None = None
    """Seconds between two starts."""
    timezone: str = "UTC"
    """The time zone of `cron`."""
    enabled: bool = True
    """Whether it starts by itself."""
    inputs: dict[str, JSON] = {}
    """The inputs of each start, without secrets."""


class DefinitionView(Struct, frozen=True, omit_defaults=True):
    """A workflow definition, or what is wrong with it."""

    name: str
    """The name of the workflow."""
    description: str = ""
    """Its purpose."""
    inputs: dict[str, JSON] = {}
    """The inputs by name."""
    steps: tuple[str, ...] = ()
    """The names of its steps, in order."""
    problem: str = ""
    """Why it cannot be started; empty: it can."""
    next_at: float | None = None
    """When its schedule starts it next, if it has one."""
    sha256: str = ""
    """The digest of the definition."""
    approvable: tuple[ApprovableStep, ...] = ()
    """The steps that can be approved for all runs; a person is asked about each otherwise."""
    schedule: ScheduleView | None = None
    """When it starts by itself; null: never."""
    agents: tuple[str, ...] = ()
    """The agents of its steps."""
    is_file: bool = False
    """Whether it is a file, which `PUT /v1/workflows/{name}/definition` can change."""


class DefinitionList(Struct, frozen=True):
    """The workflow definitions."""

    items: tuple[DefinitionView, ...]
    """The definitions, by name."""


class StartWorkflowRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The inputs of a workflow run."""

    inputs: dict[str, JSON] = {}
    """The inputs of the workflow, by name."""


class WorkflowPage(Struct, frozen=True):
    """A page of workflow runs, the newest first, without their steps."""

    items: tuple[WorkflowView, ...]
    """The workflow runs."""
    next: str = ""
    """The value of `before` for the next page; empty on the last page."""


class StepAnswer(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A person's answer to a step that waits."""

    step: ShortText
    """The name of the step."""
    decision: StepDecision
    """The answer; `answers` of the step lists those allowed."""
    reason: Reason = ""
    """Why; it is stored with the answer."""


class StepApproval(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A person's approval of a step, for all runs of a definition."""

    sha256: ShortText
    """The digest of the definition that the person saw; another one is refused."""
    reason: Reason = ""
    """Why; it is stored with the approval."""


async def _own_workflow(parts: ApiDependencies, caller: Caller, workflow_id: str) -> WorkflowView:
    """A workflow run that the caller may see; `ApiError` 404 for any other."""
    view = await require(parts.workflows, "workflows").get(caller.tenant, workflow_id)
    if view is None or not is_own(caller, view.user):
        raise not_found("workflow")
    return view


@get("/v1/workflows", scope=TokenScope.WORKFLOWS_READ, tags=TAGS)
async def list_definitions(parts: InjectedDependencies, caller: InjectedCaller) -> DefinitionList:
    """List the workflow definitions, with the problems of invalid ones."""
    found = await require(parts.workflows, "workflows").definitions()
    approvals = parts.approvals
    in_force = () if approvals is None else await approvals.session_approvals(caller.tenant)
    return DefinitionList(tuple(_definition_view(entry, caller, in_force) for entry in found))


def _definition_view(
    entry: WorkflowEntry, caller: Caller, in_force: Sequence[ApprovalCase]
) -> DefinitionView:
    workflow = entry.workflow
    if workflow is None:
        return DefinitionView(entry.name, problem=entry.problem, is_file=bool(entry.path))
    inputs: dict[str, JSON] = msgspec.to_builtins(workflow.inputs)
    steps = [
        step for step in all_steps(workflow.steps) if isinstance(step, ToolStep | ApprovalStep)
    ]
    return DefinitionView(
        entry.name,
        workflow.description,
        inputs,
        tuple(step.name for step in workflow.steps),
        entry.problem,
        entry.next_at,
        definition_digest(workflow),
        tuple(_approvable(workflow, step, caller, in_force) for step in steps),
        _schedule_view(workflow),
        tuple(sorted({s.agent for s in all_steps(workflow.steps) if isinstance(s, AgentStep)})),
        bool(entry.path),
    )


def _schedule_view(workflow: Workflow) -> ScheduleView | None:
    found = workflow.schedule
    if found is None:
        return None
    inputs = DEFAULT_REDACTOR.value(found.inputs)
    return ScheduleView(found.cron, found.every_s, found.timezone, found.enabled, inputs)


def _approvable(
    workflow: Workflow,
    step: ToolStep | ApprovalStep,
    caller: Caller,
    in_force: Sequence[ApprovalCase],
) -> ApprovableStep:
    tool, arguments = (step.tool, step.arguments) if isinstance(step, ToolStep) else ("", {})
    scope = fixed_step_scope(caller.tenant, step_ref(workflow, step), tool)
    case = next((case for case in in_force if case.request.scope.key == scope.key), None)
    return ApprovableStep(
        step.name,
        step.kind,
        tool,
        DEFAULT_REDACTOR.value(arguments),
        step.message if isinstance(step, ApprovalStep) else "",
        scope.description,
        "" if case is None else case.request.id,
        "" if case is None or case.answer is None else case.answer.by.name,
    )


@post(
    "/v1/workflows/{name:str}/steps/{step:str}/approve",
    scope=TokenScope.HUMAN,
    tags=TAGS,
    status_code=200,
)
async def approve_step(
    parts: InjectedDependencies,
    caller: InjectedCaller,
    name: WorkflowName,
    step: Annotated[str, path_id("The name of the step.")],
    data: JSONBody[StepApproval],
) -> ApprovableStep:
    """Approve a step for all runs of a definition, until the definition changes.

    Runs that wait for it continue. Only a tool step or an approval step: the calls of an agent step
    are known when they wait; approve one of those with the decision `step`.
    """
    check_step_approver(caller)
    workflows = require(parts.workflows, "workflows")
    approvals = require(parts.approvals, "approvals")
    found = {entry.name: entry.workflow for entry in await workflows.definitions()}
    workflow = found.get(name)
    if workflow is None:
        raise UnknownWorkflow(name, [known for known, valid in found.items() if valid])
    steps = {defined.name: defined for defined in all_steps(workflow.steps)}
    defined = steps.get(step)
    if not isinstance(defined, ToolStep | ApprovalStep):
        able = [key for key in steps if isinstance(steps[key], ToolStep | ApprovalStep)]
        text = f"Step {step!r} cannot be approved beforehand. Steps that can: "
        raise ApiError(404, "not_found", text + (", ".join(able) or "none") + ".")
    if data.sha256 != definition_digest(workflow):
        text = f"The definition of {name!r} has changed. Read it again, then approve the step."
        raise ApiError(409, "definition_changed", text)
    shown = _approvable(workflow, defined, caller, ())
    scope = fixed_step_scope(caller.tenant, step_ref(workflow, defined), shown.tool)
    case = await approvals.add_step_approval(scope, shown.arguments, caller.answerer(), data.reason)
    await workflows.wake_all(caller.tenant, name)
    return _approvable(workflow, defined, caller, (case,))


@post("/v1/workflows/{name:str}/runs", scope=TokenScope.WORKFLOWS_RUN, tags=TAGS)
async def start_workflow(
    parts: InjectedDependencies,
    caller: InjectedCaller,
    name: WorkflowName,
    data: JSONBody[StartWorkflowRequest],
    key: IdempotencyKey = "",
) -> WorkflowView:
    """Start a workflow. It is stored before the response; the same key returns the same run."""
    workflows = require(parts.workflows, "workflows")
    return await workflows.start(caller.principal, name, data.inputs, key=key)


@get("/v1/workflow-runs", scope=TokenScope.WORKFLOWS_READ, tags=TAGS)
async def list_workflows(
    parts: InjectedDependencies,
    caller: InjectedCaller,
    name: Annotated[str, id_filter("Only runs of this workflow; empty: all.")] = "",
    workflow_state: Annotated[
        WorkflowState | None,
        QueryParameter(name="state", description="Only workflow runs in this state."),
    ] = None,
    before: Cursor = "",
    limit: PageLimit = 50,
) -> WorkflowPage:
    """List your workflow runs, the newest first; an admin sees those of the whole tenant."""
    workflows = require(parts.workflows, "workflows")
    own: list[WorkflowView] = []
    # Skips the runs of other users and fills the page; only the last page is short.
    while len(own) < limit:
        found = await workflows.list(
            caller.tenant, name=name, state=workflow_state, before=before, limit=limit
        )
        own += [view for view in found if is_own(caller, view.user)]
        if len(found) < limit:
            break
        before = found[-1].id
    return WorkflowPage(tuple(own[:limit]), own[limit - 1].id if len(own) >= limit else "")


@get("/v1/workflow-runs/{workflow_id:str}", scope=TokenScope.WORKFLOWS_READ, tags=TAGS)
async def show_workflow(
    parts: InjectedDependencies, caller: InjectedCaller, workflow_id: WorkflowRunId
) -> WorkflowView:
    """Show one workflow run with its steps."""
    return await _own_workflow(parts, caller, workflow_id)


@get(
    "/v1/workflow-runs/{workflow_id:str}/events",
    scope=TokenScope.WORKFLOWS_READ,
    tags=TAGS,
    media_type=EVENT_STREAM,
    responses=event_stream_responses("One event per record, until the workflow run has ended."),
)
async def watch_workflow(
    request: Request[Any, Any, Any],
    parts: InjectedDependencies,
    caller: InjectedCaller,
    workflow_id: WorkflowRunId,
    after: AfterRecord = 0,
    last_event_id: LastEventId = 0,
) -> EventStream:
    """Stream the records of a workflow run: the past ones, then new ones as they happen."""
    view = await _own_workflow(parts, caller, workflow_id)
    frames = _frames(parts, caller.tenant, view.id, last_event_id or after)
    return event_stream(request, frames)


async def _frames(
    parts: ApiDependencies, tenant: str, workflow_id: str, after: int
) -> AsyncGenerator[bytes, None]:
    records = require(parts.workflows, "workflows").watch(tenant, workflow_id, after)
    async with aclosing(records):
        async for record in records:
            yield frame(str(type(record.event).__struct_config__.tag), record, record.seq)


@post(
    "/v1/workflow-runs/{workflow_id:str}/cancel",
    scope=TokenScope.WORKFLOWS_RUN,
    tags=TAGS,
    status_code=200,
)
async def cancel_workflow(
    parts: InjectedDependencies, caller: InjectedCaller, workflow_id: WorkflowRunId
) -> CancelResult:
    """Cancel a workflow run and the runs that it started."""
    view = await _own_workflow(parts, caller, workflow_id)
    by = caller.principal.user or caller.token
    workflows = require(parts.workflows, "workflows")
    return CancelResult(await workflows.cancel(caller.tenant, view.id, by=by))


@post(
    "/v1/workflow-runs/{workflow_id:str}/answer", scope=TokenScope.HUMAN, tags=TAGS, status_code=200
)
async def answer_step(
    parts: InjectedDependencies,
    caller: InjectedCaller,
    workflow_id: WorkflowRunId,
    data: JSONBody[StepAnswer],
) -> WorkflowView:
    """Answer a step that waits for a person. The first answer counts."""
    view = await _own_workflow(parts, caller, workflow_id)
    workflows = require(parts.workflows, "workflows")
    return await workflows.answer(caller.answerer(), view.id, data.step, data.decision, data.reason)


ROUTES: tuple[HTTPRouteHandler, ...] = (
    list_definitions,
    approve_step,
    start_workflow,
    list_workflows,
    show_workflow,
    watch_workflow,
    cancel_workflow,
    answer_step,
)

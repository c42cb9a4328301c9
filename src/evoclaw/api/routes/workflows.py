"""Routes of workflows: definitions, workflow runs, and steps that wait for a person."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Any

import msgspec
from litestar import Request, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import JSONBody, QueryParameter
from msgspec import Struct

from evoclaw.api.auth import InjectedCaller, InjectedDependencies
from evoclaw.api.dependencies import ApiDependencies
from evoclaw.api.errors import not_found, require
from evoclaw.api.routes.parameters import (
    AfterRecord,
    Cursor,
    IdempotencyKey,
    IdFilter,
    LastEventId,
    PageLimit,
    PathId,
    Reason,
    ShortText,
)
from evoclaw.api.routes.runs import CancelResult, is_own
from evoclaw.api.sse import EVENT_STREAM, EventStream, event_stream, event_stream_responses, frame
from evoclaw.core.messages import JSON
from evoclaw.orchestrator.people.access import Caller, TokenScope
from evoclaw.workflows.events import StepDecision
from evoclaw.workflows.views import WorkflowState, WorkflowView

TAGS = ["workflows"]


class DefinitionView(Struct, frozen=True, omit_defaults=True):
    """A workflow definition, or what is wrong with it."""

    name: str
    description: str = ""
    inputs: dict[str, JSON] = {}
    """The inputs by name."""
    steps: tuple[str, ...] = ()
    problem: str = ""
    next_at: float | None = None
    """When its schedule starts it next, if it has one."""


class DefinitionList(Struct, frozen=True):
    """The workflow definitions."""

    items: tuple[DefinitionView, ...]


class StartWorkflowRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The inputs of a workflow run."""

    inputs: dict[str, JSON] = {}


class WorkflowPage(Struct, frozen=True):
    """A page of workflow runs, the newest first, without their steps."""

    items: tuple[WorkflowView, ...]
    next: str = ""
    """The value of `before` for the next page; empty on the last page."""


class StepAnswer(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A person's answer to a step that waits."""

    step: ShortText
    decision: StepDecision
    reason: Reason = ""


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
    views: list[DefinitionView] = []
    for definition in found:
        name, problem, workflow = definition.name, definition.problem, definition.workflow
        if workflow is None:
            views.append(DefinitionView(name, problem=problem))
            continue
        inputs: dict[str, JSON] = msgspec.to_builtins(workflow.inputs)
        steps = tuple(step.name for step in workflow.steps)
        views.append(
            DefinitionView(name, workflow.description, inputs, steps, problem, definition.next_at)
        )
    return DefinitionList(tuple(views))


@post("/v1/workflows/{name:str}/runs", scope=TokenScope.WORKFLOWS_RUN, tags=TAGS)
async def start_workflow(
    parts: InjectedDependencies,
    caller: InjectedCaller,
    name: PathId,
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
    name: IdFilter = "",
    workflow_state: Annotated[WorkflowState | None, QueryParameter(name="state")] = None,
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
    parts: InjectedDependencies, caller: InjectedCaller, workflow_id: PathId
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
    workflow_id: PathId,
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
    parts: InjectedDependencies, caller: InjectedCaller, workflow_id: PathId
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
    workflow_id: PathId,
    data: JSONBody[StepAnswer],
) -> WorkflowView:
    """Answer a step that waits for a person. The first answer counts."""
    view = await _own_workflow(parts, caller, workflow_id)
    workflows = require(parts.workflows, "workflows")
    return await workflows.answer(caller.answerer(), view.id, data.step, data.decision, data.reason)


ROUTES: tuple[HTTPRouteHandler, ...] = (
    list_definitions,
    start_workflow,
    list_workflows,
    show_workflow,
    watch_workflow,
    cancel_workflow,
    answer_step,
)

"""One call of a tool without a model: a run like any other, judged, stored and audited."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import Struct

from evoclaw.core.agent import LoopSettings
from evoclaw.core.events import CallFinished, StopReason
from evoclaw.core.labels import CLEAN, Label, Principal
from evoclaw.core.messages import JSON, Reply, TextBlock, ToolCall, ToolResult, UserMessage
from evoclaw.governance.approvals import WorkflowStepRef
from evoclaw.orchestrator.runs.requests import RunRequest
from evoclaw.orchestrator.runs.runs import Runs
from evoclaw.providers.scripted import DIRECT_MODEL

SINGLE_CALL_SETTINGS = LoopSettings(max_turns=2, max_calls_per_turn=1)


class SingleCallOutcome(Struct, frozen=True):
    """How a call ended, or what it waits for."""

    run_id: str
    result: ToolResult | None
    """None if the call did not end."""
    is_waiting: bool
    """Whether the run waits for a person, such as for an approval."""
    reason: str


def single_call_request(
    tool: str,
    arguments: Mapping[str, JSON],
    *,
    agent: str = "",
    on: str = "",
    label: Label = CLEAN,
    timeout_s: float | None = None,
    step: WorkflowStepRef | None = None,
    title: str = "",
) -> RunRequest:
    """The run request of one call, for a model that only repeats it.

    Args:
        tool: The name of the tool.
        arguments: Its arguments.
        agent: The agent whose capabilities and policies hold; the default agent if empty.
        on: The edge that it runs on, if not the default one.
        label: The label of what the arguments were made from.
        timeout_s: The longest time of the run.
        step: The step of a workflow that makes the call.
        title: The title of its session; names the tool if empty.
    """
    origin = "A step of a workflow calls" if step is not None else "Call"
    message = UserMessage((TextBlock(f"{origin} the tool {tool}.", label),))
    call = ToolCall("call", tool, msgspec.json.encode(arguments).decode())
    settings = SINGLE_CALL_SETTINGS
    if timeout_s is not None:
        settings = msgspec.structs.replace(settings, max_seconds=timeout_s)
    return RunRequest(
        messages=(message, Reply(calls=(call,))),
        agent=agent,
        on=on,
        title=title or f"{'step' if step is not None else 'call'}: {tool}",
        model=DIRECT_MODEL,
        settings=settings,
        workflow_step=step,
    )


def is_single_call(request: RunRequest) -> bool:
    """Whether a run was started for one call, without a model."""
    return request.model == DIRECT_MODEL


async def run_single_call(
    runs: Runs,
    principal: Principal,
    tool: str,
    arguments: Mapping[str, JSON],
    *,
    agent: str = "",
    on: str = "",
    key: str = "",
) -> SingleCallOutcome:
    """Run one call under the rules of an agent, and wait until it ends or waits for a person.

    Args:
        runs: Starts the run.
        principal: On whose behalf.
        tool: The name of the tool.
        arguments: Its arguments.
        agent: The agent whose capabilities and policies hold; the default agent if empty.
        on: The edge that it runs on, if not the default one.
        key: An idempotency key.
    """
    request = single_call_request(tool, arguments, agent=agent, on=on)
    view, _ = await runs.start(principal, request, key=key)
    ended = await runs.result(principal.tenant, view.run_id)
    is_waiting = ended.stop is StopReason.WAITING
    found = None if is_waiting else await call_result(runs, principal.tenant, view.run_id)
    return SingleCallOutcome(view.run_id, found, is_waiting, ended.reason or ended.text)


async def call_result(runs: Runs, tenant: str, run_id: str) -> ToolResult | None:
    """The result of the only call of a run that has ended; None if the call did not end."""
    found: ToolResult | None = None
    async for record in runs.watch(tenant, run_id):
        if isinstance(record.event, CallFinished):
            found = record.event.result
    return found

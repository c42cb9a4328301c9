"""`EdgePrompts`: questions to the models of edges, which may call other edges meanwhile."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from evoclaw.core.calls import prepare_parsed
from evoclaw.core.errors import ToolFailure
from evoclaw.core.labels import LOCAL_PRINCIPAL, Label, join_labels
from evoclaw.core.messages import JSON, ErrorKind, ToolResult, is_array, labelled
from evoclaw.core.ports import Progress
from evoclaw.core.reported_usage import MODEL_USAGE_KEY, report_usage, reported_usage
from evoclaw.core.tools import Call, Tool
from evoclaw.core.toolset import Toolset
from evoclaw.core.tracing import current_traceparent
from evoclaw.executors.edge import Grants
from evoclaw.orchestrator.fleet.edge_call_tool import QUEUE_TTL_S, TOOL_NAME, edge_call_tool
from evoclaw.orchestrator.fleet.fleet import Fleet
from evoclaw.orchestrator.fleet.forwarded_calls import forwarded_calls, only_reads
from evoclaw.orchestrator.fleet.members import Member
from evoclaw.orchestrator.fleet.nested_calls import NestedCallReceiver, ParentRun
from evoclaw.transport.outcomes import to_result
from evoclaw.transport.requests import CommandTimeouts, Requests
from evoclaw.transport.wire import MAX_HOPS, Command, NestedCall, Outcome


class EdgePrompts:
    """Asks the models of edges, and runs the calls that they make meanwhile."""

    def __init__(
        self,
        fleet: Fleet,
        requests: Requests,
        grants: Grants,
        nested_calls: NestedCallReceiver | None,
    ) -> None:
        """With `nested_calls`, the model of an edge that answers may use `edge_call` too."""
        self._fleet, self._requests = fleet, requests
        self._grants, self._nested_calls = grants, nested_calls
        self._forwarded, self._only_reads = forwarded_calls(fleet), only_reads(fleet)
        self.parent_run: ParentRun | None = None
        """The run whose rules and budget apply to the calls of edges; None: they make none."""
        self._paths: dict[str, tuple[str, ...]] = {}

    def path_of(self, call: Call) -> tuple[str, ...]:
        """The edges that a running call came through."""
        return self._paths.get(call.request_id, ())

    async def ask(self, member: Member, call: Call, query: str, progress: Progress) -> ToolResult:
        """Ask the model of an edge in plain words."""
        path = self.path_of(call)
        payload: dict[str, JSON] = {"prompt": query, "timeout_ms": call.timeout * 1000}
        tool = self._nested_tool((*path, member.agent_id))
        if tool is None or self._nested_calls is None:
            outcome = await self._send_prompt(member, call, payload, path, progress)
            return _answered(member, call, outcome)
        payload["tools"] = [msgspec.to_builtins(tool)]

        async def run(asked: NestedCall) -> ToolResult:
            return await self._run_nested(asked, call, (*path, member.agent_id))

        async with self._nested_calls.accepting(member.agent_id, call.request_id, run) as prompt:
            outcome = await self._send_prompt(member, call, payload, path, progress)
            result = _answered(member, call, outcome)
            made: list[JSON] = [_summary(ended) for ended in prompt.results]
        return replace(result, details={**result.details, "calls": made}) if made else result

    async def _send_prompt(
        self,
        member: Member,
        call: Call,
        payload: dict[str, JSON],
        path: tuple[str, ...],
        progress: Progress,
    ) -> Outcome:
        principal = call.context.principal
        command = Command(
            "prompt",
            payload,
            call.request_id,
            run_id=call.run_id,
            epoch=call.epoch,
            hops=len(path) + 1,
            path=list(path),
            queue_ttl_ms=round(QUEUE_TTL_S * 1000),
            tenant="" if principal == LOCAL_PRINCIPAL else principal.tenant,
            traceparent=current_traceparent(),
            label=call.context.label,
        )

        def sign(command: Command) -> Command:
            return replace(command, grant=self._grants(member.agent_id, command, None))

        timeouts = CommandTimeouts(call.timeout, QUEUE_TTL_S)
        return await self._requests.ask(member.agent_id, command, timeouts, progress, sign=sign)

    def _nested_tool(self, path: Sequence[str]) -> Tool | None:
        """This tool for the model of the last edge of a path: it calls the edges beyond."""
        if self.parent_run is None or len(path) >= MAX_HOPS:
            return None
        others = [member for member in self._fleet.online() if member.agent_id not in path]
        if not others:
            return None
        tool = edge_call_tool(others, "")
        properties = {**tool.parameters["properties"]}
        # The tool that waits for jobs is not offered there.
        properties.pop("background")
        return replace(tool, parameters={**tool.parameters, "properties": properties})

    async def _run_nested(
        self, asked: NestedCall, parent: Call, path: tuple[str, ...]
    ) -> ToolResult:
        """Run a call of an edge's model as a call of the run that asked the edge."""
        if self.parent_run is None or asked.tool != TOOL_NAME:
            raise ToolFailure(
                ErrorKind.NOT_FOUND, f"Error: Tool {asked.tool[:64]!r} is not offered here."
            )
        if asked.parameters.get("background"):
            text = "Error: A call through the orchestrator cannot run in the background."
            raise ToolFailure(ErrorKind.INVALID_PARAMS, text)
        request_id = request_id_for(parent.request_id, f"{path[-1]}#{asked.number}")
        # Whatever the edge says: its model may have read anything.
        label = join_labels((parent.context.label, Label(untrusted=True, sources=path[-1:])))
        call = prepare_parsed(
            request_id,
            TOOL_NAME,
            asked.parameters,
            Toolset.of(self.parent_run.tools()),
            request_id=request_id,
            epoch=parent.epoch,
            context=replace(parent.context, label=label),
        )
        if isinstance(call, ToolResult):
            return call
        timeout = min(call.timeout, parent.timeout, (asked.timeout_ms or math.inf) / 1000)
        # After a restart it may have been sent before: its edge answers from the journal.
        call = replace(call, timeout=timeout, resumed=parent.resumed)
        check_path(call.arguments.get("agent_id"), path)
        self._paths[request_id] = path
        try:
            result = await self.parent_run.run(call, self._judged(call))
        finally:
            del self._paths[request_id]
        return replace(result, details={**result.details, "path": list(path)})

    def _judged(self, call: Call) -> Sequence[Call]:
        """The calls that a nested call is judged as: what it reads on edges, or also itself.

        An edge without the named tool hands the call to its model as a question.
        """
        forwarded = self._forwarded(call)
        return forwarded if self._only_reads(call) else (call, *forwarded)


def _answered(member: Member, call: Call, outcome: Outcome) -> ToolResult:
    result = to_result(outcome, call.id, call.name)
    # The text of another model, which may have read anything; tools label their own results.
    blocks = labelled(result.blocks, Label(untrusted=True, sources=(member.agent_id,)))
    details = {**result.details, "agent": member.agent_id}
    if is_array(details.get("calls")):
        del details["calls"]  # only the orchestrator lists nested calls; an edge counts its calls
    if (used := reported_usage(outcome.details)) is not None:
        details |= report_usage(*used)
    return replace(result, blocks=blocks, details=details)


def _summary(result: ToolResult) -> JSON:
    """What became of a nested call, for the details of the call that asked the edge."""
    kept = (
        "agent", "agents", "path", "receipt", "receipts", "genome", "genomes", "calls",
        MODEL_USAGE_KEY,
    )  # fmt: skip
    found = {key: result.details[key] for key in kept if key in result.details}
    return {"tool": result.name, "outcome": str(result.error or "ok"), **found}


def check_path(wanted: JSON, path: Sequence[str]) -> None:
    """Refuse a call back to an edge that passed this call on."""
    names = {wanted} if isinstance(wanted, str) else set(wanted or ())
    if again := sorted(names.intersection(path)):
        text = (
            f"Error: Agent {', '.join(again)} is already on the path of this call: "
            f"{' > '.join(path)}. Answer with what you have."
        )
        raise ToolFailure(ErrorKind.PERMISSION_DENIED, text)


def request_id_for(request_id: str, agent_id: str) -> str:
    """The id of one edge's command in a call to several edges."""
    head, _, attempt = request_id.rpartition(".")
    return f"{head}-{agent_id}.{attempt}"

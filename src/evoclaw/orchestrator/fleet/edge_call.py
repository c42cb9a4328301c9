"""`edge_call`: one tool to call any edge; its description follows the fleet."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress

import msgspec
from msgspec.structs import replace

from evoclaw.core.agent import intersect_capabilities
from evoclaw.core.calls import prepare
from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import (
    JSON,
    ErrorBlock,
    ErrorKind,
    TextBlock,
    ToolCall,
    ToolResult,
    is_array,
    is_object,
)
from evoclaw.core.pipeline import Pipeline
from evoclaw.core.ports import Ports, Progress
from evoclaw.core.reported_usage import report_usage, reported_usage, sum_usage
from evoclaw.core.tools import Call, Tool, missing_permissions
from evoclaw.core.toolset import Toolset
from evoclaw.core.wording import outcome_unknown, permission_denied
from evoclaw.executors.edge import EDGE_GRACE_S, EdgeExecutor, Grants, ungranted
from evoclaw.governance.budget.policy import RunBudget
from evoclaw.orchestrator.fleet.edge_call_tool import (
    ALL_EDGES,
    QUEUE_TTL_S,
    edge_call_tool,
    first_names,
)
from evoclaw.orchestrator.fleet.edge_prompts import EdgePrompts, check_path, request_id_for
from evoclaw.orchestrator.fleet.fleet import Fleet
from evoclaw.orchestrator.fleet.members import Member, selects
from evoclaw.orchestrator.fleet.nested_calls import NestedCallReceiver, ParentRun
from evoclaw.orchestrator.sanitizing import one_line
from evoclaw.transport.requests import Requests

CALL_CONCURRENCY = 64
"""Edges that are called at the same time."""
MAX_MACHINE_CHARS = 64
"""Of the name of an edge, as a model wrote it."""
NOT_SENT_ERRORS = frozenset(
    {
        ErrorKind.AGENT_OFFLINE,
        ErrorKind.INVALID_PARAMS,
        ErrorKind.NOT_FOUND,
        ErrorKind.PERMISSION_DENIED,
    }
)
"""Errors of calls that were not sent to any edge."""


class EdgeCall:
    """The fleet as one tool."""

    def __init__(
        self,
        fleet: Fleet,
        requests: Requests,
        *,
        held: frozenset[str],
        grants: Grants = ungranted,
        nested_calls: NestedCallReceiver | None = None,
        home: str = "",
    ) -> None:
        """Call edges for an agent with these capabilities; its other tools run on `home`.

        With `nested_calls`, the model of an edge that answers a query may use this tool too.
        """
        self._fleet, self._requests = fleet, requests
        self._held, self._grants = held, grants
        self._prompts = EdgePrompts(fleet, requests, grants, nested_calls)
        self._home = home
        self._version = -1
        self._tools: Toolset = Toolset()

    def allow_nested_calls(self, run: ParentRun) -> None:
        """Let models of edges use this tool, under the rules and the budget of a run."""
        self._prompts.parent_run = run

    def narrow(self, capabilities: frozenset[str]) -> None:
        """Call only tools of edges that need no more than these capabilities."""
        self._held = intersect_capabilities(self._held, capabilities)

    def tools(self) -> Sequence[Tool]:
        """One tool while an edge is online, none otherwise."""
        if self._version != self._fleet.version:
            self._version = self._fleet.version
            online = self._fleet.online()
            self._tools = Toolset([edge_call_tool(online, self._home)] if online else [])
        return self._tools

    async def machine_of(self, call: Call) -> str:
        """The edges that the call names or selects."""
        wanted = call.arguments.get("agent_id")
        requested: list[str] = [wanted] if isinstance(wanted, str) else list(wanted or ())
        names = [name for name in requested if name != ALL_EDGES and ":" not in name]
        names += [
            member.agent_id
            for member in self._fleet.online()
            if any(selects(selector, member) for selector in requested)
        ]
        return first_names(sorted({one_line(name, MAX_MACHINE_CHARS) for name in names}))

    async def execute(self, call: Call, progress: Progress) -> ToolResult:
        """Call one edge, or several at the same time."""
        requested = call.arguments.get("agent_id")
        sent = await self._requests.agent_of(call.request_id) if call.resumed else None
        if sent is not None:
            await self._wait_until_known(sent, call)
        before = await self._sent_before(call)
        path = self._prompts.path_of(call)
        check_path(requested, path)
        try:
            if isinstance(requested, str) and self._is_target(requested, before):
                return await self._ask(self._fleet.member(requested), call, progress)
            members = self._targets(requested, before, {*path})
        except ToolFailure as problem:
            if sent is None or problem.kind not in NOT_SENT_ERRORS:
                raise
            # Its result cannot be received here: cancel it, so that it does not start any more.
            self._requests.spawn(self._requests.cancel(sent, call.request_id))
            raise ToolFailure(ErrorKind.UNKNOWN, outcome_unknown(call.name)) from None
        return await self._ask_all(call, members, progress)

    async def _wait_until_known(self, agent_id: str, call: Call) -> None:
        """Wait a little for the edge that the run's previous orchestrator sent the call to.

        An orchestrator that just started learns of its edges, and then of their tools, in turn.
        """
        action = call.arguments.get("action")

        def is_known() -> bool:
            member = self._fleet.find(agent_id)
            return member is not None and (not action or member.tools.find(str(action)) is not None)

        with suppress(TimeoutError):
            async with asyncio.timeout(QUEUE_TTL_S):
                while not is_known():
                    await self._fleet.wait_for_change()

    def _is_target(self, wanted: str, sent_before: set[str]) -> bool:
        return wanted in sent_before if sent_before else self._fleet.is_online(wanted)

    def _online(self) -> set[str]:
        return {member.agent_id for member in self._fleet.online()}

    async def _sent_before(self, call: Call) -> set[str]:
        """The edges that this call was sent to before a restart: they may have run it."""
        if not call.resumed:
            return set()
        found: set[str] = set()
        for member in self._fleet.members():
            for request_id in (call.request_id, request_id_for(call.request_id, member.agent_id)):
                if await self._requests.agent_of(request_id) == member.agent_id:
                    found.add(member.agent_id)
        return found

    async def _ask_all(
        self, call: Call, members: Sequence[Member], progress: Progress
    ) -> ToolResult:
        """One result per edge, also for those that did not answer in time."""
        slots = asyncio.Semaphore(CALL_CONCURRENCY)

        async def ask(member: Member) -> ToolResult:
            async with slots:
                part = replace(call, request_id=request_id_for(call.request_id, member.agent_id))
                try:
                    return await self._ask(member, part, progress)
                except ToolFailure as problem:
                    return call.failed(problem.kind, problem.message, **problem.details)

        tasks = {member.agent_id: asyncio.create_task(ask(member)) for member in members}
        try:
            await asyncio.wait(
                tasks.values(), timeout=call.timeout + QUEUE_TTL_S + EDGE_GRACE_S / 2
            )
        finally:
            for task in tasks.values():
                task.cancel()
            await asyncio.wait(tasks.values())
        message = (
            "Error: There was no answer in time; the call may have happened. Check "
            "before you repeat it."
        )
        return _combine(
            call,
            {
                name: call.failed(ErrorKind.UNKNOWN, message) if task.cancelled() else task.result()
                for name, task in tasks.items()
            },
        )

    def _targets(self, wanted: JSON, sent_before: set[str], passed: set[str]) -> list[Member]:
        """The edges that are selected, each once, by name; not those that passed the call on."""
        requested: list[str] = [wanted] if isinstance(wanted, str) else list(wanted or ())
        online = self._fleet.online()
        usable = (self._online() | sent_before) - passed
        found = [
            member
            for member in self._fleet.members()
            if member.agent_id in usable
            and any(selects(selector, member) for selector in requested)
        ]
        listed = first_names([member.agent_id for member in online]) or "none"
        offline = [
            name
            for name in requested
            if name != ALL_EDGES and ":" not in name and name not in usable
        ]
        if offline or not found:
            names = ", ".join(offline or requested)
            text = f"Error: Agent {names} is not online. Online: {listed}."
            if not names:
                text = f"Error: Set `agent_id` to an agent. Online: {listed}."
            raise ToolFailure(ErrorKind.AGENT_OFFLINE, text)
        return found

    async def _ask(self, member: Member, call: Call, progress: Progress) -> ToolResult:
        action = call.arguments.get("action")
        params = call.arguments.get("params")
        if isinstance(action, str) and member.tools.find(action) is not None:
            arguments = params if is_object(params) else {}
            return await self._use_tool(member, call, action, arguments, progress)
        if call.arguments.get("background"):
            tools = ", ".join(member.tools.names) or "none"
            text = f"Error: Only a tool of the agent can run in the background: {tools}."
            raise ToolFailure(ErrorKind.INVALID_PARAMS, text)
        query = call.arguments.get("query") or _to_query(action, params)
        if not query:
            text = "Error: Invalid parameters for 'edge_call': set `query` or `action`."
            raise ToolFailure(ErrorKind.INVALID_PARAMS, text)
        if not member.has_model:
            tools = ", ".join(member.tools.names) or "none"
            text = (
                f"Error: Agent {member.agent_id!r} has no model to answer a query. Call one of its "
                f"tools with `action` and `params`: {tools}."
            )
            raise ToolFailure(ErrorKind.NOT_FOUND, text)
        return await self._prompts.ask(member, call, query, progress)

    async def _use_tool(
        self,
        member: Member,
        call: Call,
        action: str,
        params: Mapping[str, JSON],
        progress: Progress,
    ) -> ToolResult:
        """Call a tool of the edge: the arguments are checked here, and by the edge again."""
        request = ToolCall(call.id, action, msgspec.json.encode(params).decode())
        ready = prepare(
            request,
            member.tools,
            request_id=call.request_id,
            epoch=call.epoch,
            context=call.context,
        )
        if isinstance(ready, ToolResult):
            return replace(ready, name=call.name)
        if missing := missing_permissions(ready.tool, self._held):
            text = permission_denied(ready.tool, missing)
            raise ToolFailure(ErrorKind.PERMISSION_DENIED, text)
        asked_for = call.timeout if "timeout_ms" in call.arguments else ready.timeout
        # The tool's own timeout, or the requested one; never longer than this call may take.
        seconds = min(asked_for, ready.tool.max_timeout, call.timeout)
        ready = replace(ready, timeout=seconds, resumed=call.resumed)
        edge = EdgeExecutor(
            member.agent_id,
            lambda: member.tools,
            self._requests,
            grants=self._grants,
            queue=QUEUE_TTL_S,
        )
        if call.arguments.get("background"):
            return replace(await edge.start(ready), name=call.name)
        return replace(await edge.execute(ready, progress), name=call.name)


def allow_nested_calls(ports: Ports, budget: RunBudget) -> None:
    """Let the models of edges call other edges for a run with these ports."""
    pipeline = Pipeline.of(ports.executor)
    for route in pipeline.routes:
        if isinstance(route.executor, EdgeCall):
            route.executor.allow_nested_calls(ParentRun(ports, budget))


def narrow_edge_calls(pipeline: Pipeline, capabilities: frozenset[str]) -> None:
    """Let a run call only tools of edges that its own capabilities allow."""
    for route in pipeline.routes:
        if isinstance(route.executor, EdgeCall):
            route.executor.narrow(capabilities)


def _entries(result: ToolResult, name: str) -> list[JSON]:
    found: JSON = result.details.get(name)
    return found if is_array(found) else []


def _to_query(action: JSON, params: JSON) -> str:
    if not isinstance(action, str) or not action.strip():
        return ""
    arguments = msgspec.json.encode(params if params is not None else {}).decode()
    return f"Execute action: {action} with params: {arguments}"


def _combine(call: Call, results: Mapping[str, ToolResult]) -> ToolResult:
    """Combine the results of several edges; an error only if all of them failed."""
    texts = [f"[{name}]\n{result.text}" for name, result in results.items()]
    outcomes = {name: str(result.error or "ok") for name, result in results.items()}
    details: dict[str, JSON] = {"agents": outcomes}
    receipts = [
        result.details["receipt"] for result in results.values() if "receipt" in result.details
    ]
    if receipts:
        details["receipts"] = receipts
    genomes = {
        name: found.details["genome"]
        for name, found in results.items()
        if "genome" in found.details
    }
    if genomes:
        details["genomes"] = genomes
    changes = [
        {**entry, "agent": name}
        for name, result in results.items()
        for entry in _entries(result, "changes")
        if is_object(entry)
    ]
    if changes:
        details["changes"] = changes
    calls = [call for found in results.values() for call in _entries(found, "calls")]
    if calls:
        details["calls"] = calls
    if (used := sum_usage(reported_usage(found.details) for found in results.values())) is not None:
        details |= report_usage(*used)
    errors = [result.error for result in results.values() if result.error is not None]
    if len(errors) == len(results):
        block = ErrorBlock(errors[0], "\n\n".join(texts))
        return ToolResult(call.id, call.name, (block,), error=errors[0], details=details)
    return ToolResult(call.id, call.name, (TextBlock("\n\n".join(texts)),), details=details)

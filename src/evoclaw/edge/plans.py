"""Plans: from a command to work that can start. Read, granted, validated, judged; not yet run.

Each command runs in a span below the orchestrator's call, and its calls are audited here.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from evoclaw.core.agent import LoopSettings
from evoclaw.core.calls import Turn, judge, perform, prepare_parsed
from evoclaw.core.deadline import Deadline
from evoclaw.core.encoding import json_digest
from evoclaw.core.errors import ToolFailure
from evoclaw.core.events import CallOutput, Event
from evoclaw.core.labels import LOCAL_PRINCIPAL
from evoclaw.core.messages import JSON, ErrorKind, ToolResult
from evoclaw.core.ports import Allow, Ask, Deny, Ports, Progress
from evoclaw.core.tools import Call, Context, failure
from evoclaw.core.toolset import NO_TOOLS, Toolset
from evoclaw.core.tracing import use_trace
from evoclaw.core.wording import denied
from evoclaw.observe.audit.settings import AuditError
from evoclaw.observe.audit.sink import (
    AuditContext,
    AuditDraft,
    AuditLog,
    audit_call,
    audit_refusal,
)
from evoclaw.transport.link import MAX_PAYLOAD_BYTES
from evoclaw.transport.wire import (
    DEFAULT_JOB_TIMEOUT_S,
    MAX_JOB_TIMEOUT_S,
    Command,
    ToolPayload,
    WireError,
    convert,
)

if TYPE_CHECKING:
    from evoclaw.observe.tracing.tracing import Tracing
    from evoclaw.providers.models.store import InstalledModel
    from evoclaw.trust.grants import Grant


logger = logging.getLogger(__name__)


Work: TypeAlias = Callable[[Deadline, Progress], Awaitable[ToolResult]]
"""Runs the call and emits its output; ends early when the deadline expires."""


class CallPlan(Struct, frozen=True):
    """The work of a command, ready to start."""

    name: str
    work: Work
    streams: bool = False
    background: bool = False
    idle: float | None = None
    """Idle timeout: maximum seconds without output."""


Planner: TypeAlias = Callable[[Command], Awaitable[CallPlan | ToolResult]]
"""Returns a plan, or the refusal. Raises `ToolFailure` for commands that are not journaled."""


class GrantCheck(Protocol):
    """Checks that the orchestrator granted a command."""

    def __call__(
        self,
        command: Command,
        tool: str | None = None,
        arguments: JSON = None,
        permissions: frozenset[str] = frozenset(),
    ) -> Grant | None:
        """Return the grant, if the device needs one; `ToolFailure` if it does not cover the call.

        Without a tool, check the command itself.
        """
        ...


def no_grants(
    command: Command,
    tool: str | None = None,
    arguments: JSON = None,
    permissions: frozenset[str] = frozenset(),
) -> Grant | None:
    """The check of a device without an orchestrator's key."""
    return None


def commands_within(command: Command) -> tuple[str, ...]:
    """The commands that a command amounts to; its sender must be allowed to send each of them."""
    inner = _AMOUNTS_TO.get((command.command, command.payload.get("action")))
    if command.command == "update_strategy":
        inner = "update_genome"
    return (command.command,) if inner is None else (command.command, inner)


_AMOUNTS_TO: Mapping[tuple[str, JSON], str] = {
    ("job", "cancel"): "cancel",
    ("evolution", "roll_back"): "update_genome",
}


class ToolPlans:
    """Plans for the command `tool`."""

    def __init__(
        self,
        ports: Ports,
        *,
        check: GrantCheck = no_grants,
        whole: bool = False,
        notes: CallAudit | None = None,
    ) -> None:
        """Set the dependencies.

        Args:
            ports: Judges and runs the calls.
            check: Checks that the orchestrator granted a command.
            whole: Do not truncate results: the caller limits their size.
            notes: Records the outcome of each call.
        """
        self._ports, self._check, self._notes = ports, check, notes
        self._settings = (
            LoopSettings(max_result_chars=MAX_PAYLOAD_BYTES) if whole else LoopSettings()
        )

    async def plan(self, command: Command) -> CallPlan | ToolResult:
        """Read a call, check its grant, and judge it by this device's policy."""
        asked = read_tool_payload(command)
        try:
            return await self._plan(command, asked)
        except ToolFailure as problem:
            if self._notes is not None:
                result = refused(command, problem.kind, problem.message)
                self._notes.refused(result, asked.parameters)
            raise

    async def _plan(self, command: Command, asked: ToolPayload) -> CallPlan | ToolResult:
        tools = Toolset.of(self._ports.executor.tools())
        found = tools.find(asked.tool)
        needed = frozenset[str]() if found is None else found[0].permissions
        if command.args_sha256 and command.args_sha256 != json_digest(asked.parameters):
            raise ToolFailure(
                ErrorKind.CONFLICT, "The arguments do not match their hash. Send the call again."
            )
        self._check(command, asked.tool, asked.parameters, needed)
        principal, tenant = self._ports.principal, command.tenant or LOCAL_PRINCIPAL.tenant
        if principal.tenant != tenant:
            principal = replace(principal, tenant=tenant)
        call = prepare_parsed(
            command.request_id,
            asked.tool,
            asked.parameters,
            tools,
            request_id=command.request_id,
            epoch=command.epoch,
            context=Context(command.label, principal=principal),
        )
        if isinstance(call, ToolResult):
            if self._notes is not None:
                self._notes.refused(call, asked.parameters)
            return call
        if (timeout := _seconds(asked, call)) != call.timeout:
            call = replace(call, timeout=timeout)
        verdict = await judge(call, Turn(self._ports, self._settings, tools, Deadline()))
        if not isinstance(verdict, Allow):
            # No approver is at the device: a call that needs approval is refused.
            return self._denied(call, verdict)
        idle = asked.idle_ms / 1000 if asked.idle_ms and asked.idle_ms > 0 else None
        return CallPlan(call.name, self._work(call), asked.stream, asked.background, idle)

    def _denied(self, call: Call, verdict: Deny | Ask) -> ToolResult:
        reason = verdict.reason
        text = reason if reason.startswith("Error:") else denied(call, reason)
        result = call.failed(ErrorKind.PERMISSION_DENIED, text)
        if self._notes is not None:
            decision = "deny" if isinstance(verdict, Deny) else "ask"
            self._notes.denied(call, result, decision, verdict.code)
        return result

    def _work(self, call: Call) -> Work:
        async def work(deadline: Deadline, progress: Progress) -> ToolResult:
            def emit(event: Event) -> None:
                if isinstance(event, CallOutput):
                    progress(event.text)

            turn = Turn(self._ports, self._settings, NO_TOOLS, deadline)
            started = time.monotonic()
            result = await perform(call, turn, emit)
            if self._notes is not None:
                self._notes.ran(call, result, time.monotonic() - started)
            return result

        return work


def read_tool_payload(command: Command) -> ToolPayload:
    """The payload of `tool`; `execute` has the same with the keys action and params."""
    payload = command.payload
    if command.command == "execute":
        payload = dict(payload)
        payload.setdefault("tool", payload.pop("action", ""))
        payload.setdefault("parameters", payload.pop("params", {}))
    try:
        return convert(payload, ToolPayload, command.request_id)
    except WireError as problem:
        text = f"The payload of {command.command!r} cannot be read: {problem}."
        raise ToolFailure(ErrorKind.INVALID_PARAMS, text) from None


def refused(command: Command, kind: ErrorKind, text: str, **details: JSON) -> ToolResult:
    """The result of a command that is not run."""
    return failure(command.request_id, named(command), kind, text, **details)


def named(command: Command) -> str:
    """The tool or command, for the span's name."""
    asked = command.payload.get("tool")
    return asked if isinstance(asked, str) else command.command


def _seconds(asked: ToolPayload, call: Call) -> float:
    """The timeout of a call: the requested one, within the limit of its tool or of jobs."""
    given = asked.timeout_ms / 1000 if asked.timeout_ms and asked.timeout_ms > 0 else None
    if asked.background:
        return min(given or DEFAULT_JOB_TIMEOUT_S, MAX_JOB_TIMEOUT_S)
    return call.timeout if given is None else min(given, call.tool.max_timeout)


def add_spans(
    planners: Mapping[str, Planner], tracing: Tracing | None, agent_id: str
) -> Mapping[str, Planner]:
    """The same planners, with a span around the work of each plan."""
    if tracing is None:
        return planners
    return {name: _traced(planner, tracing, agent_id) for name, planner in planners.items()}


def _traced(planner: Planner, tracing: Tracing, agent_id: str) -> Planner:
    async def plan(command: Command) -> CallPlan | ToolResult:
        made = await planner(command)
        if isinstance(made, ToolResult):
            return made
        return replace(made, work=_work(made, command, tracing, agent_id))

    return plan


def _work(plan: CallPlan, command: Command, tracing: Tracing, agent_id: str) -> Work:
    async def work(deadline: Deadline, progress: Progress) -> ToolResult:
        call = tracing.edge_call(
            agent_id,
            plan.name,
            request_id=command.request_id,
            run_id=command.run_id,
            traceparent=command.traceparent,
        )
        result: ToolResult | None = None
        try:
            with use_trace(call.place):
                result = await plan.work(deadline, progress)
                return result
        finally:
            call.ended(result)

    return work


@dataclass(frozen=True, slots=True)
class CallAudit:
    """Records what happens to a device. A failure is logged; the next call is not started then."""

    audit: AuditLog
    context: AuditContext

    def ran(self, call: Call, result: ToolResult, seconds: float) -> None:
        """Record a call that ran."""
        try:
            audit_call(
                self.audit, self.context, call, result, at=time.time(), elapsed_ms=seconds * 1000
            )
        except AuditError as problem:
            logger.error("audit of call %s failed after it ran: %s", call.request_id, problem)

    def denied(self, call: Call, result: ToolResult, verdict: str, code: str) -> None:
        """Record a call that was denied."""
        try:
            audit_call(
                self.audit, self.context, call, result, at=time.time(), elapsed_ms=0.0,
                verdict=verdict, code=code,
            )  # fmt: skip
        except AuditError as problem:
            logger.error("audit of denied call %s failed: %s", call.request_id, problem)

    def damaged(self, reason: str) -> None:
        """Record that data of this device was damaged."""
        self._note("damage", reason)

    def model_installed(self, model: InstalledModel) -> None:
        """Record that a model was installed, which an orchestrator pushed."""
        self._note("model_installed", f"{model.name}, sha256:{model.sha256}, from {model.source}")

    def _note(self, kind: str, reason: str) -> None:
        fields = {**self.context.fields, "reason": reason}
        try:
            self.audit.note(AuditDraft(kind, time.time(), time.monotonic(), fields))
        except AuditError as problem:
            logger.error("audit record of kind %s failed: %s", kind, problem)

    def refused(self, result: ToolResult, parameters: JSON = None) -> None:
        """Record a request that was refused before it became a call."""
        try:
            audit_refusal(self.audit, self.context, result, at=time.time(), parameters=parameters)
        except AuditError as problem:
            logger.error("audit of refused request %s failed: %s", result.call_id, problem)

"""Turns the records of a run into audit records: one for each call, whatever its outcome."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Protocol

import msgspec
from msgspec import Struct

from evoclaw.core.events import (
    DELTA_EVENTS,
    ApprovalAnswered,
    CallFinished,
    CallJudged,
    CallStarted,
    Event,
    Record,
    Replied,
    RunFinished,
    RunResumed,
    RunStarted,
    StopReason,
    ToolsChanged,
    TurnStarted,
)
from evoclaw.core.labels import CLEAN, Principal
from evoclaw.core.messages import JSON, ErrorKind, Reply, ToolCall, ToolResult, is_object, label_of
from evoclaw.core.ports import Sink
from evoclaw.core.redaction import SecretFields, secret_fields_of
from evoclaw.core.tools import Call, Tool
from evoclaw.observe.audit.records import Fields

_RESULT_WITHOUT_START = {
    ErrorKind.INVALID_PARAMS: "invalid",
    ErrorKind.NOT_FOUND: "invalid",
    ErrorKind.PERMISSION_DENIED: "denied",
}


class AuditDraft(Struct, frozen=True):
    """An audit record before redaction, and before it has a position in the chain."""

    kind: str
    at: float
    """Unix seconds."""
    clock: float
    """Seconds of the monotonic clock."""
    fields: Fields
    parameters: JSON = None
    marks: SecretFields | None = None
    """Where the tool's schema says that a parameter is a secret."""


class AuditContext(Struct, frozen=True, kw_only=True):
    """The fields that all audit records of one run share."""

    principal: Principal
    agent_id: str
    """The agent or the device that makes the calls."""
    session: str = ""
    device: str = ""
    """Where the calls run, if that is a single machine."""

    @property
    def fields(self) -> Fields:
        """As fields of an audit record."""
        found: Fields = {
            "tenant": self.principal.tenant,
            "user": self.principal.user,
            "agent_id": self.agent_id or self.principal.agent,
        }
        if self.session:
            found["session"] = self.session
        if self.device:
            found["device"] = self.device
        return found


class AuditLog(Protocol):
    """Accepts drafts of audit records."""

    def note(self, draft: AuditDraft) -> None:
        """Accept a draft, without blocking. Raise `AuditError` if it cannot be written."""
        ...


class _OpenCall:
    """A call without a result so far."""

    __slots__ = ("approval", "call", "judged", "request_id", "started", "started_at")

    def __init__(self, call: ToolCall | None, request_id: str) -> None:
        self.call, self.request_id = call, request_id
        self.judged: CallJudged | None = None
        self.approval: ApprovalAnswered | None = None
        self.started: CallStarted | None = None
        self.started_at = 0.0


class AuditSink:
    """Audits one run; a sink."""

    def __init__(
        self,
        log: AuditLog,
        context: AuditContext,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        before: Iterable[Record] = (),
    ) -> None:
        """Audit a run.

        Args:
            log: Accepts the drafts.
            context: The fields that the records share.
            monotonic: The monotonic clock.
            before: The records of a resumed run so far: they are not audited again, but show
                which calls are open.
        """
        self._log, self._context, self._monotonic = log, context.fields, monotonic
        self._run_id, self._turn = "", 0
        self._open: dict[str, _OpenCall] = {}
        self._tools: dict[str, Tool] = {}
        self._marks: dict[str, SecretFields | None] = {}
        self._replaying = True
        for record in before:
            self.receive(record)
        self._replaying = False

    def receive(self, record: Record) -> None:
        """Audit a record of the run."""
        self._run_id = record.run_id
        event = record.event
        if type(event) in DELTA_EVENTS:
            return
        match event:
            case CallJudged():
                self._call(event.call_id).judged = event
            case CallStarted():
                call = self._call(event.call_id)
                call.started, call.started_at = event, self._monotonic()
            case CallFinished(result):
                self._finish(record.at, result)
            case TurnStarted():
                self._turn = event.turn
            case Replied(reply):
                self._open_calls(reply)
            case ToolsChanged(tools):
                self._tools = {name: tool for tool in tools for name in (tool.name, *tool.aliases)}
                self._marks.clear()
            case ApprovalAnswered():
                self._approved(record.at, event)
            case _:
                self._run_event(record.at, event)

    def _open_calls(self, reply: Reply) -> None:
        for index, call in enumerate(reply.calls):
            self._open[call.id] = _OpenCall(call, f"{self._run_id}.{self._turn}.{index}.1")

    def _call(self, call_id: str) -> _OpenCall:
        found = self._open.get(call_id)
        if found is None:
            found = self._open[call_id] = _OpenCall(None, "")
        return found

    def _run_event(self, at: float, event: Event) -> None:
        if isinstance(event, RunStarted):
            self._note("run_started", at, {"model": event.model})
            last = event.messages[-1] if event.messages else None
            if isinstance(last, Reply):
                self._open_calls(last)
        elif isinstance(event, RunResumed):
            self._note("run_resumed", at, {"model": event.model})
        elif isinstance(event, RunFinished):
            waiting = event.stop is StopReason.WAITING
            for call_id, call in list(self._open.items()):
                self._unfinished(at, call_id, call, "waiting" if waiting else "unanswered")
            self._note("run_finished", at, _run_end(event))

    def _approved(self, at: float, event: ApprovalAnswered) -> None:
        call = self._call(event.call_id)
        call.approval = event
        fields = self._call_fields(event.call_id, call) | {
            "decision": event.decision,
            "reason": event.reason,
        }
        if event.arguments is not None:
            fields["edited"] = True
        self._note("approval", at, fields)

    def _finish(self, at: float, result: ToolResult) -> None:
        call = self._open.pop(result.call_id, None) or _OpenCall(None, "")
        elapsed = (self._monotonic() - call.started_at) * 1000 if call.started else 0.0
        fields = self._call_fields(result.call_id, call) | _outcome(result, _result(result, call))
        fields["elapsed_ms"] = round(elapsed, 3)
        fields.setdefault("tool", result.name)
        self._note_call(at, fields, call, result.name)

    def _unfinished(self, at: float, call_id: str, call: _OpenCall, result: str) -> None:
        fields = self._call_fields(call_id, call)
        fields |= {"result": result, "exit_code": None, "elapsed_ms": 0.0}
        name = call.started.name if call.started else call.call.name if call.call else ""
        self._note_call(at, fields, call, name)
        if result != "waiting":
            del self._open[call_id]

    def _call_fields(self, call_id: str, call: _OpenCall) -> Fields:
        fields: Fields = {"call_id": call_id}
        if call.started is not None:
            fields |= {"tool": call.started.name, "request_id": call.started.request_id}
        elif call.call is not None:
            fields |= {"tool": call.call.name, "request_id": call.request_id}
        if call.judged is not None:
            fields["verdict"] = call.judged.verdict
            fields["code"] = call.judged.code
            if call.judged.reason:
                fields["reason"] = call.judged.reason
            if call.judged.machine:
                fields["device"] = call.judged.machine
        if (approval := call.approval) is not None:
            answer: Fields = {"decision": approval.decision, "reason": approval.reason}
            if approval.arguments is not None:
                answer["edited"] = True
            fields["approval"] = answer
        return fields

    def _note_call(self, at: float, fields: Fields, call: _OpenCall, name: str) -> None:
        if self._replaying:
            return
        if name not in self._marks:
            tool = self._tools.get(name)
            self._marks[name] = None if tool is None else secret_fields_of(tool.parameters)
        if call.started is not None:
            parameters: JSON = call.started.arguments
        else:
            parameters = {} if call.call is None else call.call.arguments
        self._note("call", at, fields, parameters, self._marks[name])

    def _note(
        self, kind: str, at: float, fields: Fields, parameters: JSON = None,
        marks: SecretFields | None = None,
    ) -> None:  # fmt: skip
        if not self._replaying:
            fields = {**self._context, "run_id": self._run_id, **fields}
            self._log.note(AuditDraft(kind, at, self._monotonic(), fields, parameters, marks))


class PerRunSink:
    """Gives each run that it receives records of a sink of its own."""

    def __init__(self, make_sink: Callable[[], Sink]) -> None:
        """`make_sink` makes the sink of one run."""
        self._make_sink = make_sink
        self._sinks: dict[str, Sink] = {}

    def receive(self, record: Record) -> None:
        """Pass a record to the sink of its run."""
        sink = self._sinks.get(record.run_id)
        if sink is None:
            sink = self._sinks[record.run_id] = self._make_sink()
        try:
            sink.receive(record)
        finally:
            if isinstance(record.event, RunFinished):
                del self._sinks[record.run_id]


def audit_call(
    log: AuditLog,
    context: AuditContext,
    call: Call,
    result: ToolResult,
    *,
    at: float,
    elapsed_ms: float,
    verdict: str = "allow",
    code: str = "",
) -> None:
    """Audit one call outside a run: on an edge, or of an MCP server."""
    fields: Fields = {
        **context.fields,
        "run_id": call.run_id,
        "call_id": call.id,
        "request_id": call.request_id,
        "tool": call.tool.name,
        "verdict": verdict,
        "code": code,
        **_outcome(result, "denied" if verdict != "allow" else _plain_result(result)),
        "elapsed_ms": round(elapsed_ms, 3),
    }
    principal = call.context.principal
    fields |= {"tenant": principal.tenant} | ({"user": principal.user} if principal.user else {})
    marks = secret_fields_of(call.tool.parameters)
    log.note(AuditDraft("call", at, time.monotonic(), fields, call.arguments, marks))


def audit_refusal(
    log: AuditLog, context: AuditContext, result: ToolResult, *, at: float, parameters: JSON = None
) -> None:
    """Audit a request that never became a call: unknown, unreadable, or not granted."""
    word = "invalid" if result.error is None else _RESULT_WITHOUT_START.get(result.error, "refused")
    fields: Fields = {
        **context.fields,
        "run_id": result.call_id.partition(".")[0],
        "call_id": result.call_id,
        "request_id": result.call_id,
        "tool": result.name,
        **_outcome(result, word),
        "elapsed_ms": 0.0,
    }
    log.note(AuditDraft("call", at, time.monotonic(), fields, parameters))


def read_arguments(text: str) -> JSON:
    """The arguments that a model wrote: the object if it is one, otherwise the text."""
    try:
        value: JSON = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return {"unreadable": text}
    return value if is_object(value) else {"unreadable": text}


def _plain_result(result: ToolResult) -> str:
    return "success" if result.error is None else "error"


def _result(result: ToolResult, call: _OpenCall) -> str:
    """The outcome of a call, in one word."""
    if call.started is not None or result.error is None:
        return _plain_result(result)
    if call.approval is not None and call.approval.decision == "deny":
        return "refused"
    if call.judged is not None and call.judged.verdict == "deny":
        return "denied"
    return _RESULT_WITHOUT_START.get(result.error, "refused")


def _outcome(result: ToolResult, word: str) -> Fields:
    details = result.details
    code = details.get("exit_code", 0 if result.error is None else None)
    fields: Fields = {"result": word, "exit_code": code if isinstance(code, int) else None}
    if result.error is not None:
        fields["error_type"] = str(result.error)
        fields["error"] = result.text
    if (isolation := details.get("isolation")) is not None:
        fields["isolation"] = isolation
    if (refused := details.get("refused")) is not None:
        fields["refused"] = refused
    if (label := label_of(result)) is not CLEAN:
        fields["label"] = {**msgspec.to_builtins(label), "sources": list(label.sources)}
    return fields


def _run_end(event: RunFinished) -> Fields:
    return {
        "result": str(event.stop),
        "reason": event.reason,
        "turns": event.turns,
        "calls": event.calls,
        "tokens_in": event.usage.input,
        "tokens_out": event.usage.output,
        "cost": event.cost,
    }

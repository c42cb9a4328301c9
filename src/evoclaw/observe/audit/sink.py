"""From the records of a run to those of the audit: one for each call, whatever became of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Protocol

import msgspec
from msgspec import Struct

from evoclaw.core.events import (
    PIECES,
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
from evoclaw.core.redaction import Marks, marks_of
from evoclaw.core.tools import Call, Tool
from evoclaw.observe.audit.records import Fields

_RESULT_WITHOUT_START = {
    ErrorKind.INVALID_PARAMS: "invalid",
    ErrorKind.NOT_FOUND: "invalid",
    ErrorKind.PERMISSION_DENIED: "denied",
}


class AuditDraft(Struct, frozen=True):
    """A record before its secrets are taken out and before it has its place."""

    kind: str
    at: float
    """Unix seconds."""
    clock: float
    """Seconds by a clock that nobody sets."""
    fields: Fields
    parameters: JSON = None
    marks: Marks | None = None
    """Where the tool's schema says that a parameter is a secret."""


class AuditContext(Struct, frozen=True, kw_only=True):
    """What all records of one run share."""

    principal: Principal
    agent_id: str
    """The agent, or the device, that the calls are made by."""
    session: str = ""
    device: str = ""
    """Where they run, if that is one place."""

    @property
    def fields(self) -> Fields:
        """As a record says it."""
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
    """Where drafts go."""

    def note(self, draft: AuditDraft) -> None:
        """Take one; quick. Raise `AuditError` if it cannot be kept."""
        ...


class _OpenCall:
    """A call that has no answer yet."""

    __slots__ = ("approval", "began", "call", "judged", "request_id", "started")

    def __init__(self, call: ToolCall | None, request_id: str) -> None:
        self.call, self.request_id = call, request_id
        self.judged: CallJudged | None = None
        self.approval: ApprovalAnswered | None = None
        self.started: CallStarted | None = None
        self.began = 0.0


class AuditSink:
    """Listens to one run."""

    def __init__(
        self,
        notebook: AuditLog,
        who: AuditContext,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        before: Iterable[Record] = (),
    ) -> None:
        """Choose where to and about whom.

        Args:
            notebook: Takes the drafts.
            who: What the records have in common.
            monotonic: A clock that nobody sets.
            before: What a resumed run had recorded before: it is not audited again, but tells
                which calls are open.
        """
        self._notebook, self._who, self._monotonic = notebook, who.fields, monotonic
        self._run_id, self._turn = "", 0
        self._open: dict[str, _OpenCall] = {}
        self._tools: dict[str, Tool] = {}
        self._marks: dict[str, Marks | None] = {}
        self._silent = True
        for record in before:
            self.receive(record)
        self._silent = False

    def receive(self, record: Record) -> None:
        """Take one record of the run."""
        self._run_id = record.run_id
        event = record.event
        if type(event) in PIECES:
            return
        match event:
            case CallJudged():
                self._of(event.call_id).judged = event
            case CallStarted():
                one = self._of(event.call_id)
                one.started, one.began = event, self._monotonic()
            case CallFinished(result):
                self._finish(record.at, result)
            case TurnStarted():
                self._turn = event.turn
            case Replied(reply):
                self._ask(reply)
            case ToolsChanged(tools):
                self._tools = {name: one for one in tools for name in (one.name, *one.aliases)}
                self._marks.clear()
            case ApprovalAnswered():
                self._approved(record.at, event)
            case _:
                self._about_run(record.at, event)

    def _ask(self, reply: Reply) -> None:
        for index, call in enumerate(reply.calls):
            self._open[call.id] = _OpenCall(call, f"{self._run_id}.{self._turn}.{index}.1")

    def _of(self, call_id: str) -> _OpenCall:
        found = self._open.get(call_id)
        if found is None:
            found = self._open[call_id] = _OpenCall(None, "")
        return found

    def _about_run(self, at: float, event: Event) -> None:
        if isinstance(event, RunStarted):
            self._note("run_started", at, {"model": event.model})
            last = event.messages[-1] if event.messages else None
            if isinstance(last, Reply):
                self._ask(last)
        elif isinstance(event, RunResumed):
            self._note("run_resumed", at, {"model": event.model})
        elif isinstance(event, RunFinished):
            waiting = event.stop is StopReason.WAITING
            for call_id, one in list(self._open.items()):
                self._leave(at, call_id, one, "waiting" if waiting else "unanswered")
            self._note("run_finished", at, _run_end(event))

    def _approved(self, at: float, event: ApprovalAnswered) -> None:
        one = self._of(event.call_id)
        one.approval = event
        fields = self._asked(event.call_id, one) | {
            "decision": event.decision,
            "reason": event.reason,
        }
        self._note("approval", at, fields)

    def _finish(self, at: float, result: ToolResult) -> None:
        one = self._open.pop(result.call_id, None) or _OpenCall(None, "")
        elapsed = (self._monotonic() - one.began) * 1000 if one.started else 0.0
        fields = self._asked(result.call_id, one) | _outcome(result, _result(result, one))
        fields["elapsed_ms"] = round(elapsed, 3)
        fields.setdefault("tool", result.name)
        self._note_call(at, fields, one, result.name)

    def _leave(self, at: float, call_id: str, one: _OpenCall, word: str) -> None:
        fields = self._asked(call_id, one) | {"result": word, "exit_code": None, "elapsed_ms": 0.0}
        name = one.started.name if one.started else one.call.name if one.call else ""
        self._note_call(at, fields, one, name)
        if word != "waiting":
            del self._open[call_id]

    def _asked(self, call_id: str, one: _OpenCall) -> Fields:
        fields: Fields = {"call_id": call_id}
        if one.started is not None:
            fields |= {"tool": one.started.name, "request_id": one.started.request_id}
        elif one.call is not None:
            fields |= {"tool": one.call.name, "request_id": one.request_id}
        if one.judged is not None:
            fields["verdict"] = one.judged.verdict
            fields["code"] = one.judged.code
            if one.judged.reason:
                fields["reason"] = one.judged.reason
        if one.approval is not None:
            said = one.approval
            fields["approval"] = {"decision": said.decision, "reason": said.reason}
        return fields

    def _note_call(self, at: float, fields: Fields, one: _OpenCall, name: str) -> None:
        if self._silent:
            return
        if name not in self._marks:
            tool = self._tools.get(name)
            self._marks[name] = None if tool is None else marks_of(tool.parameters)
        if one.started is not None:
            parameters: JSON = one.started.arguments
        else:
            parameters = {} if one.call is None else one.call.arguments
        self._note("call", at, fields, parameters, self._marks[name])

    def _note(
        self, kind: str, at: float, fields: Fields, parameters: JSON = None,
        marks: Marks | None = None,
    ) -> None:  # fmt: skip
        if not self._silent:
            whole = {**self._who, "run_id": self._run_id, **fields}
            self._notebook.note(AuditDraft(kind, at, self._monotonic(), whole, parameters, marks))


class PerRunSink:
    """Listens to many runs at once, each by itself."""

    def __init__(self, begin: Callable[[], Sink]) -> None:
        """`begin` makes who listens to one run."""
        self._begin = begin
        self._runs: dict[str, Sink] = {}

    def receive(self, record: Record) -> None:
        """Hand a record to the one who listens to its run."""
        run = self._runs.get(record.run_id)
        if run is None:
            run = self._runs[record.run_id] = self._begin()
        try:
            run.receive(record)
        finally:
            if isinstance(record.event, RunFinished):
                del self._runs[record.run_id]


def audit_call(
    notebook: AuditLog,
    who: AuditContext,
    call: Call,
    result: ToolResult,
    *,
    at: float,
    elapsed_ms: float,
    verdict: str = "allow",
    code: str = "",
) -> None:
    """Audit one call where there is no run: on an edge, or behind a server of tools."""
    fields: Fields = {
        **who.fields,
        "run_id": call.run_id,
        "call_id": call.id,
        "request_id": call.request_id,
        "tool": call.tool.name,
        "verdict": verdict,
        "code": code,
        **_outcome(result, "denied" if verdict != "allow" else _plain_result(result)),
        "elapsed_ms": round(elapsed_ms, 3),
    }
    tenant = call.context.principal
    fields |= {"tenant": tenant.tenant} | ({"user": tenant.user} if tenant.user else {})
    marks = marks_of(call.tool.parameters)
    notebook.note(AuditDraft("call", at, time.monotonic(), fields, call.arguments, marks))


def audit_refusal(
    notebook: AuditLog, who: AuditContext, result: ToolResult, *, at: float, parameters: JSON = None
) -> None:
    """Audit what was asked for and never became a call: unknown, unreadable, or not granted."""
    word = "invalid" if result.error is None else _RESULT_WITHOUT_START.get(result.error, "refused")
    fields: Fields = {
        **who.fields,
        "run_id": result.call_id.partition(".")[0],
        "call_id": result.call_id,
        "request_id": result.call_id,
        "tool": result.name,
        **_outcome(result, word),
        "elapsed_ms": 0.0,
    }
    notebook.note(AuditDraft("call", at, time.monotonic(), fields, parameters))


def read_arguments(text: str) -> JSON:
    """What a model wrote as arguments: the object if it is one, else its words."""
    try:
        value: JSON = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return {"unreadable": text}
    return value if is_object(value) else {"unreadable": text}


def _plain_result(result: ToolResult) -> str:
    return "success" if result.error is None else "error"


def _result(result: ToolResult, one: _OpenCall) -> str:
    """What became of a call, in a word."""
    if one.started is not None or result.error is None:
        return _plain_result(result)
    if one.approval is not None and one.approval.decision == "deny":
        return "refused"
    if one.judged is not None and one.judged.verdict == "deny":
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

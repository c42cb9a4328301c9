"""Converts a tool's result to its wire form, and back."""

from __future__ import annotations

import msgspec

from evoclaw.core.encoding import json_text
from evoclaw.core.labels import CLEAN
from evoclaw.core.messages import (
    JSON,
    Block,
    ErrorBlock,
    ErrorKind,
    TextBlock,
    ToolResult,
    join_text,
    label_of,
    labelled,
)
from evoclaw.core.reported_usage import MODEL_USAGE_KEY
from evoclaw.core.truncate import truncate_middle
from evoclaw.transport.wire import (
    RESULT_KEYS,
    Outcome,
    Report,
    ReportType,
    WireError,
    convert,
    message_hash,
)

_BLOCKS = list[Block]
_MAX_STDERR_CHARS = 8_000
_MAX_RESULT_CHARS_BESIDE_BLOCKS = 16_000
"""Characters of `result` when there are also blocks, which have the same content."""


def to_payload(result: ToolResult, request_id: str, elapsed_ms: float) -> dict[str, JSON]:
    """The payload of a `result` or `error` report: every documented key, and the details."""
    details = dict(result.details)
    payload: dict[str, JSON] = {
        "status": "success" if result.error is None else "error",
        "tool": result.name,
        "result": "" if result.error else join_text(result.blocks),
        "stderr": details.pop("stderr", ""),
        "exit_code": details.pop("exit_code", 0 if result.error is None else None),
        "elapsed_ms": round(elapsed_ms, 3),
        "request_id": request_id,
    }
    if result.error is not None:
        payload |= {"error": join_text(result.blocks), "error_type": str(result.error)}
    label = label_of(result)
    if label != CLEAN:
        payload["label"] = msgspec.to_builtins(label)
    if len(result.blocks) != 1 or not isinstance(result.blocks[0], TextBlock | ErrorBlock):
        payload["blocks"] = msgspec.to_builtins(result.blocks)
        payload["result"] = truncate_middle(payload["result"], _MAX_RESULT_CHARS_BESIDE_BLOCKS)
    if details.pop("truncated", False):
        payload["truncated"] = True
    if details:
        payload["details"] = details
    return payload


def failed(request_id: str, tool: str, kind: ErrorKind, text: str, **details: JSON) -> Outcome:
    """The outcome of a failed command, made by the orchestrator and not by an edge."""
    return Outcome(request_id, "error", tool, error=text, error_type=str(kind), details=details)


def job_started(request_id: str, name: str) -> Outcome:
    """The answer to a call that continues in the background."""
    text = (
        f"Job {request_id} has started and runs in the background. Use that id to read its "
        "result later."
    )
    details: dict[str, JSON] = {"job_id": request_id, "state": "running"}
    return Outcome(request_id, "success", name, text, details=details)


def read_outcome(report: Report) -> Outcome:
    """The outcome in a report; one that is unreadable, or has no result, counts as a failure.

    Without a status, the type of the report says whether it succeeded.
    """
    payload = dict(report.payload)
    found = [payload[key] for key in RESULT_KEYS if payload.get(key) is not None]
    success = report.report_type is ReportType.RESULT
    payload.setdefault("status", "success" if success else "error")
    payload["result"] = found[0] if found else ""
    try:
        outcome = convert(payload, Outcome, report.request_id)
    except WireError as problem:
        text = f"The agent's answer cannot be read ({problem}). The call may have happened."
        return failed(report.request_id, "", ErrorKind.INTERNAL, text)
    if outcome.status == "success" and not found and not outcome.blocks:
        text = (
            "The agent's answer has no text: it must have `result` or `content`. The "
            "call may have happened; check before you repeat it."
        )
        return failed(report.request_id, outcome.tool, ErrorKind.INTERNAL, text)
    return outcome


def is_about(outcome: Outcome, message: bytes) -> bool:
    """Whether a refusal answers exactly this message."""
    return outcome.refuses == message_hash(message)


def to_result(outcome: Outcome, call_id: str, name: str) -> ToolResult:
    """The result of a call from an edge's outcome; the plain text of older edges is accepted."""
    details = dict(outcome.details)
    details["elapsed_ms"] = outcome.elapsed_ms
    # Only the orchestrator's check of a receipt counts, not a field that the device sent; and only
    # an answer to a query says what a model used.
    for key in ("receipt", "receipts", MODEL_USAGE_KEY):
        details.pop(key, None)
    if outcome.checked:
        details["receipt"] = outcome.checked
    if outcome.exit_code is not None:
        details["exit_code"] = outcome.exit_code
    if outcome.stderr:
        details["stderr"] = outcome.stderr
    if outcome.truncated:
        details["truncated"] = True
    error = None if outcome.status == "success" else _kind(outcome.error_type)
    blocks = _blocks(outcome, error)
    if outcome.label != CLEAN:
        blocks = labelled(blocks, outcome.label)
    return ToolResult(call_id, name, blocks, error=error, details=details)


def _kind(text: str) -> ErrorKind:
    return ErrorKind(text) if text in list(ErrorKind) else ErrorKind.EXECUTION_FAILED


def _blocks(outcome: Outcome, error: ErrorKind | None) -> tuple[Block, ...]:
    if outcome.blocks:
        try:
            return tuple(convert(outcome.blocks, _BLOCKS))
        except WireError:
            pass  # unknown kinds of blocks: the plain text has the same content
    if error is None:
        return (TextBlock(json_text(outcome.result)),)
    message = outcome.error or json_text(outcome.result) or "the edge reported no reason"
    if outcome.stderr and outcome.stderr[-200:] not in message:
        message = f"{message}\n[stderr]\n{outcome.stderr[-_MAX_STDERR_CHARS:]}"
    return (ErrorBlock(error, message),)

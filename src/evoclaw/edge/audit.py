"""A device's own audit: what it was asked to do, and what became of it."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

from evoclaw.core.messages import JSON, ToolResult
from evoclaw.core.tools import Call
from evoclaw.observe.audit.settings import AuditError
from evoclaw.observe.audit.sink import Notebook, Who, audit_call, audit_refusal

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CallNotes:
    """Puts calls on record. One that ran is told even if that fails; the next is not begun then."""

    notebook: Notebook
    who: Who

    def ran(self, call: Call, result: ToolResult, seconds: float) -> None:
        """A call ran, and this came of it."""
        try:
            audit_call(
                self.notebook, self.who, call, result, at=time.time(), elapsed_ms=seconds * 1000
            )
        except AuditError as problem:
            logger.error("call %s ran and is not in the audit: %s", call.request_id, problem)

    def denied(self, call: Call, result: ToolResult, verdict: str, code: str) -> None:
        """A call was judged, and not run."""
        try:
            audit_call(
                self.notebook, self.who, call, result, at=time.time(), elapsed_ms=0.0,
                verdict=verdict, code=code,
            )  # fmt: skip
        except AuditError as problem:
            logger.error("call %s was denied, not in the audit: %s", call.request_id, problem)

    def refused(self, result: ToolResult, parameters: JSON = None) -> None:
        """What was asked for never became a call."""
        try:
            audit_refusal(self.notebook, self.who, result, at=time.time(), parameters=parameters)
        except AuditError as problem:
            logger.error("%s was refused, not in the audit: %s", result.call_id, problem)

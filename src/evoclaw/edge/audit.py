"""`CallAudit`: records a device's calls in its own audit."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

from evoclaw.core.messages import JSON, ToolResult
from evoclaw.core.tools import Call
from evoclaw.observe.audit.settings import AuditError
from evoclaw.observe.audit.sink import AuditContext, AuditLog, audit_call, audit_refusal

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CallAudit:
    """Records calls. A call that ran is reported even if that fails; the next is not started."""

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

    def refused(self, result: ToolResult, parameters: JSON = None) -> None:
        """Record a request that was refused before it became a call."""
        try:
            audit_refusal(self.audit, self.context, result, at=time.time(), parameters=parameters)
        except AuditError as problem:
            logger.error("audit of refused request %s failed: %s", result.call_id, problem)

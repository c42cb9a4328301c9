"""What was found damaged, in the service and on its edges: for the audit and the status."""

from __future__ import annotations

import logging

from msgspec import Struct

from evoclaw.core.labels import LOCAL_PRINCIPAL
from evoclaw.observe.audit.settings import AuditError
from evoclaw.observe.audit.sink import AuditContext
from evoclaw.observe.audit.writer import Audit
from evoclaw.orchestrator.orchestrator import Orchestrator

logger = logging.getLogger(__name__)


class Damage(Struct, frozen=True):
    """Something that was found damaged."""

    source: str
    """`audit`, or `edge NAME`."""
    text: str
    """What is damaged, and what to do."""


class DamageReports:
    """Records the damage of edges in the audit, and lists all of it."""

    def __init__(self, orchestrator: Orchestrator, audit: Audit | None) -> None:
        self._fleet, self._audit = orchestrator.fleet, audit
        for member in self._fleet.members():  # which came before the audit was open
            if member.damage:
                self._record(member.agent_id, member.damage)
        orchestrator.report_receiver.on_damage = self._record

    def items(self) -> list[Damage]:
        """What is damaged now."""
        audit = "" if self._audit is None else self._audit.damage
        found = [Damage("audit", audit)] if audit else []
        edges = [member for member in self._fleet.members() if member.damage]
        return [*found, *(Damage(f"edge {edge.agent_id}", edge.damage) for edge in edges)]

    def _record(self, agent_id: str, damage: str) -> None:
        if self._audit is None:
            return
        context = AuditContext(principal=LOCAL_PRINCIPAL, agent_id=agent_id, device=agent_id)
        try:
            self._audit.record("damage", context, reason=damage)
        except AuditError as problem:
            logger.error("audit of damage failed: %s", problem)

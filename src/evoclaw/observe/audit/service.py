"""The audit of a running service: search, verification, and records of refused requests."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from msgspec import Struct

from evoclaw.core.labels import Principal
from evoclaw.core.messages import JSON
from evoclaw.observe.audit.checkpoints import AuditKey
from evoclaw.observe.audit.cold import AuditQuery, open_cold
from evoclaw.observe.audit.reader import audit_files, search
from evoclaw.observe.audit.records import Fields
from evoclaw.observe.audit.settings import AuditError
from evoclaw.observe.audit.sink import AuditContext
from evoclaw.observe.audit.verify import VerifyReport, verify
from evoclaw.observe.audit.warm import WarmTier
from evoclaw.observe.audit.writer import Audit

logger = logging.getLogger(__name__)


def record_evolution(audit: Audit, principal: Principal, agent: str, **fields: JSON) -> None:
    """Write a step of an agent's evolution to the audit: an entry of its genome's lineage."""
    audit.record("evolution", AuditContext(principal=principal, agent_id=agent), **fields)


def record_genome(audit: Audit, principal: Principal, agent: str, **fields: JSON) -> None:
    """Write a person's change of a genome to the audit."""
    audit.record("genome", AuditContext(principal=principal, agent_id=agent), **fields)


class RefusedRequest(Struct, frozen=True):
    """A request that was refused: not authenticated, or not authorized."""

    status: int
    method: str
    path: str
    address: str
    tenant: str = ""
    user: str = ""
    token: str = ""
    """The id of the token."""
    why: str = ""
    """The error code."""


@dataclass(frozen=True, slots=True)
class AuditService:
    """Reads the audit that this process writes."""

    audit: Audit
    data: Path
    """The data folder."""
    env: Mapping[str, str]
    """May have the token of the cold tier."""

    async def search(self, query: AuditQuery) -> list[Fields]:
        """The newest matching records of the tenant in the query, the oldest of them first."""
        if not query.tenant:
            return []  # an empty tenant would match every tenant
        await asyncio.to_thread(self.audit.flush)
        # It reads whole files, so it runs in a thread with an event loop of its own.
        return await asyncio.to_thread(lambda: asyncio.run(self._search(query)))

    async def _search(self, query: AuditQuery) -> list[Fields]:
        cold = open_cold(self.data, self.audit.settings, self.env)
        try:
            return await search(self.data / "audit", query, cold)
        finally:
            if cold is not None:
                await cold.close()

    async def verify(self) -> VerifyReport:
        """Check that no record of this machine was edited, removed or cut off."""
        await asyncio.to_thread(self.audit.flush)
        return await asyncio.to_thread(self._verify)

    def _verify(self) -> VerifyReport:
        folder, key = self.data / "audit", AuditKey.load_or_create(self.data / "audit.key")
        with WarmTier(folder, key).locked():
            files = audit_files(folder)
        return verify(files, [key.public])

    def record_genome(
        self, principal: Principal, agent: str, version: int, digest: str, reason: str
    ) -> None:
        """Write a change of a genome to the audit."""
        record_genome(self.audit, principal, agent, version=version, digest=digest, reason=reason)

    def record_evolution(self, principal: Principal, agent: str, **fields: JSON) -> None:
        """Write a step of an agent's evolution to the audit."""
        record_evolution(self.audit, principal, agent, **fields)

    def record_genome_rollout(
        self, principal: Principal, rollout: str, selector: str, what: str, reason: str
    ) -> None:
        """Write a step of a roll-out of a genome to the audit."""
        context = AuditContext(principal=principal, agent_id=selector)
        self.audit.record("genome_rollout", context, rollout=rollout, what=what, reason=reason)

    def record_refusal(self, refusal: RefusedRequest) -> None:
        """Write a refused request to the audit; a failure is only logged."""
        principal = Principal(refusal.tenant or "local", refusal.user)
        try:
            self.audit.record(
                "refused",
                AuditContext(principal=principal, agent_id=""),
                reason=refusal.why,
                status=refusal.status,
                method=refusal.method,
                path=refusal.path,
                address=refusal.address,
                token=refusal.token,
            )
        except AuditError as problem:
            logger.warning("cannot write a refused request to the audit: %s", problem)

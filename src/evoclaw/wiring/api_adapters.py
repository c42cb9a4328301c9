"""Adapters between the API and this machine: devices, audit, tools, skills, stops, canvases."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from evoclaw.api.dependencies import RefusedRequest
from evoclaw.core.messages import JSON

if TYPE_CHECKING:
    from pathlib import Path

    from evoclaw.observe.audit.cold import AuditQuery, ColdTier
    from evoclaw.observe.audit.settings import AuditSettings
    from evoclaw.observe.audit.writer import Audit
    from evoclaw.trust.pairing import Device, Devices

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DevicesAdapter:
    """The edges that joined, for the API."""

    devices: Devices
    env: Mapping[str, str]

    def all(self) -> Sequence[Device]:
        """Every known edge."""
        return self.devices.all()

    def get(self, agent_id: str) -> Device | None:
        """One edge; None if it is unknown."""
        return self.devices.get(agent_id)

    async def approve(self, agent_id: str, seen: str = "") -> Device:
        """Approve the pending tools of an edge; an error if they differ from those `seen`."""
        return await self.devices.approve(agent_id, time.time(), seen=seen)

    async def revoke(self, agent_id: str) -> None:
        """Revoke an edge: remove its broker account and the approval of its tools."""
        from evoclaw.wiring.pairing import revoke_edge

        await revoke_edge(agent_id, self.env, self.devices)

    def invite(self, agent_id: str, seconds: float) -> tuple[str, str]:
        """Invite an edge; returns the broker's address, and a token that works once."""
        from evoclaw.wiring.pairing import invite_edge

        invited = invite_edge(agent_id, seconds, self.env)
        return invited.url, invited.token


@dataclass(frozen=True, slots=True)
class AuditAdapter:
    """The audit of this machine, for the API: one tenant at a time."""

    audit: Audit
    home: Path
    settings: AuditSettings
    env: Mapping[str, str]

    async def search(self, tenant: str, query: Mapping[str, JSON]) -> Sequence[dict[str, JSON]]:
        """The newest matching records of a tenant, oldest first."""
        from evoclaw.observe.audit.cold import AuditQuery

        if not tenant:
            return ()  # an empty tenant would match every tenant
        audit_query = msgspec.convert({**query, "tenant": tenant}, AuditQuery)
        await asyncio.to_thread(self.audit.flush)
        # It reads whole files, so it runs in a thread with an event loop of its own.
        return await asyncio.to_thread(lambda: asyncio.run(self._search(audit_query)))

    async def _search(self, query: AuditQuery) -> Sequence[dict[str, JSON]]:
        from evoclaw.observe.audit.reader import search

        cold = self._cold()
        try:
            return await search(self.home / "audit", query, cold)
        finally:
            if cold is not None:
                await cold.close()

    async def verify(self) -> Mapping[str, JSON]:
        """Check that no record of this machine was edited, removed or cut off."""
        await asyncio.to_thread(self.audit.flush)
        return await asyncio.to_thread(self._verify)

    def _verify(self) -> dict[str, JSON]:
        from evoclaw.observe.audit.checkpoints import AuditKey
        from evoclaw.observe.audit.reader import audit_files
        from evoclaw.observe.audit.verify import verify
        from evoclaw.observe.audit.warm import WarmTier

        folder, key = self.home / "audit", AuditKey.load_or_create(self.home / "audit.key")
        with WarmTier(folder, key).locked():
            material = audit_files(folder)
        report = verify(material, [key.public])
        return {**msgspec.to_builtins(report), "ok": report.ok}

    def _cold(self) -> ColdTier | None:
        from evoclaw.observe.audit.cold import open_cold

        return open_cold(self.home, self.settings, self.env)


def refusal_recorder(audit: Audit | None) -> Callable[[RefusedRequest], None]:
    """A function that writes refused requests to the audit."""
    from evoclaw.core.labels import Principal
    from evoclaw.observe.audit.settings import AuditError
    from evoclaw.observe.audit.sink import AuditContext

    def note(refusal: RefusedRequest) -> None:
        if audit is not None:
            context = AuditContext(
                principal=Principal(refusal.tenant or "local", refusal.user), agent_id=""
            )
            fields = msgspec.structs.asdict(refusal)
            fields = {
                name: fields[name] for name in ("status", "method", "path", "address", "token")
            }
            try:
                audit.record("refused", context, reason=refusal.why, **fields)
            except AuditError as problem:
                logger.warning("cannot write a refused request to the audit: %s", problem)

    return note

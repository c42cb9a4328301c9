"""Writes each entry of a lineage to the audit, also if the process was killed between the two.

A stored entry is marked as not audited in the transaction that stores it, and the mark is removed
when its record is written. The process that continues the campaign writes the missing records.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

from evoclaw.core.labels import Principal
from evoclaw.evolution.lineage_entries import LineageEntry, entry_hash, read_entry
from evoclaw.observe.audit.reader import records_since
from evoclaw.observe.audit.service import record_evolution, record_genome
from evoclaw.observe.audit.writer import Audit
from evoclaw.store.genomes import GenomeStore

MAX_CLOCK_STEP_S = 60.0
"""How much earlier than its entry a record may seem to be: the clock may have been set back."""


class LineageAudit:
    """The audit of the lineages in one database."""

    def __init__(self, store: GenomeStore, audit: Audit | None) -> None:
        """Choose the parts.

        Args:
            store: Where the lineages are.
            audit: Where their entries are recorded; None if it is disabled.
        """
        self._store, self._audit = store, audit

    async def record(self, entry: LineageEntry, principal: Principal | None = None) -> None:
        """Record an entry that this process has just stored.

        Args:
            entry: The entry.
            principal: Who caused it; by default, who is named in it.
        """
        self._write(entry, principal)
        await self._flush()
        await self._store.set_audited(entry.agent, (entry.number,))

    async def record_version(self, agent: str, version: int, principal: Principal) -> None:
        """Record the change that made a version, unless it is recorded already."""
        for entry in await self._unaudited(agent):
            if entry.version == version:
                await self.record(entry, principal)

    async def recover(self, agent: str) -> None:
        """Record the entries that a process stored before it was killed, or the audit failed.

        An entry that has its record in the audit of this machine does not get another one.
        """
        entries = await self._unaudited(agent)
        if not entries:
            return
        await self._flush()
        known = await asyncio.to_thread(self._recorded, entries)
        for entry in entries:
            if entry_hash(entry) not in known:
                self._write(entry, None)
        await self._flush()
        await self._store.set_audited(agent, [entry.number for entry in entries])

    async def _unaudited(self, agent: str) -> Sequence[LineageEntry]:
        return [read_entry(stored) for stored in await self._store.unaudited(agent)]

    def _recorded(self, entries: Sequence[LineageEntry]) -> Collection[object]:
        if self._audit is None:
            return ()
        since = min(entry.at for entry in entries) - MAX_CLOCK_STEP_S
        return {
            fields.get("entry_hash") for fields in records_since(self._audit.warm.folder, since)
        }

    async def _flush(self) -> None:
        if self._audit is not None:
            await asyncio.to_thread(self._audit.flush)

    def _write(self, entry: LineageEntry, principal: Principal | None) -> None:
        if self._audit is None:
            return
        who = principal or Principal("local", entry.by)
        digest = entry_hash(entry)
        if entry.kind in ("change", "rollback") and entry.candidate is None:  # by a person
            record_genome(
                self._audit, who, entry.agent, version=entry.version, digest=entry.digest,
                reason=entry.reason, entry=entry.number, entry_hash=digest, stored_at=entry.at,
            )  # fmt: skip
            return
        record_evolution(
            self._audit, who, entry.agent, entry=entry.number, what=entry.kind,
            candidate=entry.candidate, stage=entry.stage, passed=entry.passed,
            version=entry.version, digest=entry.digest, reason=entry.reason, entry_hash=digest,
            stored_at=entry.at,
        )  # fmt: skip

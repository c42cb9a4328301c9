"""The genomes of edges: an edge keeps them in its journal, and its lineage numbers the versions.

The numbers are those of the lineage everywhere. The edge counts in its journal from its
configuration, and again from there if it loses the journal, so its own numbers are not shown.
"""

from __future__ import annotations

from asyncio import Lock
from collections.abc import Sequence

from msgspec import Struct

from evoclaw.api.dependencies import ApiDependencies
from evoclaw.api.errors import ApiError, not_found, require
from evoclaw.core.errors import ToolFailure
from evoclaw.core.genome import Genome
from evoclaw.core.messages import JSON, ErrorKind, is_object
from evoclaw.evolution.lineage import GenomeNotFound, check_expected
from evoclaw.evolution.lineage_entries import (
    edge_lineage,
    edge_versions,
    genome_of,
    version_before,
)
from evoclaw.orchestrator.fleet.edge_genomes import (
    EdgeSilent,
    read_edge_genome,
    read_edge_history,
    restoring_patch,
)

ANSWER_TIMEOUT_S = 10.0
"""Seconds that an edge may take to answer a command."""


class _EdgeState(Struct, frozen=True):
    """What an edge has."""

    kept: Sequence[Genome]
    """The versions in its journal, the oldest first, with its own numbers."""
    versions: Sequence[Genome]
    """All versions with the numbers of the lineage; the last one is current."""

    @property
    def current(self) -> Genome:
        return self.versions[-1]


class EdgeGenome:
    """The genome of one edge; every `Genome` that it returns has its number in the lineage."""

    def __init__(self, parts: ApiDependencies, name: str) -> None:
        self._orchestrator = require(parts.orchestrator, "edges")
        self._lineage = require(parts.genomes, "genomes")
        self._rollouts, self._name = parts.genome_rollouts, name
        self._locks = parts.edge_genome_locks

    async def version(self, number: int | None) -> Genome:
        """A version, or the current one; for a recorded version the edge may be offline."""
        if number:
            for entry in await self._lineage.history(edge_lineage(self._name)):
                if entry.version == number:
                    return genome_of(entry)
        state = await self._read()
        return state.current if number is None else self._chosen(state, number)

    async def change(
        self,
        patch: dict[str, JSON],
        *,
        by: str,
        reason: str,
        runs: Sequence[str],
        expected: int | None,
    ) -> Genome:
        """Apply a patch, and record it; raises `ToolFailure` as `GenomeLineage.change` does."""
        async with self._lock():
            before = await self._read()
            check_expected(before.current, expected)
            await self._check_free()
            new = read_edge_genome(await self._query("update_genome", {"genome": patch}))
            return await self._record(before, new, by=by, reason=reason, runs=runs)

    async def roll_back(self, number: int | None, *, by: str, reason: str) -> Genome:
        """Restore a version, or the one before the current one, and record it."""
        async with self._lock():
            before = await self._read()
            versions = before.versions
            wanted = version_before(versions) if number is None else self._chosen(before, number)
            await self._check_free()
            if wanted.digest == before.current.digest:
                return before.current
            new = await self._restore(before, wanted)
            return await self._record(before, new, by=by, reason=reason, restored=wanted.version)

    def _lock(self) -> Lock:
        """Held while the genome is changed; only known edges have one."""
        self._check_online()
        return self._locks[self._name]

    async def _restore(self, before: _EdgeState, wanted: Genome) -> Genome:
        """Have the edge go back to a version; to its content, if the edge lost the version."""
        kept = [genome.version for genome in before.kept if genome.digest == wanted.digest]
        if not kept:
            patch = restoring_patch(wanted.content(), before.current.content())
            return read_edge_genome(await self._query("update_genome", {"genome": patch}))
        payload: dict[str, JSON] = {"action": "roll_back", "version": kept[-1]}
        return read_edge_genome((await self._query("evolution", payload)).get("genome"))

    async def _record(
        self,
        before: _EdgeState,
        new: Genome,
        *,
        by: str,
        reason: str,
        runs: Sequence[str] = (),
        restored: int | None = None,
    ) -> Genome:
        if new.digest == before.current.digest:
            return before.current
        return await self._lineage.record_edge(
            self._name, before.current, new, by=by, reason=reason, runs=runs, restored=restored
        )

    async def _read(self) -> _EdgeState:
        kept = read_edge_history(await self._query("evolution", {}))
        entries = await self._lineage.history(edge_lineage(self._name))
        return _EdgeState(kept, edge_versions(entries, kept[0], kept[-1]))

    def _chosen(self, state: _EdgeState, number: int) -> Genome:
        if number >= len(state.versions):
            raise GenomeNotFound(self._name, f"version {number}")
        return state.versions[number]

    async def _check_free(self) -> None:
        if self._rollouts is not None:
            await self._rollouts.check_free(self._name)

    def _check_online(self) -> None:
        fleet = self._orchestrator.fleet
        if fleet.find(self._name) is None:
            raise not_found("agent or edge")
        if not fleet.is_online(self._name):
            raise EdgeSilent(f"The edge {self._name!r} is offline. Start it, then try again.")

    async def _query(self, command: str, payload: dict[str, JSON]) -> dict[str, JSON]:
        self._check_online()
        try:
            outcome = await self._orchestrator.query(self._name, command, payload, ANSWER_TIMEOUT_S)
        except ToolFailure as failure:
            if failure.kind is not ErrorKind.AGENT_OFFLINE:
                raise ApiError(409, str(failure.kind), failure.message) from None
            unsure = " It may have made the change: read its genome first." if payload else ""
            raise EdgeSilent(f"{failure.message} Try again when it is online.{unsure}") from None
        if outcome.status != "success" or not is_object(outcome.result):
            raise ApiError(409, outcome.error_type or "failed", outcome.error or "The edge failed.")
        return outcome.result

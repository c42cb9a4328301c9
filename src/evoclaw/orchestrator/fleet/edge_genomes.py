"""Changes the genome of one edge by commands, and reads what the edge answers.

Every change carries an order number: an edge refuses one with a lower number than it has seen, so
a command that was delayed, or sent by a fenced orchestrator, changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import Struct

from evoclaw.core.errors import EvoClawError, ToolFailure
from evoclaw.core.genome import EDGE_TUNABLES, Genome
from evoclaw.core.messages import JSON, ErrorKind, is_array, is_object
from evoclaw.orchestrator.fleet.rollout_state import FitnessCount, read_fitness
from evoclaw.orchestrator.orchestrator import Orchestrator
from evoclaw.orchestrator.sanitizing import one_line

MAX_ERROR_CHARS = 300
REFUSALS = frozenset({ErrorKind.INVALID_PARAMS, ErrorKind.PERMISSION_DENIED, ErrorKind.NOT_FOUND})
"""Errors after which the genome of the edge is certainly unchanged."""


class EdgeSilent(EvoClawError):
    """An edge did not answer, or asks to be sent the command again."""


class EdgeRefused(EvoClawError):
    """An edge answered with an error."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind

    @property
    def is_unchanged(self) -> bool:
        """Whether the genome of the edge is certainly as it was."""
        return self.kind in REFUSALS


class EdgeGenomeStatus(Struct, frozen=True):
    """What an edge says about its genome."""

    genome: Genome
    history: tuple[Genome, ...]
    """The configured genome, and the newest versions, the oldest first."""
    fitness: FitnessCount | None


class EdgeGenomes:
    """The genomes of the edges of one orchestrator."""

    def __init__(self, orchestrator: Orchestrator, timeout_s: float) -> None:
        """`timeout_s` is how long an edge may take to answer."""
        self._orchestrator, self._timeout_s = orchestrator, timeout_s

    async def status(self, agent_id: str) -> EdgeGenomeStatus:
        """The genome of an edge, its versions and its fitness."""
        return _read_status(await self._query(agent_id, "evolution", {}))

    async def fitness(self, agent_id: str) -> FitnessCount | None:
        """The judged calls and runs of an edge."""
        return read_fitness((await self._query(agent_id, "get_metrics", {})).get("fitness"))

    async def update(self, agent_id: str, patch: Mapping[str, JSON], order: int) -> Genome:
        """Apply a patch; the same patch twice makes one version."""
        payload: dict[str, JSON] = {"genome": dict(patch), "order": order}
        return read_edge_genome(await self._query(agent_id, "update_genome", payload))

    async def restore(
        self, agent_id: str, version: int, content: Mapping[str, JSON], order: int
    ) -> EdgeGenomeStatus:
        """Go back to a version; to its content, if the edge lost the version."""
        payload: dict[str, JSON] = {"action": "roll_back", "version": version, "order": order}
        wanted = msgspec.convert(dict(content), Genome).digest
        try:
            found = _read_status(await self._query(agent_id, "evolution", payload))
        except EdgeRefused as refused:
            if refused.kind != ErrorKind.INVALID_PARAMS:
                raise
        else:
            if found.genome.digest == wanted:
                return found
        now = (await self.status(agent_id)).genome.content()
        await self.update(agent_id, restoring_patch(content, now), order)
        return await self.status(agent_id)

    async def _query(
        self, agent_id: str, command: str, payload: dict[str, JSON]
    ) -> dict[str, JSON]:
        try:
            outcome = await self._orchestrator.query(agent_id, command, payload, self._timeout_s)
        except ToolFailure as failure:
            raise EdgeSilent(failure.message) from None
        if outcome.status == "success" and is_object(outcome.result):
            return outcome.result
        kind = outcome.error_type or str(ErrorKind.INTERNAL)
        text = one_line(outcome.error or "it sent no result", MAX_ERROR_CHARS)
        if kind == ErrorKind.CONFLICT:
            raise EdgeSilent(text)
        raise EdgeRefused(kind, text)


def read_edge_genome(found: JSON) -> Genome:
    """A genome as an edge reports it; an older edge has other tunables, too."""
    try:
        names = (*EDGE_TUNABLES, "version", "restored")
        return msgspec.convert({name: found[name] for name in names if name in found}, Genome)
    except (msgspec.ValidationError, TypeError):
        raise EdgeRefused(
            str(ErrorKind.INTERNAL), "the edge sent a genome that cannot be read"
        ) from None


def read_edge_history(found: Mapping[str, JSON]) -> tuple[Genome, ...]:
    """The versions that an edge reports, from its configuration to the current one."""
    history = found.get("history")
    if not is_array(history) or not history:
        raise EdgeRefused(str(ErrorKind.INTERNAL), "the edge sent no versions of its genome")
    return tuple(read_edge_genome(version) for version in history)


def restoring_patch(wanted: Mapping[str, JSON], now: Mapping[str, JSON]) -> dict[str, JSON]:
    """The patch that turns the content `now` of an edge into another.

    It names only what either sets: an older release refuses a tunable that it does not know.
    """
    return {name: wanted.get(name) for name in EDGE_TUNABLES if name in wanted or name in now}


def _read_status(found: dict[str, JSON]) -> EdgeGenomeStatus:
    history = found.get("history")
    return EdgeGenomeStatus(
        read_edge_genome(found.get("genome")),
        tuple(read_edge_genome(version) for version in history) if is_array(history) else (),
        read_fitness(found.get("fitness")),
    )

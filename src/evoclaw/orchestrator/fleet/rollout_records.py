"""Roll-outs as they are stored, and the edges that they mean."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from evoclaw.core.genome import Genome
from evoclaw.core.messages import JSON
from evoclaw.orchestrator.fleet.members import Member, selects
from evoclaw.orchestrator.fleet.rollout_state import Rollout, RolloutEdge
from evoclaw.store.genome_rollouts import StoredRollout, StoredRolloutEdge


def matches(selector: str, member: Member) -> bool:
    """Whether a selector, or one of several that commas separate, means an edge."""
    return any(selects(part.strip(), member) for part in selector.split(","))


def read_rollout(body: bytes) -> Rollout:
    """A stored roll-out."""
    return msgspec.json.decode(body, type=Rollout)


def read_edge(body: bytes) -> RolloutEdge:
    """A stored edge of a roll-out."""
    return msgspec.json.decode(body, type=RolloutEdge)


def stored_rollout(rollout: Rollout, edges: Iterable[RolloutEdge] | None = None) -> StoredRollout:
    """A roll-out as it is stored; `edges` are all of its edges, if they are known."""
    body = msgspec.json.encode(rollout)
    return StoredRollout(rollout.id, rollout.started_at, rollout.is_open(edges), body)


def stored_edge(rollout: Rollout, edge: RolloutEdge) -> StoredRolloutEdge:
    """An edge of a roll-out as it is stored."""
    return StoredRolloutEdge(rollout.id, edge.agent_id, msgspec.json.encode(edge))


def with_changed(edges: Iterable[RolloutEdge], changed: Iterable[RolloutEdge]) -> list[RolloutEdge]:
    """The edges, some of them changed."""
    new = {edge.agent_id: edge for edge in changed}
    return [new.get(edge.agent_id, edge) for edge in edges]


def genome_of(content: dict[str, JSON], version: int) -> Genome:
    """The genome of this content."""
    return replace(msgspec.convert(content, Genome), version=version)


def rollout_scores(rollout: Rollout, edge: RolloutEdge) -> dict[str, JSON]:
    """What was judged on an edge since the change, for its lineage."""
    after = edge.after
    return {
        "rollout": rollout.id,
        "passed": round(after.succeeded + after.points, 1),
        "attempts": after.calls + after.runs,
        "before": msgspec.to_builtins(edge.baseline),
        "after": msgspec.to_builtins(after),
    }

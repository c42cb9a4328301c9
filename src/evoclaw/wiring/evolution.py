"""Builds the lineages of genomes, and the roll-outs of genomes to edges."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evoclaw.core.agent import Agent
    from evoclaw.core.genome import Genome
    from evoclaw.evolution.lineage import GenomeLineage
    from evoclaw.evolution.lineage_audit import LineageAudit
    from evoclaw.observe.audit.writer import Audit
    from evoclaw.orchestrator.fleet.genome_rollout import GenomeRollouts
    from evoclaw.orchestrator.orchestrator import Orchestrator
    from evoclaw.providers.cache import ProviderCache
    from evoclaw.skills.registry import SkillRegistry
    from evoclaw.store.databases.database import Database
    from evoclaw.wiring.run_factory import RunFactory


def genome_lineage(
    database: Database, home: Path, agents: Mapping[str, Agent], run_factory: RunFactory
) -> GenomeLineage:
    """The lineages in the database of a service."""
    registry = run_factory.toolbox.skill_registry
    return checked_lineage(database, home, agents, registry, run_factory.providers)


def signed_lineage(
    database: Database,
    home: Path,
    check: Callable[[str, Genome], None] = lambda agent, genome: None,
) -> GenomeLineage:
    """The lineages in a database; new entries are signed with the key of this machine."""
    from evoclaw.evolution.lineage import GenomeLineage
    from evoclaw.store.genomes import GenomeStore
    from evoclaw.trust.receipts import DeviceKey
    from evoclaw.wiring.receipts import DEVICE_KEY_FILE

    key = DeviceKey.load_or_create(home / DEVICE_KEY_FILE)
    return GenomeLineage(GenomeStore(database), key.public_key, key.sign_genome, check=check)


def checked_lineage(
    database: Database,
    home: Path,
    agents: Mapping[str, Agent],
    registry: SkillRegistry,
    providers: ProviderCache,
) -> GenomeLineage:
    """The lineages in a database; a new genome must be one that its agent may have."""
    from evoclaw.core.errors import AgentNotFound
    from evoclaw.orchestrator.agents.tuning import check_genome

    def check(name: str, genome: Genome) -> None:
        agent = agents.get(name)
        if agent is None:
            raise AgentNotFound(name, tuple(agents))
        skills = [skill.name for skill in registry.skills()]
        check_genome(
            agent,
            genome,
            skills=skills,
            default_model=providers.default,
            max_retries=providers.max_retries,
        )

    return signed_lineage(database, home, check)


def lineage_audit(database: Database, audit: Audit | None) -> LineageAudit:
    """What records the entries of the lineages in a database."""
    from evoclaw.evolution.lineage_audit import LineageAudit
    from evoclaw.store.genomes import GenomeStore

    return LineageAudit(GenomeStore(database), audit)


def genome_rollouts(
    database: Database,
    orchestrator: Orchestrator,
    genomes: GenomeLineage,
    audit: Audit | None,
    env: Mapping[str, str],
) -> GenomeRollouts:
    """The roll-outs in a database; a stop of everything holds them."""
    from evoclaw.config.paths import default_data_folder
    from evoclaw.core.labels import Principal
    from evoclaw.governance.stops import Stops
    from evoclaw.observe.audit.service import AuditService
    from evoclaw.orchestrator.fleet.genome_rollout import GenomeRollouts
    from evoclaw.orchestrator.fleet.rollout_driver import EdgeGenomeChange, RolloutParts
    from evoclaw.orchestrator.fleet.rollout_state import Rollout
    from evoclaw.store.genome_rollouts import RolloutStore
    from evoclaw.wiring.oversight import stop_files

    service = None if audit is None else AuditService(audit, default_data_folder(env), env)
    stops = Stops(*stop_files(env))

    async def record(change: EdgeGenomeChange) -> None:
        await genomes.record_edge(
            change.agent_id, change.before, change.genome, by=change.by, reason=change.reason,
            scores=change.scores,
        )  # fmt: skip

    def report(rollout: Rollout, what: str, by: str) -> None:
        if service is not None:
            reason = rollout.problem or rollout.reason
            principal = Principal(user=by)
            service.record_genome_rollout(principal, rollout.id, rollout.selector, what, reason)

    def stopped() -> str:
        stop = stops.cancelling_stop()
        return "" if stop is None else stop.description

    parts = RolloutParts(record=record, report=report, stopped=stopped)
    return GenomeRollouts(RolloutStore(database), orchestrator, parts)

"""Builds the lineage of the genomes of an orchestrator's agents."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evoclaw.core.agent import Agent
    from evoclaw.core.genome import Genome
    from evoclaw.evolution.lineage import GenomeLineage
    from evoclaw.skills.registry import SkillRegistry
    from evoclaw.store.databases.database import Database
    from evoclaw.wiring.run_factory import RunFactory


def genome_lineage(
    database: Database, home: Path, agents: Mapping[str, Agent], run_factory: RunFactory
) -> GenomeLineage:
    """The lineages in the database of a service."""
    registry, default = run_factory.toolbox.skill_registry, run_factory.providers.default
    return signed_lineage(database, home, agents, registry, default)


def signed_lineage(
    database: Database,
    home: Path,
    agents: Mapping[str, Agent],
    registry: SkillRegistry,
    default_model: str,
) -> GenomeLineage:
    """The lineages in a database; new entries are signed with the key of this machine."""
    from evoclaw.core.errors import AgentNotFound
    from evoclaw.evolution.lineage import GenomeLineage
    from evoclaw.orchestrator.agents.tuning import check_genome
    from evoclaw.store.genomes import GenomeStore
    from evoclaw.trust.receipts import DeviceKey
    from evoclaw.wiring.receipts import DEVICE_KEY_FILE

    def check(name: str, genome: Genome) -> None:
        agent = agents.get(name)
        if agent is None:
            raise AgentNotFound(name, tuple(agents))
        skills = [skill.name for skill in registry.skills()]
        check_genome(agent, genome, skills=skills, default_model=default_model)

    key = DeviceKey.load_or_create(home / DEVICE_KEY_FILE)
    return GenomeLineage(GenomeStore(database), key.public_key, key.sign_genome, check=check)

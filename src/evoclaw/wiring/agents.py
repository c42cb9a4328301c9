"""The agents that the settings define, and which of their skills are not there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evoclaw.core.agent import Agent


def defined_agents(env: Mapping[str, str]) -> dict[str, Agent]:
    """The agents by id; the first is the default."""
    from evoclaw.orchestrator.agents.definitions import agents_of
    from evoclaw.wiring.settings import orchestrator_settings

    settings = orchestrator_settings(env)
    return dict(agents_of(settings.agents, settings.run_defaults))


def missing_agent_skills(env: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """By agent: the skills of its definition that are not installed, or cannot be used."""
    from evoclaw.orchestrator.agents.prompt import missing_skills
    from evoclaw.wiring.skills import skill_registry

    agents = defined_agents(env)
    if not any(agent.skills for agent in agents.values()):
        return {}
    skills = skill_registry(env).skills()
    found = {name: missing_skills(agent, skills) for name, agent in agents.items()}
    return {name: names for name, names in found.items() if names}


def agent_problems(env: Mapping[str, str]) -> list[str]:
    """What is wrong with the agents of the settings, one line each."""
    return [
        f"agent {name}: unknown skills: {', '.join(skills)}; install them, or correct `skills` in "
        "evoclaw.toml; see `evoclaw skills list`"
        for name, skills in missing_agent_skills(env).items()
    ]

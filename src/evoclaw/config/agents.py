"""Checks `[[agents]]`; every error names the file and line."""

from __future__ import annotations

import re
from collections.abc import Iterable

from msgspec.structs import replace

from evoclaw.config.paths import read_text
from evoclaw.config.toml_document import KeyPath, TomlDocument, describe_unknown
from evoclaw.config.values import check_capabilities, check_id
from evoclaw.core.errors import ConfigError
from evoclaw.orchestrator.agents.definitions import AgentConfig, AgentLimits

__all__ = ["AgentConfig", "AgentLimits", "check_agents"]

_LOCATION_WORDS = ("", "any", "*")
"""The values of `on` that are not edge ids."""
_FIELD_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")


def check_agents(
    document: TomlDocument, agents: tuple[AgentConfig, ...]
) -> tuple[AgentConfig, ...]:
    """Check the agents and read their prompt files; `ConfigError` for invalid values."""
    ids: set[str] = set()
    for number, agent in enumerate(agents):
        keys = ("agents", str(number))
        check_id(document, (*keys, "id"), agent.id)
        if agent.id in ids:
            problem = f"two agents have the id {agent.id!r}; rename one"
            raise document.error((*keys, "id"), problem)
        ids.add(agent.id)
    return tuple(
        _check_agent(document, ("agents", str(number)), agent, ids)
        for number, agent in enumerate(agents)
    )


def _check_agent(
    document: TomlDocument, keys: KeyPath, agent: AgentConfig, ids: set[str]
) -> AgentConfig:
    check_capabilities(document, (*keys, "capabilities"), agent.capabilities)
    if agent.on not in _LOCATION_WORDS:
        check_id(document, (*keys, "on"), agent.on)
    for name in agent.dependencies:
        if name == agent.id or name not in ids:
            problem = describe_unknown("agent", name, ids - {agent.id})
            raise document.error((*keys, "dependencies"), f"dependencies: {problem}")
    _check_fields(document, (*keys, "inputs"), agent.inputs)
    _check_fields(document, (*keys, "outputs"), agent.outputs)
    _check_models(document, (*keys, "model"), agent.model)
    if agent.budget.per:
        problem = (
            "'per' is not known here: this budget limits one run; [budget.agent] limits all runs "
            "of an agent together"
        )
        raise document.error((*keys, "budget", "per"), problem)
    return _with_prompt(document, keys, agent)


def _check_fields(document: TomlDocument, keys: KeyPath, names: Iterable[str]) -> None:
    for name in names:
        if not _FIELD_NAME.fullmatch(name):
            problem = f"{name[:80]!r} is not a valid field name; use letters, digits, _ and -"
            raise document.error((*keys, name), f"{document.original_key(keys)}: {problem}")


def _check_models(document: TomlDocument, keys: KeyPath, models: str | tuple[str, ...]) -> None:
    several = not isinstance(models, str)
    if several and not models:
        raise document.error(keys, "model: the list is empty; add a model, or remove the key")
    for name in models if several else ():
        if "," in name:
            raise document.error(
                keys, f"model: write {name[:80]!r} as separate strings of the list"
            )


def _with_prompt(document: TomlDocument, keys: KeyPath, agent: AgentConfig) -> AgentConfig:
    if agent.prompt_file is None:
        return agent
    here = (*keys, "prompt_file")
    if agent.prompt:
        raise document.error(here, "prompt and prompt_file set the same value; remove one of them")
    try:
        return replace(agent, prompt=read_text(agent.prompt_file))
    except ConfigError as problem:
        raise document.error(here, f"prompt_file: {problem}") from None

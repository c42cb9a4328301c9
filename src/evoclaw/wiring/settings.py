"""Reads the settings of the orchestrator on this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evoclaw.config import EvoClawConfig
    from evoclaw.core.agent import LoopSettings
    from evoclaw.observe.audit.settings import AuditSettings
    from evoclaw.providers.registry import ProviderOptions

SETTINGS_FILE = "evoclaw.toml"
"""The settings file, in the data folder."""


def loop_settings(env: Mapping[str, str]) -> LoopSettings:
    """The default limits of a run."""
    from evoclaw.core.agent import LoopSettings

    settings = orchestrator_settings(env).orchestrator
    return LoopSettings(
        max_turns=settings.max_tool_iterations,
        tool_error_limit=settings.tool_error_limit,
        evidence=settings.evidence,
    )


async def model_for_run(asked: str | None, env: Mapping[str, str]) -> str:
    """The model that the caller asked for, `EVOCLAW_MODEL`, the default agent's, or one found here.

    Raises:
        ConfigError: There is none; the message says how to get one.
    """
    from evoclaw.providers.registry import choose_model

    return await choose_model(asked or _configured_model(env), env)


def _configured_model(env: Mapping[str, str]) -> str:
    """The model of the default agent in the settings, unless `EVOCLAW_MODEL` is set; or empty."""
    from evoclaw.orchestrator.agents.definitions import DEFAULT_AGENT

    if env.get("EVOCLAW_MODEL"):
        return ""
    agents = orchestrator_settings(env).agents
    models = next((agent.model for agent in agents if agent.id == DEFAULT_AGENT), "")
    return models if isinstance(models, str) else ",".join(models)


async def default_model_and_reason(env: Mapping[str, str]) -> tuple[str, str]:
    """The model that a run without `--model` uses, and why.

    Raises:
        ConfigError: There is none; the message says how to get one.
    """
    from evoclaw.providers.models.local import is_local_name
    from evoclaw.providers.registry import found_models

    if name := _configured_model(env):
        return name, "the settings of the default agent name it"
    name = await model_for_run(None, env)
    if is_local_name(name):
        return name, "it is the most capable installed model that fits in memory"
    reasons = dict(await found_models(env))
    return name, reasons.get(name, "it was found first")


def provider_options(settings: EvoClawConfig) -> ProviderOptions:
    """What the settings say about all providers; loads the packages that they name."""
    from evoclaw.providers.registry import ProviderOptions
    from evoclaw.wiring.packages import package_providers

    general = settings.orchestrator
    packages = package_providers(general.provider_packages)
    return ProviderOptions(general.max_retries, packages, general.calls_in_text, settings.embedded)


def settings_template(env: Mapping[str, str], only: Sequence[str] = ()) -> str:
    """Every setting of `evoclaw.toml`, or some, with the default, explained and commented out."""
    from evoclaw.config import read_evoclaw_toml
    from evoclaw.config.template import short_template, template

    # The defaults, independent of the current file and variables.
    home = {name: env[name] for name in ("EVOCLAW_HOME", "HOME") if name in env}
    defaults = read_evoclaw_toml(None, home)
    return short_template(defaults, only) if only else template(defaults)


def orchestrator_settings(env: Mapping[str, str]) -> EvoClawConfig:
    """The settings in `evoclaw.toml`, or the defaults without one."""
    from evoclaw.config import read_evoclaw_toml
    from evoclaw.config.paths import default_data_folder

    path = default_data_folder(env) / SETTINGS_FILE
    return read_evoclaw_toml(path if path.exists() else None, env)


def audit_location(env: Mapping[str, str]) -> tuple[Path, AuditSettings]:
    """The data folder, and the audit settings."""
    from evoclaw.config.paths import default_data_folder

    return default_data_folder(env), orchestrator_settings(env).audit

"""An orchestrator's `evoclaw.toml`: agents, runs, policies, store and server."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

from evoclaw.api.settings import ServerSettings, check_public_url
from evoclaw.config.paths import default_data_folder, path_decoder, read_text
from evoclaw.config.shared_settings import (
    DEFAULT_MAX_RETRIES,
    REMOVED_KEYS,
    BrokerConfig,
    Engine,
    MaxRetries,
    McpConfig,
    Milliseconds,
    NonEmptyText,
    check_broker,
    check_capabilities,
    check_id,
)
from evoclaw.config.toml_document import KeyPath, TomlDocument, describe_unknown
from evoclaw.core.errors import ConfigError
from evoclaw.core.evolution_settings import AgentEvolution, ProposerName
from evoclaw.evolution.settings import EvolutionSettings
from evoclaw.governance.approvals import ApprovalSettings
from evoclaw.governance.budget.settings import BudgetSettings, check_budget
from evoclaw.governance.flow.settings import FlowSettings
from evoclaw.governance.network import NetworkSettings
from evoclaw.governance.rate_limits import RateSettings
from evoclaw.governance.rules.command_rules import PolicySettings
from evoclaw.observe.audit.settings import AuditSettings
from evoclaw.orchestrator.a2a.settings import A2aSettings, check_a2a
from evoclaw.orchestrator.agents.definitions import AgentConfig, AgentLimits, RunDefaults
from evoclaw.orchestrator.agents.memory import MemorySettings
from evoclaw.orchestrator.agents.workspace_text import WorkspaceText
from evoclaw.orchestrator.channels.settings import ChannelSettings, check_channels
from evoclaw.orchestrator.home_assistant.settings import (
    HomeAssistantSettings,
    check_home_assistant,
)
from evoclaw.orchestrator.notifications.settings import NotifySettings, check_notify
from evoclaw.orchestrator.runs.requests import RunSettings
from evoclaw.providers.embedded_settings import DEFAULT_EMBEDDED_SETTINGS, EmbeddedSettings
from evoclaw.sandbox.engines.registry import SandboxSettings
from evoclaw.store.settings import StoreSettings
from evoclaw.workflows.supervisor import WorkflowSettings

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
    _check_evolution(document, (*keys, "evolution"), agent.evolution)
    if agent.budget.per:
        problem = (
            "'per' is not known here: this budget limits one run; [budget.agent] limits all runs "
            "of an agent together"
        )
        raise document.error((*keys, "budget", "per"), problem)
    return _with_prompt(document, keys, agent)


def _check_evolution(document: TomlDocument, keys: KeyPath, settings: AgentEvolution) -> None:
    if len(set(settings.proposers)) != len(settings.proposers):
        problem = "evolution: a proposer is listed twice; remove one of them"
        raise document.error((*keys, "proposers"), problem)
    if settings.is_on and settings.max_runs_per_day < settings.runs_of_case:
        problem = (
            f"evolution: max_runs_per_day = {settings.max_runs_per_day} never allows to judge a "
            f"case: repeats = {settings.repeats} needs {settings.runs_of_case} runs, half of them "
            "with the candidate; raise max_runs_per_day, or lower repeats"
        )
        raise document.error((*keys, "max_runs_per_day"), problem)
    if not settings.is_on and settings != AgentEvolution():
        problem = (
            "evolution: without `proposers` these settings have no effect; add "
            f'proposers = ["{ProposerName.GEPA}"], or remove the table. '
            f"Known proposers: {', '.join(ProposerName)}"
        )
        raise document.error(keys, problem)


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


_TOOLS_TABLE_KEYS = {
    "enabled": ("orchestrator", "tool_loop_enabled"),
    "skills_path": ("orchestrator", "tools", "skills_path"),
    "enable_sandboxing": ("orchestrator", "tools", "enable_sandboxing"),
    "sandbox_engine": ("orchestrator", "tools", "sandbox_engine"),
    "permissions": ("orchestrator", "tools", "permissions"),
}
"""`[tools]` is another documented table for these keys."""
_EMPTY_AGENTS_TABLE = re.compile(r"^[ \t]*\[agents\][ \t]*$(?=\s*\[\[agents\]\])", re.MULTILINE)
"""Also documented, though invalid TOML: `[agents]` above `[[agents]]`."""
LIVE_TABLES = frozenset(
    {"agents", "approvals", "budget", "flow", "mcp", "network", "orchestrator", "policy", "rates"}
)
"""Tables that new runs use after a reload; active runs keep theirs."""
_PASSWORD_HINT = "set EVOCLAW_BROKER_PASSWORD, or name a file with password_file in [broker]"


class OrchestratorTools(Struct, frozen=True, kw_only=True):
    """Skills, sandbox and permissions of tools."""

    skills_path: Path
    """The folder of the skills."""
    enable_sandboxing: bool = True
    """False runs commands without a sandbox."""
    sandbox_engine: Engine | None = None
    """Overrides `[sandbox] engine`; not set: no override."""
    permissions: dict[str, bool] | tuple[NonEmptyText, ...] | None = None
    """The granted permissions: a table of true and false, or a list."""
    packages: tuple[NonEmptyText, ...] = ()
    """Installed Python packages whose tools are offered, by their entry points `evoclaw.tools`."""
    workspace_text: WorkspaceText = WorkspaceText.UNTRUSTED
    """Whether runs on this machine read AGENTS.md of their workspace: `untrusted` (as text of
    outsiders), `trusted` or `off`."""

    def with_fixed(self, running: OrchestratorTools) -> OrchestratorTools:
        """These settings with the keys of a running service that need a restart."""
        return replace(
            self,
            skills_path=running.skills_path,
            enable_sandboxing=running.enable_sandboxing,
            sandbox_engine=running.sandbox_engine,
            packages=running.packages,
        )

    @property
    def granted(self) -> frozenset[str] | None:
        """The permissions that agents may hold at most; None: no limit."""
        if isinstance(self.permissions, dict):
            return frozenset(name for name, granted in self.permissions.items() if granted)
        return None if self.permissions is None else frozenset(self.permissions)


class OrchestratorConfig(Struct, frozen=True, kw_only=True):
    """How runs are driven."""

    tool_loop_enabled: bool = True
    """False: no agent has tools."""
    max_tool_iterations: Annotated[int, Meta(ge=1, le=100)] = 10
    """The default turn limit of a run."""
    tool_error_limit: Annotated[int, Meta(ge=1, le=100)] = 3
    """The failed turns in a row that end a run."""
    max_retries: MaxRetries = DEFAULT_MAX_RETRIES
    """How often a failed request to a model's server is repeated."""
    calls_in_text: bool = True
    """Whether JSON in a model's text that names an offered tool is a call."""
    provider_packages: tuple[NonEmptyText, ...] = ()
    """Installed Python packages whose providers are used, by their entry points
    `evoclaw.providers`."""
    cheaper_models: tuple[str, ...] = ()
    """Fallback models when little of the budget is left, each cheaper than the one before."""
    require_receipts: bool = False
    """Reject results of devices without a valid receipt."""
    evidence: bool = False
    """Require answers to cite the receipts of the actions that they report."""
    default_agent: bool | None = None
    """Whether the agent `evoclaw` exists beside those of `[[agents]]`; by default yes, unless
    `[[channels]]`, `[server.jwt]` or `[[server.tokens]]` let in others than the owner."""
    default_tool_timeout_ms: Milliseconds | None = None
    """The timeout of calls that set none; default: the tool's own."""
    tools: OrchestratorTools


class OrchestratorBroker(BrokerConfig, frozen=True, kw_only=True):
    """The broker of an orchestrator: one that exists, or where the one of `evoclaw up` listens."""

    host: str = ""
    """Let the broker of `evoclaw up` listen here, with TLS: an address or name of this machine, or
    `lan` for all its networks; default: this machine only."""


class EvoClawConfig(Struct, frozen=True, kw_only=True):
    """The settings of `evoclaw.toml`, with defaults filled in."""

    orchestrator: OrchestratorConfig
    agents: tuple[AgentConfig, ...] = ()
    embedded: EmbeddedSettings = DEFAULT_EMBEDDED_SETTINGS
    broker: OrchestratorBroker = OrchestratorBroker()
    mcp: tuple[McpConfig, ...] = ()
    policy: PolicySettings = PolicySettings()
    flow: FlowSettings = FlowSettings()
    network: NetworkSettings = NetworkSettings()
    sandbox: SandboxSettings = SandboxSettings()
    approvals: ApprovalSettings = ApprovalSettings()
    rates: RateSettings = RateSettings()
    budget: BudgetSettings = BudgetSettings()
    audit: AuditSettings = AuditSettings()
    store: StoreSettings = StoreSettings()
    server: ServerSettings = ServerSettings()
    runs: RunSettings = RunSettings()
    memory: MemorySettings = MemorySettings()
    workflows: WorkflowSettings = WorkflowSettings()
    evolution: EvolutionSettings = EvolutionSettings()
    channels: tuple[ChannelSettings, ...] = ()
    notify: tuple[NotifySettings, ...] = ()
    home_assistant: HomeAssistantSettings = HomeAssistantSettings()
    a2a: A2aSettings = A2aSettings()
    data: Path
    """The data folder."""

    @property
    def run_defaults(self) -> RunDefaults:
        """What applies to the runs of all agents."""
        general = self.orchestrator
        return RunDefaults(
            tool_loop_enabled=general.tool_loop_enabled,
            max_tool_iterations=general.max_tool_iterations,
            tool_error_limit=general.tool_error_limit,
            evidence=general.evidence,
            granted=general.tools.granted,
            default_agent=self._has_default_agent,
        )

    @property
    def _has_default_agent(self) -> bool:
        if (chosen := self.orchestrator.default_agent) is not None:
            return chosen
        return not (self.channels or self.server.jwt or self.server.tokens)

    @property
    def sandbox_settings(self) -> SandboxSettings:
        """The sandbox settings, with the engine of `[orchestrator.tools]` if it is set."""
        tools = self.orchestrator.tools
        if not tools.enable_sandboxing:
            return replace(self.sandbox, engine=str(Engine.NONE))
        if tools.sandbox_engine is None:
            return self.sandbox
        return replace(self.sandbox, engine=str(tools.sandbox_engine))

    def reloaded(self, new: EvoClawConfig) -> ReloadedConfig:
        """These settings, with the tables of other ones that need no restart."""
        tools = new.orchestrator.tools.with_fixed(self.orchestrator.tools)
        fixed = () if tools == new.orchestrator.tools else ("orchestrator.tools",)
        new = replace(new, orchestrator=replace(new.orchestrator, tools=tools))
        if new.network.commands and not self.network.commands:
            # The gateway of commands is started with the service, if any host is listed.
            new = replace(new, network=replace(new.network, commands=()))
            fixed = (*fixed, "network.commands")
        names = [
            name for name in self.__struct_fields__ if getattr(self, name) != getattr(new, name)
        ]
        changed = tuple(name for name in names if name in LIVE_TABLES)
        config = replace(self, **{name: getattr(new, name) for name in changed})
        restart = (*fixed, *(name for name in names if name not in changed))
        return ReloadedConfig(config, changed, restart)


class ReloadedConfig(Struct, frozen=True):
    """The settings after a reload, and the tables of `evoclaw.toml` that differ."""

    config: EvoClawConfig
    changed: tuple[str, ...]
    """Tables that are in use now."""
    needs_restart: tuple[str, ...]
    """Tables that take effect after a restart."""


def read_evoclaw_toml(path: Path | None, env: Mapping[str, str]) -> EvoClawConfig:
    """Read an orchestrator's settings; the variable `EVOCLAW_<TABLE>_<KEY>` overrides a key."""
    return parse_evoclaw_toml("" if path is None else read_text(path), path, env)


def parse_evoclaw_toml(text: str, path: Path | None, env: Mapping[str, str]) -> EvoClawConfig:
    """The settings in the text of a file; see `read_evoclaw_toml`."""
    name = "the settings" if path is None else str(path)
    document = TomlDocument(name, _EMPTY_AGENTS_TABLE.sub("", text), password_hint=_PASSWORD_HINT)
    document.move_table("tools", _TOOLS_TABLE_KEYS)
    document.refuse(REMOVED_KEYS)
    document.check_keys(EvoClawConfig)
    document.apply_environment(EvoClawConfig, "EVOCLAW", env, path_decoder(Path.cwd(), env))
    home = default_data_folder(env)
    data = document.set_default(("data",), str(home))
    document.set_default(("orchestrator", "tools", "skills_path"), f"{data}/skills")
    folder = Path.cwd() if path is None else path.parent
    config = document.convert(EvoClawConfig, path_decoder(folder, env))
    if config.data != home:
        problem = (
            f"data must be {home}, the folder of this file; set EVOCLAW_HOME to use another folder"
        )
        raise document.error(("data",), problem)
    check_broker(document, config.broker)
    if config.broker.host and config.broker.is_configured:
        problem = "broker.host is for the broker of `evoclaw up`; remove it, or the other broker"
        raise document.error(("broker", "host"), problem)
    check_budget(config.budget)
    check_channels(config.channels)
    check_home_assistant(config.home_assistant)
    check_a2a(config.a2a)
    check_public_url(config.server)
    check_notify(config.notify, config.server.public_url)
    return replace(config, agents=check_agents(document, config.agents))

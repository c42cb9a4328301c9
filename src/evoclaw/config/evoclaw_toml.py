"""An orchestrator's `evoclaw.toml`: how runs are driven, and the agents there are."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

from evoclaw.api.settings import ServerSettings
from evoclaw.config.agents import AgentConfig, checked_agents
from evoclaw.config.broker import BrokerConfig, check_broker
from evoclaw.config.documents import Document
from evoclaw.config.places import default_data_folder, path_decoder, read_text
from evoclaw.config.values import Engine, Milliseconds, Word
from evoclaw.governance.approvals import ApprovalSettings
from evoclaw.governance.budget.settings import BudgetSettings, check_budget
from evoclaw.governance.flow.settings import FlowSettings
from evoclaw.governance.network import NetworkSettings
from evoclaw.governance.rates import RateSettings
from evoclaw.governance.rules.settings import PolicySettings
from evoclaw.observe.audit.settings import AuditSettings
from evoclaw.orchestrator.agents.memory import MemorySettings
from evoclaw.orchestrator.channels.settings import ChannelSettings, check_channels
from evoclaw.orchestrator.errands import RunSettings
from evoclaw.sandbox.engines.registry import SandboxSettings
from evoclaw.store.settings import StoreSettings
from evoclaw.workflows.supervising import WorkflowSettings

_TOOLS = {
    "enabled": ("orchestrator", "tool_loop_enabled"),
    "skills_path": ("orchestrator", "tools", "skills_path"),
    "enable_sandboxing": ("orchestrator", "tools", "enable_sandboxing"),
    "sandbox_engine": ("orchestrator", "tools", "sandbox_engine"),
    "permissions": ("orchestrator", "tools", "permissions"),
}
"""`[tools]` is the other documented place of these."""
_AGENTS = re.compile(r"^[ \t]*\[agents\][ \t]*$(?=\s*\[\[agents\]\])", re.MULTILINE)
"""Documented too, though no TOML: a table's head above the array of that name."""
_PASSWORD = "set EVOCLAW_BROKER_PASSWORD, or name a file with password_file in [broker]"


class OrchestratorTools(Struct, frozen=True, kw_only=True):
    """How tools are found and sandboxed."""

    skills_path: Path
    """Where the skills are."""
    enable_sandboxing: bool = True
    """False runs commands without a sandbox."""
    sandbox_engine: Engine | None = None
    """None is not said."""
    permissions: dict[str, bool] | tuple[Word, ...] | None = None
    """A table of true and false, or a list of those that are granted."""

    @property
    def granted(self) -> frozenset[str] | None:
        """What any agent may hold at most; None is no such limit. Left out is not granted."""
        if isinstance(self.permissions, dict):
            return frozenset(name for name, granted in self.permissions.items() if granted)
        return None if self.permissions is None else frozenset(self.permissions)


class OrchestratorConfig(Struct, frozen=True, kw_only=True):
    """How runs are driven."""

    tool_loop_enabled: bool = True
    """False is no tools, for nobody."""
    max_tool_iterations: Annotated[int, Meta(ge=1, le=100)] = 10
    """Turns of a run at most, where nobody says otherwise."""
    tool_error_limit: Annotated[int, Meta(ge=1, le=100)] = 3
    """Failed turns in a row that end a run."""
    cheaper_models: tuple[str, ...] = ()
    """Who answers instead when little of a budget is left, each cheaper than the one before."""
    require_receipts: bool = False
    """Take no result of a device whose receipt is missing or wrong."""
    evidence: bool = False
    """An answer must cite the receipts of what it says was done."""
    default_tool_timeout_ms: Milliseconds | None = None
    """For calls that name none; each tool's own if not given."""
    tools: OrchestratorTools


class McpConfig(Struct, frozen=True, kw_only=True):
    """One MCP server of `[[mcp]]`, whose tools are used here."""

    name: str
    """How it is called here."""
    command: tuple[str, ...] = ()
    """The program and its arguments."""
    url: str = ""
    """Where it speaks streamable HTTP, instead of a command."""
    env: dict[str, str] = {}
    """What its process finds in the environment, beside the usual."""
    headers: dict[str, str] = {}
    """Sent with every request to its address."""
    permissions: frozenset[Word] = frozenset({"network"})
    """What each of its tools needs."""
    trust_hints: bool = False
    """Believe what it says of its tools, as that they only read."""


class EvoClawConfig(Struct, frozen=True, kw_only=True):
    """What `evoclaw.toml` says, with everything left out filled in."""

    orchestrator: OrchestratorConfig
    agents: tuple[AgentConfig, ...] = ()
    broker: BrokerConfig = BrokerConfig()
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
    channels: tuple[ChannelSettings, ...] = ()
    data: Path
    """Where everything is kept that is not said to be elsewhere."""

    @property
    def sandbox_settings(self) -> SandboxSettings:
        """What commands run in, in whichever of the documented places that was said."""
        said = self.orchestrator.tools
        if not said.enable_sandboxing:
            return replace(self.sandbox, engine=str(Engine.NONE))
        if said.sandbox_engine is None:
            return self.sandbox
        return replace(self.sandbox, engine=str(said.sandbox_engine))


def read_evoclaw_toml(path: Path | None, env: Mapping[str, str]) -> EvoClawConfig:
    """Read an orchestrator's settings; `EVOCLAW_<TABLE>_<KEY>` overrides."""
    name, text = ("the settings", "") if path is None else (str(path), read_text(path))
    document = Document(name, _AGENTS.sub("", text), password=_PASSWORD)
    document.lift("tools", _TOOLS)
    document.check_keys(EvoClawConfig)
    document.override(EvoClawConfig, "EVOCLAW", env, path_decoder(Path.cwd(), env))
    data = document.fill(("data",), str(default_data_folder(env)))
    document.fill(("orchestrator", "tools", "skills_path"), f"{data}/skills")
    folder = Path.cwd() if path is None else path.parent
    config = document.convert(EvoClawConfig, path_decoder(folder, env))
    check_broker(document, config.broker)
    check_budget(config.budget)
    check_channels(config.channels)
    return replace(config, agents=checked_agents(document, config.agents))

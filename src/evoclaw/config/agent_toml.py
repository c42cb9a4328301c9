"""An edge's `agent.toml`: who it is, what it may do, whom it obeys."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from socket import gethostname
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

from evoclaw.config.broker import BrokerConfig, check_broker
from evoclaw.config.documents import Document, unknown
from evoclaw.config.places import default_data_folder, path_decoder, read_text, write_private
from evoclaw.config.values import Engine, Milliseconds, Word, check_capabilities, check_id
from evoclaw.config.writing import to_toml
from evoclaw.core.errors import ConfigError
from evoclaw.core.messages import JSON
from evoclaw.edge.advert import default_summary
from evoclaw.governance.autonomy import Level
from evoclaw.governance.budget.settings import BudgetSettings, check_budget
from evoclaw.governance.flow.settings import FlowSettings
from evoclaw.governance.network import NetworkSettings
from evoclaw.governance.rates import RateSettings
from evoclaw.governance.rules.settings import PolicySettings
from evoclaw.observe.audit.settings import AuditSettings
from evoclaw.sandbox.engines.registry import SandboxSettings

COMMANDS = (
    "tool", "prompt", "cancel", "ping", "tools_list", "execute", "update_strategy",
    "update_genome", "get_metrics", "evolution", "job", "shutdown",
)  # fmt: skip
"""What an edge can be told to take or to refuse."""

UNLIMITED = RateSettings(per_minute=0, burst=0)

_AGENT = {
    "id": ("agent_id",), "type": ("agent_type",), "summary": ("summary",),
    "capabilities": ("capabilities",), "level": ("level",),
}  # fmt: skip
_PASSWORD = "set EVOCLAW_EDGE_PASSWORD, or name a file with password_file in [broker]"
_COMMENTS = {
    "agent_id": "Its name on the broker: every machine has its own.",
    "summary": "One line on what it can do; a model reads it to decide whom to ask.",
    "capabilities": "What tools may do here; nothing listed is nothing allowed.",
    "level": "Its own last word on tools: read_only, supervised or full.",
    "workspace": "The folder that tools work in.",
    "data": "Where it keeps its journal and its keys.",
    "orchestrator_keys": "Whose commands it takes: the public keys of its orchestrators.",
    "allow_unsigned": "true takes commands from whoever the broker lets in.",
    "commands": "What it takes: true, false, or the keys of those who may send it.",
    "broker": "Passwords do not belong here: name a password_file, or set EVOCLAW_EDGE_PASSWORD.",
    "limits": "How much it takes on at once, and how much it keeps.",
    "model": "The model that answers prompts; without one only tools are served.",
}


class ToolPaths(Struct, frozen=True, kw_only=True):
    """Where tools are found."""

    bin: Path | None = None


class EdgeTools(Struct, frozen=True, kw_only=True):
    """How tools run on an edge."""

    timeout_ms: Milliseconds | None = None
    """For calls that name none; each tool's own if not given."""
    sandboxing: Engine | None = None
    """None is not said."""
    only: tuple[Word, ...] | None = None
    """The tools offered; all that the capabilities allow if not given."""
    paths: ToolPaths = ToolPaths()


class EdgeLimits(Struct, frozen=True, kw_only=True):
    """How much an edge takes on, and how much it keeps."""

    concurrency: Annotated[int, Meta(ge=1, le=64)] = 4
    """Commands served at the same time."""
    queue: Annotated[int, Meta(ge=0, le=100_000)] = 100
    """Commands that may wait; the next one is refused."""
    output_bytes: Annotated[int, Meta(ge=1024, le=200_000)] = 65_536
    """What of a result is sent; the whole stays here as an artifact."""
    artifact_bytes: Annotated[int, Meta(ge=1024, le=1_000_000_000)] = 10_000_000
    """What of a result stays here; the rest is only counted."""
    dedupe_hours: Annotated[int, Meta(ge=1, le=8760)] = 24
    """How long a command that ended is remembered, so that it is not run again."""


class ModelConfig(Struct, frozen=True, kw_only=True):
    """Which model answers prompts."""

    name: str = ""
    """`provider/model`; without one the edge runs tools but answers no prompts."""


class EdgeConfig(Struct, frozen=True, kw_only=True):
    """What `agent.toml` says, with everything left out filled in."""

    agent_id: str
    agent_type: str = "edge"
    summary: Annotated[str, Meta(max_length=1000)] = ""
    """The one line it says of itself."""
    capabilities: frozenset[Word] = frozenset()
    """Permissions it holds; none means no tools, `"*"` all."""
    level: Level = Level.FULL
    """The edge's own last word on what tools may do."""
    workspace: Path
    data: Path
    heartbeat_s: Annotated[int, Meta(ge=1, le=3600)] = 30
    orchestrator_keys: tuple[Word, ...] = ()
    """Public keys; given any, a command needs a grant that one of them signed."""
    allow_unsigned: bool = False
    commands: tuple[str, ...] | dict[str, bool | tuple[Word, ...]] = {}
    """A list: only these. A table: true, false, or the keys of those who may send it."""
    broker: BrokerConfig = BrokerConfig()
    tools: EdgeTools = EdgeTools()
    limits: EdgeLimits = EdgeLimits()
    model: ModelConfig = ModelConfig()
    policy: PolicySettings = PolicySettings()
    flow: FlowSettings = FlowSettings()
    network: NetworkSettings = NetworkSettings()
    sandbox: SandboxSettings = SandboxSettings()
    audit: AuditSettings = AuditSettings()
    rates: RateSettings = UNLIMITED
    """Its own, beside those of whoever asks."""
    budget: BudgetSettings | None = None
    """What may be done here, whoever asks: above all `[budget.actions]`. None leaves the counting
    to whoever drives the run."""

    @property
    def sandbox_settings(self) -> SandboxSettings:
        """What commands run in, in whichever of the documented places that was said."""
        said = self.tools.sandboxing
        return self.sandbox if said is None else replace(self.sandbox, engine=str(said))

    def accepts(self, command: str, signer: str = "") -> bool:
        """Whether one of `COMMANDS` is taken from whoever signed it; `""` is nobody."""
        if isinstance(self.commands, tuple):
            return command in self.commands
        allowed = self.commands.get(command, True)
        return allowed if isinstance(allowed, bool) else signer in allowed

    @property
    def accepted(self) -> frozenset[str]:
        """The commands that are taken from anyone at all."""
        if isinstance(self.commands, tuple):
            return frozenset(self.commands)
        return frozenset(name for name in COMMANDS if self.commands.get(name, True))


def read_agent_toml(path: Path | None, env: Mapping[str, str]) -> EdgeConfig:
    """Read an edge's settings.

    `EVOCLAW_EDGE_<KEY>` overrides (`EVOCLAW_EDGE_BROKER_URL` for a key in a table); with no path
    there is nothing else. The password is had by `broker_password`.
    """
    if path is None:
        return _read("the settings", "", Path.cwd(), env)
    return _read(str(path), read_text(path), path.parent, env)


def write_agent_toml(path: Path, values: Mapping[str, JSON], *, replace: bool = False) -> None:
    """Write an `agent.toml` that reads back as these values, named as in the file.

    It is written whole or not at all, and only its owner may read it.
    """
    text = "# What this machine is to EvoClaw.\n\n" + to_toml(values, _COMMENTS)
    _read(str(path), text, path.parent, {})
    if path.exists() and not replace:
        raise ConfigError(f"{path} is there already; move it away first")
    write_private(path, text)


def _read(name: str, text: str, folder: Path, env: Mapping[str, str]) -> EdgeConfig:
    document = Document(name, text, password=_PASSWORD)
    _take_summary(document)
    document.lift("agent", _AGENT)
    _take_summary(document)
    document.check_keys(EdgeConfig)
    document.override(EdgeConfig, "EVOCLAW_EDGE", env, path_decoder(Path.cwd(), env))
    agent_id = document.fill(("agent_id",), _own_name())
    agent_type = document.fill(("agent_type",), "edge")
    check_id(document, ("agent_id",), agent_id)
    check_id(document, ("agent_type",), agent_type)
    summary = document.fill(("summary",), default_summary(str(agent_id), str(agent_type)))
    if isinstance(summary, str):
        document.values["summary"] = " ".join(summary.split())
    data = document.fill(("data",), str(default_data_folder(env) / "edge" / str(agent_id)))
    document.fill(("workspace",), f"{data}/workspace")
    config = document.convert(EdgeConfig, path_decoder(folder, env))
    check_capabilities(document, ("capabilities",), config.capabilities)
    check_broker(document, config.broker)
    if config.budget is not None:
        check_budget(config.budget)
    _check_trust(document, config)
    return config


def _take_summary(document: Document) -> None:
    """A text under `capabilities` is the summary; permissions are a list."""
    if isinstance(document.values.get("capabilities"), str):
        document.rename("capabilities", "summary")


def _check_trust(document: Document, config: EdgeConfig) -> None:
    """Fail closed: commands from afar are signed, unless it is said that they need not be."""
    keys = config.orchestrator_keys
    if not (keys or config.allow_unsigned or config.broker.is_here):
        problem = (
            "the broker is another machine's and orchestrator_keys is empty, so that whoever it "
            "lets in could run tools here; give the keys, or say allow_unsigned = true"
        )
        raise document.error(("broker", "url"), problem)
    if keys and config.allow_unsigned:
        problem = "allow_unsigned = true contradicts orchestrator_keys; remove one of them"
        raise document.error(("allow_unsigned",), problem)
    for name in config.commands:
        if name not in COMMANDS:
            raise document.error(("commands", name), unknown("command", name, COMMANDS))
    if isinstance(config.commands, dict):
        for name, senders in config.commands.items():
            for key in () if isinstance(senders, bool) else senders:
                if key not in keys:
                    problem = f"commands.{name}: {key!r} is not one of the orchestrator_keys"
                    raise document.error(("commands", name), problem)


def _own_name() -> str:
    """The machine's name, as far as it can be an id."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", gethostname()).strip("-_")[:64] or "edge"

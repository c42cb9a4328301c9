"""An edge's `agent.toml`: identity, capabilities, broker and trusted orchestrators."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from socket import gethostname
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

from evoclaw.config.paths import (
    default_data_folder,
    harmless_files,
    path_decoder,
    read_text,
)
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
from evoclaw.config.toml_document import KeyPath, TomlDocument, describe_unknown, to_toml
from evoclaw.core.errors import ConfigError
from evoclaw.core.messages import JSON
from evoclaw.edge.device import default_summary
from evoclaw.edge.model_receiver import ACCEPTED_MODEL, DEFAULT_ACCEPTED_MODELS
from evoclaw.governance.autonomy import Level
from evoclaw.governance.budget.settings import BudgetSettings, check_budget
from evoclaw.governance.flow.settings import FlowSettings
from evoclaw.governance.network import NetworkSettings
from evoclaw.governance.rate_limits import RateSettings
from evoclaw.governance.rules.command_rules import PolicySettings
from evoclaw.observe.audit.settings import AuditSettings
from evoclaw.providers.embedded_settings import DEFAULT_EMBEDDED_SETTINGS, EmbeddedSettings
from evoclaw.sandbox.engines.registry import SandboxSettings
from evoclaw.transport.private_files import write_private

COMMANDS = (
    "tool", "prompt", "cancel", "ping", "tools_list", "execute", "update_strategy",
    "update_genome", "get_metrics", "evolution", "job", "nested_result", "model_chunk",
    "model_push", "shutdown",
)  # fmt: skip
"""The commands that `commands` can allow or refuse."""

NO_RATE_LIMIT = RateSettings(per_minute=0, burst=0)

_AGENT_TABLE_KEYS = {
    "id": ("agent_id",), "type": ("agent_type",), "summary": ("summary",),
    "capabilities": ("capabilities",), "level": ("level",),
}  # fmt: skip
_SET_IN_ORCHESTRATOR = "has no effect on an edge; set it in the evoclaw.toml of the orchestrator"
_MODEL_KINDS = ("turns", "minutes", "tokens", "dollars")
"""What only the runs of an orchestrator spend; an edge counts calls, files, lines and bytes."""
WITHOUT_EFFECT: Mapping[KeyPath, str] = {
    **{("flow", key): _SET_IN_ORCHESTRATOR for key in ("preset", "prose", "words")},
    ("rates", "shared"): "has no effect on an edge: it is one process; remove it",
    **{
        ("budget", key): _SET_IN_ORCHESTRATOR
        for key in (
            *_MODEL_KINDS, "warn_at", "ask_at", "unattended", "unpriced", "tell_at", "user",
            "agent",
        )
    },
    **{("budget", "tenant", key): _SET_IN_ORCHESTRATOR for key in _MODEL_KINDS},
}  # fmt: skip
"""Keys of tables that both files have, which only mean something in `evoclaw.toml`."""
_PASSWORD_HINT = "set EVOCLAW_EDGE_PASSWORD, or name a file with password_file in [broker]"
_COMMENTS = {
    "agent_id": "The id of this edge on the broker, unique for each machine.",
    "summary": "What this edge can do, in one line; a model reads it to choose an edge.",
    "capabilities": "The permissions of tools on this edge; an empty list allows nothing.",
    "level": "The autonomy level that this edge enforces: read_only, supervised or full.",
    "workspace": "The working folder of tools.",
    "read_roots": "Folders and files besides the workspace that tools may read.",
    "data": "The folder of the journal and the keys.",
    "orchestrator_keys": "The public keys of the orchestrators whose commands it accepts.",
    "allow_unsigned": "true accepts unsigned commands from every client of the broker.",
    "commands": "For each command: true, false, or the public keys of allowed senders.",
    "accept_models": "The model files that an orchestrator may install here.",
    "broker": "Put no password here: set password_file or EVOCLAW_EDGE_PASSWORD.",
    "limits": "Limits of concurrency, queue and storage.",
    "model": "The model that answers prompts; without one the edge only runs tools.",
}


class ToolPaths(Struct, frozen=True, kw_only=True):
    """Where programs of tools are found."""

    bin: Path | None = None
    """The `bin` folder of a skill: its programs run the tools that the `skill.toml` beside it
    declares, also in place of built-in tools of the same name."""


class EdgeToolsConfig(Struct, frozen=True, kw_only=True):
    """How tools run on an edge."""

    timeout_ms: Milliseconds | None = None
    """The timeout of calls that set none; default: the tool's own."""
    sandboxing: Engine | None = None
    """Overrides `[sandbox] engine`; not set: no override."""
    only: tuple[NonEmptyText, ...] | None = None
    """The offered tools; default: all that the capabilities allow."""
    skills_path: Path | None = None
    """The folder of skills whose programs are tools of this edge; not set: none."""
    tools_path: Path | None = None
    """The folder of your own Python tools; not set: none."""
    packages: tuple[NonEmptyText, ...] = ()
    """Installed Python packages whose tools this edge offers."""
    paths: ToolPaths = ToolPaths()

    @property
    def folders(self) -> dict[str, Path]:
        """The folders that this edge loads code from, by key of `[tools]`."""
        found = {
            "skills_path": self.skills_path,
            "tools_path": self.tools_path,
            "paths.bin": self.paths.bin,
        }
        return {key: folder for key, folder in found.items() if folder is not None}


class EdgeLimits(Struct, frozen=True, kw_only=True):
    """Limits of concurrency, queue and storage of an edge."""

    concurrency: Annotated[int, Meta(ge=1, le=64)] = 4
    """Commands that run at the same time."""
    queue: Annotated[int, Meta(ge=0, le=100_000)] = 100
    """Commands that may be queued; further ones are refused."""
    output_bytes: Annotated[int, Meta(ge=1024, le=200_000)] = 65_536
    """The part of a result that is sent; the full result stays on the edge as an artifact."""
    artifact_bytes: Annotated[int, Meta(ge=1024, le=1_000_000_000)] = 10_000_000
    """The part of a result that the edge stores; the rest is only counted."""
    dedupe_hours: Annotated[int, Meta(ge=1, le=8760)] = 24
    """How long a finished command is remembered, so that it does not run twice."""
    undo_hours: Annotated[int, Meta(ge=0, le=8760)] = 168
    """How long the content of changed files is kept, so that a run can be undone; 0: not at all."""
    undo_bytes: Annotated[int, Meta(ge=0, le=1_000_000_000)] = 10_000_000
    """The largest file whose content is kept; a larger one cannot be restored."""


class ModelConfig(Struct, frozen=True, kw_only=True):
    """The model that answers prompts."""

    name: str = ""
    """`provider/model`; without one the edge runs tools but answers no prompts."""
    max_retries: MaxRetries = DEFAULT_MAX_RETRIES
    """How often a failed request to the model's server is repeated."""
    calls_in_text: bool = True
    """Whether JSON in the model's text that names an offered tool is a call."""


class EdgeConfig(Struct, frozen=True, kw_only=True):
    """The settings of `agent.toml`, with defaults filled in."""

    agent_id: str
    agent_type: str = "edge"
    summary: Annotated[str, Meta(max_length=1000)] = ""
    """What this edge can do, in one line."""
    capabilities: frozenset[NonEmptyText] = frozenset()
    """The permissions of tools on this edge; empty: no tools, `"*"`: all."""
    level: Level = Level.FULL
    """The autonomy level that the edge itself enforces."""
    workspace: Path
    read_roots: tuple[Path, ...] = ()
    """Folders and files besides the workspace that tools may read."""
    data: Path
    key_file: Path | None = None
    """The key that encrypts the journal; created if it is missing. Not set:
    `~/.config/evoclaw/edge.key` for data in `~/.evoclaw`, otherwise no encryption."""
    heartbeat_s: Annotated[int, Meta(ge=1, le=3600)] = 30
    orchestrator_keys: tuple[NonEmptyText, ...] = ()
    """Public keys; if any is set, each command needs a grant signed by one of them."""
    allow_unsigned: bool = False
    commands: tuple[str, ...] | dict[str, bool | tuple[NonEmptyText, ...]] = {}
    """A list allows only these; a table has true, false, or the public keys of allowed senders."""
    accept_models: tuple[str, ...] = DEFAULT_ACCEPTED_MODELS
    """The model files that an orchestrator may install here (`evoclaw models push`): `"catalogue"`
    for those of the catalogue, `"sha256:<digest>"` for this one, `"*"` for any; empty: none."""
    broker: BrokerConfig = BrokerConfig()
    tools: EdgeToolsConfig = EdgeToolsConfig()
    mcp: tuple[McpConfig, ...] = ()
    """MCP servers whose tools this edge offers."""
    limits: EdgeLimits = EdgeLimits()
    model: ModelConfig = ModelConfig()
    embedded: EmbeddedSettings = DEFAULT_EMBEDDED_SETTINGS
    policy: PolicySettings = PolicySettings()
    flow: FlowSettings = FlowSettings()
    network: NetworkSettings = NetworkSettings()
    sandbox: SandboxSettings = SandboxSettings()
    audit: AuditSettings = AuditSettings()
    rates: RateSettings = NO_RATE_LIMIT
    """Limits of this edge, in addition to those of the orchestrator."""
    budget: BudgetSettings | None = None
    """The budget of this edge for all orchestrators, above all `[budget.actions]`. None: only the
    orchestrator counts."""

    @property
    def sandbox_settings(self) -> SandboxSettings:
        """The sandbox settings, with the engine of `[tools] sandboxing` if it is set."""
        engine = self.tools.sandboxing
        return self.sandbox if engine is None else replace(self.sandbox, engine=str(engine))

    @property
    def senders(self) -> dict[str, tuple[str, ...]]:
        """By command: the public keys of its allowed senders, where `commands` names any."""
        if isinstance(self.commands, tuple):
            return {}
        return {name: keys for name, keys in self.commands.items() if isinstance(keys, tuple)}

    @property
    def accepted(self) -> frozenset[str]:
        """The commands that are accepted from at least one sender."""
        if isinstance(self.commands, tuple):
            return frozenset(self.commands)
        return frozenset(name for name in COMMANDS if self.commands.get(name, True))


def read_agent_toml(path: Path | None, env: Mapping[str, str]) -> EdgeConfig:
    """Read an edge's settings.

    `EVOCLAW_EDGE_<KEY>` overrides a key (`EVOCLAW_EDGE_BROKER_URL` for a key in a table). Without
    a path, only these variables are read. `broker_password` reads the password.
    """
    if path is None:
        return _read("the settings", "", Path.cwd(), env)
    return _read(str(path), read_text(path), path.parent, env)


def write_agent_toml(path: Path, values: Mapping[str, JSON], *, replace: bool = False) -> None:
    """Write an `agent.toml` with these values, after checking that they are valid.

    The write is atomic, and only the owner may read the file.
    """
    text = "# Settings of this EvoClaw edge.\n\n" + to_toml(values, _COMMENTS)
    _read(str(path), text, path.parent, {})
    if path.exists() and not replace:
        raise ConfigError(f"{path} already exists; move it away first")
    write_private(path, text.encode())


def _read(name: str, text: str, folder: Path, env: Mapping[str, str]) -> EdgeConfig:
    document = TomlDocument(name, text, password_hint=_PASSWORD_HINT)
    _move_summary(document)
    document.move_table("agent", _AGENT_TABLE_KEYS)
    _move_summary(document)
    document.refuse(REMOVED_KEYS)
    document.check_keys(EdgeConfig)
    document.apply_environment(EdgeConfig, "EVOCLAW_EDGE", env, path_decoder(Path.cwd(), env))
    document.refuse(WITHOUT_EFFECT)
    agent_id = document.set_default(("agent_id",), machine_name())
    agent_type = document.set_default(("agent_type",), "edge")
    check_id(document, ("agent_id",), agent_id)
    check_id(document, ("agent_type",), agent_type)
    summary = document.set_default(("summary",), default_summary(str(agent_id), str(agent_type)))
    if isinstance(summary, str):
        document.values["summary"] = " ".join(summary.split())
    data = document.set_default(("data",), str(default_data_folder(env) / "edge" / str(agent_id)))
    document.set_default(("workspace",), f"{data}/workspace")
    document.set_default(("read_roots",), [*harmless_files()])
    config = document.convert(EdgeConfig, path_decoder(folder, env))
    for path in config.read_roots:
        if not path.exists():
            problem = f"read_roots: {str(path)!r} does not exist; create it, or remove it here"
            raise document.error(("read_roots",), problem)
    check_capabilities(document, ("capabilities",), config.capabilities)
    check_broker(document, config.broker)
    if config.budget is not None:
        check_budget(config.budget)
    _check_trust(document, config)
    _check_accepted_models(document, config)
    _check_tool_folders(document, config)
    return config


def _move_summary(document: TomlDocument) -> None:
    """Read a string under `capabilities` as the summary: permissions are a list."""
    if isinstance(document.values.get("capabilities"), str):
        document.rename_key("capabilities", "summary")


def _check_trust(document: TomlDocument, config: EdgeConfig) -> None:
    """Fail closed: with a remote broker, require signed commands or an explicit opt-out."""
    keys = config.orchestrator_keys
    if not (keys or config.allow_unsigned or config.broker.is_local):
        problem = (
            "the broker is on another machine and orchestrator_keys is empty, so every client of "
            "the broker could run tools here; set orchestrator_keys, or allow_unsigned = true"
        )
        raise document.error(("broker", "url"), problem)
    if keys and config.allow_unsigned:
        problem = "allow_unsigned = true contradicts orchestrator_keys; remove one of them"
        raise document.error(("allow_unsigned",), problem)
    for name in config.commands:
        if name not in COMMANDS:
            raise document.error(("commands", name), describe_unknown("command", name, COMMANDS))
    if isinstance(config.commands, dict):
        for name, senders in config.commands.items():
            for key in () if isinstance(senders, bool) else senders:
                if key not in keys:
                    problem = f"commands.{name}: {key!r} is not one of the orchestrator_keys"
                    raise document.error(("commands", name), problem)


def _check_accepted_models(document: TomlDocument, config: EdgeConfig) -> None:
    """Refuse what is no kind of model: a misspelt entry would silently allow nothing."""
    for accepted in config.accept_models:
        if not ACCEPTED_MODEL.fullmatch(accepted):
            problem = (
                f"accept_models: {accepted!r} must be 'catalogue', 'sha256:' and the 64 digits of "
                "a digest, or '*'"
            )
            raise document.error(("accept_models",), problem)


def _check_tool_folders(document: TomlDocument, config: EdgeConfig) -> None:
    """Refuse folders of code that tools can write to: a call could add a tool of its own."""
    writable = (config.workspace, *(Path(path).expanduser() for path in config.sandbox.writable))
    for key, folder in config.tools.folders.items():
        for open_folder in writable:
            if folder.resolve().is_relative_to(open_folder.resolve()):
                problem = (
                    f"tools.{key}: '{folder}' lies inside '{open_folder}', where calls can change "
                    "it; name a folder outside"
                )
                raise document.error(("tools", *key.split(".")), problem)
    names = [server.name for server in config.mcp]
    for number, name in enumerate(names):
        if name in names[:number]:
            problem = f"two MCP servers have the name {name!r}; rename one"
            raise document.error(("mcp", str(number), "name"), problem)


def edge_name(data: Path) -> str:
    """The name of this machine's own edge: stored at the first start, because host names change."""
    stored = data / "edge.name"
    if stored.exists():
        return read_text(stored).strip()
    # Earlier versions called this edge `local`: it keeps its journal and its receipts.
    name = "local" if (data / "edge" / "local").exists() else machine_name()
    write_private(stored, name.encode())
    return name


def machine_name() -> str:
    """The host name of the machine, as a valid id."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", gethostname()).strip("-_")[:64] or "edge"

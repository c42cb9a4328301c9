"""Write docs/reference/*.md from the code: `make reference`.

A test compares what is stored with what this makes. Nothing here depends on the Python version,
the machine or the time, so the pages only change when the code does.
"""

# pyright: strict

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, cast, get_args

import click
import msgspec

from evoclaw.api.settings import ServerSettings, TokenFile
from evoclaw.cli import exits
from evoclaw.cli.main import GROUPS, command_line
from evoclaw.cli.options import ExclusiveCommand
from evoclaw.core.agent import ITERATIVE_SETTINGS, Agent, LoopSettings
from evoclaw.core.errors import ProviderErrorKind
from evoclaw.core.events import Event, Record, StopReason
from evoclaw.core.loop import run_loop
from evoclaw.core.messages import (
    ErrorBlock,
    ErrorKind,
    Finish,
    ImageBlock,
    Reply,
    SystemMessage,
    TextBlock,
    ToolCall,
    ToolResult,
    Usage,
    UserMessage,
    user,
)
from evoclaw.core.metrics import RunMetrics
from evoclaw.core.ports import Decision, Ports
from evoclaw.core.profile import CallStyle, Profile
from evoclaw.core.run import Bus, RunResult, recorded
from evoclaw.core.state import new_run
from evoclaw.core.tools import Effect, Tool
from evoclaw.edge.commands import ALL_COMMANDS, CONVERSATION_COMMANDS
from evoclaw.edge.device import UNSIGNED_COMMANDS, DeviceLimits
from evoclaw.edge.joining import JoinReply
from evoclaw.edge.model_files import MAX_CHUNK_BYTES
from evoclaw.edge.model_receiver import IDLE_TIMEOUT_S
from evoclaw.executors.local import LocalExecutor
from evoclaw.governance.approvals import ApprovalSettings
from evoclaw.governance.autonomy import Level
from evoclaw.governance.budget.settings import BudgetSettings
from evoclaw.governance.flow.settings import EdgeRule, FlowSettings, Preset
from evoclaw.governance.network import NetworkSettings
from evoclaw.governance.permissions import Permissions
from evoclaw.governance.rate_limits import RateSettings
from evoclaw.governance.rules.command_rules import PolicySettings
from evoclaw.observe.audit.settings import AuditSettings
from evoclaw.orchestrator.agents.definitions import AgentConfig, AgentLimits
from evoclaw.orchestrator.agents.memory import MemorySettings
from evoclaw.orchestrator.channels.settings import ChannelSettings, WebhookSettings
from evoclaw.orchestrator.fleet.fleet import MAX_MISSED_HEARTBEATS
from evoclaw.orchestrator.fleet.join_handler import JoinRequest
from evoclaw.orchestrator.notifications.settings import (
    DiscordSettings,
    EmailSettings,
    NotifyMqttSettings,
    NotifySettings,
    NotifyWebhookSettings,
    NtfySettings,
    SlackSettings,
    TelegramSettings,
    WebPushSettings,
)
from evoclaw.orchestrator.people.jwt_access import JwtSettings
from evoclaw.orchestrator.runs.requests import RunSettings
from evoclaw.providers.http import RetryPolicy
from evoclaw.providers.prices import TokenRate
from evoclaw.providers.registry import ENDPOINTS, Endpoint
from evoclaw.providers.scripted import Scripted, calls, says
from evoclaw.sandbox.engines.registry import SandboxSettings
from evoclaw.skills.desktop_tools import write_desktop_tools
from evoclaw.store.sessions.recordings import encode_record
from evoclaw.store.settings import StoreSettings
from evoclaw.tools.availability import ADDED_TOOLS, Surface, availability
from evoclaw.tools.catalogue import CATALOGUE
from evoclaw.tools.fake import FakeOps
from evoclaw.tools.sets import coding, everything, read_only
from evoclaw.transport.edge_queues import PROGRESS_TIMEOUT_S, PUBLISH_RETRY_DELAYS_S
from evoclaw.transport.link import MAX_PAYLOAD_BYTES
from evoclaw.transport.mailboxes import InboxMessage, MailboxState, OutboxMessage
from evoclaw.transport.requests import OUTCOME_GRACE_S
from evoclaw.transport.topics import BROADCAST, ID_RULE, Mailbox, TopicKind, box_topic, topic
from evoclaw.transport.wire import (
    WIRE_VERSION,
    Advert,
    AdvertisedTool,
    CallProgress,
    Command,
    Heartbeat,
    Hello,
    ModelPush,
    ModelPushStatus,
    NestedCall,
    NestedResult,
    Outcome,
    OutputChunk,
    Report,
    ReportType,
    Status,
    ToolPayload,
    Welcome,
)
from evoclaw.trust.grants import Grant, GrantRefusal
from evoclaw.wiring.pipelines import edge_pipeline, local_pipeline, service_pipeline
from evoclaw.workflows.supervisor import WorkflowSettings

PLACE = Path(__file__).parent
SOURCE = PLACE.parent / "src" / "evoclaw"
GOLDEN = PLACE.parent / "tests" / "transport" / "golden"
MADE = "<!-- Made by docs/generate.py from the code; change that, then run `make docs`. -->"
PIPELINES_BEGIN = "<!-- pipelines: made by docs/generate.py -->\n"
PIPELINES_END = "<!-- end of pipelines -->"
ROOMS = (
    *(
        "core",
        "providers",
        "tools",
        "executors",
        "sandbox",
        "shell",
        "governance",
        "trust",
        "store",
    ),
    *("orchestrator", "workflows", "cli", "."),
)
"""From the ground up; the roof last."""


def main() -> None:
    """Write every page, and the manifest of the shipped skill."""
    write_desktop_tools([bound.tool for bound in everything()])
    for name, text in pages().items():
        path = PLACE / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        sys.stdout.write(f"wrote docs/{name}\n")


def pages() -> dict[str, str]:
    """Every page that is made, whole or in part, by its path below docs/."""
    made = {"events": events(), "tools": tools(), "cli": cli(), "settings": settings()}
    made |= {"faults": faults(), "wire": wire(), "files": files()}
    whole = {f"reference/{name}.md": f"{MADE}\n\n{text.strip()}\n" for name, text in made.items()}
    guide = "guides/governance.md"
    return {**whole, guide: governance()}


def governance() -> str:
    """The guide as it is, with the steps of the call pipelines as the code declares them."""
    text = (PLACE / "guides" / "governance.md").read_text(encoding="utf-8")
    before, _, rest = text.partition(PIPELINES_BEGIN)
    _, _, after = rest.partition(PIPELINES_END)
    parts = [
        f"**{title}**\n\n{_table(('stage', 'step', 'what it does'), rows)}\n"
        for title, spec in (
            ("`evoclaw run`, MCP clients: `local`", local_pipeline()),
            ("`evoclaw up`: `service`", service_pipeline()),
            ("`evoclaw edge`: `edge`", edge_pipeline()),
        )
        for rows in [[(step.stage, f"`{step.name}`", step.does) for step in spec.describe()]]
    ]
    return before + PIPELINES_BEGIN + "\n".join(parts) + PIPELINES_END + after


def files() -> str:
    """The page of every file of the package, room by room."""
    found = {path.relative_to(SOURCE).parts[0] for path in SOURCE.rglob("*/*.py")}
    rooms = (*(room for room in ROOMS[:-1] if room in found), *sorted(found - set(ROOMS)), ".")
    return "\n\n".join(
        (
            "# Files",
            "Every file of `src/evoclaw/` in one line: the first sentence of the file itself. "
            "[Architecture](../architecture.md) explains how they work together.",
            *(_room(room) for room in rooms),
        )
    )


def _room(name: str) -> str:
    folder = SOURCE / name
    title = "the roof" if name == "." else f"`{name}/`"
    rows = [
        (f"`{path.relative_to(SOURCE).as_posix()}`", _purpose(path))
        for path in sorted(folder.glob("*.py") if name == "." else folder.rglob("*.py"))
        if path.name != "__init__.py"
    ]
    return f"## {title}\n\n{_table(('file', 'what it is for'), rows)}"


def _purpose(path: Path) -> str:
    doc = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(doc.partition("\n\n")[0].split())


def events() -> str:
    """The page of everything that can happen in a run, and of the values events carry."""
    values = (
        *(SystemMessage, UserMessage, Reply, ToolResult, ToolCall, Usage),
        *(TextBlock, ImageBlock, ErrorBlock, Tool, RunResult, RunMetrics),
    )
    words = (StopReason, ErrorKind, ProviderErrorKind, Finish, Decision, Effect)
    return "\n\n".join(
        (
            "# Events",
            "What can happen in a run, one class each, in the order a run usually meets them. "
            "A recording holds one [record](#record) a line. `type` says which event it is. "
            "Fields that have their default may be left out of the JSON.",
            *(_struct(kind, str(kind.__struct_config__.tag)) for kind in get_args(Event)),
            "## Record",
            _doc(Record),
            _fields(Record),
            "## Values",
            "What the events carry.",
            *(_struct(kind, level=3) for kind in values),
            "## Words",
            "The closed sets of words.",
            *(_enum(kind) for kind in words),
            "## A whole run",
            "One call, two turns, as it is recorded:",
            f"```json\n{asyncio.run(_sample())}```",
        )
    )


async def _sample() -> str:
    """Records of a small run with a clock that ticks evenly."""
    provider = Scripted(calls(("read", {"path": "note.txt"})), says("It says: buy milk."))
    executor = LocalExecutor(read_only()[:1], files=FakeOps({"note.txt": "buy milk\n"}))
    ports = Ports(provider, executor, Permissions(frozenset({"file_read"})))
    ticks = iter(range(1_000))
    bus = Bus("3f2a", clock=lambda: float(next(ticks)))
    run = run_loop(new_run((user("What is in note.txt?"),), "3f2a"), ports, LoopSettings())
    return "".join([encode_record(record).decode() async for record in recorded(run, bus)])


def tools() -> str:
    """The page of the built-in tools."""
    sets = (("read_only", read_only), ("coding", coding), ("everything", everything))
    listed = "\n".join(
        f"- `{name}()`: {', '.join(f'`{one.name}`' for one in make())}" for name, make in sets
    )
    return "\n\n".join(
        (
            "# Tools",
            "The built-in tools, as the model is offered them. Paths are relative to the "
            "workspace, and stay in it.",
            "Sets, in `evoclaw.tools.sets`:",
            listed,
            "## Where each tool can be used",
            "*run* is `evoclaw run`; *service* is a run of `evoclaw up` by chat, API, dashboard "
            "or channel; *edge* is `evoclaw edge`; *workflow* is a step of a workflow; *OpenAI* is "
            "the endpoint for chat completions; *MCP* is `evoclaw mcp serve`. An agent also needs "
            "the permissions of the tool.",
            _availability(),
            *(_tool(bound.tool) for bound in everything()),
            "# Beside the thirty",
            "Tools of a host process: `device`, `device_write`, `notify` and `artifact` of an "
            "edge, `jobs` and `edge_call` of the fleet. `artifact` is built from the outputs that "
            "an edge keeps, `edge_call` from the edges that are online.",
            *(
                _tool(entry.load().tool)
                for entry in CATALOGUE.values()
                if entry.module and not entry.as_program
            ),
        )
    )


def _availability() -> str:
    rows = [
        (f"`{name}`" if name in CATALOGUE else f"*{name}*", *availability(name).values())
        for name in (*CATALOGUE, *ADDED_TOOLS)
    ]
    return _table(("tool", *(str(surface) for surface in Surface)), rows)


def _tool(tool: Tool) -> str:
    touches = ", ".join(f"`{name}`" for name in tool.resources) or "nothing"
    needs = ", ".join(f"`{name}`" for name in sorted(tool.permissions)) or "nothing"
    facts = (
        f"- needs: {needs}",
        f"- effect: `{tool.effect}`, on: {touches}",
        f"- timeout: {tool.timeout:g} s, at most {tool.max_timeout:g} s",
        f"- safe to run twice: {'yes' if tool.idempotent or tool.effect == 'read' else 'no'}",
        f"- reports output while it runs: {'yes' if tool.streams else 'no'}",
    )
    required = cast("list[str]", tool.parameters.get("required", []))
    properties = cast("dict[str, dict[str, Any]]", tool.parameters["properties"])
    rows = [
        (
            f"`{name}`",
            _schema_type(about),
            "required" if name in required else f"`{_json(about['default'])}`",
            str(about.get("description", "")),
        )
        for name, about in properties.items()
    ]
    table = _table(("parameter", "type", "default", "meaning"), rows)
    return "\n\n".join((f"## {tool.name}", tool.description, "\n".join(facts), table))


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _schema_type(about: dict[str, Any]) -> str:
    if "enum" in about:
        return ", ".join(f"`{word}`" for word in about["enum"])
    if "anyOf" in about:
        return " or ".join(_schema_type(one) for one in about["anyOf"])
    kind = str(about.get("type", "any"))
    bounds = [f"{sign} {about[key]}" for key, sign in _BOUNDS.items() if key in about]
    return ", ".join((kind, *bounds))


_BOUNDS = {"minimum": "≥", "maximum": "≤", "minLength": "length ≥", "maxLength": "length ≤"}


def cli() -> str:
    """The page of the command line."""
    top = click.Context(command_line, info_name="evoclaw")
    titles = [
        f"**{title}**: {', '.join(f'`{n}`' for n in names)}" for title, names in GROUPS.items()
    ]
    return "\n\n".join(
        (
            "# The command line",
            f"{command_line.help}.",
            "`evoclaw help` lists the commands by what you want to do:",
            "\n".join(f"- {title}" for title in titles),
            *_commands(top),
            "## Exit codes",
            _exit_codes(),
        )
    )


def _commands(at: click.Context) -> Iterator[str]:
    rows = [(_argument(at, param), _help(at, param)) for param in at.command.params]
    inner: list[click.Context] = []
    if isinstance(at.command, click.Group):
        for name in at.command.list_commands(at):
            command = at.command.get_command(at, name)
            assert command is not None, name
            rows.append((f"`{name}`", command.help or ""))
            inner.append(click.Context(command, parent=at, info_name=name, show_default=True))
    yield f"## {at.command_path}"
    yield from [] if at.parent is None else [f"{at.command.help}."]
    if rows:
        yield _table(("argument", "meaning"), rows)
    for params in at.command.exclusive if isinstance(at.command, ExclusiveCommand) else ():
        names = ", ".join(f"`{param.opts[0]}`" for param in params)
        yield f"One of these at most: {names}."
    for one in inner:
        yield from _commands(one)


def _argument(at: click.Context, param: click.Parameter) -> str:
    if isinstance(param, click.Argument):
        return f"`{param.human_readable_name}`"
    value = (
        "" if isinstance(param, click.Option) and param.is_flag else f" {param.make_metavar(at)}"
    )
    return ", ".join(f"`{option}{value}`" for option in param.opts)


def _help(at: click.Context, param: click.Parameter) -> str:
    """The help text with its default, as `--help` prints it."""
    record = param.get_help_record(at)
    return " ".join((record or ("", ""))[1].split())


def _exit_codes() -> str:
    said = {name: doc for name, doc in _described(inspect.getsource(exits)) if name.isupper()}
    stops: dict[int, list[str]] = {}
    for stop, code in exits.BY_STOP.items():
        stops.setdefault(code, []).append(f"`{stop}`")
    codes = {
        name: cast("int", getattr(exits, name))
        for name in said
        if isinstance(getattr(exits, name), int)
    }
    rows = [
        (str(code), said[name] or "Done.", ", ".join(stops.get(code, ())))
        for name, code in codes.items()
    ]
    return _table(("code", "meaning", "how the run ended"), rows)


def settings() -> str:
    """The page of everything that can be set."""
    servers = [
        (
            f"`{prefix}/…`",
            f"`{one.base_url}`",
            " or ".join(f"`{key}`" for key in one.keys) or "none",
            f"`{one.url_variable or prefix.upper() + '_BASE_URL'}`",
        )
        for prefix, one in ENDPOINTS.items()
    ]
    changed = [
        f"`{name}={getattr(ITERATIVE_SETTINGS, name)!r}`"
        for name in LoopSettings.__struct_fields__
        if getattr(ITERATIVE_SETTINGS, name) != getattr(LoopSettings(), name)
    ]
    return "\n\n".join(
        (
            "# Settings",
            "The command line has options, the library takes these values, and keys and addresses "
            "come from the environment. Edges read `agent.toml`, orchestrators `evoclaw.toml`.",
            _struct(LoopSettings),
            f"`ITERATIVE`, the defaults of `invoke_iterative`, differs in: {', '.join(changed)}.",
            _struct(Agent),
            "## Servers",
            "What may stand before the slash in a model's name. The address can be moved by an "
            "environment variable; one that was moved needs no key.",
            _table(("name", "address", "key", "moved by"), servers),
            "`local` is the embedded model and needs neither.",
            *(_struct(kind) for kind in (Endpoint, Profile, TokenRate, RetryPolicy)),
            "## Governance",
            "Tables of `evoclaw.toml` and, but for `[approvals]`, of `agent.toml`; there `[rates]` "
            "and `[budget]` bound nothing unless they are given.",
            *(_struct(kind, f"[{table}]", level=3) for table, kind in _GOVERNANCE.items()),
            "## The service",
            "Tables of `evoclaw.toml`; the guides say more.",
            *(_struct(kind, f"[{table}]", level=3) for table, kind in _SERVICE.items()),
            "## Words",
            *(_enum(kind) for kind in (CallStyle, Level, Preset, EdgeRule)),
            "## Environment",
            _table(("variable", "meaning"), _ENVIRONMENT),
        )
    )


_GOVERNANCE: dict[str, type] = {
    "policy": PolicySettings,
    "flow": FlowSettings,
    "network": NetworkSettings,
    "sandbox": SandboxSettings,
    "approvals": ApprovalSettings,
    "rates": RateSettings,
    "budget": BudgetSettings,
    "audit": AuditSettings,
}

_SERVICE: dict[str, type] = {
    "[agents]": AgentConfig,
    "agents.limits": AgentLimits,
    "memory": MemorySettings,
    "server": ServerSettings,
    "[server.tokens]": TokenFile,
    "server.jwt": JwtSettings,
    "runs": RunSettings,
    "store": StoreSettings,
    "workflows": WorkflowSettings,
    "[channels]": ChannelSettings,
    "channels.webhook": WebhookSettings,
    "[notify]": NotifySettings,
    "notify.ntfy": NtfySettings,
    "notify.webhook": NotifyWebhookSettings,
    "notify.telegram": TelegramSettings,
    "notify.slack": SlackSettings,
    "notify.discord": DiscordSettings,
    "notify.email": EmailSettings,
    "notify.mqtt": NotifyMqttSettings,
    "notify.webpush": WebPushSettings,
}

_ENVIRONMENT = (
    ("`EVOCLAW_MODEL`", "the model of `evoclaw run` when `--model` is not given"),
    ("`EVOCLAW_<TABLE>_<KEY>`", "one value of `evoclaw.toml`, such as `EVOCLAW_SERVER_PORT`"),
    (
        "`EVOCLAW_URL`, `EVOCLAW_TOKEN`",
        "the URL of a service on another machine, and the token for it",
    ),
    ("`EVOCLAW_STORE_PASSWORD`", "the password of the PostgreSQL database of `[store]`"),
    ("`EVOCLAW_BROKER_PASSWORD`", "the password of the broker of `[broker]`"),
    ("`BRAVE_API_KEY`", "the key of Brave Search, for `websearch` and `codesearch`"),
    ("`SEARXNG_URL`", "the URL of your SearXNG server, used instead of Brave Search"),
    ("`GITHUB_SEARCH_TOKEN`", "the token of GitHub's code search, for `codesearch`"),
    ("`EVOCLAW_BROWSER`", "the Chromium that `browser` uses (default: the first one found)"),
    ("`EVOCLAW_MCP_TOKEN`", "the token that clients of `evoclaw mcp serve --http` must send"),
    (
        "`EVOCLAW_WORKSPACE`",
        "the folder that the `dt-…` programs work in (default: the current folder)",
    ),
    (
        "`EVOCLAW_READ_ROOTS`",
        "what tools of `evoclaw run` and the `dt-…` programs may read besides their folder, "
        "separated by `:` (default: `/etc/hostname` and `/etc/os-release`)",
    ),
    ("`EVOCLAW_HOME`", "the data folder (default: `.evoclaw` in your home folder)"),
    ("`NO_COLOR`", "disables colours if it is set"),
)


def wire() -> str:
    """The page of the messages between an orchestrator and its edges."""
    examples = {path.stem: _golden(path.stem) for path in sorted(GOLDEN.glob("*.json"))}
    page = "\n\n".join(
        (
            "# Wire protocol",
            "The messages between an orchestrator and its edges, for software that speaks to "
            "either. They are a contract: fields and messages are added, never changed or removed.",
            f"MQTT 3.1.1 or 5, QoS 1, UTF-8 JSON, at most {MAX_PAYLOAD_BYTES:,} bytes. Readers "
            f"ignore unknown fields. `v` is the version of the protocol, now {WIRE_VERSION}; an "
            "edge refuses a command of another version with `version_mismatch`. The examples are "
            "the files that the tests compare each message with.",
            "## Topics",
            f"`ID` is the id of an edge: {ID_RULE}.",
            _table(("topic", "from", "retained", "message"), _wire_topics()),
            "## The least that an edge must do",
            _WIRE_BASIC,
            _golden("read/advert"),
            "## Commands",
            _struct_fields(Command),
            _table(("command", "grant", "meaning"), _wire_commands()),
            examples["command_tool"],
            _struct(ToolPayload, "tool", level=3),
            "With a trace context:",
            examples["command_traced"],
            "### `prompt`, `cancel`, `ping`, `hello`",
            examples["command_prompt"],
            examples["command_cancel"],
            examples["command_ping"],
            examples["command_hello"],
            "## Reports",
            _struct_fields(Report),
            _enum(ReportType),
            _struct(Outcome, "result", level=3),
            examples["report_result"],
            examples["report_error"],
            "A result with a receipt ([receipts](../guides/receipts.md)):",
            examples["report_receipt"],
            _struct(OutputChunk, "chunk", level=3),
            examples["report_chunk"],
            _struct(CallProgress, "progress", level=3),
            examples["report_progress"],
            _struct(Heartbeat, "heartbeat", level=3),
            examples["report_heartbeat"],
            "### `metric`",
            examples["report_metric"],
            "## Nested calls",
            "The model of an edge may call tools of the orchestrator while it answers a prompt.",
            _struct(NestedCall, "call", level=3),
            examples["report_call"],
            _struct(NestedResult, "nested_result", level=3),
            examples["command_nested_result"],
            "The prompt that names a tool:",
            examples["command_prompt_with_tools"],
            "## Models",
            _WIRE_MODELS,
            _struct(ModelPush, "model_push", level=3),
            examples["command_model_push_start"],
            examples["command_model_push"],
            _struct(ModelPushStatus, level=3),
            examples["report_model_push"],
            "## Status and advert",
            _struct(Status, "status", level=3),
            examples["status_online"],
            examples["status_offline"],
            _struct(Advert, "capabilities", level=3),
            examples["advert"],
            _struct(AdvertisedTool, level=3),
            "## Hello and welcome",
            _WIRE_HELLO,
            _struct(Hello, "hello", level=3),
            examples["report_hello"],
            _struct(Welcome, "welcome", level=3),
            examples["command_welcome"],
            "With a grant:",
            examples["command_welcome_signed"],
            "## Resending and `result_ack`",
            _WIRE_RESENDING,
            examples["command_result_ack"],
            "With a grant:",
            examples["command_result_ack_signed"],
            "## Grants",
            _WIRE_GRANTS,
            _struct(Grant, level=3),
            _enum(GrantRefusal),
            "## Error types",
            _enum(ErrorKind),
            "## Joining",
            "A new edge logs in with its id and the one-time token of its invitation, reports "
            "`join`, stores the password of the answer `joined`, and reports `join` again with "
            "`kept`. After the answer with `done` the token is worthless.",
            _struct(JoinRequest, "join", level=3),
            examples["report_join"],
            _struct(JoinReply, "joined", level=3),
            examples["command_joined"],
            "## Mailboxes",
            "Messages of people to an agent, and its replies ([channels](../guides/channels.md)).",
            _struct(InboxMessage, "inbox", level=3),
            examples["inbox_message"],
            _struct(OutboxMessage, "outbox", level=3),
            _enum(MailboxState),
            *(examples[f"outbox_{state}"] for state in ("accepted", "waiting", "answer", "failed")),
        )
    )
    if missing := [name for name, text in examples.items() if text not in page]:
        raise ValueError(f"show these examples on the page of the wire: {', '.join(missing)}")
    for written, meant in _WIRE_DEFAULTS.items():
        page = page.replace(f"`{written}`", f"`{meant}`")
    return page


def _golden(name: str) -> str:
    return f"```json\n{(GOLDEN / f'{name}.json').read_text(encoding='utf-8').strip()}\n```"


_WIRE_DEFAULTS = {
    "field(default_factory=lambda: dict[str, JSON]())": "{}",
    "field(default_factory=str)": "''",
    "field(default_factory=_version)": str(WIRE_VERSION),
    "field(default_factory=lambda: WIRE_VERSION)": str(WIRE_VERSION),
    "CLEAN": "{}",
}
"""Defaults as they are in the code, and in JSON."""


def _struct_fields(kind: type) -> str:
    return f"{_doc(kind)}\n\n{_fields(kind)}"


def _wire_topics() -> list[tuple[str, str, str, str]]:
    def name(kind: TopicKind) -> str:
        return f"`{topic('ID', kind)}`"

    return [
        (name(TopicKind.COMMANDS), "orchestrator", "no", "[commands](#commands)"),
        (f"`{BROADCAST}`", "orchestrator", "no", "commands for every edge: `hello`, `ping`"),
        (name(TopicKind.REPORTS), "edge", "no", "[reports](#reports)"),
        (
            name(TopicKind.STATUS),
            "edge",
            "yes",
            "[online, offline](#status-and-advert); the will",
        ),
        (name(TopicKind.CAPABILITIES), "edge", "yes", "[the advert](#status-and-advert)"),
        (f"`{box_topic('ID', Mailbox.INBOX, 'USER')}`", "person", "no", "[mailboxes](#mailboxes)"),
        (f"`{box_topic('ID', Mailbox.OUTBOX, 'USER')}`", "orchestrator", "no", "replies"),
    ]


def _wire_commands() -> list[tuple[str, str, str]]:
    known = ALL_COMMANDS | CONVERSATION_COMMANDS.keys() | {"joined"}
    if known != _WIRE_COMMANDS.keys():
        raise ValueError(f"describe these commands of edges: {known ^ _WIRE_COMMANDS.keys()}")
    signed = ALL_COMMANDS - UNSIGNED_COMMANDS | {"welcome", "result_ack"}
    return [
        (f"`{name}`", "needed" if name in signed else "", meaning)
        for name, meaning in _WIRE_COMMANDS.items()
    ]


_WIRE_COMMANDS = {
    "tool": "run a tool: `tool`, `parameters`, `timeout_ms`",
    "execute": "the same with the keys `action` and `params`",
    "prompt": "answer `prompt` with the model and the tools of the edge",
    "cancel": "cancel the command `request_id`; its outcome is then `cancelled`",
    "ping": "answer with `pong`",
    "model_chunk": "a chunk of an installed model file: `sha256`, `offset`, `length`",
    "model_push": "[a step of the copy of a model file to the edge](#models)",
    "tools_list": "the tools with their schemas, from `offset`; `next` is the next offset",
    "get_metrics": "the metrics of the edge",
    "job": "`list` the jobs, `read` or `cancel` the job `job_id`",
    "update_genome": "change the tunables in `genome`",
    "update_strategy": "an older name of `update_genome`",
    "evolution": "the genome, its history and fitness; or `roll_back` to a `version`",
    "nested_result": "the result of a call that the model of the edge made: `prompt_id`, `number`",
    "shutdown": "answer, then leave",
    "hello": "say hello; not answered otherwise",
    "welcome": "[the answer to a hello](#hello-and-welcome)",
    "result_ack": "[results were stored](#resending-and-result_ack)",
    "joined": "[the answer to a join](#joining)",
}

_WIRE_BASIC = f"""\
1. Publish a retained advert on `…/capabilities`: `agent_id` and `capabilities`, one line for the
   model that chooses an edge.
2. Publish a report of the type `heartbeat` on `…/reports`, at least every 30 s; after
   {MAX_MISSED_HEARTBEATS} missing ones the edge is offline. Its payload may be empty.
3. Subscribe to `…/commands`, answer `prompt` (and `tool`, if the advert lists tools) with a
   report that has the `request_id` of the command, and its text under `result` or `content`.

Such an edge is online, and is listed with "no delivery guarantees": each command is published to
it once, it gets no acknowledgement and no `cancel`, and a call whose answer is lost ends as
`unknown`. An answer without `request_id` counts while exactly one command waits for it. An answer
with neither `result` nor `content` is an error. A heartbeat with a `boot_id` says that the edge
takes part in everything below.

[Try it with `mosquitto_pub`](../guides/run-a-fleet.md#devices-with-software-of-their-own)."""

_WIRE_MODELS = f"""\
Model files are copied in chunks, named by the SHA-256 of the whole file. Neither side stores these
commands or their answers: each step can be repeated.

- **From an edge**: `model_chunk` with `sha256`, `offset` and `length`, at most
  {MAX_CHUNK_BYTES:,} bytes. The answer has `data` in base64, the `sha256` of these bytes, and
  `total_bytes`.
- **To an edge**: `model_push`. The edge accepts what `accept_models` in its `agent.toml` says. It
  writes a chunk that begins where its file ends, or before, and ignores a later one; its answer has
  `have_bytes`, where the next chunk begins. When the file is complete, it checks the digest and
  the header and installs the file. After a `conflict` the orchestrator sends `start` again: the
  edge was restarted, or no chunk came for {IDLE_TIMEOUT_S:g} s. The edge keeps what it has of a
  file."""

_WIRE_HELLO = """\
On every connection an edge publishes its status, its advert, and a `hello` with the commands that
it has. It repeats the hello until an orchestrator answers with `welcome`. Deadlines are judged by
the clock in the welcome, so the clocks of the two machines may differ. An orchestrator that
connects asks every edge for a hello, by broadcast."""

_RETRY_DELAYS = ", ".join(f"{seconds:g}" for seconds in PUBLISH_RETRY_DELAYS_S)
_WIRE_RESENDING = f"""\
- **Commands.** The orchestrator stores a command and publishes it after
  {_RETRY_DELAYS} s (the last repeats) until the edge
  reports `progress` or an outcome, and again if an accepted command makes no progress for
  {PROGRESS_TIMEOUT_S:g} s. An edge must recognize the `request_id`: it repeats the outcome of a
  command that has ended, and never starts a command twice. The same id with other arguments is a
  `conflict`.
- **Results.** An edge stores an outcome and publishes it until it gets `result_ack` with the
  `request_id`, at first after {DeviceLimits().resend_delay_s:g} s, then at growing intervals. The
  orchestrator stores the first outcome and acknowledges every repetition.
- **Unreadable commands.** A command without `request_id`, and a message that is not JSON, is
  answered with an error report with an empty `request_id`, unless it was a broadcast. `refuses`
  is the start of the SHA-256 of the message.
- **Deadlines.** A command is not started after `expires_at`. A call whose outcome is not known
  {OUTCOME_GRACE_S:g} s after all its timeouts ends as `unknown`, and is not repeated unless its
  tool only reads."""

_WIRE_GRANTS = """\
An edge with `orchestrator_keys` in its `agent.toml` runs a command only with a grant: the
base64url of the JSON below, a dot, and the base64url of the Ed25519 signature of `evoclaw grant
1\\n` and that JSON. `evoclaw edges key` prints the public key. A grant covers every field of its
command. The commands without "needed" in the table above need no grant.

Without `orchestrator_keys` an edge accepts every command of every client of its broker. It starts
like that only if the broker is on the same machine, or with `allow_unsigned = true`."""


class _Fault(msgspec.Struct, forbid_unknown_fields=True):
    number: int
    fault: str
    outcome: str
    untested: str = ""
    """Why there is no test."""


class _FaultGroup(msgspec.Struct, forbid_unknown_fields=True):
    title: str
    faults: list[_Fault]


class _Faults(msgspec.Struct, forbid_unknown_fields=True):
    groups: list[_FaultGroup]


def faults(tests: dict[int, list[tuple[str, str]]] | None = None) -> str:
    """The numbered faults, each with its tests."""
    groups = msgspec.toml.decode((PLACE / "faults.toml").read_bytes(), type=_Faults).groups
    tests = fault_tests() if tests is None else tests
    head = ("#", "fault", "required outcome", "tests")
    parts = [
        "# Faults\n\nThe tests that bear the number of a fault inject it for real. To run those of"
        " one fault:\n`.venv/bin/pytest -m '' -k test_fault_04`. The table is made from"
        " `docs/faults.toml`.\n"
    ]
    for group in groups:
        rows = [
            (str(it.number), it.fault, it.outcome, _fault_cell(it, tests.pop(it.number, [])))
            for it in group.faults
        ]
        parts.append(f"## {group.title}\n\n{_table(head, rows)}\n")
    if tests:
        raise ValueError(f"tests of faults that docs/faults.toml does not have: {tests}")
    return "\n".join(parts)


def fault_tests() -> dict[int, list[tuple[str, str]]]:
    """The tests of each fault by number: file and name."""
    found: dict[int, list[tuple[str, str]]] = {}
    root = PLACE.parent
    for path in sorted((root / "tests").rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        for name in re.findall(r"^(?:async )?def (test_fault_\d+_\w+)", text, re.MULTILINE):
            for number in re.findall(r"(?:fault|and)_(\d+)(?=_)", name):
                place = path.relative_to(root).as_posix()
                found.setdefault(int(number), []).append((place, name))
    return found


def _fault_cell(fault: _Fault, tests: Sequence[tuple[str, str]]) -> str:
    if bool(tests) == bool(fault.untested):
        raise ValueError(
            f"fault {fault.number} needs a test called test_fault_{fault.number:02}_…,"
            " or in docs/faults.toml the reason why it has none, not both"
        )
    links = (
        f"[{name.removeprefix('test_fault_').replace('_', ' ')}](../../{path})"
        for path, name in tests
    )
    return fault.untested or "<br>".join(links)


def _struct(kind: type, tag: str = "", level: int = 2) -> str:
    title = f"`{tag}` ({kind.__name__})" if tag else kind.__name__
    return f"{'#' * level} {title}\n\n{_doc(kind)}\n\n{_fields(kind)}"


def _enum(kind: type[Enum]) -> str:
    said = dict(_described(inspect.getsource(kind)))
    rows = [(f"`{member.value}`", said.get(member.name, "")) for member in kind]
    head = f"### {kind.__name__}\n\n{_doc(kind)}\n\n"
    if any(text for _, text in rows):
        return head + _table(("word", "meaning"), rows)
    return head + ", ".join(word for word, _ in rows)


def _doc(kind: type) -> str:
    return inspect.cleandoc(kind.__doc__ or "").split("\n\n")[0]


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    kind: str
    default: str
    meaning: str


def _fields(kind: type) -> str:
    rows = [
        (f"`{one.name}`", f"`{one.kind}`", f"`{one.default}`" if one.default else "required",
         one.meaning)
        for one in _read_fields(kind)
    ]  # fmt: skip
    return _table(("field", "type", "default", "meaning"), rows)


def _read_fields(kind: type) -> Iterator[_Field]:
    source = inspect.getsource(kind)
    meanings = dict(_described(source))
    for node in _body(source):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            default = ast.unparse(node.value) if node.value else ""
            name = node.target.id
            yield _Field(name, ast.unparse(node.annotation), default, meanings[name])


def _described(source: str) -> Iterator[tuple[str, str]]:
    """Every name that is assigned, with the string beneath it."""
    body = _body(source)
    for node, after in zip(body, [*body[1:], None], strict=True):
        match node:
            case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
                yield name, _text(after)
            case _:
                pass


def _text(node: ast.stmt | None) -> str:
    match node:
        case ast.Expr(value=ast.Constant(value=str(text))):
            return " ".join(text.split())
        case _:
            return ""


def _body(source: str) -> Sequence[ast.stmt]:
    tree = ast.parse(textwrap.dedent(source))
    match tree.body:
        case [ast.ClassDef(body=body)]:
            return body
        case body:
            return body


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |"
                     for line in lines)  # fmt: skip


if __name__ == "__main__":
    main()

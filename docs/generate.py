"""Write docs/reference/*.md and the table of files from the code: `make docs`.

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
from evoclaw.tools.device import device, notify
from evoclaw.tools.fake import FakeOps
from evoclaw.tools.nodes import jobs
from evoclaw.tools.sets import coding, everything, read_only
from evoclaw.wiring.pipelines import edge_pipeline, local_pipeline, service_pipeline
from evoclaw.workflows.supervisor import WorkflowSettings

PLACE = Path(__file__).parent
SOURCE = PLACE.parent / "src" / "evoclaw"
MADE = "<!-- Made by docs/generate.py from the code; change that, then run `make docs`. -->"
BEGIN, END = "<!-- files: made by docs/generate.py -->\n", "<!-- end of files -->"
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
    made["faults"] = faults()
    whole = {f"reference/{name}.md": f"{MADE}\n\n{text.strip()}\n" for name, text in made.items()}
    guide = "guides/governance.md"
    return {**whole, "architecture.md": architecture(), guide: governance()}


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


def architecture() -> str:
    """The page as it is, with the table of files made anew."""
    text = (PLACE / "architecture.md").read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    found = {path.relative_to(SOURCE).parts[0] for path in SOURCE.rglob("*/*.py")}
    rooms = (*(room for room in ROOMS[:-1] if room in found), *sorted(found - set(ROOMS)), ".")
    return before + BEGIN + "\n".join(_room(room) for room in rooms) + END + after


def _room(name: str) -> str:
    folder = SOURCE / name
    title = "the roof" if name == "." else f"`{name}/`"
    rows = [
        (f"`{path.relative_to(SOURCE).as_posix()}`", _purpose(path))
        for path in sorted(folder.glob("*.py") if name == "." else folder.rglob("*.py"))
        if path.name != "__init__.py"
    ]
    return f"\n### {title}\n\n{_table(('file', 'what it is for'), rows)}\n"


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
            *(_tool(bound.tool) for bound in everything()),
            "# Beside the thirty",
            "`device` and `notify` are tools of an edge; `jobs` is offered with `edge_call`.",
            *(_tool(bound.tool) for bound in (device, notify, jobs)),
        )
    )


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
}

_ENVIRONMENT = (
    ("`EVOCLAW_MODEL`", "the model of `evoclaw run` when `--model` is not given"),
    ("`EVOCLAW_<TABLE>_<KEY>`", "one value of `evoclaw.toml`, such as `EVOCLAW_SERVER_PORT`"),
    ("`EVOCLAW_URL`, `EVOCLAW_TOKEN`", "a service elsewhere, and what to show there"),
    ("`EVOCLAW_STORE_PASSWORD`", "of the PostgreSQL of `[store]`"),
    ("`EVOCLAW_BROKER_PASSWORD`", "of the broker of `[broker]`"),
    ("`BRAVE_API_KEY`", "for `websearch` and `codesearch`: Brave Search"),
    ("`SEARXNG_URL`", "the same by a SearXNG server of your own, which comes first"),
    ("`GITHUB_SEARCH_TOKEN`", "for `codesearch`: GitHub"),
    ("`EVOCLAW_BROWSER`", "another Chromium for `browser` than the one that is found"),
    ("`EVOCLAW_MCP_TOKEN`", "what clients of `evoclaw mcp serve --http` must show"),
    ("`EVOCLAW_WORKSPACE`", "where the `dt-…` programs work (default: the current folder)"),
    ("`EVOCLAW_HOME`", "where everything is kept (default: `.evoclaw` in your home folder)"),
    ("`NO_COLOR`", "set to anything: no colours"),
)


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

"""Builds the toolbox of this machine: tools, their dependencies, and why some are unavailable."""

from __future__ import annotations

from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, cast

from evoclaw.core.bound_tools import BoundTool
from evoclaw.core.errors import ConfigError
from evoclaw.core.ops import ExecOps, FileOps
from evoclaw.core.ports import Provider
from evoclaw.core.routes import Route
from evoclaw.core.tools import UNDO_TOOL, Tool, UnavailableTool

if TYPE_CHECKING:
    from evoclaw.executors.mcp.offers import RejectedTool
    from evoclaw.executors.mcp.servers import McpServers
    from evoclaw.executors.own_tools import OwnTools
    from evoclaw.governance.network import NetworkPolicy, NetworkSettings
    from evoclaw.sandbox.sandboxed_processes import SandboxedProcesses
    from evoclaw.skills.registry import SkillRegistry

Ready: TypeAlias = Callable[[], Awaitable[None]]
"""Returns when the records that led to a call are durable."""
BROWSER_VARIABLE = "EVOCLAW_BROWSER"
"""Environment variable: the path of Chromium, if not the one found on the PATH."""


@dataclass(frozen=True, slots=True)
class Toolbox:
    """The tools of this machine and what they depend on."""

    tools: tuple[BoundTool, ...]
    dependencies: dict[type, object]
    """What the tools depend on, by Protocol."""
    unavailable: tuple[UnavailableTool, ...]
    skill_registry: SkillRegistry
    """The skills; their tools can change while the process runs."""
    mcp_servers: McpServers
    """The connected MCP servers, with the tools that were approved."""
    own_tools: OwnTools
    """The tools of the owner's Python files, and of the packages that the settings name."""

    def extension_tools(self) -> list[Tool]:
        """The tools of skills, of the owner's own files and of MCP servers.

        Of two with the same name the first, as in the routes of a run.
        """
        skills = [bound.tool for bound in self.skill_registry.tools()]
        found = [*skills, *self.own_tools.tools(), *self.mcp_servers.tools()]
        return list({tool.name: tool for tool in reversed(found)}.values())[::-1]

    async def check_sandboxes(self) -> list[tuple[str, bool, str]]:
        """The sandbox engines: name, whether its self-test passed, and a remark."""
        return await _sandboxed(self).sandboxes.check_engines()

    def problems(self) -> dict[str, str]:
        """The tools, skills and servers that cannot be used, and why."""
        skills = {str(problem.path): problem.reason for problem in self.skill_registry.problems()}
        servers = {mcp.server.name: mcp.problem for mcp in self.mcp_servers if mcp.problem}
        servers |= {
            rejected.name or mcp.server.name: _explain_rejection(mcp.server.name, rejected)
            for mcp in self.mcp_servers
            for rejected in mcp.left_out
        }
        taken = {bound.name for bound in self.skill_registry.tools()}
        shadowed = {
            tool.name: "a skill has a tool of the same name, which is used; rename one of them"
            for tool in self.own_tools.tools()
            if tool.name in taken
        }
        return self._command_problems() | self.own_tools.problems | shadowed | skills | servers

    def _command_problems(self) -> dict[str, str]:
        from evoclaw.sandbox.sandboxed_processes import RefusedProcesses

        processes = self.dependencies.get(ExecOps)
        if not isinstance(processes, RefusedProcesses):
            return {}
        return {"commands": f"no command can run here: {processes.problem}"}


@asynccontextmanager
async def open_toolbox(
    workspace: Path,
    env: Mapping[str, str],
    *,
    key: str = "run",
    dependencies: Mapping[type, object] | None = None,
    names: Collection[str] | None = None,
) -> AsyncGenerator[Toolbox]:
    """The toolbox of a workspace; closed, with every process it started, when the block ends.

    Args:
        workspace: The folder of files and commands.
        env: The environment: keys of search engines, paths of programs.
        key: Names the run or session: its browser, its canvas.
        dependencies: Further dependencies, by Protocol; they override those found here.
        names: The built-in tools to load; None loads all.
    """
    from evoclaw.config.paths import default_data_folder, read_roots
    from evoclaw.executors.own_tools import OwnTools
    from evoclaw.governance.network import NetworkPolicy
    from evoclaw.sandbox.sandboxed_processes import SandboxedProcesses
    from evoclaw.skills.disclosure import RegistrySkillReader
    from evoclaw.skills.programs import Sandboxes
    from evoclaw.skills.skill_executor import SkillExecutor
    from evoclaw.tools.catalogue import CATALOGUE, load
    from evoclaw.tools.sets import TOOL_NAMES
    from evoclaw.tools.skill import SkillReader
    from evoclaw.wiring.mcp_connections import mcp_servers
    from evoclaw.wiring.packages import tool_loaders
    from evoclaw.wiring.sandboxes import open_isolated_tools, open_sandboxes
    from evoclaw.wiring.settings import orchestrator_settings
    from evoclaw.wiring.skills import skill_registry, skills_folder

    async with AsyncExitStack() as stack:
        home = default_data_folder(env)
        skills, config = skill_registry(env, workspace), orchestrator_settings(env)
        servers = await stack.enter_async_context(mcp_servers(env))
        domains = NetworkPolicy(config.network)
        sandboxed = await open_sandboxes(
            workspace,
            config.sandbox_settings,
            domains,
            stack,
            data=home,
            readable=[skills_folder(env), *read_roots(env)],
        )
        found, reasons = _find_dependencies(workspace, env, key, stack, domains)
        found |= {
            ExecOps: sandboxed.exec_here(),
            Sandboxes: sandboxed.sandboxes,
            SandboxedProcesses: sandboxed,
            NetworkPolicy: domains,
            SkillExecutor: SkillExecutor(
                skills,
                sandboxed.exec_here(),
                dependencies={Sandboxes: sandboxed.sandboxes},
                exec_for=sandboxed.exec_for_program,
            ),
        }
        found |= {SkillReader: RegistrySkillReader(skills), **(dependencies or {})}
        own_tools = OwnTools(
            home / "tools",
            given=found,
            reserved=(*CATALOGUE, UNDO_TOOL),
            exec_for=sandboxed.exec_for_program,
            isolated=await open_isolated_tools(
                workspace, config.sandbox_settings, domains, stack, data=home
            ),
            packages=tool_loaders(
                config.orchestrator.tools.packages,
                [workspace, *config.sandbox.writable],
            ),
        )
        stack.push_async_callback(own_tools.close)
        await own_tools.settle()
        tools = load(name for name in TOOL_NAMES if names is None or name in names)
        yield _build_toolbox(tools, found, reasons, skills, servers, own_tools)


def use_network(toolbox: Toolbox, settings: NetworkSettings) -> None:
    """Let the tools of this machine reach other hosts, from their next connection on."""
    from evoclaw.governance.network import NetworkPolicy

    cast("NetworkPolicy", toolbox.dependencies[NetworkPolicy]).use(settings)


def with_dependencies(toolbox: Toolbox, dependencies: Mapping[type, object]) -> Toolbox:
    """The same toolbox with further dependencies, and the tools that only lacked them."""
    from evoclaw.tools.catalogue import CATALOGUE, load, with_program
    from evoclaw.tools.sets import usable

    found = {**toolbox.dependencies, **dependencies}
    # Programs are looked for last: that reads folders, and most tools lack something else.
    added = with_program(usable(load(tool.name for tool in toolbox.unavailable), found))
    by_name = {bound.name: bound for bound in (*toolbox.tools, *added)}
    return replace(
        toolbox,
        tools=tuple(by_name[name] for name in CATALOGUE if name in by_name),
        dependencies=found,
        unavailable=tuple(tool for tool in toolbox.unavailable if tool.name not in by_name),
        own_tools=toolbox.own_tools.with_dependencies(found),
    )


def _explain_rejection(server: str, rejected: RejectedTool) -> str:
    how = f"; run `evoclaw mcp approve {server}`" if rejected.digest else ""
    return rejected.reason + how


def toolbox_routes(toolbox: Toolbox, names: Collection[str] | None) -> list[Route]:
    """The routes of a toolbox: its built-in tools, skills, own tools and MCP servers.

    With names, only the built-in tools of these names.
    """
    from evoclaw.tools.sets import select

    if names is None:
        return [built_in_route(toolbox, toolbox.tools), *extension_routes(toolbox)]
    for tool in toolbox.unavailable:
        if tool.name in names:
            raise ConfigError(f"the tool {tool.name!r} cannot be used here: {tool.why}")
    return [built_in_route(toolbox, select(toolbox.tools, names))]


def built_in_route(
    toolbox: Toolbox, tools: Iterable[BoundTool], ready: Ready | None = None, machine: str = ""
) -> Route:
    """The route to some of the built-in tools, which run on this machine.

    Args:
        toolbox: The toolbox that they are of.
        tools: The tools.
        ready: Awaited before each call.
        machine: What the machine is called, where a user sees several.
    """
    from evoclaw.executors.local import LocalExecutor

    given, exec_for = toolbox.dependencies, _sandboxed(toolbox).exec_for
    return Route(LocalExecutor(tools, given=given, exec_for=exec_for), ready=ready, machine=machine)


def extension_routes(
    toolbox: Toolbox, ready: Ready | None = None, machine: str = ""
) -> list[Route]:
    """The routes to the tools of skills, of the owner's own files and of MCP servers.

    They follow their files, approvals and servers while they are used. Each yields: a name belongs
    to a built-in tool, else to the first of these routes that has it.
    """
    from evoclaw.skills.skill_executor import SkillExecutor
    from evoclaw.tools.question import UserPrompter
    from evoclaw.wiring.mcp_connections import attended

    skills = cast("SkillExecutor", toolbox.dependencies[SkillExecutor])
    person = cast("UserPrompter | None", toolbox.dependencies.get(UserPrompter))
    servers = toolbox.mcp_servers if person is None else attended(toolbox.mcp_servers, person)
    executors = (skills, toolbox.own_tools, servers)
    return [Route(executor, ready=ready, yields=True, machine=machine) for executor in executors]


def _sandboxed(toolbox: Toolbox) -> SandboxedProcesses:
    from evoclaw.sandbox.sandboxed_processes import SandboxedProcesses

    return cast("SandboxedProcesses", toolbox.dependencies[SandboxedProcesses])


def _build_toolbox(
    tools: Sequence[BoundTool],
    dependencies: dict[type, object],
    reasons: Mapping[type, str],
    skill_registry: SkillRegistry,
    mcp_servers: McpServers,
    own_tools: OwnTools,
) -> Toolbox:
    from evoclaw.tools.catalogue import with_program
    from evoclaw.tools.sets import usable

    offered = with_program(usable(tools, dependencies))
    absent = [
        _unavailable_tool(tool, dependencies, reasons) for tool in tools if tool not in offered
    ]
    return Toolbox(offered, dependencies, tuple(absent), skill_registry, mcp_servers, own_tools)


def _find_dependencies(
    workspace: Path,
    env: Mapping[str, str],
    key: str,
    stack: AsyncExitStack,
    domains: NetworkPolicy,
) -> tuple[dict[type, object], dict[type, str]]:
    """The dependencies that this machine has, by Protocol, and why the others are missing."""
    from evoclaw.config.paths import default_data_folder, read_roots
    from evoclaw.core.canvases import Canvas
    from evoclaw.executors.canvases import FileCanvas
    from evoclaw.executors.tracked_files import TrackedFiles
    from evoclaw.executors.url_guard import UrlGuard
    from evoclaw.executors.web_fetch import WebFetcher
    from evoclaw.tools.nodes import Nodes
    from evoclaw.tools.question import UserPrompter
    from evoclaw.tools.sessions import Sessions
    from evoclaw.tools.todos import InMemoryTodoList, TodoList
    from evoclaw.tools.web import Fetcher

    home = default_data_folder(env)
    maybe: dict[type, object | str] = {
        FileOps: TrackedFiles(workspace, readable=read_roots(env)),
        Fetcher: WebFetcher(UrlGuard(may=domains.allows, may_address=domains.allows_address)),
        TodoList: InMemoryTodoList(),
        Canvas: FileCanvas(home / "canvas" / f"{key}.html"),
        UserPrompter: "no user is at a terminal to answer questions",
        Sessions: "it needs a session: use `evoclaw run --session NAME`",
        Nodes: "no fleet is connected: start one with `evoclaw up`, then `evoclaw run --on '*'`",
        **search_dependencies(env),
        **_browser(env, key, stack, domains),
        **_vision(),
    }
    reasons = {kind: value for kind, value in maybe.items() if isinstance(value, str)}
    return {kind: value for kind, value in maybe.items() if not isinstance(value, str)}, reasons


def search_dependencies(env: Mapping[str, str]) -> dict[type, object | str]:
    """The search engines that the environment configures, or why there are none."""
    from evoclaw.executors.web_search import search_from
    from evoclaw.tools.web import CodeSearcher, WebSearcher

    search = search_from(env)
    return {WebSearcher: search.web or search.reason, CodeSearcher: search.code or search.reason}


def session_browser(toolbox: Toolbox, key: str) -> dict[type, object]:
    """The browser of one session, with pages and cookies of its own; empty without a browser."""
    from evoclaw.executors.browser.chromium import Chromium
    from evoclaw.tools.browser import Browser

    chromium = cast("Chromium | None", toolbox.dependencies.get(Chromium))
    return {} if chromium is None else {Browser: chromium.session(key)}


def _browser(
    env: Mapping[str, str], key: str, stack: AsyncExitStack, domains: NetworkPolicy
) -> dict[type, object | str]:
    from evoclaw.executors.browser.chromium import Chromium
    from evoclaw.executors.browser.processes import find_browser
    from evoclaw.executors.url_guard import UrlGuard
    from evoclaw.tools.browser import Browser

    program = find_browser(env.get(BROWSER_VARIABLE, ""), env=env)
    if isinstance(program, str):
        return {Browser: program}
    guard = UrlGuard(may=domains.allows, may_address=domains.allows_address)
    chromium = Chromium(program, guard=guard)
    stack.push_async_callback(chromium.close)
    return {Chromium: chromium, Browser: chromium.session(key)}


def _vision() -> dict[type, object | str]:
    from evoclaw.tools.image import Vision
    from evoclaw.tools.image_preparation import why_unavailable

    return {Vision: why_unavailable() or "the model of this run does not read images"}


def vision_dependency(provider: Provider) -> dict[type, object]:
    """The `Vision` dependency: the model of the run itself, if it reads images."""
    from evoclaw.tools.image import RunModelVision, Vision
    from evoclaw.tools.image_preparation import why_unavailable

    able = provider.profile.images and not why_unavailable()
    return {Vision: RunModelVision(model_sees_images=True)} if able else {}


def _unavailable_tool(
    bound: BoundTool, dependencies: Mapping[type, object], reasons: Mapping[type, str]
) -> UnavailableTool:
    from evoclaw.tools.catalogue import CATALOGUE

    if program := CATALOGUE[bound.name].missing_program():
        why = f"`{program}` is not installed: install your system's package of it"
        return UnavailableTool(bound.tool, why)
    missing = sorted(bound.dependencies - dependencies.keys(), key=lambda kind: kind.__name__)
    why = "; ".join(reasons.get(kind, kind.__name__) for kind in missing)
    return UnavailableTool(bound.tool, why)

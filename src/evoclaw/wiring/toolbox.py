"""Builds the toolbox of this machine: tools, their dependencies, and why some are unavailable."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from evoclaw.core.bound_tools import BoundTool
from evoclaw.core.ops import ExecOps, FileOps
from evoclaw.core.ports import Provider
from evoclaw.core.tools import Tool, UnavailableTool

if TYPE_CHECKING:
    from evoclaw.executors.mcp.executor import McpExecutor
    from evoclaw.executors.own_tools import OwnTools
    from evoclaw.governance.network import NetworkPolicy
    from evoclaw.skills.registry import SkillRegistry

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
    mcp_servers: Sequence[McpExecutor]
    """The connected MCP servers, with the tools that were approved."""
    own_tools: OwnTools
    """The tools that the owner wrote as Python files."""

    def extension_tools(self) -> list[Tool]:
        """The tools of skills, of the owner's own files and of MCP servers."""
        skills = [bound.tool for bound in self.skill_registry.tools()]
        servers = [tool for server in self.mcp_servers for tool in server.tools()]
        return [*skills, *self.own_tools.tools(), *servers]

    async def check_sandboxes(self) -> list[tuple[str, bool, str]]:
        """The sandbox engines: name, whether its self-test passed, and a remark."""
        from evoclaw.sandbox.sandboxed_processes import SandboxedProcesses

        sandboxed = cast("SandboxedProcesses", self.dependencies[SandboxedProcesses])
        return await sandboxed.sandboxes.check_engines()

    def problems(self) -> dict[str, str]:
        """The tools, skills and servers that cannot be used, and why."""
        self.own_tools.tools()
        skills = {str(problem.path): problem.reason for problem in self.skill_registry.problems()}
        servers = {mcp.server.name: mcp.problem for mcp in self.mcp_servers if mcp.problem}
        return self.own_tools.problems | skills | servers


@asynccontextmanager
async def open_toolbox(
    workspace: Path,
    env: Mapping[str, str],
    *,
    key: str = "run",
    dependencies: Mapping[type, object] | None = None,
) -> AsyncGenerator[Toolbox]:
    """The toolbox of a workspace; closed, with every process it started, when the block ends.

    Args:
        workspace: The folder of files and commands.
        env: The environment: keys of search engines, paths of programs.
        key: Names the run or session: its browser, its canvas.
        dependencies: Further dependencies, by Protocol; they override those found here.
    """
    from evoclaw.config.paths import default_data_folder
    from evoclaw.governance.network import NetworkPolicy
    from evoclaw.sandbox.sandboxed_processes import SandboxedProcesses
    from evoclaw.skills.disclosure import RegistrySkillReader
    from evoclaw.skills.programs import Sandboxes
    from evoclaw.tools.skill import SkillReader
    from evoclaw.wiring.mcp_connections import connect_mcp_servers
    from evoclaw.wiring.sandboxes import open_sandboxes
    from evoclaw.wiring.settings import orchestrator_settings
    from evoclaw.wiring.skills import skill_registry, skills_folder

    async with AsyncExitStack() as stack:
        home = default_data_folder(env)
        skills, servers = skill_registry(env), await connect_mcp_servers(env, stack)
        config = orchestrator_settings(env)
        domains = NetworkPolicy(config.network)
        sandboxed = await open_sandboxes(
            workspace,
            config.sandbox_settings,
            domains,
            stack,
            data=home,
            readable=[skills_folder(env)],
        )
        found, reasons = _find_dependencies(workspace, env, key, stack, domains)
        found |= {
            ExecOps: sandboxed.sandboxes.exec_in(),
            Sandboxes: sandboxed.sandboxes,
            SandboxedProcesses: sandboxed,
        }
        found |= {SkillReader: RegistrySkillReader(skills), **(dependencies or {})}
        yield _build_toolbox(found, reasons, skills, servers, home / "tools")


def with_dependencies(toolbox: Toolbox, dependencies: Mapping[type, object]) -> Toolbox:
    """The same toolbox with further dependencies."""
    return _build_toolbox(
        {**toolbox.dependencies, **dependencies},
        {},
        toolbox.skill_registry,
        toolbox.mcp_servers,
        toolbox.own_tools.folder,
    )


def _build_toolbox(
    dependencies: dict[type, object],
    reasons: Mapping[type, str],
    skill_registry: SkillRegistry,
    mcp_servers: Sequence[McpExecutor],
    own_tools_folder: Path,
) -> Toolbox:
    from evoclaw.executors.own_tools import OwnTools
    from evoclaw.tools.catalogue import with_program
    from evoclaw.tools.sets import TOOL_NAMES, everything, usable

    tools = everything()
    offered = with_program(usable(tools, dependencies))
    absent = [
        _unavailable_tool(tool, dependencies, reasons) for tool in tools if tool not in offered
    ]
    reserved = {*TOOL_NAMES, *(bound.name for bound in skill_registry.tools())}
    own = OwnTools(own_tools_folder, given=dependencies, reserved=reserved)
    return Toolbox(offered, dependencies, tuple(absent), skill_registry, mcp_servers, own)


def _find_dependencies(
    workspace: Path,
    env: Mapping[str, str],
    key: str,
    stack: AsyncExitStack,
    domains: NetworkPolicy,
) -> tuple[dict[type, object], dict[type, str]]:
    """The dependencies that this machine has, by Protocol, and why the others are missing."""
    from evoclaw.config.paths import default_data_folder
    from evoclaw.core.canvases import Canvas
    from evoclaw.executors.canvases import FileCanvas
    from evoclaw.executors.files import LocalFiles
    from evoclaw.executors.url_guard import UrlGuard
    from evoclaw.executors.web_fetch import WebFetcher
    from evoclaw.executors.web_search import search_from
    from evoclaw.tools.nodes import Nodes
    from evoclaw.tools.question import UserPrompter
    from evoclaw.tools.sessions import Sessions
    from evoclaw.tools.todos import InMemoryTodoList, TodoList
    from evoclaw.tools.web import CodeSearcher, Fetcher, WebSearcher

    home = default_data_folder(env)
    search = search_from(env)
    maybe: dict[type, object | str] = {
        FileOps: LocalFiles(workspace),
        Fetcher: WebFetcher(UrlGuard(may=domains.allows)),
        WebSearcher: search.web or search.reason,
        CodeSearcher: search.code or search.reason,
        TodoList: InMemoryTodoList(),
        Canvas: FileCanvas(home / "canvas" / f"{key}.html"),
        UserPrompter: "no user is at a terminal to answer questions",
        Sessions: "it needs a session: use `evoclaw run --session NAME`",
        Nodes: "no fleet is connected: start one with `evoclaw up`, then `evoclaw run --on '*'`",
        **_browser(env, key, stack, domains),
        **_vision(),
    }
    reasons = {kind: value for kind, value in maybe.items() if isinstance(value, str)}
    return {kind: value for kind, value in maybe.items() if not isinstance(value, str)}, reasons


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
    chromium = Chromium(program, guard=UrlGuard(may=domains.allows))
    stack.push_async_callback(chromium.close)
    return {Browser: chromium.session(key)}


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

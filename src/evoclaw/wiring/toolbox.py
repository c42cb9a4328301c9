"""The built-in tools of this machine: what they are handed, and why some are not offered."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from evoclaw.core.bound import BoundTool
from evoclaw.core.ops import ExecOps, FileOps
from evoclaw.core.tools import Tool, UnavailableTool

if TYPE_CHECKING:
    from evoclaw.executors.mcp.executor import McpExecutor
    from evoclaw.executors.own_tools import OwnTools
    from evoclaw.governance.network import Domains
    from evoclaw.skills.watching import Shelf

BROWSER = "EVOCLAW_BROWSER"
"""Names another Chromium than the one that would be found."""


@dataclass(frozen=True, slots=True)
class Toolbox:
    """What is at hand on this machine."""

    tools: tuple[BoundTool, ...]
    given: dict[type, object]
    """What the tools are handed, by Protocol."""
    absent: tuple[UnavailableTool, ...]
    shelf: Shelf
    """The skills, whose tools come and go."""
    servers: Sequence[McpExecutor]
    """The tools of MCP servers, those that were approved."""
    own: OwnTools
    """The tools of the owner's own files."""

    def others(self) -> list[Tool]:
        """The tools of skills, of the owner's own files, and of MCP servers."""
        skills = [bound.tool for bound in self.shelf.tools()]
        servers = [tool for server in self.servers for tool in server.tools()]
        return [*skills, *self.own.tools(), *servers]

    async def sandbox(self) -> list[tuple[str, bool, str]]:
        """The sandbox engines: name, whether it can be relied on, and what there is to say."""
        from evoclaw.sandbox.engines.native.engine import NativeEngine
        from evoclaw.sandbox.engines.registry import package_engines
        from evoclaw.wiring.sandboxes import SandboxedProcesses, self_test_engines

        sandboxed = cast("SandboxedProcesses", self.given[SandboxedProcesses])
        return await self_test_engines(sandboxed, {**package_engines(), "native": NativeEngine()})

    def problems(self) -> dict[str, str]:
        """What of these cannot be used, and why."""
        self.own.tools()
        skills = {str(one.path): one.reason for one in self.shelf.problems()}
        servers = {one.server.name: one.problem for one in self.servers if one.problem}
        return self.own.problems | skills | servers


@asynccontextmanager
async def open_toolbox(
    workspace: Path,
    env: Mapping[str, str],
    *,
    key: str = "run",
    given: Mapping[type, object] | None = None,
) -> AsyncGenerator[Toolbox]:
    """What can be used here; closed, with all it started, when the block ends.

    Args:
        workspace: Where files and commands are.
        env: The environment: keys of search engines, places of programs.
        key: Names the run or session: its browser, its canvas.
        given: What the tools are handed beside that, by Protocol; it comes first.
    """
    from evoclaw.config.places import default_data_folder
    from evoclaw.governance.network import Domains
    from evoclaw.skills.binary import Sandboxes
    from evoclaw.skills.disclosure import Disclosure
    from evoclaw.tools.skill import SkillTexts
    from evoclaw.wiring.sandboxes import SandboxedProcesses, open_sandboxes
    from evoclaw.wiring.servers import connect_servers
    from evoclaw.wiring.settings import orchestrator_settings
    from evoclaw.wiring.skills import shelf, skills_folder

    async with AsyncExitStack() as stack:
        home = default_data_folder(env)
        skills, servers = shelf(env), await connect_servers(env, stack)
        config = orchestrator_settings(env)
        domains = Domains(config.network)
        sandboxed = await open_sandboxes(
            workspace,
            config.sandbox_settings,
            domains,
            stack,
            data=home,
            readable=[skills_folder(env)],
        )
        found, reasons = _found(workspace, env, key, stack, domains)
        found |= {
            ExecOps: sandboxed.sandboxes.exec_in(),
            Sandboxes: sandboxed.sandboxes,
            SandboxedProcesses: sandboxed,
        }
        found |= {SkillTexts: Disclosure(skills), **(given or {})}
        yield _filled(found, reasons, skills, servers, home / "tools")


def refilled(box: Toolbox, given: Mapping[type, object]) -> Toolbox:
    """The same box with more in it."""
    return _filled({**box.given, **given}, {}, box.shelf, box.servers, box.own.folder)


def _filled(
    found: dict[type, object],
    reasons: Mapping[type, str],
    shelf: Shelf,
    servers: Sequence[McpExecutor],
    folder: Path,
) -> Toolbox:
    from evoclaw.executors.own_tools import OwnTools
    from evoclaw.tools.catalogue import with_program
    from evoclaw.tools.sets import NAMES, everything, usable

    tools = everything()
    offered = with_program(usable(tools, found))
    absent = [_absent(one, found, reasons) for one in tools if one not in offered]
    taken = {*NAMES, *(bound.name for bound in shelf.tools())}
    own = OwnTools(folder, given=found, reserved=taken)
    return Toolbox(offered, found, tuple(absent), shelf, servers, own)


def _found(
    workspace: Path,
    env: Mapping[str, str],
    key: str,
    stack: AsyncExitStack,
    domains: Domains,
) -> tuple[dict[type, object], dict[type, str]]:
    """What there is, by Protocol, and why the rest is not."""
    from evoclaw.config.places import default_data_folder
    from evoclaw.executors.canvases import FileCanvas
    from evoclaw.executors.files import LocalFiles
    from evoclaw.executors.url_guard import UrlGuard
    from evoclaw.executors.web_fetch import WebFetcher
    from evoclaw.executors.web_search import search_from
    from evoclaw.tools.canvas import Canvas
    from evoclaw.tools.nodes import Nodes
    from evoclaw.tools.notes import Todos, TodosInMemory
    from evoclaw.tools.question import Person
    from evoclaw.tools.sessions import Sessions
    from evoclaw.tools.web import CodeSearcher, Fetcher, Searcher

    home = default_data_folder(env)
    search = search_from(env)
    maybe: dict[type, object | str] = {
        FileOps: LocalFiles(workspace),
        Fetcher: WebFetcher(UrlGuard(may=domains.may)),
        Searcher: search.web or search.reason,
        CodeSearcher: search.code or search.reason,
        Todos: TodosInMemory(),
        Canvas: FileCanvas(home / "canvas" / f"{key}.html"),
        Person: "nobody is at the terminal to be asked",
        Sessions: "it needs a session: say `evoclaw run --session NAME`",
        Nodes: "there is no fleet here: start one with `evoclaw up`, then `evoclaw run --on '*'`",
        **_browser(env, key, stack, domains),
        **_vision(),
    }
    reasons = {kind: thing for kind, thing in maybe.items() if isinstance(thing, str)}
    return {kind: thing for kind, thing in maybe.items() if not isinstance(thing, str)}, reasons


def _browser(
    env: Mapping[str, str], key: str, stack: AsyncExitStack, domains: Domains
) -> dict[type, object | str]:
    from evoclaw.executors.browser.chromium import Chromium
    from evoclaw.executors.browser.program import find_browser
    from evoclaw.executors.url_guard import UrlGuard
    from evoclaw.tools.browser import Browser

    program = find_browser(env.get(BROWSER, ""), env=env)
    if isinstance(program, str):
        return {Browser: program}
    chromium = Chromium(program, guard=UrlGuard(may=domains.may))
    stack.push_async_callback(chromium.close)
    return {Browser: chromium.session(key)}


def _vision() -> dict[type, object | str]:
    from evoclaw.tools.image import Vision
    from evoclaw.tools.pictures import why_unavailable

    return {Vision: why_unavailable() or "the model of this run is shown no pictures"}


def _absent(
    bound: BoundTool, found: Mapping[type, object], reasons: Mapping[type, str]
) -> UnavailableTool:
    from evoclaw.tools.catalogue import CATALOGUE

    if program := CATALOGUE[bound.name].missing_program():
        why = f"there is no `{program}`: install your system's package of it"
        return UnavailableTool(bound.tool, why)
    missing = sorted(bound.needs - found.keys(), key=lambda kind: kind.__name__)
    why = "; ".join(reasons.get(kind, kind.__name__) for kind in missing)
    return UnavailableTool(bound.tool, why)

"""Builds the tools that an `agent.toml` adds to an edge; imported only if it adds any."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence, Set
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from evoclaw.core.errors import ConfigError
from evoclaw.core.ops import ExecOps, FileOps
from evoclaw.core.tools import UNDO_TOOL
from evoclaw.edge.added_tools import AddedTools

if TYPE_CHECKING:
    from evoclaw.config import EdgeConfig
    from evoclaw.core.ports import Executor
    from evoclaw.executors.mcp.executor import McpExecutor
    from evoclaw.executors.mcp.pins import PinFile
    from evoclaw.executors.own_tools import OwnTools
    from evoclaw.sandbox.sandboxed_processes import SandboxedProcesses
    from evoclaw.skills.registry import SkillRegistry


async def open_added_tools(
    config: EdgeConfig,
    env: Mapping[str, str],
    stack: AsyncExitStack,
    sandboxed: SandboxedProcesses,
    dependencies: Mapping[type, object],
) -> tuple[AddedTools, Set[str]]:
    """The added tools, and the names of the built-in tools that they replace."""
    from evoclaw.config.paths import default_data_folder

    home = default_data_folder(env)
    executors: dict[str, Executor] = {}
    registry: SkillRegistry | None = None
    replaced: Set[str] = frozenset()
    if config.tools.skills_path is not None or config.tools.paths.bin is not None:
        registry = _skill_registry(config, home)
        replaced = _replaced(config, registry)
        executors["a skill"] = _skill_executor(registry, sandboxed, config.read_roots)
    own = None
    if config.tools.tools_path is not None or config.tools.packages:
        given = {**dependencies, ExecOps: sandboxed.exec_here()}
        own = await _own_tools(config, given, sandboxed, stack)
        executors["your own files"] = own
    pins, servers = _mcp_servers(config, home) if config.mcp else (None, [])
    for server in servers:
        stack.push_async_callback(server.close)
        executors[f"the MCP server {server.server.name}"] = server
    added = AddedTools(
        executors,
        skills=registry,
        own=own,
        servers=servers,
        pins=pins,
        capabilities=config.capabilities,
    )
    await added.connect()
    return added, replaced


def _skill_registry(config: EdgeConfig, home: Path) -> SkillRegistry:
    from evoclaw.skills.registry import SkillRegistry
    from evoclaw.tools.catalogue import CATALOGUE, RunsOn, tools_on
    from evoclaw.wiring.skills import skill_approvals

    # A sandboxed program has files and processes, but no network, and not the owner's git settings.
    replaceable = {
        bound.name
        for bound in tools_on(RunsOn.EDGE)
        if bound.dependencies <= {FileOps, ExecOps} and "git" not in bound.tool.permissions
    }
    path, bin_folder = config.tools.skills_path, config.tools.paths.bin
    return SkillRegistry(
        [] if path is None else [path],
        approvals=skill_approvals(home),
        reserved=dict.fromkeys((*CATALOGUE, UNDO_TOOL), "a built-in tool"),
        replacing=None if bin_folder is None else bin_folder.parent,
        left_out=CATALOGUE.keys() - replaceable,
    )


def _replaced(config: EdgeConfig, registry: SkillRegistry) -> Set[str]:
    """The built-in tools whose calls run programs of `[tools.paths] bin`."""
    from evoclaw.tools.catalogue import CATALOGUE

    folder = config.tools.paths.bin
    if folder is None:
        return frozenset()
    skill = next((found for found in registry.skills() if found.folder == folder.parent), None)
    if skill is None:
        reasons = [issue.reason for issue in registry.problems() if _is_at(issue.path, folder)]
        raise ConfigError(f"[tools.paths] bin: {folder} cannot be used: {'; '.join(reasons)}")
    names = {p.tool.name for p in skill.programs if p.binary.startswith(f"{folder.name}/")}
    if not names:
        raise ConfigError(
            f"[tools.paths] bin: {folder.parent}/skill.toml declares no program in "
            f"'{folder.name}/'; add a [[tools]] table with binary = \"{folder.name}/NAME\""
        )
    return CATALOGUE.keys() & {bound.name for bound in registry.tools()}


def _is_at(path: Path, bin_folder: Path) -> bool:
    return path.is_relative_to(bin_folder.parent)


def _skill_executor(
    registry: SkillRegistry, sandboxed: SandboxedProcesses, read_roots: Sequence[Path]
) -> Executor:
    from evoclaw.skills.programs import ProgramVariables, Sandboxes
    from evoclaw.skills.skill_executor import SkillExecutor

    return SkillExecutor(
        registry,
        sandboxed.exec_here(),
        dependencies={
            Sandboxes: sandboxed.sandboxes,
            # The sandbox shows them to every program; `dt-read` also has limits of its own.
            ProgramVariables: ProgramVariables(
                {"EVOCLAW_READ_ROOTS": os.pathsep.join(map(str, read_roots))}
            ),
        },
        exec_for=sandboxed.exec_for_program,
    )


async def _own_tools(
    config: EdgeConfig,
    given: Mapping[type, object],
    sandboxed: SandboxedProcesses,
    stack: AsyncExitStack,
) -> OwnTools:
    from evoclaw.executors.own_tools import OwnTools
    from evoclaw.governance.network import NetworkPolicy
    from evoclaw.tools.catalogue import CATALOGUE
    from evoclaw.wiring.packages import tool_loaders
    from evoclaw.wiring.sandboxes import open_isolated_tools

    isolated = await open_isolated_tools(
        config.workspace,
        config.sandbox_settings,
        NetworkPolicy(config.network),
        stack,
        data=config.data,
    )
    own = OwnTools(
        config.tools.tools_path,
        given=given,
        reserved=(*CATALOGUE, UNDO_TOOL),
        exec_for=sandboxed.exec_for_program,
        isolated=isolated,
        packages=tool_loaders(
            config.tools.packages,
            [config.workspace, *config.sandbox.writable],
        ),
    )
    stack.push_async_callback(own.close)
    await own.settle()
    return own


def _mcp_servers(config: EdgeConfig, home: Path) -> tuple[PinFile, list[McpExecutor]]:
    from evoclaw.executors.mcp.executor import McpExecutor
    from evoclaw.executors.mcp.pins import PinFile
    from evoclaw.executors.mcp.sign_ins import SignInFile
    from evoclaw.wiring.mcp_connections import PINS_FILE, SIGN_INS_FILE, mcp_definitions

    pins = PinFile(home / PINS_FILE, owner=config.agent_id)
    sign_ins = SignInFile(home / SIGN_INS_FILE, owner=config.agent_id)
    servers = [
        McpExecutor(server, pins, sign_ins=sign_ins) for server in mcp_definitions(config.mcp)
    ]
    return pins, servers

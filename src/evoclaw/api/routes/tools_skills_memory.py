"""Routes of tools, skills and memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
from litestar import get
from litestar.handlers import HTTPRouteHandler
from litestar.params import QueryParameter
from msgspec import Struct

from evoclaw.api.auth import InjectedCaller, InjectedDependencies
from evoclaw.api.dependencies import ApiDependencies
from evoclaw.api.errors import not_found, require
from evoclaw.api.routes.parameters import (
    NO_NUL_PATTERN,
    AgentFilter,
    SessionFilter,
    ToolName,
    path_id,
)
from evoclaw.core.messages import JSON
from evoclaw.core.tools import Tool
from evoclaw.orchestrator.people.access import Caller, TokenScope
from evoclaw.skills.loading import Skill


class ToolView(Struct, frozen=True):
    """A tool of this orchestrator."""

    name: str
    """The name of the tool."""
    description: str
    """What it does, for the model."""
    parameters: dict[str, JSON]
    """The JSON Schema of its arguments."""
    permissions: tuple[str, ...]
    """What an agent must hold to use it."""
    effect: str
    """`read` or `write`."""
    timeout: float
    """Seconds that a call may take by default."""
    max_timeout: float
    """The longest timeout that a call may request, in seconds."""
    idempotent: bool
    """Whether running it twice does no more than running it once."""
    version: str
    """Changes when the tool changes."""
    isolated: bool = False
    """Whether it runs in a sandboxed process of its own."""


class UnavailableToolView(Struct, frozen=True):
    """A tool that is not available."""

    name: str
    """The name of the tool."""
    why: str
    """Why it is not available, and what to do."""
    description: str
    """What it does, for the model."""
    parameters: dict[str, JSON]
    """The JSON Schema of its arguments."""
    permissions: tuple[str, ...]
    """What an agent must hold to use it."""


class ToolProblem(Struct, frozen=True):
    """A file, skill, MCP server or MCP tool that cannot be used."""

    name: str
    """Its name."""
    why: str
    """Why it cannot be used, and what to do."""


class ToolList(Struct, frozen=True):
    """The available tools, and the unavailable ones with the reason."""

    items: tuple[ToolView, ...]
    """The available tools."""
    absent: tuple[UnavailableToolView, ...]
    """Built-in tools that are not available."""
    problems: tuple[ToolProblem, ...] = ()
    """Own tools, skills and MCP servers that cannot be used; only for the operator's tenant."""


class SkillView(Struct, frozen=True, omit_defaults=True):
    """A skill: its purpose and its tools."""

    name: str
    """The name of the skill."""
    version: str
    """Its version."""
    description: str
    """What it does and when to use it."""
    digest: str
    """The hash of its files; empty for other tenants than the operator's."""
    approved: bool
    """Whether the operator approved it as it is."""
    tools: tuple[str, ...] = ()
    """The names of its tools."""
    allowed_tools: tuple[str, ...] | None = None
    """The tools that it works with; null: all."""
    references: tuple[str, ...] = ()
    """Its files that a model can read."""
    notes: tuple[str, ...] = ()
    """Hints about how it is written."""
    instructions: str = ""
    """Only in the response for a single skill."""
    disallowed_tools: tuple[str, ...] = ()
    """The tools that a run may not use once it has loaded the skill."""


class SkillProblem(Struct, frozen=True):
    """A skill that is not available."""

    path: str
    """Its file or folder, with the folder that it is in."""
    reason: str
    """Why it is not available, and what to do."""
    refused: bool
    """False if the skill only does not support this machine."""


class SkillList(Struct, frozen=True):
    """The available skills, and the unavailable ones with the reason."""

    items: tuple[SkillView, ...]
    """The available skills."""
    problems: tuple[SkillProblem, ...]
    """The unavailable skills."""


class MemoryList(Struct, frozen=True):
    """The matching notes, the best first."""

    items: tuple[dict[str, JSON], ...]
    """The notes."""


def tool_view(tool: Tool) -> ToolView:
    """The view of a tool."""
    return ToolView(
        tool.name,
        tool.description,
        tool.parameters,
        tuple(sorted(tool.permissions)),
        str(tool.effect),
        tool.timeout,
        tool.max_timeout,
        tool.idempotent,
        tool.version,
        tool.isolated,
    )


def tools_for(parts: ApiDependencies, caller: Caller) -> Sequence[Tool]:
    """The tools that runs of a caller's tenant are offered by the default agent."""
    tools = require(parts.tools, "tools")()
    if caller.tenant == parts.operator_tenant:
        return tools
    hidden = parts.operator_tools()
    return [tool for tool in tools if tool.name not in hidden]


@get("/v1/tools", scope=TokenScope.TOOLS_READ, tags=["tools"])
async def list_tools(parts: InjectedDependencies, caller: InjectedCaller) -> ToolList:
    """List the tools of this orchestrator, and the unavailable ones with the reason."""
    tools = tools_for(parts, caller)
    absent = tuple(
        UnavailableToolView(
            tool.name, reason, tool.description, tool.parameters, tuple(sorted(tool.permissions))
        )
        for tool, reason in ((found.tool, found.why) for found in parts.unavailable_tools())
    )
    # They name files of the machine.
    is_operator = caller.tenant == parts.operator_tenant
    found = parts.tool_problems().items() if is_operator else ()
    problems = tuple(ToolProblem(*problem) for problem in found)
    return ToolList(tuple(tool_view(tool) for tool in tools), absent, problems)


@get("/v1/tools/{name:str}", scope=TokenScope.TOOLS_READ, tags=["tools"])
async def show_tool(
    parts: InjectedDependencies, caller: InjectedCaller, name: ToolName
) -> ToolView:
    """Show one tool."""
    for tool in tools_for(parts, caller):
        if tool.name == name:
            return tool_view(tool)
    raise not_found("tool")


@get("/v1/skills", scope=TokenScope.SKILLS_READ, tags=["skills"])
async def list_skills(parts: InjectedDependencies, caller: InjectedCaller) -> SkillList:
    """List the skills that your agents can use, and for the operator's tenant the unavailable ones.

    Agents of all tenants may read the instructions of a skill. Its tools are listed where runs of
    the tenant are offered them.
    """
    skills = require(parts.skills, "skills")
    # They name files of the machine.
    is_operator = caller.tenant == parts.operator_tenant
    problems = (
        SkillProblem("/".join(problem.path.parts[-2:]), problem.reason, problem.refused)
        for problem in (skills.problems() if is_operator else ())
    )
    return SkillList(
        tuple(_skill_view(parts, caller, skill) for skill in skills.skills()), tuple(problems)
    )


@get("/v1/skills/{name:str}", scope=TokenScope.SKILLS_READ, tags=["skills"])
async def show_skill(
    parts: InjectedDependencies,
    caller: InjectedCaller,
    name: Annotated[str, path_id("The name of the skill.")],
) -> SkillView:
    """Show one skill with its instructions."""
    skill = require(parts.skills, "skills").find(name)
    if skill is None:
        raise not_found("skill")
    view = _skill_view(parts, caller, skill)
    return msgspec.structs.replace(view, instructions=skill.instructions)


def _skill_view(parts: ApiDependencies, caller: Caller, skill: Skill) -> SkillView:
    """The view of a skill; that of other tenants has nothing of the operator's machine."""
    is_operator = caller.tenant == parts.operator_tenant
    hidden = () if is_operator else parts.operator_tools()
    return SkillView(
        skill.name,
        skill.version,
        skill.description,
        skill.digest if is_operator else "",
        require(parts.skills, "skills").pinned(skill),
        tuple(p.tool.name for p in skill.programs if p.tool.name not in hidden),
        None if skill.allowed_tools is None else tuple(sorted(skill.allowed_tools)),
        tuple(skill.references),
        tuple(skill.notes) if is_operator else (),
        disallowed_tools=tuple(sorted(skill.disallowed_tools)),
    )


@get("/v1/memory", scope=TokenScope.SESSIONS_READ, tags=["memory"])
async def search_memory(
    parts: InjectedDependencies,
    caller: InjectedCaller,
    memory_query: Annotated[
        str,
        QueryParameter(
            name="query",
            min_length=1,
            max_length=1_000,
            pattern=NO_NUL_PATTERN,
            description="Words to search for.",
        ),
    ],
    level: Annotated[
        Literal["index", "timeline", "full"],
        QueryParameter(description="How much of each note to return."),
    ] = "index",
    top_k: Annotated[
        int, QueryParameter(ge=1, le=100, description="The maximum number of notes.")
    ] = 5,
    agent: AgentFilter = "",
    session_id: SessionFilter = "",
) -> MemoryList:
    """Search the notes that your agents keep between sessions."""
    memory = require(parts.memory, "memories").of(caller.tenant, caller.principal.user)
    found = await memory.search(memory_query, level, top_k, agent=agent, session_id=session_id)
    return MemoryList(tuple(msgspec.to_builtins(note) for note in found))


ROUTES: tuple[HTTPRouteHandler, ...] = (
    list_tools,
    show_tool,
    list_skills,
    show_skill,
    search_memory,
)

"""Where each tool can be used, and why not elsewhere: read from the tool catalogue."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from evoclaw.tools.catalogue import CATALOGUE, FLEET_TOOL_NAMES, RunsOn


class Surface(StrEnum):
    """The ways in which a tool is called."""

    RUN = "run"
    """`evoclaw run`, on this machine."""
    SERVICE = "service"
    """Runs of `evoclaw up`: chat, HTTP API, dashboard, channels."""
    EDGE = "edge"
    """An edge: calls of the orchestrator, and of the edge's own model."""
    WORKFLOW = "workflow"
    """Steps of workflows, with an agent or with one call."""
    OPENAI = "OpenAI"
    """The chat completions of the service."""
    MCP = "MCP"
    """`evoclaw mcp serve`."""


YES = "yes"
SKILL_TOOLS, OWN_TOOLS, MCP_TOOLS = "tools of skills", "own Python tools", "tools of MCP servers"
_EVERYWHERE = frozenset(RunsOn)
ADDED_TOOLS: Mapping[str, frozenset[RunsOn]] = {
    SKILL_TOOLS: _EVERYWHERE,
    OWN_TOOLS: _EVERYWHERE,
    MCP_TOOLS: _EVERYWHERE,
}
"""The tools that a user adds, and the host processes that can run them."""
_OF_SERVICE = (Surface.SERVICE, Surface.WORKFLOW, Surface.OPENAI)
"""All three are runs of the service, with the same tools."""
_SESSION_TOOLS = (
    "task", "sessions_list", "sessions_history", "sessions_send", "sessions_spawn",
    "session_status", "agents_list",
)  # fmt: skip
_TERMS: Mapping[str, Mapping[Surface, str]] = {
    **dict.fromkeys(
        _SESSION_TOOLS,
        {
            Surface.RUN: "yes, with `--session NAME`",
            Surface.MCP: "no: an MCP client has no session here",
        },
    ),
    **dict.fromkeys(
        sorted(FLEET_TOOL_NAMES),
        {Surface.RUN: "yes, with `--on '*'`", Surface.MCP: "yes, with `--on '*'`"},
    ),
    "edge_call": {
        Surface.RUN: "yes, with `--on '*'`",
        Surface.MCP: "yes, with `--on '*'`",
        Surface.EDGE: "yes, for its own model while it answers",
    },
    "question": {
        Surface.RUN: "yes, at a terminal",
        Surface.MCP: "no: the client asks its own user",
    },
    "image": {Surface.MCP: "no: the client's model looks at pictures itself"},
    "notify": {Surface.EDGE: "yes, where a message can be shown"},
    "device_write": {Surface.EDGE: "yes, where `raspi-gpio` or `pinctrl` is installed"},
}
"""Where a tool needs more than the host process, or a surface cannot supply what it needs."""
_REQUIREMENTS = {
    "websearch": "a search key", "codesearch": "a search key", "browser": "Chromium",
    "image": "a model that reads images",
}  # fmt: skip


def availability(name: str) -> dict[Surface, str]:
    """For each surface: `yes`, `yes, …` with a condition, or `no: …` with the reason.

    Args:
        name: A tool of the catalogue, or a key of `ADDED_TOOLS`.
    """
    hosts = ADDED_TOOLS[name] if name in ADDED_TOOLS else CATALOGUE[name].runs_on
    found = dict.fromkeys(_OF_SERVICE, _in_service(hosts))
    found |= {Surface.RUN: _locally(hosts), Surface.MCP: _locally(hosts)}
    found[Surface.EDGE] = YES if RunsOn.EDGE in hosts else "no: it needs the orchestrator"
    if name in ADDED_TOOLS:
        found[Surface.EDGE] = "yes, by its `agent.toml`"
    elif RunsOn.EDGE not in hosts and RunsOn.ORCHESTRATOR not in hosts:
        found[Surface.EDGE] = "no: only on the machine of `evoclaw run`"
    needs = _REQUIREMENTS.get(name, "")
    terms = _TERMS.get(name, {})
    return {
        surface: terms.get(surface) or _with_requirement(found[surface], needs)
        for surface in Surface
    }


def _in_service(hosts: frozenset[RunsOn]) -> str:
    if RunsOn.ORCHESTRATOR in hosts:
        return YES
    return "yes, on an edge" if RunsOn.EDGE in hosts else "no: only with `evoclaw run`"


def _locally(hosts: frozenset[RunsOn]) -> str:
    return YES if RunsOn.LOCAL in hosts else "yes, with `--on EDGE`"


def _with_requirement(found: str, needs: str) -> str:
    return f"{found}; needs {needs}" if needs and found.startswith(YES) else found

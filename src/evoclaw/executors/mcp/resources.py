"""The resources and prompts of an MCP server as tools: their texts are results like any other."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any

from mcp import types
from mcp.client import ClientSession
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from evoclaw.core.messages import JSON
from evoclaw.executors.mcp.offers import MAX_NOTE_CHARS, ListedTool, one_line

MAX_LISTED = 500
"""Resources, templates or prompts that are listed."""
MAX_PAGES = 20
LIST_RESOURCES, READ_RESOURCE, GET_PROMPT = "resources/list", "resources/read", "prompts/get"

_RESOURCE_TOOLS = (
    ListedTool("list_resources", "Lists its resources and templates.", method=LIST_RESOURCES),
    ListedTool(
        "read_resource",
        "Reads one of its resources by the URI that list_resources shows; fill in a template.",
        {"type": "object", "properties": {"uri": {"type": "string"}}, "required": ["uri"]},
        method=READ_RESOURCE,
    ),
)
_PROMPT_TOOL = ListedTool(
    "get_prompt",
    "Shows one of its prompts, filled with arguments; without a name it lists the prompts.",
    {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "arguments": {"type": "object", "additionalProperties": {"type": "string"}},
        },
    },
    method=GET_PROMPT,
)


async def extra_tools(
    session: ClientSession, able: types.ServerCapabilities, taken: Sequence[ListedTool]
) -> list[ListedTool]:
    """The tools for what a server has beside tools; its own tools keep their names.

    Many servers say that they can have resources and prompts, and have none.
    """
    extras: list[ListedTool] = []
    if able.resources and await _has_any(_resources(session)):
        extras += _RESOURCE_TOOLS
    if able.prompts and await _has_any(_prompts(session)):
        extras.append(_PROMPT_TOOL)
    names = {tool.name for tool in taken}
    return [tool for tool in extras if tool.name not in names]


async def _has_any(listing: Coroutine[Any, Any, list[str]]) -> bool:
    try:
        return bool(await listing)
    except (MCPError, ValidationError):
        return False  # it has none that could be used; its tools can be


async def use_extra(
    session: ClientSession, method: str, arguments: dict[str, JSON]
) -> types.CallToolResult:
    """List or read resources, or get a prompt; the answer looks like that of a tool."""
    if method == LIST_RESOURCES:
        return _texts(await _resources(session))
    if method == READ_RESOURCE:
        read = await session.read_resource(arguments["uri"])
        blocks = [types.EmbeddedResource(resource=part) for part in read.contents]
        return types.CallToolResult(content=list(blocks))
    name, given = arguments.get("name", ""), arguments.get("arguments", {})
    if not name:
        return _texts(await _prompts(session))
    found = await session.get_prompt(name, given)
    content: list[types.ContentBlock] = []
    for message in found.messages:
        content += [types.TextContent(text=f"[{message.role}]"), message.content]
    return types.CallToolResult(content=content)


async def _resources(session: ClientSession) -> list[str]:
    lines: list[str] = []
    cursor: str | None = None
    for _ in range(MAX_PAGES):
        page = await session.list_resources(params=_page(cursor))
        lines += [_line(item.uri, item.mime_type, item.description) for item in page.resources]
        cursor = page.next_cursor
        if cursor is None or len(lines) >= MAX_LISTED:
            break
    cursor = None
    for _ in range(MAX_PAGES):
        found = await session.list_resource_templates(params=_page(cursor))
        items = found.resource_templates
        lines += [_line(item.uri_template, item.mime_type, item.description) for item in items]
        cursor = found.next_cursor
        if cursor is None or len(lines) >= MAX_LISTED:
            break
    return lines


async def _prompts(session: ClientSession) -> list[str]:
    lines: list[str] = []
    cursor: str | None = None
    for _ in range(MAX_PAGES):
        page = await session.list_prompts(params=_page(cursor))
        for prompt in page.prompts:
            needs = ", ".join(part.name for part in prompt.arguments or ())
            lines.append(_line(f"{prompt.name}({needs})", None, prompt.description))
        cursor = page.next_cursor
        if cursor is None or len(lines) >= MAX_LISTED:
            break
    return lines


def _page(cursor: str | None) -> types.PaginatedRequestParams:
    return types.PaginatedRequestParams(cursor=cursor)


def _line(name: str, media_type: str | None, description: str | None) -> str:
    parts = [name, f"({media_type})" if media_type else "", description or ""]
    return one_line(" ".join(part for part in parts if part), MAX_NOTE_CHARS)


def _texts(lines: Sequence[str]) -> types.CallToolResult:
    text = "\n".join(lines[:MAX_LISTED]) or "(none)"
    return types.CallToolResult(content=[types.TextContent(text=text)])

"""What the public MCP conformance suite expects of a server, served by the endpoint of EvoClaw.

Its tools are tools of a local executor where EvoClaw's tools can return what the suite expects.
The others answer through the same request object that EvoClaw's own calls use.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any, TypeAlias

from mcp import types

from evoclaw.api.mcp.endpoint import McpEndpoint, ToolOutcome
from evoclaw.api.mcp.requests import FormSchema, McpRequest
from evoclaw.api.mcp_server import McpTools
from evoclaw.api.problems import ApiError
from evoclaw.core.bound_tools import BoundTool, ToolEnvironment
from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ErrorKind, ImageBlock, ToolResult
from evoclaw.core.ports import Progress
from evoclaw.core.tools import Call, Tool
from evoclaw.executors.local import LocalExecutor
from evoclaw.governance.autonomy import Autonomy, Level
from evoclaw.tools.define import tool
from tests.support.mcp_servers import PIXEL

Answer: TypeAlias = Callable[[McpRequest, dict[str, Any]], Awaitable[types.CallToolResult]]
NO_ARGUMENTS: FormSchema = {"type": "object", "properties": {}}


@tool(effect="read", resources=())
async def test_simple_text() -> str:
    """Say a simple text."""
    return "This is a simple text response for testing."


@tool(effect="read", resources=())
async def test_image_content() -> ImageBlock:
    """Show a picture."""
    return ImageBlock("image/png", PIXEL)


@tool(effect="read", resources=())
async def test_error_handling() -> str:
    """Fail."""
    text = "This tool intentionally returns an error for testing"
    raise ToolFailure(ErrorKind.EXECUTION_FAILED, text)


@tool(effect="read", resources=(), streams=True)
async def test_tool_with_progress(progress: Progress) -> str:
    """Report progress, then end."""
    for percent in (0, 50, 100):
        progress(f"{percent}/100")
        await asyncio.sleep(0.05)
    return "done"


@tool(effect="read", resources=(), streams=True)
async def test_tool_with_logging(progress: Progress) -> str:
    """Print output, which a client that asks for no progress gets as log messages."""
    for text in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        progress(text)
        await asyncio.sleep(0.05)
    return "Tool with logging executed successfully"


def schema_tool() -> BoundTool:
    """A tool whose schema uses what only newer drafts have."""

    async def run(call: Call, machine: ToolEnvironment) -> ToolResult:
        return call.ok("fine")

    address = {"street": {"type": "string"}, "city": {"type": "string"}}
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": {"address": {"type": "object", "properties": address}},
        "properties": {"name": {"type": "string"}, "address": {"$ref": "#/$defs/address"}},
        "additionalProperties": False,
    }
    about = "Tool with JSON Schema 2020-12 features"
    return BoundTool(Tool("json_schema_2020_12_tool", about, schema), run)


DEFAULTS: FormSchema = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "default": "John Doe"},
        "age": {"type": "integer", "default": 30},
        "score": {"type": "number", "default": 95.5},
        "status": {
            "type": "string",
            "enum": ["active", "inactive", "pending"],
            "default": "active",
        },
        "verified": {"type": "boolean", "default": True},
    },
    "required": [],
}
OPTIONS = ["option1", "option2", "option3"]
TITLED = [{"const": f"value{number}", "title": f"Value {number}"} for number in (1, 2, 3)]
ENUMS: FormSchema = {
    "type": "object",
    "properties": {
        "untitledSingle": {"type": "string", "enum": OPTIONS},
        "titledSingle": {"type": "string", "oneOf": TITLED},
        "legacyEnum": {
            "type": "string",
            "enum": ["opt1", "opt2", "opt3"],
            "enumNames": ["Option One", "Option Two", "Option Three"],
        },
        "untitledMulti": {"type": "array", "items": {"type": "string", "enum": OPTIONS}},
        "titledMulti": {"type": "array", "items": {"anyOf": TITLED}},
    },
    "required": [],
}
RESPONSE: FormSchema = {
    "type": "object",
    "properties": {"response": {"type": "string"}},
    "required": ["response"],
}


def _elicits(schema: FormSchema) -> Answer:
    async def answer(request: McpRequest, arguments: dict[str, Any]) -> types.CallToolResult:
        message = str(arguments.get("message", "Please fill in the form"))
        given = await request.elicit("form", message, schema)
        action = "none" if given is None else given.action
        content = {} if given is None else given.content or {}
        return _content(types.TextContent(text=f"action={action}, content={json.dumps(content)}"))

    return answer


async def _reconnects(request: McpRequest, arguments: dict[str, Any]) -> types.CallToolResult:
    if request.context.close_sse_stream is not None:
        await request.context.close_sse_stream()
    await asyncio.sleep(0.1)
    return _content(types.TextContent(text="The client connected again."))


def _returns(*blocks: types.ContentBlock) -> Answer:
    async def answer(request: McpRequest, arguments: dict[str, Any]) -> types.CallToolResult:
        return _content(*blocks)

    return answer


def _content(*blocks: types.ContentBlock) -> types.CallToolResult:
    return types.CallToolResult(content=list(blocks))


def _embedded(uri: str, text: str, media_type: str = "text/plain") -> types.EmbeddedResource:
    found = types.TextResourceContents(uri=uri, mime_type=media_type, text=text)
    return types.EmbeddedResource(resource=found)


DIRECT: dict[str, Answer] = {
    "test_elicitation": _elicits(RESPONSE),
    "test_elicitation_sep1034_defaults": _elicits(DEFAULTS),
    "test_elicitation_sep1330_enums": _elicits(ENUMS),
    "test_reconnection": _reconnects,
    "test_embedded_resource": _returns(
        _embedded("test://embedded-resource", "This is an embedded resource content.")
    ),
    "test_multiple_content_types": _returns(
        types.TextContent(text="Multiple content types test:"),
        types.ImageContent(data=PIXEL, mime_type="image/png"),
        _embedded("test://mixed-content-resource", '{"test": "data"}', "application/json"),
    ),
}


class SuiteTools:
    """The tools of the suite: those of a local executor, and those above."""

    def __init__(self) -> None:
        bound = (
            test_simple_text,
            test_image_content,
            test_error_handling,
            test_tool_with_progress,
            test_tool_with_logging,
        )
        executor = LocalExecutor([*bound, schema_tool()])
        self._local = McpTools(executor, Autonomy(Level.FULL))

    def tools(self, request: McpRequest) -> Sequence[Tool]:
        """All of them."""
        direct = (Tool(name, f"The fixture {name}", NO_ARGUMENTS) for name in DIRECT)
        return (*self._local.tools(), *direct)

    async def call(self, request: McpRequest, params: types.CallToolRequestParams) -> ToolOutcome:
        """Run one."""
        if (answer := DIRECT.get(params.name)) is not None:
            return await answer(request, params.arguments or {})
        return await self._local.call(request, params)


RESOURCES = {
    "test://static-text": "This is the content of the static text resource.",
    "test://watched-resource": "Watched resource content",
}
TEMPLATE = "test://template/{id}/data"


class SuiteResources:
    """The resources of the suite."""

    async def page(self, request: McpRequest, cursor: str) -> tuple[Sequence[types.Resource], str]:
        """All of them."""
        found = [
            types.Resource(uri=uri, name=uri.rpartition("/")[2], mime_type="text/plain")
            for uri in RESOURCES
        ]
        binary = types.Resource(uri="test://static-binary", name="binary", mime_type="image/png")
        return [*found, binary], ""

    def templates(self, request: McpRequest) -> Sequence[types.ResourceTemplate]:
        """One template."""
        return [types.ResourceTemplate(name="template", uri_template=TEMPLATE)]

    async def read(
        self, request: McpRequest, uri: str
    ) -> Sequence[types.TextResourceContents | types.BlobResourceContents]:
        """Read one."""
        if uri in RESOURCES:
            text = RESOURCES[uri]
            return [types.TextResourceContents(uri=uri, mime_type="text/plain", text=text)]
        if uri == "test://static-binary":
            return [types.BlobResourceContents(uri=uri, mime_type="image/png", blob=PIXEL)]
        head, _, tail = TEMPLATE.partition("{id}")
        if uri.startswith(head) and uri.endswith(tail):
            found = uri.removeprefix(head).removesuffix(tail)
            text = json.dumps({"id": found, "templateTest": True, "data": f"Data for ID: {found}"})
            return [types.TextResourceContents(uri=uri, mime_type="application/json", text=text)]
        raise ApiError(404, "not_found", "There is no such resource.")

    async def complete(self, request: McpRequest, template: str, name: str) -> Sequence[str]:
        """Some ids."""
        return ("123", "124") if template == TEMPLATE else ()

    async def changes(self, request: McpRequest, uri: str) -> AsyncGenerator[None, None]:
        """Nothing ever changes."""
        await self.read(request, uri)
        return _nothing()


async def _nothing() -> AsyncGenerator[None, None]:
    await asyncio.Event().wait()
    yield


class SuitePrompts:
    """The prompts of the suite."""

    async def prompts(self, request: McpRequest) -> Sequence[types.Prompt]:
        """All of them."""
        arguments = {
            "test_simple_prompt": (),
            "test_prompt_with_arguments": ("arg1", "arg2"),
            "test_prompt_with_embedded_resource": ("resourceUri",),
            "test_prompt_with_image": (),
        }
        return [
            types.Prompt(
                name=name,
                description=f"The fixture {name}",
                arguments=[types.PromptArgument(name=each, required=True) for each in given],
            )
            for name, given in arguments.items()
        ]

    async def get(
        self, request: McpRequest, name: str, arguments: dict[str, str]
    ) -> types.GetPromptResult:
        """One of them."""
        blocks: list[types.ContentBlock]
        match name:
            case "test_simple_prompt":
                blocks = [types.TextContent(text="This is a simple prompt for testing.")]
            case "test_prompt_with_arguments":
                text = f"arg1='{arguments.get('arg1')}', arg2='{arguments.get('arg2')}'"
                blocks = [types.TextContent(text=f"Prompt with arguments: {text}")]
            case "test_prompt_with_embedded_resource":
                uri = arguments.get("resourceUri", "")
                embedded = _embedded(uri, "Embedded resource content for testing.")
                blocks = [embedded, types.TextContent(text="Please process it.")]
            case "test_prompt_with_image":
                image = types.ImageContent(data=PIXEL, mime_type="image/png")
                blocks = [image, types.TextContent(text="Please analyze the image above.")]
            case _:
                raise ApiError(404, "not_found", "There is no such prompt.")
        return types.GetPromptResult(
            messages=[types.PromptMessage(role="user", content=block) for block in blocks]
        )

    async def complete(self, request: McpRequest, prompt: str, name: str) -> Sequence[str]:
        """Some words."""
        return ("test", "testing")


def served() -> McpEndpoint:
    """What the suite is shown."""
    return McpEndpoint(SuiteTools(), resources=SuiteResources(), prompts=SuitePrompts())

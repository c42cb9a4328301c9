"""The public MCP conformance suite against our server and our client: `make mcp-conformance`.

`python -m tests.api.conformance [FOLDER]` installs the suite there, runs all its scenarios for what
an MCP server over HTTP and a client can be, and ends with one JSON object. It fails when a scenario
of what we implement does.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from evoclaw.api.mcp_http import serving_http
from evoclaw.api.mcp_server import McpTools
from evoclaw.core.bound_tools import BoundTool, ToolEnvironment
from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ErrorKind, ImageBlock, ToolResult
from evoclaw.core.ports import Progress
from evoclaw.core.tools import Call, Tool
from evoclaw.executors.local import LocalExecutor
from evoclaw.governance.autonomy import Autonomy, Level
from evoclaw.tools.define import tool
from tests.api import conformance_client
from tests.providers.aimock.install import node, npm
from tests.support.mcp_servers import PIXEL

ROOT = Path(__file__).parents[2]
PINNED = {"@modelcontextprotocol/conformance": "0.1.16"}
FLAGS = ("--no-package-lock", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error")
NOT_OURS = {
    "logging-set-level": "no log messages: what happens is recorded, not sent to clients",
    "tools-call-with-logging": "no log messages",
    "completion-complete": "no prompts or resources that could be completed",
    "tools-call-audio": "no audio blocks",
    "tools-call-embedded-resource": "results are text and images",
    "tools-call-mixed-content": "results are text and images, not resources",
    "tools-call-sampling": "the client's model is never asked",
    "tools-call-elicitation": "a person is asked by our approver, not through the client",
    "elicitation-sep1034-defaults": "no elicitation",
    "elicitation-sep1330-enums": "no elicitation",
    "server-sse-polling": "streams of events are not kept, so a broken one is not resumed",
    "resources-list": "no resources",
    "resources-read-text": "no resources",
    "resources-read-binary": "no resources",
    "resources-templates-read": "no resources",
    "resources-subscribe": "no resources",
    "resources-unsubscribe": "no resources",
    "prompts-list": "no prompts",
    "prompts-get-simple": "no prompts",
    "prompts-get-with-args": "no prompts",
    "prompts-get-embedded-resource": "no prompts",
    "prompts-get-with-image": "no prompts",
    **conformance_client.NOT_OURS,
}
"""Scenarios of what we do not implement, and why not."""


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


def served() -> McpTools:
    """What the suite is shown: its tools, under our rules."""
    bound = (test_simple_text, test_image_content, test_error_handling, test_tool_with_progress)
    executor = LocalExecutor([*bound, schema_tool()])
    return McpTools(executor, Autonomy(Level.FULL))


def install(folder: Path) -> Path:
    """Have the suite in a folder outside the source tree; the path of its program."""
    program = folder / "node_modules/@modelcontextprotocol/conformance/dist/index.js"
    wanted = json.dumps({"private": True, "dependencies": PINNED})
    package = folder / "package.json"
    if not program.is_file() or not package.is_file() or package.read_text() != wanted:
        folder.mkdir(parents=True, exist_ok=True)
        package.write_text(wanted)
        command = [*npm(node()), "install", *FLAGS]
        subprocess.run(command, cwd=folder, env=_env(), check=True, timeout=600)
    return program


def _env() -> dict[str, str]:
    return {**os.environ, "PATH": f"{node().parent}{os.pathsep}{os.environ.get('PATH', '')}"}


async def _run(program: Path, folder: Path, *arguments: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *(str(node()), str(program), *arguments),
        cwd=folder,
        env={**_env(), "PYTHONPATH": str(ROOT)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(90):
            out, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        return "did not end within 90 s"
    return out.decode(errors="replace") + f"\nexit {process.returncode}"


def _scenarios(text: str, kind: str) -> Sequence[str]:
    part = text.partition(f"{kind} scenarios")[2].partition("\n\n")[0]
    return re.findall(r"^  - (\S+)", part, re.MULTILINE)


async def run_suite(folder: Path) -> dict[str, dict[str, str]]:
    """Each scenario's outcome: `passed`, `failed: …` or `not implemented: …`."""
    program = install(folder)
    listed = await _run(program, folder, "list")
    outcomes: dict[str, dict[str, str]] = {"server": {}, "client": {}}
    async with serving_http(served()) as url:
        for name in _scenarios(listed, "Server"):
            text = await _run(program, folder, "server", "--url", url, "--scenario", name)
            outcomes["server"][name] = _outcome(name, text)
    outcomes["client"] = await run_client_scenarios(program, folder, listed)
    return outcomes


async def run_client_scenarios(program: Path, folder: Path, listed: str = "") -> dict[str, str]:
    """The outcome of each scenario for clients."""
    listed = listed or await _run(program, folder, "list")
    command = f"{sys.executable} -m tests.api.conformance_client"
    outcomes: dict[str, str] = {}
    for name in _scenarios(listed, "Client"):
        text = await _run(program, folder, "client", "--command", command, "--scenario", name)
        outcomes[name] = _outcome(name, text)
    return outcomes


def _outcome(name: str, text: str) -> str:
    if text.rstrip().endswith("exit 0") and "FAILURE" not in text:
        return "passed"
    if name in NOT_OURS:
        return f"not implemented: {NOT_OURS[name]}"
    return f"failed: {' '.join(text.split())[-600:]}"


def main(arguments: Sequence[str]) -> int:
    """Run the suite."""
    folder = Path(arguments[0]) if arguments else ROOT / ".venv" / "mcp-conformance"
    outcomes = asyncio.run(run_suite(folder.resolve()))
    for side, found in outcomes.items():
        for scenario, outcome in found.items():
            sys.stdout.write(f"{side:7} {scenario:44} {outcome}\n")
    sys.stdout.write(json.dumps(outcomes) + "\n")
    every = [outcome for one in outcomes.values() for outcome in one.values()]
    return any(outcome.startswith("failed") for outcome in every)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

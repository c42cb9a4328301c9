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
from tests.api import conformance_client
from tests.api.conformance_server import served
from tests.providers.aimock.install import node, npm

ROOT = Path(__file__).parents[2]
PINNED = {"@modelcontextprotocol/conformance": "0.1.16"}
PROGRAM = "node_modules/@modelcontextprotocol/conformance/dist/index.js"
FLAGS = ("--no-package-lock", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error")
NOT_OURS = {
    "tools-call-audio": "results are text and images, no audio",
    "tools-call-sampling": "the client's model is never asked; deprecated since 2026-07-28",
    **conformance_client.NOT_OURS,
}
"""Scenarios of what we do not implement, and why not."""


def install(folder: Path) -> Path:
    """Have the suite in a folder outside the source tree; the path of its program."""
    program = folder / PROGRAM
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


async def run_server_scenarios(folder: Path) -> dict[str, str]:
    """Each scenario for servers: `passed`, `failed: …` or `not implemented: …`."""
    program, outcomes = install(folder), dict[str, str]()
    listed = await _run(program, folder, "list")
    async with serving_http(served()) as url:
        for name in _scenarios(listed, "Server"):
            text = await _run(program, folder, "server", "--url", url, "--scenario", name)
            outcomes[name] = _outcome(name, text)
    return outcomes


async def run_client_scenarios(folder: Path) -> dict[str, str]:
    """Each scenario for clients, in the same words."""
    program, outcomes = install(folder), dict[str, str]()
    listed = await _run(program, folder, "list")
    command = f"{sys.executable} -m tests.api.conformance_client"
    for name in _scenarios(listed, "Client"):
        text = await _run(program, folder, "client", "--command", command, "--scenario", name)
        outcomes[name] = _outcome(name, text)
    return outcomes


async def run_suite(folder: Path) -> dict[str, dict[str, str]]:
    """The outcomes of both sides."""
    return {
        "server": await run_server_scenarios(folder),
        "client": await run_client_scenarios(folder),
    }


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

"""The foreign programs that judge our standards: one `Judge` is one row of the table.

To add a row, write a function that runs the program and returns the problem of each of its checks
(empty: passed), and add a `Judge` to `JUDGES`.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import tempfile
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bench.interop.agent_server import obedient_agent
from bench.interop.environments import (
    find_interpreter,
    node_environment,
    python_environment,
)
from tests.api.conformance import PINNED, run_client_scenarios, run_server_scenarios
from tests.providers.aimock.install import node

from evoclaw.core.labels import LOCAL_PRINCIPAL
from evoclaw.core.messages import JSON
from evoclaw.observe.trajectories import to_atif
from evoclaw.orchestrator.home_assistant.payloads import describe_agent, describe_edge
from evoclaw.orchestrator.runs.requests import RunRequest

CLIENTS = Path(__file__).parent / "clients"
CLIENT_TIMEOUT_S = 240
Problems = dict[str, str]


class NotInstalled(Exception):
    """The foreign program is not installed."""


@dataclass(frozen=True)
class Judge:
    """A foreign program, and the standard that it judges."""

    standard: str
    revision: str
    software: str
    version: str
    run: Callable[[bool], Awaitable[Problems]]
    """Runs the checks; installs the program if the argument is true, else raises `NotInstalled`."""


def python_client(
    name: str, script: str, pins: Sequence[str]
) -> Callable[[bool], Awaitable[Problems]]:
    """A script in the environment of a Python package, against an agent."""

    async def run(install: bool) -> Problems:
        python = await asyncio.to_thread(python_environment, name, pins, install=install)
        if python is None:
            raise NotInstalled(f"install {pins[0]} with: make interop")
        return await _against_agent([str(python), "-P", str(CLIENTS / script)])

    return run


def node_client(
    name: str, script: str, pins: Mapping[str, str]
) -> Callable[[bool], Awaitable[Problems]]:
    """A script in the environment of an npm package, against an agent."""

    async def run(install: bool) -> Problems:
        home = await asyncio.to_thread(node_environment, name, dict(pins), install=install)
        if home is None:
            raise NotInstalled(f"install {' '.join(pins)} with: make interop")
        copied = home / script  # modules are resolved from the folder of the script
        copied.write_text((CLIENTS / script).read_text())
        return await _against_agent([str(node()), str(copied)])

    return run


async def _against_agent(command: Sequence[str]) -> Problems:
    """Run a client with the address of an agent and a token; its last line says what failed."""
    with tempfile.TemporaryDirectory() as folder:
        async with obedient_agent(Path(folder)) as house:
            output = await finished([*command, house.url, await house.token()])
    found: Problems = json.loads(output.strip().splitlines()[-1])
    return found


async def finished(
    command: Sequence[str], env: Mapping[str, str] | None = None, folder: Path | None = None
) -> str:
    """The output of a program that must end by itself."""
    environment = {**os.environ, "PYTHONWARNINGS": "ignore", **(env or {})}
    process = await asyncio.create_subprocess_exec(
        *command, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, env=environment, cwd=folder
    )
    try:
        async with asyncio.timeout(CLIENT_TIMEOUT_S):
            output, errors = await process.communicate()
    except BaseException:
        process.kill()
        await process.wait()
        raise
    if process.returncode:
        raise RuntimeError(f"exit {process.returncode}: {errors.decode(errors='replace')[-2_000:]}")
    return output.decode()


CODEX = "0.169.0"
CODEX_CONFIG = """model = "lead"
model_provider = "evoclaw"
[model_providers.evoclaw]
name = "EvoClaw"
base_url = "{url}/v1"
env_key = "EVOCLAW_TOKEN"
wire_api = "responses"
"""


async def codex(install: bool) -> Problems:
    """Codex runs a command that the agent asks for, and reports the agent's answer."""
    pins = {"@openai/codex": CODEX}
    home = await asyncio.to_thread(node_environment, "codex", pins, install=install)
    if home is None:
        raise NotInstalled("install @openai/codex with: make interop")
    prompt = 'Call exec_command {"cmd": "echo made-$((40+2)) > made.txt && cat made.txt"}'
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in ("home", "work", "service"):
            (folder / part).mkdir()
        async with obedient_agent(folder / "service") as house:
            (folder / "home/config.toml").write_text(CODEX_CONFIG.format(url=house.url))
            command = [str(home / "node_modules/.bin/codex"), "exec", "--json"]
            command += [
                "--skip-git-repo-check",
                "--dangerously-bypass-approvals-and-sandbox",
                prompt,
            ]
            env = {"CODEX_HOME": str(folder / "home"), "EVOCLAW_TOKEN": await house.token()}
            output = await finished(command, env, folder / "work")
            runs = await house.runs.list("local")
        made = folder / "work/made.txt"
        said = made.read_text() if made.is_file() else "nothing"
    return {
        "the command of the agent runs": "" if said == "made-42\n" else said,
        "the answer of the agent is shown": "" if "The result is" in output else output[-500:],
        "the whole task is one durable run": "" if len(runs) == 1 else f"{len(runs)} runs",
    }


def pinned(name: str) -> str:
    """The version of a package of the development environment."""
    from importlib.metadata import version

    return version(name)


def own_tests(*files: str) -> Callable[[bool], Awaitable[Problems]]:
    """Our tests with a client of others that the development environment has."""

    async def run(install: bool) -> Problems:
        from bench.interop.environments import ROOT

        pytest = [str(ROOT / ".venv/bin/pytest"), "-q", "-p", "no:xdist", "-rA", "--no-header"]
        process = await asyncio.create_subprocess_exec(
            *pytest, *files, stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL, cwd=ROOT
        )
        output, _ = await process.communicate()
        found = re.findall(r"^(PASSED|FAILED|ERROR) (\S+)", output.decode(), re.MULTILINE)
        return {name: "" if outcome == "PASSED" else outcome for outcome, name in found}

    return run


ATIF = "1.8.0"
ATIF_RUNS = {
    "a run with text": "Say hello",
    "a run with a call": 'Call work {"what": "it"}',
    "a run with a call that fails": 'Call work {"what": 3}',
    "a run with a call of an unknown tool": "Call nothing",
}


async def atif(install: bool) -> Problems:
    """Runs, exported as `evoclaw export --format atif` does, are valid trajectories."""
    python = await asyncio.to_thread(python_environment, "atif", [f"atif=={ATIF}"], install=install)
    if python is None:
        raise NotInstalled("install atif with: make interop")
    files: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        async with obedient_agent(Path(folder)) as house:
            for name, message in ATIF_RUNS.items():
                request = RunRequest(message=message, agent="lead")
                view, _ = await house.runs.start(LOCAL_PRINCIPAL, request)
                await house.runs.result("local", view.run_id)
                records = await house.talks.store.records(view.run_id)
                file = Path(folder) / f"{name}.json"
                file.write_text(json.dumps(to_atif(records, session_id=view.session_id)))
                files.append(str(file))
        output = await finished([str(python), "-P", str(CLIENTS / "atif_validator.py"), *files])
    found: Problems = json.loads(output)
    return found


HOME_ASSISTANT = "2025.4.4"
STATE = '{"online": true, "stopped": false, "cpu_percent": 3.5, "temperature_c": null}'
REPLIES = {
    "an answer": (
        '{"state": "answer", "text": "It\'s \\"open\\"", "run_id": "r1"}',
        {"event_type": "answer", "text": 'It\'s "open"', "run_id": "r1"},
    ),
    "a refusal": (
        '{"state": "refused", "text": "no"}',
        {"event_type": "refused", "text": "no", "run_id": ""},
    ),
}


async def home_assistant(install: bool) -> Problems:
    """Edges and agents are valid devices, and their templates show what they should."""
    newer, here = find_interpreter("python3.13"), Path(__file__).parent
    lines = (here / "home_assistant.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    python = await asyncio.to_thread(
        python_environment,
        "home-assistant",
        pins,
        install=install and newer is not None,
        interpreter=newer or "",
        flags=["--no-deps", "--only-binary", ":all:"],
    )
    if python is None:
        raise NotInstalled("install Python 3.13, then Home Assistant with: make interop")
    figures = ("cpu_percent", "memory_percent", "temperature_c")
    edge = json.loads(describe_edge("garage", figures, "assist"))
    agent = json.loads(describe_agent("evoclaw", "assist"))
    reading = json.loads(describe_edge("garage", (), ""))
    states = {"online": "ON", "stopped": "OFF", "cpu_percent": "3.5", "temperature_c": "None"}
    templates: list[JSON] = [
        {"of": key, "template": _template(edge, key), "value": STATE, "shown": shown}
        for key, shown in states.items()
    ]
    templates += [
        {"of": key, "template": _template(agent, "reply"), "value": value, "shown": shown}
        for key, (value, shown) in REPLIES.items()
    ]
    message = agent["components"]["message"]["command_template"]
    said = '{is "it" open?}'
    templates.append(
        {"of": "message", "template": message, "value": said, "shown": {"message": said}}
    )
    devices = {"an edge": edge, "an edge without buttons": reading, "an agent": agent}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "given.json"
        file.write_text(json.dumps({"devices": devices, "templates": templates}))
        command = [str(python), "-P", str(CLIENTS / "home_assistant_validator.py"), str(file)]
        output = await finished(command, folder=Path(folder))
    found: Problems = json.loads(output.strip().splitlines()[-1])
    return found


def _template(described: JSON, key: str) -> str:
    return str(described["components"][key]["value_template"])


MCP, MCP_SUITE = "2025-11-25 and 2026-07-28", "@modelcontextprotocol/conformance"


def mcp_conformance(side: Literal["server", "client"]) -> Callable[[bool], Awaitable[Problems]]:
    """One half of the public suite; scenarios of what is not implemented fail."""

    async def check(install: bool) -> Problems:
        home = await asyncio.to_thread(node_environment, "mcp-conformance", PINNED, install=install)
        if home is None:
            raise NotInstalled(f"install {MCP_SUITE} with: make interop")
        run = run_server_scenarios if side == "server" else run_client_scenarios
        outcomes = await run(home)
        return {name: "" if found == "passed" else found for name, found in outcomes.items()}

    return check


A2A_SDK = "1.3.0"
A2A_SETTINGS = """
[[agents]]
id = "evoclaw"
capabilities = ["*"]
autonomy = "full"
"""


async def a2a(install: bool) -> Problems:
    """The SDK's client uses an agent, and follows a task of `evoclaw up` across a `kill -9`."""
    pins = [f"a2a-sdk=={A2A_SDK}"]
    python = await asyncio.to_thread(python_environment, "a2a", pins, install=install)
    if python is None:
        raise NotInstalled(f"install {pins[0]} with: make interop")
    client = [str(python), "-P", str(CLIENTS / "a2a_client.py")]
    return await _against_agent(client) | await _across_a_kill(client)


async def _across_a_kill(client: Sequence[str]) -> Problems:
    """What the client sees of two tasks of a process that is killed while they work."""
    from tests.support.up_process import up_process
    from tests.support.waiting import until

    with tempfile.TemporaryDirectory() as folder:
        async with up_process(Path(folder)) as up:
            up.configure(A2A_SETTINGS)

            async def ask(*words: str) -> dict[str, JSON]:
                return json.loads((await finished([*client, *login, *words])).splitlines()[-1])

            owner = await up.start()
            login = owner.url, owner.token
            kept = str((await ask("start", "wait first 8"))["task"])
            ended = str((await ask("start", "wait second 8"))["task"])
            async with asyncio.timeout(CLIENT_TIMEOUT_S):
                await up.models.held["first"].wait()
                await up.models.held["second"].wait()
            await up.kill()
            for gate in ("first", "second"):
                up.models.held[gate].clear()
            owner = await up.start()
            login = owner.url, owner.token
            async with asyncio.timeout(CLIENT_TIMEOUT_S):
                await up.models.held["first"].wait()
                await up.models.held["second"].wait()
            cancelled = await ask("cancel", ended)
            following = asyncio.create_task(ask("follow", kept))

            async def is_watched() -> bool:
                return b"evoclaw_http_watchers 1" in (await owner.get("/metrics")).body

            await until(is_watched, CLIENT_TIMEOUT_S, "the client has subscribed")
            up.models.gates["first"].set()
            followed, shown = await following, await ask("show", kept)
    words = [f"word{number}" for number in range(8)]
    return {
        "a task is cancelled after a kill -9": ""
        if cancelled["state"] == "TASK_STATE_CANCELED"
        else str(cancelled),
        "a task is followed to its end after a kill -9": ""
        if followed["states"][-1] == "TASK_STATE_COMPLETED"
        else str(followed),
        "its answer is whole": ""
        if shown["text"].split() == followed["text"].split() == words
        else f"{shown} {followed}",
    }


PYDANTIC_AI, LANGCHAIN, AGENTS, NPM_OPENAI = "2.66.0", "1.7.3", "0.24.0", "6.49.0"
OPEN_RESPONSES = "2.4.0"
CHAT, RESPONSES = "OpenAI chat completions and Responses", "OpenAI Responses"
JUDGES = (
    Judge(
        CHAT,
        "v1",
        "openai (Python)",
        pinned("openai"),
        own_tests("tests/api/test_openai_client.py", "tests/api/test_responses_client.py"),
    ),
    Judge(
        CHAT,
        "v1",
        "openai (npm)",
        NPM_OPENAI,
        node_client("openai", "openai_client.mjs", {"openai": NPM_OPENAI}),
    ),
    Judge(
        CHAT,
        "v1",
        "pydantic-ai",
        PYDANTIC_AI,
        python_client(
            "pydantic-ai", "pydantic_ai_client.py", [f"pydantic-ai-slim[openai]=={PYDANTIC_AI}"]
        ),
    ),
    Judge(
        CHAT,
        "v1",
        "LangChain",
        LANGCHAIN,
        python_client("langchain", "langchain_client.py", [f"langchain-openai=={LANGCHAIN}"]),
    ),
    Judge(
        RESPONSES,
        "v1",
        "OpenAI Agents SDK",
        AGENTS,
        python_client("openai-agents", "openai_agents_client.py", [f"openai-agents=={AGENTS}"]),
    ),
    Judge(RESPONSES, "v1", "Codex CLI", CODEX, codex),
    Judge(
        "Open Responses",
        "types 2.4.0",
        "openresponses-types",
        OPEN_RESPONSES,
        python_client(
            "openresponses", "open_responses_client.py", [f"openresponses-types=={OPEN_RESPONSES}"]
        ),
    ),
    Judge("MCP (server)", "2025-11-25", MCP_SUITE, PINNED[MCP_SUITE], mcp_conformance("server")),
    Judge("MCP (client)", "2025-11-25", MCP_SUITE, PINNED[MCP_SUITE], mcp_conformance("client")),
    Judge(
        "MCP (server)",
        MCP,
        "mcp (Python)",
        pinned("mcp"),
        own_tests("tests/api/test_mcp_service.py", "tests/api/test_mcp_tasks.py"),
    ),
    Judge("ATIF (export)", "1.7", "atif", ATIF, atif),
    Judge(
        "Home Assistant MQTT discovery",
        "device-based",
        "homeassistant",
        HOME_ASSISTANT,
        home_assistant,
    ),
    Judge(
        "Agent Client Protocol",
        "1",
        "agent-client-protocol (Python)",
        pinned("agent-client-protocol"),
        own_tests("tests/cli/test_acp.py"),
    ),
    Judge("A2A", "1.0 and 0.3", "a2a-sdk (Python)", A2A_SDK, a2a),
)

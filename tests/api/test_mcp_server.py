from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import httpx2
import pytest
from mcp import Client, types
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from evoclaw.api.mcp_http import serving_http
from evoclaw.api.mcp_server import McpTools
from evoclaw.core.bound_tools import BoundTool
from evoclaw.core.errors import ConfigError, ToolFailure
from evoclaw.core.events import CallFinished, CallJudged, Record, RunFinished, StopReason
from evoclaw.core.messages import ErrorKind, ImageBlock
from evoclaw.core.pipeline import Pipeline
from evoclaw.core.ports import Approval, Ask, Decision, Progress
from evoclaw.core.state import fold
from evoclaw.core.tools import ALL_PERMISSIONS, Call
from evoclaw.executors.local import LocalExecutor
from evoclaw.executors.mcp.executor import McpExecutor
from evoclaw.executors.mcp.offers import McpServer, NoPins
from evoclaw.governance.autonomy import Autonomy, Level
from evoclaw.governance.permissions import PermittedTools
from evoclaw.tools.define import tool
from tests.support.mcp_servers import PIXEL

ROOT = Path(__file__).parents[2]
TOKEN = "correct-horse-battery"
HELLO: dict[str, Any] = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "t", "version": "1"},
}


class Bench:
    """Tools to be served, and what became of the calls."""

    def __init__(self) -> None:
        self.started, self.stopped = asyncio.Event(), asyncio.Event()
        self.written: list[str] = []

    def tools(self) -> list[BoundTool]:
        @tool("file_read", effect="read", resources=(), streams=True)
        async def look(progress: Progress) -> str:
            """Look around."""
            progress("looking")
            return "a door"

        @tool("file_read", effect="read", resources=())
        async def picture() -> ImageBlock:
            """Show a picture."""
            return ImageBlock("image/png", PIXEL)

        @tool("file_write")
        async def write(text: str) -> str:
            """Write something down."""
            self.written.append(text)
            return "written"

        @tool("file_read", effect="read", resources=(), timeout=30)
        async def wait() -> str:
            """Wait for ever."""
            self.started.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.stopped.set()
            return ""

        return [look, picture, write, wait]


class Kept:
    def __init__(self) -> None:
        self.records: list[Record] = []

    def receive(self, record: Record) -> None:
        self.records.append(record)


class Full:
    """A sink whose disk is full."""

    def receive(self, record: Record) -> None:
        raise OSError("no space left")


class Answers:
    def __init__(self, decision: Decision) -> None:
        self.decision = decision
        self.asked: list[str] = []

    async def approve(self, call: Call, ask: Ask) -> Approval:
        self.asked.append(call.name)
        return Approval(self.decision)


def offered(bench: Bench, level: Level = Level.FULL, **more: Any) -> McpTools:
    held = more.pop("capabilities", frozenset({ALL_PERMISSIONS}))
    executor = Pipeline([LocalExecutor(bench.tools())], [PermittedTools(held)])
    return McpTools(executor, Autonomy(level), **more)


@asynccontextmanager
async def connected(url: str, **headers: str) -> AsyncGenerator[Client]:
    async with httpx2.AsyncClient(headers=headers, timeout=10) as http:
        transport = streamable_http_client(url, http_client=http)
        async with Client(transport, read_timeout_seconds=10) as client:
            yield client


@pytest.fixture(params=["legacy", "auto"])
def mode(request: pytest.FixtureRequest) -> str:
    return request.param


@asynccontextmanager
async def over_http(tools: McpTools, mode: str) -> AsyncGenerator[Client]:
    async with (
        asyncio.timeout(20),
        serving_http(tools) as url,
        Client(url, mode=mode, read_timeout_seconds=10) as client,
    ):
        yield client


def said(result: types.CallToolResult) -> str:
    (block,) = result.content
    assert isinstance(block, types.TextContent)
    return block.text


async def test_tools_are_listed_with_their_schemas_and_run(mode: str) -> None:
    bench, heard = Bench(), list[str | None]()

    async def progress(progress: float, total: float | None, message: str | None) -> None:
        heard.append(message)

    async with over_http(offered(bench), mode) as client:
        listed = {one.name: one for one in (await client.list_tools()).tools}
        looked = await client.call_tool("look", {}, progress_callback=progress)
        shown = await client.call_tool("picture")
        wrote = await client.call_tool("write", {"text": "hello"})

    assert listed.keys() == {"look", "picture", "write", "wait"}
    assert listed["write"].input_schema["required"] == ["text"]
    hints = listed["look"].annotations
    assert hints is not None and hints.read_only_hint is True
    assert said(looked) == "a door" and heard == ["looking"]
    assert isinstance(shown.content[0], types.ImageContent)
    assert said(wrote) == "written" and bench.written == ["hello"]


async def test_tools_without_the_capability_are_neither_listed_nor_run(mode: str) -> None:
    bench = Bench()
    tools = offered(bench, capabilities=frozenset({"file_read"}))
    async with over_http(tools, mode) as client:
        names = [one.name for one in (await client.list_tools()).tools]
        refused = await client.call_tool("write", {"text": "x"})

    assert names == ["look", "picture", "wait"]
    assert refused.is_error and "not found. Available tools: look" in said(refused)
    assert bench.written == []


async def test_calls_are_judged_by_the_policy_and_recorded() -> None:
    bench, kept = Bench(), Kept()
    async with over_http(offered(bench, Level.READ_ONLY, sinks=[kept]), "auto") as client:
        denied = await client.call_tool("write", {"text": "x"})
        wrong = await client.call_tool("write", {"txt": 1})

    assert denied.is_error and "this run is read-only" in said(denied)
    assert wrong.is_error and "Invalid parameters for 'write'" in said(wrong)
    assert bench.written == []
    judged = [one.event for one in kept.records if isinstance(one.event, CallJudged)]
    assert [(one.verdict, one.code) for one in judged] == [("deny", "read_only")]
    first = [one for one in kept.records if one.run_id == kept.records[0].run_id]
    state = fold(first)
    assert state.stop is StopReason.COMPLETED and state.unanswered == ()


@pytest.mark.parametrize(
    ("decision", "text", "written"),
    [
        (Decision.ONCE, "written", ["x"]),
        (Decision.DENY, "was not run: write writes or executes (the user refused it)", []),
        (Decision.PENDING, "waits for a person's approval", []),
    ],
)
async def test_approval_is_requested_where_the_policy_requires_it(
    decision: Decision, text: str, written: list[str]
) -> None:
    bench, person, kept = Bench(), Answers(decision), Kept()
    tools = offered(bench, Level.SUPERVISED, approver=person, sinks=[kept])
    async with over_http(tools, "auto") as client:
        result = await client.call_tool("write", {"text": "x"})

    assert text in said(result)
    assert (person.asked, bench.written) == (["write"], written)
    end = kept.records[-1].event
    assert isinstance(end, RunFinished)
    assert (end.stop is StopReason.WAITING) == (decision is Decision.PENDING)


async def test_a_call_that_cannot_be_recorded_is_not_run() -> None:
    bench = Bench()
    async with over_http(offered(bench, sinks=[Full()]), "auto") as client:
        result = await client.call_tool("write", {"text": "x"})

    assert result.is_error and "could not be recorded" in said(result)
    assert bench.written == []


async def test_a_cancelled_client_request_cancels_its_call(mode: str) -> None:
    bench, kept = Bench(), Kept()
    async with over_http(offered(bench, sinks=[kept]), mode) as client:
        calling = asyncio.create_task(client.call_tool("wait"))
        await bench.started.wait()
        calling.cancel()
        await asyncio.wait([calling])
        await bench.stopped.wait()
        still = await client.call_tool("look")

    assert said(still) == "a door"
    ends = [one.event.result.error for one in kept.records if isinstance(one.event, CallFinished)]
    assert ErrorKind.CANCELLED in ends


async def test_the_mcp_executor_can_use_the_mcp_server() -> None:
    async with asyncio.timeout(20), serving_http(offered(Bench()), token=TOKEN) as url:
        about = McpServer("far", url=url, headers={"authorization": f"Bearer {TOKEN}"})
        async with McpExecutor(about, NoPins()) as executor:
            assert executor.problem == ""
            look = next(one for one in executor.tools() if one.name == "far__look")
            heard: list[str] = []
            call = Call("c1", look, {}, "r.1.0.1", 5)
            result = await executor.execute(call, heard.append)

    assert result.text == "a door" and heard == ["1 looking\n"]


async def test_the_mcp_executor_reconnects_to_a_restarted_server() -> None:
    bench = Bench()
    async with asyncio.timeout(30):
        async with serving_http(offered(bench)) as url:
            port = int(url.split(":")[2].partition("/")[0])
            executor = McpExecutor(McpServer("far", url=url, start_timeout=3), NoPins())
            await executor.refresh()
            write = next(one for one in executor.tools() if one.name == "far__write")
        call = Call("c1", write, {"text": "x"}, "r.1.0.1", 5)
        with pytest.raises(ToolFailure) as failed:
            await executor.execute(call, lambda text: None)
        async with serving_http(offered(bench), port=port), executor:
            result = await executor.execute(call, lambda text: None)

    assert result.text == "written" and bench.written == ["x"]
    assert failed.value.kind in (ErrorKind.UNKNOWN, ErrorKind.AGENT_OFFLINE)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"authorization": "Bearer wrong-horse-battery"}, 401),
        ({"authorization": f"Basic {TOKEN}"}, 401),
        ({"authorization": f"Bearer {TOKEN}", "host": "evil.example.com"}, 421),
        ({"authorization": f"Bearer {TOKEN}", "host": "localhost:1"}, 421),
        ({"authorization": f"Bearer {TOKEN}", "origin": "http://evil.example.com"}, 403),
        ({"authorization": f"Bearer {TOKEN}", "origin": "null"}, 403),
        ({"authorization": f"Bearer {TOKEN}"}, 200),
        ({"authorization": f"bearer {TOKEN}", "origin": "https://page.example.org"}, 200),
    ],
)
async def test_requests_need_a_valid_token_host_and_origin(
    headers: dict[str, str], status: int
) -> None:
    hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": HELLO}
    headers = {"accept": "application/json, text/event-stream", **headers}
    origins = ["https://page.example.org"]
    async with (
        asyncio.timeout(30),
        serving_http(offered(Bench()), token=TOKEN, origins=origins) as url,
        aiohttp.ClientSession() as session,
        session.post(url, json=hello, headers=headers) as answer,
    ):
        assert answer.status == status


@pytest.mark.parametrize(("host", "token"), [("0.0.0.0", ""), ("192.0.2.1", ""), ("::", "short")])
async def test_serving_other_hosts_without_a_strong_token_is_refused(host: str, token: str) -> None:
    with pytest.raises(ConfigError, match="token"):
        async with serving_http(offered(Bench()), host=host, token=token):
            pass


def command(*options: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "tests.support.programs.mcp_serve", *options)


async def test_mcp_serve_works_over_stdio(tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("The door code is 4711.\n")
    about = McpServer(
        "house",
        command=command("--folder", str(tmp_path)),
        cwd=str(ROOT),
        trust_hints=True,
    )
    async with asyncio.timeout(30), McpExecutor(about, NoPins()) as executor:
        assert executor.problem == ""
        found = {one.name: one for one in executor.tools()}

        async def ask(name: str, **arguments: object) -> str:
            call = Call("c1", found[name], dict(arguments), "r.1.0.1", 10)
            return (await executor.execute(call, lambda text: None)).text

        assert "4711" in await ask("house__read", path="note.txt")
        with pytest.raises(ToolFailure, match="serve it with --yes"):
            await ask("house__write", path="new.txt", content="x")
    assert not (tmp_path / "new.txt").exists()


async def test_a_stray_print_of_a_tool_does_not_reach_stdout(tmp_path: Path) -> None:
    # Read by hand: our client passes rubbish over.
    process = await asyncio.create_subprocess_exec(
        *command("--yes", "--folder", str(tmp_path)),
        cwd=ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    requests: list[dict[str, Any]] = [
        {"id": 1, "method": "initialize", "params": HELLO},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/call", "params": {"name": "shout", "arguments": {}}},
    ]
    assert process.stdin is not None and process.stdout is not None
    async with asyncio.timeout(20):
        for request in requests:
            process.stdin.write(json.dumps({"jsonrpc": "2.0", **request}).encode() + b"\n")
        answers = [json.loads(await process.stdout.readline()) for _ in range(2)]
        process.stdin.close()
        rest, stray = await process.communicate()

    assert [answer["id"] for answer in answers] == [1, 2]
    assert answers[1]["result"]["content"][0]["text"] == "read b''"
    assert (rest, process.returncode) == (b"", 0)
    assert b"stray" in stray


async def test_mcp_serve_over_http_stops_on_sigterm(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *command("--http", "--port", "0", "--read-only", "--folder", str(tmp_path)),
        cwd=ROOT,
        env={**os.environ, "EVOCLAW_MCP_TOKEN": TOKEN},
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    async with asyncio.timeout(30):
        line = (await process.stderr.readline()).decode()
        url = line.split()[2].rstrip(":")
        with pytest.raises((MCPError, ExceptionGroup)):
            async with connected(url):
                pass
        async with connected(url, authorization=f"Bearer {TOKEN}") as client:
            names = [one.name for one in (await client.list_tools()).tools]
            process.send_signal(signal.SIGTERM)
            code = await process.wait()

    assert "read" in names and "bash" not in names
    assert code == 0


async def test_fault_62_endless_and_compressed_response_bodies_are_bounded() -> None:
    asked: list[str] = []
    sent = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        asked.append((await reader.readuntil(b"\r\n\r\n")).decode())
        kind = "content-encoding: gzip\r\n" if len(asked) > 1 else ""
        start = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n{kind}\r\n"
        writer.write(start.encode() + b'{"jsonrpc":"2.0","id":1,"result":{"x":"')
        try:
            while sent < 1 << 30:
                writer.write(b"x" * 65_536)
                await writer.drain()
                sent += 65_536
        except ConnectionError:
            writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    async with asyncio.timeout(20), listening:
        about = McpServer("x", url=f"http://127.0.0.1:{port}/mcp", start_timeout=5)
        async with McpExecutor(about, NoPins()) as executor:
            assert executor.problem == "compressed although no compression was accepted"
            assert list(executor.tools()) == []

    assert "accept-encoding: identity" in asked[0].lower()
    assert len(asked) == 2
    assert sent < 64 << 20


BAD_BODIES = [
    b"[" * 2_000,
    b'{"a":' * 2_000,
    b"",
    b"\xff\xfe",
    b"[]",
    b"nothing",
    b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": 3}',
    b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": 1}}',
    b'{"jsonrpc": "2.0", "id": {"a": 1}, "method": "tools/list"}',
    b'{"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}}',
]


@pytest.mark.parametrize("version", ["", "2025-11-25", "2026-07-28", "1999-01-01"])
@pytest.mark.parametrize("body", BAD_BODIES)
async def test_bad_bodies_are_protocol_errors_over_http(version: str, body: bytes) -> None:
    headers = {
        "content-type": "application/json",
        "accept": "application/json, text/event-stream",
        **({"mcp-protocol-version": version} if version else {}),
    }
    async with (
        asyncio.timeout(20),
        serving_http(offered(Bench())) as url,
        aiohttp.ClientSession() as session,
        session.post(url, data=body, headers=headers) as answer,
    ):
        text = await answer.text()
    assert answer.status < 500 and "Traceback" not in text
    assert '"error"' in text and '"jsonrpc"' in text


async def test_bad_lines_do_not_end_the_server_over_stdio(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *command("--read-only", "--folder", str(tmp_path)),
        cwd=ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None and process.stdout is not None
    hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": HELLO}
    async with asyncio.timeout(30):
        for line in (b"[" * 2_000, b'{"a":' * 2_000, b"\xff", b"[]", b"nothing"):
            process.stdin.write(line + b"\n")
        process.stdin.write(json.dumps(hello).encode() + b"\n")
        answers = [json.loads(await process.stdout.readline())]
        while "result" not in answers[-1]:
            answers.append(json.loads(await process.stdout.readline()))
        process.stdin.close()
        _, log = await process.communicate()
    assert answers[-1]["id"] == 1 and b"Traceback" not in log
    assert all(answer["error"]["code"] == -32_700 for answer in answers[:-1])

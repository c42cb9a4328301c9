"""Real models: SmolLM2, small and foolish, of which only structure is asserted; and answers of a
model that can be trusted with a tool, where its weights are on this machine."""

import asyncio
import os
import re
import select
import shlex
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from pathlib import Path

import pytest
import pytest_asyncio

from evoclaw.core.agent import LoopSettings
from evoclaw.core.errors import ProviderError, ProviderErrorKind
from evoclaw.core.events import (
    CallFinished,
    Replied,
    ReplyEvent,
    RunFinished,
    StopReason,
    TextDelta,
)
from evoclaw.core.history import History
from evoclaw.core.loop import run_loop
from evoclaw.core.messages import Finish, Reply, SystemMessage, TextBlock, ToolResult, user
from evoclaw.core.ports import AllowAll, Ports, Progress, Provider, Request
from evoclaw.core.profile import Profile
from evoclaw.core.state import new_run
from evoclaw.core.tools import Call, Effect, Tool
from evoclaw.executors.files import LocalFiles
from evoclaw.executors.local import LocalExecutor
from evoclaw.orchestrator.agents.prompt import system_prompt
from evoclaw.providers.anthropic import AnthropicProvider
from evoclaw.providers.embedded import EmbeddedProvider
from evoclaw.providers.embedded_server import EmbeddedServer
from evoclaw.providers.embedded_settings import EmbeddedSettings
from evoclaw.providers.http import Http, RetryPolicy
from evoclaw.providers.models.local import find_local_model
from evoclaw.providers.openai import OpenAIProvider
from evoclaw.providers.registry import find_default_model, provider_for
from evoclaw.providers.text_calls import TextCallProvider
from evoclaw.providers.wrappers import close
from evoclaw.tools.catalogue import load
from tests.support.command_line import shell
from tests.support.llama_server import llama_server
from tests.support.weights import CODER_15B, SMOLLM2, require_model

pytestmark = [pytest.mark.real_llm, pytest.mark.asyncio(loop_scope="module")]

LOOKUP = Tool(
    "lookup_price",
    "Say what an item costs.",
    {"type": "object", "properties": {"item": {"type": "string"}}, "required": ["item"]},
    effect=Effect.READ,
    resources=(),
)
QUESTION = "What does a chair cost?"
HANG_UP = {"Connection": "close"}
"""llama.cpp closes the connection after a stream, although it promises not to."""
DIALECTS = ["openai", "anthropic"]
PROFILE = Profile(context_tokens=4096, max_output_tokens=512)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served() -> AsyncIterator[tuple[EmbeddedServer, str]]:
    async with aclosing(EmbeddedServer(find_local_model(f"embedded/{SMOLLM2}", {}))) as server:
        yield server, await server.start()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def http() -> AsyncIterator[Http]:
    async with aclosing(Http()) as client:
        yield client


def dial(dialect: str, http: Http, served: tuple[EmbeddedServer, str]) -> Provider:
    server, address = served
    if dialect == "openai":
        return OpenAIProvider(
            SMOLLM2,
            http=http,
            base_url=f"{address}/v1",
            api_key=server.key,
            headers=HANG_UP,
            profile=PROFILE,
        )
    return AnthropicProvider(
        SMOLLM2,
        http=http,
        base_url=address,
        api_key=server.key,
        headers=HANG_UP,
        profile=PROFILE,
    )


async def events_of(provider: Provider, request: Request) -> list[ReplyEvent]:
    async with asyncio.timeout(240):
        return [piece async for piece in provider.stream(request)]


async def reply_of(provider: Provider, request: Request) -> Reply:
    last = (await events_of(provider, request))[-1]
    assert isinstance(last, Replied)
    return last.reply


class Shop:
    """An executor that really runs: it counts what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def tools(self) -> Sequence[Tool]:
        return (LOOKUP,)

    async def execute(self, call: Call, progress: Progress) -> ToolResult:
        self.asked.append(call.arguments["item"])
        return call.ok("40 euros")


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_model_calls_a_tool_and_answers_from_its_result(
    dialect: str, http: Http, served: tuple[EmbeddedServer, str]
) -> None:
    provider, history = dial(dialect, http, served), History([user(QUESTION)])

    asked = await reply_of(provider, Request(history, [LOOKUP], temperature=0.0))
    assert (asked.finish, asked.has_calls) == (Finish.CALLS, True)
    assert asked.calls[0].name == "lookup_price"
    assert asked.calls[0].id
    assert asked.usage.input > 50 and asked.usage.output > 5
    history.append(asked)
    for call in asked.calls:
        history.append(ToolResult(call.id, call.name, (TextBlock("40 euros"),)))

    told = await reply_of(
        provider, Request(history, [LOOKUP], offer_tools=False, temperature=0.0, max_tokens=60)
    )
    assert told.text.strip()


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_the_agent_loop_completes(
    dialect: str, http: Http, served: tuple[EmbeddedServer, str]
) -> None:
    shop = Shop()
    ports = Ports(dial(dialect, http, served), shop, AllowAll())
    settings = LoopSettings(max_turns=2, temperature=0.0, max_tokens=80)
    async with asyncio.timeout(240):
        events = [event async for event in run_loop(new_run([user(QUESTION)]), ports, settings)]
    end = events[-1]
    assert isinstance(end, RunFinished)
    assert end.stop in (StopReason.COMPLETED, StopReason.MAX_ITERATIONS)
    assert end.text.strip()
    assert end.tools_used == ("lookup_price",)
    results = [event.result for event in events if isinstance(event, CallFinished)]
    assert len(results) == end.calls >= 1
    assert shop.asked


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_text_is_streamed(
    dialect: str, http: Http, served: tuple[EmbeddedServer, str]
) -> None:
    request = Request(History([user("Tell me about the sea.")]), max_tokens=24)
    events = await events_of(dial(dialect, http, served), request)
    deltas = [event.text for event in events if isinstance(event, TextDelta)]
    last = events[-1]
    assert isinstance(last, Replied)
    assert len(deltas) > 5
    assert "".join(deltas) == last.reply.text
    assert last.reply.finish in (Finish.STOP, Finish.LENGTH)
    assert 0 < last.reply.usage.output <= 25


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_the_server_answers_after_a_cancelled_stream(
    dialect: str, http: Http, served: tuple[EmbeddedServer, str]
) -> None:
    provider = dial(dialect, http, served)
    endless = Request(History([user("Count to a thousand.")]), max_tokens=500)
    async with asyncio.timeout(120), aclosing(provider.stream(endless)) as pieces:
        assert isinstance(await anext(pieces), TextDelta)
    reply = await reply_of(provider, Request(History([user("Say hello.")]), max_tokens=8))
    assert reply.text


async def test_calls_are_parsed_from_plain_text(
    http: Http, served: tuple[EmbeddedServer, str]
) -> None:
    provider = TextCallProvider(dial("openai", http, served))
    reply = await reply_of(
        provider, Request(History([user(QUESTION)]), [LOOKUP], temperature=0.0, max_tokens=120)
    )
    assert reply.text or reply.calls
    assert "<tool_call>" not in reply.text


async def test_a_request_without_the_api_key_is_refused(
    http: Http, served: tuple[EmbeddedServer, str]
) -> None:
    provider = OpenAIProvider(
        SMOLLM2, http=http, base_url=f"{served[1]}/v1", retry=RetryPolicy(attempts=1)
    )
    with pytest.raises(ProviderError) as caught:
        await reply_of(provider, Request(History([user("hello")])))
    assert caught.value.kind is ProviderErrorKind.AUTH_ERROR


async def nobody(url: str) -> bytes | None:
    return None


async def test_the_packaged_model_is_the_default_without_a_key_and_is_free(http: Http) -> None:
    assert await find_default_model({}, nobody) == f"embedded/{SMOLLM2}"
    request = Request(History([user("Say hello.")]), max_tokens=4)
    model = find_local_model(f"embedded/{SMOLLM2}", {})
    async with aclosing(EmbeddedProvider(model=model, http=http)) as provider:
        assert (await reply_of(provider, request)).cost == 0.0
    await provider_for("embedded", http=http, env={}).stream(request).aclose()


@pytest.mark.skipif(sys.platform != "linux", reason="pidfd is Linux's")
async def test_the_server_dies_with_its_parent_process() -> None:
    code = (
        "import asyncio, sys\n"
        "from evoclaw.providers.embedded_server import EmbeddedServer\n"
        "from evoclaw.providers.models.local import find_local_model\n"
        "async def main():\n"
        f"    server = EmbeddedServer(find_local_model('embedded/{SMOLLM2}', {{}}))\n"
        "    await server.start()\n"
        "    print(server.pid, flush=True)\n"
        "    await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE
    )
    assert parent.stdout is not None
    async with asyncio.timeout(60):
        gone = watch(int(await parent.stdout.readline()))
        parent.kill()
        await parent.wait()
    assert await asyncio.to_thread(gone)


def watch(pid: int) -> Callable[[], bool]:
    """Wait, bounded, until a process is gone; the descriptor is taken while it lives."""
    descriptor = os.pidfd_open(pid)

    def gone() -> bool:
        try:
            return bool(select.select([descriptor], [], [], 20)[0])
        finally:
            os.close(descriptor)

    return gone


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def coder(http: Http) -> AsyncIterator[Provider]:
    """A model that can be trusted with a tool."""
    settings = EmbeddedSettings(slots=1)
    model = require_model(CODER_15B)
    provider = provider_for(f"local:{model.path}", http=http, env={}, embedded=settings)
    try:
        yield provider
    finally:
        await close(provider)


async def run_in(folder: Path, provider: Provider, task: str, *tools: str) -> list[object]:
    """The events of a run with tools on a folder."""
    executor = LocalExecutor(load(tools), files=LocalFiles(folder))
    state = new_run((SystemMessage(system_prompt(folder)), user(task)))
    ports = Ports(provider, executor, AllowAll())
    async with asyncio.timeout(600):
        return [event async for event in run_loop(state, ports, LoopSettings(max_turns=6))]


FILE_TOOLS = ("read", "write", "edit", "glob", "grep")


async def test_the_model_reads_a_file_and_answers_from_it(coder: Provider, tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("The door code is 4711.\n")
    events = await run_in(tmp_path, coder, "What does note.txt say?", *FILE_TOOLS)
    end = events[-1]
    assert isinstance(end, RunFinished)
    assert (end.stop, end.tools_used) == (StopReason.COMPLETED, ("read",))
    assert "4711" in end.text


async def test_the_model_writes_a_file(coder: Provider, tmp_path: Path) -> None:
    task = "Create the file hello.txt with the text: Good morning"
    await run_in(tmp_path, coder, task, *FILE_TOOLS)
    assert (tmp_path / "hello.txt").read_text().strip() == "Good morning"


async def test_the_model_finds_a_file_by_its_content(coder: Provider, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("apples\n")
    (tmp_path / "b.txt").write_text("The treasure is under the oak.\n")
    task = "Which file in this folder contains the word treasure? Use grep."
    end = (await run_in(tmp_path, coder, task, *FILE_TOOLS))[-1]
    assert isinstance(end, RunFinished)
    assert "grep" in end.tools_used
    assert "b.txt" in end.text


async def test_a_second_turn_does_not_read_the_prompt_again(
    coder: Provider, tmp_path: Path
) -> None:
    (tmp_path / "note.txt").write_text("The door code is 4711.\n")
    events = await run_in(tmp_path, coder, "What does note.txt say?", *FILE_TOOLS)
    usages = [event.reply.usage for event in events if isinstance(event, Replied)]
    assert len(usages) >= 2
    for before, after in zip(usages, usages[1:], strict=False):
        assert after.cache_read >= 0.9 * before.input


async def test_a_run_with_a_llama_cpp_server_calls_the_tool_and_answers(tmp_path: Path) -> None:
    model = require_model(CODER_15B)
    async with llama_server(model.path) as address, shell(tmp_path) as here:
        here.env |= {"LLAMACPP_BASE_URL": f"{address}/v1"}
        (here.workspace / "note.txt").write_text("The door code is 4711.\n")
        process = await here.start(
            *("run", "--model", f"llamacpp/{CODER_15B}", "--tools", "read"),
            "What does note.txt say?",
        )
        async with asyncio.timeout(600):
            out, err = (part.decode() for part in await process.communicate())
    assert process.returncode == 0, err
    assert '▶ read path="note.txt"' in err
    assert "4711" in out
    assert "arguments" not in out


async def test_the_readme_shows_what_the_embedded_model_really_prints(tmp_path: Path) -> None:
    model = require_model(CODER_15B)
    readme = Path(__file__).parents[2].joinpath("README.md").read_text()
    (block,) = re.findall(r"^\$ (evoclaw run --model embedded.*?)(?=^\$ )", readme, re.M | re.S)
    command, *shown = block.strip().splitlines()
    async with shell(tmp_path) as here:
        (here.workspace / "note.txt").write_text("The door code is 4711.\n")
        pulled = await here.start("models", "pull", str(model.path))
        assert await pulled.wait() == 0
        process = await here.start(*shlex.split(command)[1:])
        async with asyncio.timeout(600):
            out, err = (part.decode() for part in await process.communicate())
    assert process.returncode == 0, err
    *steps, totals, _recorded = err.splitlines()
    assert [*steps, out.strip()] == shown[:-1]
    assert re.sub(r"\d+ tokens", "", totals) == re.sub(r"\d+ tokens", "", shown[-1])

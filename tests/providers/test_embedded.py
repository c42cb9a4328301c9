"""The embedded server with a tiny model of random weights; `test_real_llm.py` has real ones."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from importlib import resources
from pathlib import Path

import msgspec
import pytest

from evoclaw.core.errors import ConfigError, ProviderError, ProviderErrorKind
from evoclaw.core.events import Replied, ReplyEvent, ReplyRetried, TextDelta
from evoclaw.core.history import History
from evoclaw.core.messages import Reply, user
from evoclaw.core.ports import Request
from evoclaw.core.profile import CallStyle
from evoclaw.providers.embedded import EmbeddedProvider
from evoclaw.providers.embedded_child import ServerSpec
from evoclaw.providers.embedded_server import (
    MAX_PROMPT_CACHE_MIB,
    EmbeddedServer,
    check_model,
    plan_memory,
)
from evoclaw.providers.embedded_settings import EmbeddedSettings
from evoclaw.providers.http import Http
from evoclaw.providers.local_model import LocalModel
from evoclaw.providers.models.local import server_installed
from evoclaw.providers.openai import OpenAIProvider
from tests.support.tiny_model import CONTEXT_TOKENS, write_tiny_model
from tests.support.waiting import until

needs_server = pytest.mark.skipif(
    not server_installed(), reason="needs the embedded server: pip install xllamacpp"
)
LONG = "The quick brown fox jumps over the lazy dog. " * 10


@pytest.fixture
def model(tmp_path: Path) -> LocalModel:
    return LocalModel(
        name="tiny",
        path=write_tiny_model(tmp_path / "tiny.gguf"),
        context_tokens=CONTEXT_TOKENS,
        memory_bytes=1 << 20,
        max_output_tokens=2000,
    )


@pytest.fixture
async def http() -> AsyncIterator[Http]:
    async with Http() as client:
        yield client


def provider(model: LocalModel, http: Http, **settings: float) -> EmbeddedProvider:
    chosen = msgspec.convert({"threads": 1, **settings}, EmbeddedSettings)
    return EmbeddedProvider(model=model, http=http, settings=chosen)


async def reply_of(asked: EmbeddedProvider, request: Request) -> Reply:
    async with asyncio.timeout(60):
        last = [event async for event in asked.stream(request)][-1]
    assert isinstance(last, Replied)
    return last.reply


def request(text: str = "hello", tokens: int = 4) -> Request:
    return Request(History([user(text)]), max_tokens=tokens)


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    yield


@pytest.mark.usefixtures("nothing_installed")
def test_the_error_names_the_packages_to_install(model: LocalModel) -> None:
    with pytest.raises(ConfigError, match=r"run: pip install 'evoclaw\[embedded\]'"):
        EmbeddedProvider(model=model, http=Http())


def test_the_template_of_smollm2_is_packaged() -> None:
    template = resources.files("evoclaw.providers").joinpath("smol_tools.jinja").read_text()
    assert template.startswith("{%- macro sig() -%}")


def test_a_missing_file_is_an_error_that_says_how_to_get_it(model: LocalModel) -> None:
    model.path.unlink()
    with pytest.raises(ConfigError, match="`evoclaw models pull tiny`"):
        check_model(model, EmbeddedSettings())


def test_a_file_without_a_chat_template_is_refused_unless_another_is_packaged(
    model: LocalModel,
) -> None:
    write_tiny_model(model.path, template="")
    with pytest.raises(ConfigError, match="has no chat template"):
        check_model(model, EmbeddedSettings())
    check_model(msgspec.structs.replace(model, template="smol_tools.jinja"), EmbeddedSettings())


def test_a_context_that_the_model_does_not_have_is_refused(model: LocalModel) -> None:
    with pytest.raises(ConfigError, match=r"4,096 tokens; set context_tokens in \[embedded\]"):
        check_model(model, EmbeddedSettings(context_tokens=CONTEXT_TOKENS + 1))


GIB = 1 << 30


def plan(model: LocalModel, available: int | None, slots: int = 0) -> tuple[int, int]:
    """Slots and prompt cache; each slot takes another GiB beside the 2 GiB of a server with one."""
    large = msgspec.structs.replace(model, memory_bytes=2 * GIB)
    found = plan_memory(large, EmbeddedSettings(slots=slots), GIB // CONTEXT_TOKENS, available)
    return found.slots, found.prompt_cache_mib


def test_a_server_gets_the_slots_and_the_prompt_cache_that_fit(model: LocalModel) -> None:
    assert plan(model, None) == (2, MAX_PROMPT_CACHE_MIB)
    assert plan(model, 8 * GIB) == (2, MAX_PROMPT_CACHE_MIB)
    assert plan(model, 3 * GIB) == (2, 0)
    assert plan(model, 3 * GIB - 1) == (1, MAX_PROMPT_CACHE_MIB)
    assert plan(model, 2 * GIB + (100 << 20)) == (1, 50)
    assert plan(model, 8 * GIB, slots=5) == (5, MAX_PROMPT_CACHE_MIB)


def test_too_little_memory_is_an_error_before_the_server_starts(model: LocalModel) -> None:
    for available, slots in ((2 * GIB - 1, 0), (4 * GIB, 4)):
        with pytest.raises(ProviderError, match=r"GB is available\. Close other programs"):
            plan(model, available, slots)


@pytest.mark.process
@needs_server
async def test_a_server_that_would_not_fit_is_never_started(model: LocalModel, http: Http) -> None:
    huge = msgspec.structs.replace(model, memory_bytes=1 << 50)
    async with aclosing(provider(huge, http)) as asked:
        with pytest.raises(ProviderError, match="choose a smaller model") as caught:
            await reply_of(asked, request())
        assert asked.server is None
    assert caught.value.kind is ProviderErrorKind.SERVER_ERROR


@pytest.mark.process
@needs_server
async def test_the_provider_describes_one_slot_of_its_server(model: LocalModel, http: Http) -> None:
    async with aclosing(provider(model, http, slots=2, context_tokens=1024)) as asked:
        assert (asked.model, asked.profile.context_tokens) == ("embedded/tiny", 1024)
        assert (asked.profile.calls, asked.profile.images) == (CallStyle.NATIVE, False)
        assert asked.profile.max_output_tokens == 512
        assert (await reply_of(asked, request("x" * 800, 8))).text
        with pytest.raises(ProviderError) as caught:
            await reply_of(asked, request("x" * 1100))
    assert caught.value.kind is ProviderErrorKind.CONTEXT_TOO_LONG


@pytest.mark.process
@needs_server
async def test_the_next_turn_reads_only_what_is_new(model: LocalModel, http: Http) -> None:
    async with aclosing(provider(model, http)) as asked:
        history = History([user(LONG)])
        first = await reply_of(asked, Request(history, max_tokens=8))
        history.append(Reply("a"))
        history.append(user("go on"))
        second = await reply_of(asked, Request(history, max_tokens=8))
    assert first.usage.cache_read == 0
    assert second.usage.cache_read >= first.usage.input - 1
    assert second.usage.input - second.usage.cache_read < 60


@pytest.mark.process
@needs_server
async def test_more_conversations_than_slots_keep_their_prompts(
    model: LocalModel, http: Http
) -> None:
    async with aclosing(provider(model, http, slots=1)) as asked:
        prompts = [letter * 400 for letter in "abc"]
        for prompt in prompts:
            await reply_of(asked, request(prompt))
        again = [await reply_of(asked, request(prompt)) for prompt in prompts]
    assert [reply.usage.cache_read > 380 for reply in again] == [True] * 3


@pytest.mark.process
@needs_server
async def test_two_runs_share_the_server_at_the_same_time(model: LocalModel, http: Http) -> None:
    async with aclosing(provider(model, http, slots=2)) as asked, asyncio.timeout(60):
        first, second = (asked.stream(request(text, 2000)) for text in ("one", "two"))
        async with aclosing(first), aclosing(second):
            for _ in range(5):
                assert isinstance(await anext(first), TextDelta)
                assert isinstance(await anext(second), TextDelta)
        assert asked.server is not None


@pytest.mark.process
@needs_server
async def test_an_idle_server_stops_and_the_next_request_starts_it_again(
    model: LocalModel, http: Http
) -> None:
    async with aclosing(provider(model, http, idle_s=0.05)) as asked:
        await reply_of(asked, request())
        await until(lambda: asked.server is None, say="the idle server has stopped")
        assert (await reply_of(asked, request())).text
    async with aclosing(provider(model, http, idle_s=0)) as asked:
        await reply_of(asked, request())
        assert asked.server is not None
        first = asked.server.pid
        await reply_of(asked, request())
        assert asked.server.pid == first
    assert asked.server is None


async def kill(asked: EmbeddedProvider) -> None:
    """Kill the server, and wait until it is dead."""
    assert asked.server is not None and asked.server.pid is not None
    os.kill(asked.server.pid, signal.SIGKILL)
    await until(lambda: asked.server is None, say="the server is dead")


async def events_with_crashes(asked: EmbeddedProvider, crashes: int) -> list[ReplyEvent]:
    """The events of a reply whose server is killed so often, each time after its first text."""
    events: list[ReplyEvent] = []
    killed = retried = 0
    async with asyncio.timeout(60), aclosing(asked.stream(request(tokens=2000))) as pieces:
        async for event in pieces:
            events.append(event)
            retried += isinstance(event, ReplyRetried)
            # Text that was on its way may still arrive after the server is dead.
            if isinstance(event, TextDelta) and killed == retried:
                if killed == crashes:
                    break
                killed += 1
                await kill(asked)
    return events


@pytest.mark.process
@needs_server
async def test_a_reply_is_requested_again_if_the_server_crashes(
    model: LocalModel, http: Http
) -> None:
    async with aclosing(provider(model, http)) as asked:
        events = await events_with_crashes(asked, 1)
        (retried,) = [event for event in events if isinstance(event, ReplyRetried)]
        assert "in the middle of a reply: it was killed" in retried.reason
        assert isinstance(events[-1], TextDelta)


@pytest.mark.process
@needs_server
async def test_a_server_that_crashes_again_is_an_error(model: LocalModel, http: Http) -> None:
    async with aclosing(provider(model, http)) as asked:
        with pytest.raises(ProviderError, match="probably because the machine ran out of memory"):
            await events_with_crashes(asked, 2)
        assert (await reply_of(asked, request())).text


@pytest.mark.process
@needs_server
async def test_a_broken_file_is_an_error_before_the_server_starts(
    model: LocalModel, http: Http
) -> None:
    data = model.path.read_bytes()
    model.path.write_bytes(data[: len(data) // 2])
    async with aclosing(provider(model, http)) as asked:
        with pytest.raises(ProviderError, match=r"tiny\.gguf is cut short: .* download it again"):
            await reply_of(asked, request())


@pytest.mark.process
@needs_server
async def test_a_request_without_the_api_key_is_refused(model: LocalModel, http: Http) -> None:
    async with aclosing(EmbeddedServer(model, EmbeddedSettings(threads=1))) as server:
        address = await server.start()
        stranger = OpenAIProvider("tiny", http=http, base_url=f"{address}/v1")
        with pytest.raises(ProviderError) as caught:
            [event async for event in stranger.stream(request())]
    assert caught.value.kind is ProviderErrorKind.AUTH_ERROR


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's death signal is Linux's")
def test_the_server_process_exits_when_its_parent_is_dead() -> None:
    spec = ServerSpec(
        name="x", path="x", template="", threads=1, slots=1, context_tokens=1,
        max_output_tokens=1, temperature=0.0, prompt_cache_mib=0,
    )  # fmt: skip
    command = [sys.executable, "-m", "evoclaw.providers.embedded_child", str(os.getpid() + 1)]
    child = subprocess.run(
        [*command, msgspec.json.encode(spec).decode()],
        input=b"key\n",
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (child.returncode, child.stdout) == (1, b"")

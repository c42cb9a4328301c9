"""Our three providers against a mock server by others: text, calls, turns, errors, chaos."""

import importlib.util
import json
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from evoclaw.core.errors import ConfigError, ProviderError, ProviderErrorKind
from evoclaw.core.events import Replied, ReplyEvent, ReplyRetried, TextDelta
from evoclaw.core.history import History
from evoclaw.core.messages import (
    ErrorKind,
    Finish,
    Reply,
    SystemMessage,
    TextBlock,
    ToolCall,
    ToolResult,
    user,
)
from evoclaw.core.ports import Provider, Request
from evoclaw.core.tools import Tool, failure
from evoclaw.providers.anthropic import AnthropicProvider
from evoclaw.providers.embeddings import EmbeddingServer
from evoclaw.providers.http import Http, RetryPolicy
from evoclaw.providers.ollama import OllamaProvider
from evoclaw.providers.openai import OpenAIProvider
from evoclaw.providers.registry import http_get

pytestmark = pytest.mark.process

HERE = Path(__file__).with_name("aimock")
FOLDER = Path(sys.prefix, "aimock")
CLI = FOLDER / "node_modules" / "@copilotkit" / "aimock" / "dist" / "cli.js"

WEATHER = Tool(
    "get_weather",
    "Say what the weather is.",
    {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
)
KEY = "a-key-that-nobody-should-read"
DIALECTS = ["openai", "anthropic", "ollama"]
Make: TypeAlias = Callable[..., Provider]


def _node() -> Path:
    spec = importlib.util.spec_from_file_location("aimock_install", HERE / "install.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.node()


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    if not CLI.is_file():
        pytest.fail(f"aimock is not installed; run: make test (or {HERE}/install.py {FOLDER})")
    command = [_node(), CLI, "-p", "0", "-f", HERE / "fixtures.json", "-c", "8"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        # One that says nothing is killed, and so ends the reading below.
        too_late = threading.Timer(60, server.kill)
        too_late.start()
        try:
            assert server.stdout is not None
            lines = list(_until(server.stdout, "listening on "))
            assert lines and "listening on " in lines[-1], f"aimock did not start: {lines}"
            threading.Thread(target=server.stdout.read, daemon=True).start()
            yield lines[-1].rpartition("listening on ")[2].strip()
        finally:
            too_late.cancel()
            server.kill()


def _until(lines: Iterable[str], mark: str) -> Iterator[str]:
    for line in lines:
        yield line
        if mark in line:
            return


@pytest.fixture
async def http() -> AsyncIterator[Http]:
    async with aclosing(Http(connect_timeout=5, read_timeout=20)) as client:
        yield client


@pytest.fixture
def make(http: Http, address: str, request: pytest.FixtureRequest) -> Make:
    def build(
        dialect: str, *, attempts: int = 1, chaos: Mapping[str, str] | None = None
    ) -> Provider:
        headers = {"X-Test-Id": request.node.name, **(chaos or {})}
        retry = RetryPolicy(attempts=attempts, base=0.0)
        if dialect == "openai":
            return OpenAIProvider(
                "gpt-4o",
                http=http,
                base_url=f"{address}/v1",
                api_key=KEY,
                headers=headers,
                retry=retry,
            )
        kind = AnthropicProvider if dialect == "anthropic" else OllamaProvider
        return kind(
            "some-model", http=http, base_url=address, api_key=KEY, headers=headers, retry=retry
        )

    return build


@pytest.fixture
def journal(address: str, request: pytest.FixtureRequest) -> Callable[[], Any]:
    async def read() -> list[dict[str, Any]]:
        answer = await http_get(f"{address}/__aimock/journal?limit=500", timeout=10)
        assert answer is not None
        entries: list[dict[str, Any]] = json.loads(answer)
        mine = request.node.name
        return [entry for entry in entries if entry["headers"].get("x-test-id") == mine]

    return read


async def events_of(provider: Provider, request: Request) -> list[ReplyEvent]:
    return [piece async for piece in provider.stream(request)]


async def reply_of(provider: Provider, request: Request) -> Reply:
    events = await events_of(provider, request)
    assert [isinstance(event, Replied) for event in events].count(True) == 1
    last = events[-1]
    assert isinstance(last, Replied)
    return last.reply


async def failure_of(provider: Provider, text: str) -> ProviderError:
    with pytest.raises(ProviderError) as caught:
        await reply_of(provider, Request(History([user(text)])))
    return caught.value


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_text_is_streamed_as_deltas_and_complete_in_the_reply(
    dialect: str, make: Make, journal: Any
) -> None:
    history = History([SystemMessage("Be kind."), user("Please greet me")])
    events = await events_of(make(dialect), Request(history))
    deltas = [event.text for event in events if isinstance(event, TextDelta)]
    last = events[-1]
    assert isinstance(last, Replied)
    assert len(deltas) > 2
    assert "".join(deltas) == last.reply.text == "Hello from a server that nobody here wrote."
    assert (last.reply.finish, last.reply.calls) == (Finish.STOP, ())
    if dialect != "ollama":
        assert (last.reply.usage.input, last.reply.usage.output) == (11, 7)

    (entry,) = await journal()
    assert entry["method"] == "POST"
    assert (
        entry["path"]
        == {
            "openai": "/v1/chat/completions",
            "anthropic": "/v1/messages",
            "ollama": "/api/chat",
        }[dialect]
    )
    assert json.dumps(entry["body"]).count("Be kind.") == 1
    assert entry["body"].get("stream", True) is True
    assert not entry["body"].get("tools")


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_calls_over_three_turns_receive_every_result(
    dialect: str, make: Make, journal: Any
) -> None:
    provider, history = make(dialect), History([user("The weather in two cities?")])

    first = await reply_of(provider, Request(history, [WEATHER]))
    assert first.text == "I will look."
    assert first.finish is Finish.CALLS
    assert [call.name for call in first.calls] == ["get_weather"] * 2
    arguments = [json.loads(call.arguments) for call in first.calls]
    assert arguments == [{"city": 'Rome "Roma"'}, {"city": "Oslo", "days": 2}]
    if dialect != "ollama":
        assert [call.id for call in first.calls] == ["call_rome", "call_oslo"]
    history.append(first)
    history.append(ToolResult(first.calls[0].id, "get_weather", (TextBlock("20 degrees"),)))
    history.append(
        failure(first.calls[1].id, "get_weather", ErrorKind.TIMEOUT, "took too long; try Bern")
    )

    second = await reply_of(provider, Request(history, [WEATHER]))
    assert [json.loads(call.arguments or "{}") for call in second.calls] == [{}]
    history.append(second)
    history.append(ToolResult(second.calls[0].id, "get_weather", (TextBlock("12 degrees"),)))

    final = await reply_of(provider, Request(history, [WEATHER]))
    assert (final.text, final.finish) == ("Bern is at 12 degrees.", Finish.STOP)

    sent = [json.dumps(entry["body"]["messages"]) for entry in await journal()]
    assert len(sent) == 3
    for piece in ("20 degrees", "took too long; try Bern", "12 degrees"):
        assert sent[2].count(piece) == 1
    assert "get_weather" in json.dumps((await journal())[0]["body"]["tools"])


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_reply_truncated_at_the_token_limit_is_marked(dialect: str, make: Make) -> None:
    reply = await reply_of(make(dialect), Request(History([user("talk at great length")])))
    if dialect != "ollama":  # aimock always says `stop` there
        assert reply.finish is Finish.LENGTH
    assert reply.text == "It goes on and"


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("wrong key", ProviderErrorKind.AUTH_ERROR),
        ("no such model", ProviderErrorKind.MODEL_NOT_FOUND),
        ("too fast", ProviderErrorKind.RATE_LIMITED),
        ("out of money", ProviderErrorKind.QUOTA_EXHAUSTED),
        ("too long", ProviderErrorKind.CONTEXT_TOO_LONG),
        ("on fire", ProviderErrorKind.SERVER_ERROR),
        ("nothing matches this", ProviderErrorKind.MODEL_NOT_FOUND),
    ],
)
async def test_every_http_error_maps_to_a_provider_error_kind(
    dialect: str, text: str, kind: ProviderErrorKind, make: Make, journal: Any
) -> None:
    error = await failure_of(make(dialect), text)
    assert error.kind is kind
    assert str(error) != "k"
    assert len(await journal()) == 1


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_server_error_is_retried(dialect: str, make: Make, journal: Any) -> None:
    history = History([user("stumble once")])
    events = await events_of(make(dialect, attempts=2), Request(history))
    assert isinstance(events[0], ReplyRetried)
    last = events[-1]
    assert isinstance(last, Replied)
    assert last.reply.text == "Back on my feet."
    first, second = [entry["body"] for entry in await journal()]
    assert first == second


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_an_interrupted_stream_is_discarded_and_retried(dialect: str, make: Make) -> None:
    events = await events_of(make(dialect, attempts=2), Request(History([user("hang up")])))
    retried = next(i for i, event in enumerate(events) if isinstance(event, ReplyRetried))
    after = "".join(event.text for event in events[retried:] if isinstance(event, TextDelta))
    last = events[-1]
    assert isinstance(last, Replied)
    assert after == last.reply.text == "This one is whole."


@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
async def test_a_partial_call_is_never_returned(dialect: str, make: Make) -> None:
    error = await failure_of(make(dialect), "half a call")
    assert error.kind in (ProviderErrorKind.SERVER_ERROR, ProviderErrorKind.TIMEOUT)


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    ("chaos", "kind"),
    [
        ("drop", ProviderErrorKind.SERVER_ERROR),
        ("malformed", ProviderErrorKind.SERVER_ERROR),
        ("disconnect", ProviderErrorKind.SERVER_ERROR),
        ("ratelimit", ProviderErrorKind.RATE_LIMITED),
    ],
)
async def test_injected_chaos_ends_in_a_provider_error_after_all_attempts(
    dialect: str, chaos: str, kind: ProviderErrorKind, make: Make, journal: Any
) -> None:
    headers = {f"X-AIMock-Chaos-{chaos}": "1"}
    error = await failure_of(make(dialect, attempts=2, chaos=headers), "Please greet me")
    assert error.kind is kind
    # A 429 asks us to wait longer than we are willing to; then asking again is vain.
    assert len(await journal()) in (1, 2)


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_closing_a_stream_early_leaves_the_server_usable(dialect: str, make: Make) -> None:
    provider = make(dialect)
    stream = provider.stream(Request(History([user("Please greet me")])))
    assert isinstance(await anext(stream), TextDelta)
    await stream.aclose()
    reply = await reply_of(provider, Request(History([user("Please greet me")])))
    assert reply.text.startswith("Hello")


async def test_a_history_from_another_provider_is_sent_in_every_dialect(
    make: Make, journal: Any
) -> None:
    history = History([user("Please greet me")])
    history.append(Reply("", (ToolCall("call_x", "get_weather", "not json"),), Finish.CALLS))
    history.append(ToolResult("call_x", "get_weather", (TextBlock("bad arguments"),)))
    history.append(user("Please greet me"))
    for dialect in DIALECTS:
        assert (await reply_of(make(dialect), Request(history, [WEATHER]))).text
    sent = [json.dumps(entry["body"]) for entry in await journal()]
    assert len(sent) == 3
    assert all("bad arguments" in body for body in sent)


async def test_a_server_of_ones_own_makes_embeddings(address: str) -> None:
    async with Http() as http:
        embed = EmbeddingServer("openai/e", http, {"OPENAI_BASE_URL": f"{address}/v1"})
        made = json.loads(await embed({"input": ["one", "two"]}))
        assert [item["index"] for item in made["data"]] == [0, 1]
        assert all(-1 <= number <= 1 for number in made["data"][0]["embedding"])
        gone = EmbeddingServer("ollama/e", http, {"OLLAMA_HOST": "http://127.0.0.1:1"})
        with pytest.raises(ProviderError, match="ollama/e"):
            await gone({"input": "one"})


def test_a_hosted_embedding_model_is_refused_because_no_budget_counts_it() -> None:
    for name in ("openai/text-embedding-3-small", "anthropic/claude"):
        with pytest.raises(ConfigError, match="embedding_model"):
            EmbeddingServer(name, Http(), {"OPENAI_API_KEY": KEY})

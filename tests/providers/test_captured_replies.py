"""What real servers said, told again in the recorded pieces, byte by byte and all at once."""

from __future__ import annotations

import pytest

from evoclaw.core.errors import ProviderErrorKind
from evoclaw.core.events import Replied, TextDelta
from evoclaw.core.messages import Finish, Usage
from evoclaw.providers.http import Http
from tests.support.llm_servers import all_captures, capture, serving
from tests.support.provider_requests import error_of, events_of, provider_for, simple_request

DIALECTS = {
    "/v1/chat/completions": "openai",
    "/v1/messages": "anthropic",
    "/api/chat": "ollama",
}
USAGES = {
    "llamacpp__anthropic_answer_stream": Usage(350, 8, cache_read=333),
    "llamacpp__anthropic_tool": Usage(302, 32, cache_read=301),
    "llamacpp__anthropic_tool_stream": Usage(302, 32, cache_read=301),
    "llamacpp__openai_answer_stream": Usage(350, 8, cache_read=333),
    "llamacpp__openai_tool": Usage(302, 32),
    "llamacpp__openai_tool_stream": Usage(302, 32, cache_read=301),
    "ollama__anthropic_answer_stream": Usage(339, 8),
    "ollama__anthropic_tool": Usage(292, 32),
    "ollama__anthropic_tool_stream": Usage(292, 32),
    "ollama__native_answer_stream": Usage(339, 8),
    "ollama__native_tool": Usage(292, 32),
    "ollama__native_tool_stream": Usage(292, 32),
    "ollama__openai_answer_stream": Usage(339, 8),
    "ollama__openai_tool": Usage(292, 32),
    "ollama__openai_tool_stream": Usage(292, 32),
}


@pytest.mark.parametrize("delivery", ["pieces", "bytes", "whole"])
@pytest.mark.parametrize("name", sorted(USAGES))
async def test_a_captured_reply_is_parsed_at_any_chunk_boundary(
    name: str, delivery: str, http: Http
) -> None:
    said = capture(name)
    async with serving(said.answers(delivery)) as server:
        provider = provider_for(DIALECTS[said.path], server.url, http)
        events = await events_of(provider, simple_request("What is the temperature in Oslo?"))

    last = events[-1]
    assert isinstance(last, Replied)
    reply = last.reply
    assert server.requests[0].path == said.path
    assert reply.usage == USAGES[name]
    assert reply.model in ("smolfs", "models/SmolLM2-135M-Instruct.Q4_1.gguf")
    assert "".join(e.text for e in events if isinstance(e, TextDelta)) == reply.text
    if "_tool" in name:
        (call,) = reply.calls
        assert (call.name, call.arguments.replace(" ", "")) == (
            "get_temperature",
            '{"city":"Oslo"}',
        )
        assert call.id in b"".join(said.pieces).decode()
        assert (reply.finish, reply.text) == (Finish.CALLS, "")
    else:
        assert (reply.finish, reply.text) == (Finish.STOP, "The answer is: -4 C")


@pytest.mark.parametrize("delivery", ["pieces", "bytes", "whole"])
@pytest.mark.parametrize("name", sorted(set(all_captures()) - set(USAGES)))
async def test_a_body_that_is_not_a_reply_is_an_error_for_every_provider(
    name: str, delivery: str, http: Http
) -> None:
    for dialect in DIALECTS.values():
        async with serving(capture(name).answers(delivery)) as server:
            error = await error_of(provider_for(dialect, server.url, http))
        assert error.kind is ProviderErrorKind.SERVER_ERROR
        assert len(server.requests) == 3

"""The floor of the streaming rows: a bare aiohttp client and a typed msgspec decoder."""

from collections.abc import Callable
from contextlib import asynccontextmanager

import aiohttp
import msgspec

import stream_harness


class OpenAIDelta(msgspec.Struct):
    content: str | None = None


class OpenAIChoice(msgspec.Struct):
    delta: OpenAIDelta


class OpenAIChunk(msgspec.Struct):
    choices: list[OpenAIChoice]


class AnthropicDelta(msgspec.Struct):
    text: str = ""


class AnthropicEvent(msgspec.Struct):
    delta: AnthropicDelta | None = None


openai_chunk = msgspec.json.Decoder(OpenAIChunk).decode
anthropic_event = msgspec.json.Decoder(AnthropicEvent).decode


def read_openai(data: bytes) -> str:
    if data == b"[DONE]":
        return ""
    choices = openai_chunk(data).choices
    return (choices[0].delta.content or "") if choices else ""


def read_anthropic(data: bytes) -> str:
    delta = anthropic_event(data).delta
    return delta.text if delta else ""


async def texts(response: aiohttp.ClientResponse, read: Callable[[bytes], str]):
    rest = b""
    async for piece in response.content.iter_any():
        *whole, rest = (rest + piece).split(b"\n\n")
        for event in whole:
            yield read(event.partition(b"data: ")[2])


def client(path: str, read: Callable[[bytes], str]):
    @asynccontextmanager
    async def connect(address: str):
        body = {
            "model": "bench",
            "max_tokens": 1000,
            "stream": True,
            "messages": [{"role": "user", "content": "go"}],
        }
        async with aiohttp.ClientSession() as session:

            async def ask() -> str:
                async with session.post(address + path, json=body) as response:
                    return "".join([text async for text in texts(response, read)])

            yield ask

    return connect


if __name__ == "__main__":
    stream_harness.main(
        {
            "openai": client("/v1/chat/completions", read_openai),
            "anthropic": client("/v1/messages", read_anthropic),
        }
    )

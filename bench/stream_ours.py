"""EvoClaw's providers in the streaming rows: every delta taken as an event, then the reply."""

from contextlib import asynccontextmanager

import stream_harness
from evoclaw.core.events import Replied, TextDelta
from evoclaw.core.history import History
from evoclaw.core.messages import user
from evoclaw.core.ports import Request
from evoclaw.providers.anthropic import AnthropicProvider
from evoclaw.providers.http import Http
from evoclaw.providers.openai import OpenAIProvider


def client(kind, path: str):
    @asynccontextmanager
    async def connect(address: str):
        async with Http() as http:
            provider = kind("bench", http=http, base_url=address + path, api_key="none")

            async def ask() -> str:
                request = Request(History([user("go")]), max_tokens=1000)
                said: list[str] = []
                whole = ""
                async for event in provider.stream(request):
                    if isinstance(event, TextDelta):
                        said.append(event.text)
                    elif isinstance(event, Replied):
                        whole = event.reply.text
                return whole if whole == "".join(said) else "the deltas differ from the reply"

            yield ask

    return connect


if __name__ == "__main__":
    stream_harness.main(
        {"openai": client(OpenAIProvider, "/v1"), "anthropic": client(AnthropicProvider, "")}
    )

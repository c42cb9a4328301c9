"""The official anthropic SDK: `messages.create(stream=True)`."""

from contextlib import asynccontextmanager

from anthropic import AsyncAnthropic

import stream_harness


@asynccontextmanager
async def connect(address: str):
    async with AsyncAnthropic(base_url=address, api_key="none") as client:

        async def ask() -> str:
            stream = await client.messages.create(
                model="bench",
                max_tokens=1000,
                stream=True,
                messages=[{"role": "user", "content": "go"}],
            )
            deltas = [e.delta async for e in stream if e.type == "content_block_delta"]
            return "".join(delta.text for delta in deltas)

        yield ask


if __name__ == "__main__":
    stream_harness.main({"anthropic": connect})

"""The official openai SDK: `chat.completions.create(stream=True)`."""

from contextlib import asynccontextmanager

from openai import AsyncOpenAI

import stream_harness


@asynccontextmanager
async def connect(address: str):
    async with AsyncOpenAI(base_url=f"{address}/v1", api_key="none") as client:

        async def ask() -> str:
            stream = await client.chat.completions.create(
                model="bench",
                max_tokens=1000,
                stream=True,
                messages=[{"role": "user", "content": "go"}],
            )
            said = [c.choices[0].delta.content or "" async for c in stream if c.choices]
            return "".join(said)

        yield ask


if __name__ == "__main__":
    stream_harness.main({"openai": connect})

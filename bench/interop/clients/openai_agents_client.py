"""The OpenAI Agents SDK, which speaks Responses by default, against an agent."""

import asyncio
import json
import sys

from agents import Agent, Runner, function_tool, set_default_openai_client, set_tracing_disabled
from openai import AsyncOpenAI
from pydantic import BaseModel

URL, TOKEN = sys.argv[1:3]


class City(BaseModel):
    name: str
    people: int


@function_tool
def weather(town: str) -> str:
    """The weather in a town."""
    return f"rain in {town}"


AGENT = Agent(name="Clerk", model="lead", instructions="Be short.", tools=[weather])


async def text() -> None:
    assert (await Runner.run(AGENT, "Say It rains.")).final_output == "It rains."


async def tools() -> None:
    found = await Runner.run(AGENT, 'Call weather {"town": "Bern"}')
    assert found.final_output == "The result is rain in Bern", found.final_output


async def streamed_tools() -> None:
    found = Runner.run_streamed(AGENT, 'Call weather {"town": "Bern"}')
    kinds = [event.type async for event in found.stream_events()]
    assert found.final_output == "The result is rain in Bern"
    assert "raw_response_event" in kinds


async def structured_output() -> None:
    agent = Agent(name="Clerk", model="lead", output_type=City)
    found = await Runner.run(agent, 'Say {"name": "Bern", "people": 134000}')
    assert found.final_output == City(name="Bern", people=134000)


async def previous_response() -> None:
    first = await Runner.run(AGENT, "Say one")
    found = await Runner.run(
        AGENT, 'Call weather {"town": "Bern"}', previous_response_id=first.last_response_id
    )
    assert found.final_output == "The result is rain in Bern"


async def own_tools_are_shown() -> None:
    found = await Runner.run(AGENT, 'Call work {"what": "it"}')
    kinds = [item.type for item in found.new_items]
    assert found.final_output == "The result is worked on it", found.final_output
    assert "tool_call_item" in kinds, kinds


async def main() -> None:
    set_tracing_disabled(True)
    set_default_openai_client(AsyncOpenAI(base_url=f"{URL}/v1", api_key=TOKEN, max_retries=0))
    problems: dict[str, str] = {}
    checks = (text, tools, streamed_tools, structured_output, previous_response)
    for check in (*checks, own_tools_are_shown):
        try:
            await check()
            problems[check.__name__] = ""
        except Exception as error:
            problems[check.__name__] = f"{type(error).__name__}: {error}"
    sys.stdout.write(json.dumps(problems) + "\n")


asyncio.run(main())

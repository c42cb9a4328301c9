"""pydantic-ai against an agent; prints what is wrong with each check as one JSON object."""

import asyncio
import json
import sys
from typing import Any

from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

URL, TOKEN = sys.argv[1:3]
PROVIDER = OpenAIProvider(base_url=f"{URL}/v1", api_key=TOKEN)
CITY = '{"name": "Bern", "people": 134000}'


class City(BaseModel):
    name: str
    people: int


class Tree(BaseModel):
    name: str
    children: "list[Tree]" = []


def models() -> list[Any]:
    return [
        OpenAIChatModel("lead", provider=PROVIDER),
        OpenAIResponsesModel("lead", provider=PROVIDER),
    ]


async def text(model: Any) -> None:
    assert (await Agent(model).run("Say It rains.")).output == "It rains."


async def structured_output(model: Any) -> None:
    found = await Agent(model, output_type=City).run(f"Call final_result {CITY}")
    assert found.output == City(name="Bern", people=134000), found.output


async def recursive_output(model: Any) -> None:
    wanted = Tree(name="a", children=[Tree(name="b")])
    found = await Agent(model, output_type=Tree).run(
        f"Call final_result {wanted.model_dump_json()}"
    )
    assert found.output == wanted, found.output


async def tools(model: Any) -> None:
    agent = Agent(model)

    @agent.tool_plain
    def weather(town: str) -> str:
        """The weather in a town."""
        return f"rain in {town}"

    found = await agent.run('Call weather {"town": "Bern"}')
    assert found.output == "The result is rain in Bern", found.output


async def a_tool_named_like_the_agents(model: Any) -> None:
    agent = Agent(model)

    @agent.tool_plain
    def work(what: str) -> str:
        """Work."""
        return f"mine: {what}"

    assert (await agent.run('Call work {"what": "x"}')).output == "The result is mine: x"


async def streamed_text(model: Any) -> None:
    async with Agent(model).run_stream("Say It rains.") as stream:
        assert await stream.get_output() == "It rains."


CHECKS = [
    text,
    structured_output,
    recursive_output,
    tools,
    a_tool_named_like_the_agents,
    streamed_text,
]


async def main() -> None:
    problems: dict[str, str] = {}
    for model in models():
        for check in CHECKS:
            name = f"{type(model).__name__}: {check.__name__}"
            try:
                await check(model)
                problems[name] = ""
            except Exception as error:
                problems[name] = f"{type(error).__name__}: {error}"
    sys.stdout.write(json.dumps(problems) + "\n")


asyncio.run(main())

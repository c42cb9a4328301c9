"""pydantic-ai (slim): `Agent.run` with its own `FunctionModel`; not instrumented."""

import asyncio

import loop_harness


def build():
    from pydantic_ai import Agent
    from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
    from pydantic_ai.models.function import FunctionModel
    from pydantic_ai.usage import RequestUsage, UsageLimits

    async def add(a: int, b: int) -> int:
        """Add two numbers."""
        return loop_harness.add_up(a, b)

    # A stated usage, or FunctionModel would estimate one from the whole history each turn.
    usage = RequestUsage(input_tokens=10, output_tokens=10)

    def prepare(script):
        async def fake(messages, info):
            if script.waits:
                await asyncio.sleep(0)
            parts = [ToolCallPart("add", text, tool_call_id=id) for id, _, text in script.reply()]
            return ModelResponse(parts=parts or [TextPart("done")], usage=usage)

        agent = Agent(FunctionModel(fake), tools=[add])
        limits = UsageLimits(request_limit=None)

        async def start():
            return await agent.run("go", usage_limits=limits)

        return start

    return prepare


def describe():
    from pydantic_ai import Tool

    return lambda function: Tool(function).tool_def.parameters_json_schema


if __name__ == "__main__":
    loop_harness.main(build, describe)

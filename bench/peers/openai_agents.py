"""openai-agents: `Runner.run` with tracing disabled."""

import asyncio
from contextlib import asynccontextmanager

import loop_harness


def fake_model():
    from agents import Model, ModelResponse, Usage
    from openai.types.responses import (
        ResponseFunctionToolCall,
        ResponseOutputMessage,
        ResponseOutputText,
    )

    final = ResponseOutputMessage(
        id="m",
        type="message",
        role="assistant",
        status="completed",
        content=[ResponseOutputText(text="done", type="output_text", annotations=[])],
    )

    class Fake(Model):
        def __init__(self, script):
            self.script = script

        async def get_response(self, *args, **kwargs):
            if self.script.waits:
                await asyncio.sleep(0)
            output = [
                ResponseFunctionToolCall(
                    id=id, call_id=id, name="add", arguments=text, type="function_call"
                )
                for id, _, text in self.script.reply()
            ]
            return ModelResponse(output=output or [final], usage=Usage(), response_id=None)

        def stream_response(self, *args, **kwargs):
            raise NotImplementedError

    return Fake


def build(session=lambda: None):
    from agents import Agent, RunConfig, Runner, function_tool, set_tracing_disabled

    set_tracing_disabled(True)
    Fake = fake_model()

    @function_tool
    async def add(a: int, b: int) -> int:
        """Add two numbers."""
        return loop_harness.add_up(a, b)

    def prepare(script):
        agent = Agent(name="bench", model=Fake(script), tools=[add])
        config = RunConfig(tracing_disabled=True)
        kept = session()

        async def start():
            return await Runner.run(
                agent, "go", max_turns=script.turns + 2, run_config=config, session=kept
            )

        return start

    return prepare


def describe():
    from agents import function_tool

    return lambda function: function_tool(function).params_json_schema


@asynccontextmanager
async def stored(folder: str):
    """Its `SQLiteSession` in a file, one session for each run."""
    from agents import SQLiteSession

    sessions = []

    def session():
        sessions.append(SQLiteSession(f"s{len(sessions)}", f"{folder}/sessions.db"))
        return sessions[-1]

    async def kept() -> int:
        return len(await sessions[-1].get_items())

    yield build(session), kept
    for one in sessions:
        one.close()


if __name__ == "__main__":
    loop_harness.main(build, describe, stored)
